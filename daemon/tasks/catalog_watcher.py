"""Watching the capability catalog: polls a signature of its files, and reloads it on a change."""

import asyncio
from collections.abc import Callable
from typing import Final

from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.state.catalog import Catalog, CatalogError, CatalogSource

POLL_INTERVAL: Final = 2.0
"""Seconds between two polls: soon enough for a person who saved a file, and no measurable load."""

SETTLE_TIME: Final = 0.1
"""Seconds for which a changed signature must hold, so that a file being replaced does not count as removed."""


class CatalogWatcher:
    """Keeps the catalog current. `load` first, then `run` as a task; `poke` and `follow` from the event loop's thread.

    An invalid catalog is reported once for each change; the previous one stays active.
    """

    def __init__(
        self,
        source: CatalogSource,
        on_change: Callable[[Catalog], None],
        on_problems: Callable[[CatalogError], None],
        *,
        interval: float = POLL_INTERVAL,
        settle_time: float = SETTLE_TIME,
    ) -> None:
        """`on_change` gets each new catalog, `on_problems` the error of an invalid one; intervals are in seconds."""
        self._source = source
        self._on_change = on_change
        self._on_problems = on_problems
        self._interval = interval
        self._settle_time = settle_time
        self._seen: object = None
        self._poked = asyncio.Event()
        self.catalog = Catalog()

    def load(self) -> Catalog:
        """Load the first catalog, without a callback. Raises `CatalogError`; a daemon then refuses to start."""
        self._seen = self._source.signature()  # before reading, so that a change during the read is detected
        self.catalog = self._source.load()
        return self.catalog

    def poke(self) -> None:
        """Reload the catalog now, changed or not."""
        self._poked.set()

    def follow(self, source: CatalogSource) -> None:
        """Switch to another source, and load it."""
        self._source = source
        self.poke()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await wait_set(self._poked, self._interval)
            asked = self._poked.is_set()
            self._poked.clear()
            signature = await asyncio.to_thread(self._source.signature)
            if signature == self._seen and not asked:
                continue
            await asyncio.sleep(self._settle_time)
            if await asyncio.to_thread(self._source.signature) == signature:
                self._seen = signature
                await self._reload()

    async def _reload(self) -> None:
        try:
            catalog = await asyncio.to_thread(self._source.load)
        except CatalogError as error:
            self._on_problems(error)
            return
        if catalog != self.catalog:
            self.catalog = catalog
            self._on_change(catalog)
