"""Noticing that a store which could not write does so again, without waiting for somebody to ask for something."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aghbus.daemon.state.context import Core

_log = logging.getLogger("aghbus.store")

_INTERVAL: Final = 1.0  # seconds between two looks, and between two tries of a store that failed


class StoreWatch:
    """Tries a failed store with a real write until it takes it. `on_well` is called each time after writes behind were lost:
    what they would have noted has to be had again (publishing again is harmless, receivers deduplicate)."""

    def __init__(self, core: Core, on_well: Callable[[], None]) -> None:
        self._core = core
        self._on_well = on_well
        self._lost = 0

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL)
            store = self._core.store
            if not store.writable and not await store.probe():
                continue
            lost = self._core.counters["store.behind_lost"]
            if lost != self._lost:
                _log.info("what could not be noted is done again notes=%d", lost - self._lost)
                self._lost = lost
                self._on_well()
