"""Notices that the capability catalog changed, without any dependency: looks at its files' signature now and then."""

import asyncio
from collections.abc import Callable
from typing import Final

from aghbus.daemon.state.catalog import Catalog, CatalogError, CatalogSource

POLL_INTERVAL: Final = 2.0
"""Seconds between two looks: soon enough for a person who saved a file, and nothing to measure in load."""

SETTLE_TIME: Final = 0.1
"""Seconds for which a changed signature must hold, so that a file being replaced is not taken for a removed one."""


class CatalogWatcher:
    """Keeps the catalog current. `load` first, then `run` as a task; `poke` and `follow` from the event loop's thread.

    A catalog that cannot be used is reported once for each change and leaves the one before in force.
    """

    def __init__(
        self,
        source: CatalogSource,
        on_change: Callable[[Catalog], None],
        on_problems: Callable[[CatalogError], None],
        *,
        interval: float = POLL_INTERVAL,
        settle: float = SETTLE_TIME,
    ) -> None:
        """`on_change` gets each new catalog, `on_problems` what is wrong with a changed one; intervals are seconds."""
        self._source = source
        self._on_change = on_change
        self._on_problems = on_problems
        self._interval = interval
        self._settle = settle
        self._seen: object = None
        self._poked = asyncio.Event()
        self.catalog = Catalog()

    def load(self) -> Catalog:
        """The first catalog; without calling back. Raises `CatalogError`, on which a daemon refuses to start."""
        self._seen = self._source.signature()  # before reading: a change while reading is then seen as one
        self.catalog = self._source.load()
        return self.catalog

    def poke(self) -> None:
        """Read the catalog again now, changed or not."""
        self._poked.set()

    def follow(self, source: CatalogSource) -> None:
        """Turn to another source, at once."""
        self._source = source
        self.poke()

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            asked = await self._pause()
            signature = await asyncio.to_thread(self._source.signature)
            if signature == self._seen and not asked:
                continue
            await asyncio.sleep(self._settle)
            if await asyncio.to_thread(self._source.signature) == signature:
                self._seen = signature
                await self._reload()

    async def _pause(self) -> bool:
        """Wait for the next look; True when somebody asked for it."""
        try:
            async with asyncio.timeout(self._interval):
                await self._poked.wait()
        except TimeoutError:
            return False
        self._poked.clear()
        return True

    async def _reload(self) -> None:
        try:
            catalog = await asyncio.to_thread(self._source.load)
        except CatalogError as error:
            self._on_problems(error)
            return
        if catalog != self.catalog:
            self.catalog = catalog
            self._on_change(catalog)
