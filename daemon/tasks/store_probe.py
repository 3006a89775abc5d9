"""Probing a store that cannot write, so that its recovery is noticed without any request, and a write-ahead log that grows."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final

from aghbus.daemon.base.logs import event
from aghbus.store.engine.database import Store

_log = logging.getLogger("aghbus.store")

_WAL_EVERY: Final = 10  # checks of the store for one of its write-ahead log
_INTERVAL: Final = 1.0  # seconds between two checks, and between two probes of a failed store


class StoreProbe:
    """Tries a failed store with a real write until one succeeds.

    `on_recovered` is called when the store can write again after deferred writes were lost. They are redone: publishing again
    is harmless, because receivers deduplicate.
    """

    def __init__(self, store: Store, on_recovered: Callable[[], None]) -> None:
        self._store = store
        self._on_recovered = on_recovered
        self._lost = 0

    async def run(self) -> None:
        """Probe until cancelled."""
        for number in itertools.count(1):
            await asyncio.sleep(_INTERVAL)
            if number % _WAL_EVERY == 0:
                await self._store.check_wal()
            if not self._store.writable and not await self._store.probe():
                continue
            lost = self._store.deferred_lost
            if lost != self._lost:
                event(
                    _log,
                    logging.INFO,
                    "the store writes again; lost deferred writes are redone",
                    count=lost - self._lost,
                )
                self._lost = lost
                self._on_recovered()
