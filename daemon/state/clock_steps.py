"""Steps of the wall clock under a running daemon: stored due times move with them, so that waits keep their length.

Due times in the store (leases, retries, deadlines, delays) are wall times, because they must survive a restart. A step of the
wall clock shifts them by the same amount, in the first transaction that compares them with the new time. Retention and expiry use
a time that ignores forward steps for a day: a clock that is wrong for a while must not empty the store or the dedup window.
"""

import asyncio
import logging
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.state.presence import PresenceTable
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import time_shift

_log = logging.getLogger("aghbus.clock")

STEP_MS: Final = 2_000  # ours: time services slew differences below half a second, and step by more
_INTERVAL: Final = 1.0  # seconds between two checks
_DISTRUST: Final = 86_400.0  # seconds for which retention and expiry ignore a step forward


class ClockSteps:
    """The steps of one daemon's wall clock. Every job that compares a stored time with the current time calls `settle`."""

    def __init__(self, clock: Clock, store: Store, presence: PresenceTable, counters: Counters) -> None:
        self._clock = clock
        self._store = store
        self._presence = presence
        self._counters = counters
        self._offset = clock.offset_millis()
        self._steps: list[tuple[float, int]] = []  # of the last day: monotonic second, milliseconds

    async def run(self) -> None:
        """Check the clock every second until cancelled: presence has no job that would call `settle`."""
        await self._settle_since_last_run()
        while True:
            await asyncio.sleep(_INTERVAL)
            if abs(self._clock.offset_millis() - self._offset) >= STEP_MS:
                try:
                    await self._store.write(self.settle)
                except StoreUnavailable:
                    self._counters.add("clock.unsettled")  # the next check tries again

    def settle(self, tx: Transaction) -> int:
        """Shift the due times in the store if the clock was set since the last call; returns `now_millis`."""
        now_ms, before = self._clock.millis(), self._offset
        self._offset = offset = now_ms - self._clock.steady_millis()
        step = offset - before
        if abs(step) < STEP_MS:
            return now_ms
        tx.after_rollback(lambda: self._restore(before))  # registered before anything that may raise
        time_shift.shift(tx, step)
        tx.after_commit(lambda: self._note(step))
        return now_ms

    def now_millis(self) -> int:
        """Unix milliseconds on the clock of the times in the store: the wall clock less any step that is not yet settled.

        Due times are stored and compared in this time, because the wall clock may be set between two checks.
        """
        return self._clock.steady_millis() + self._offset

    def seconds_until(self, due_ms: int) -> float:
        """Seconds from now to a due time in the store; negative when it is past."""
        return (due_ms - self.now_millis()) / 1000

    def prudent_millis(self) -> int:
        """Unix milliseconds, as if no forward step of the last day had happened: the time of retention and expiry."""
        now, now_ms = self._clock.monotonic(), self._clock.millis()
        self._steps = [(at, step) for at, step in self._steps if now - at < _DISTRUST]
        return min(now_ms, now_ms - sum(step for _, step in self._steps))

    async def _settle_since_last_run(self) -> None:
        """Shift the due times if the clock is earlier than the latest time in the store: it was set back while we were down."""
        last_ms = await time_shift.last_ms(self._store.reader)
        step = self._clock.millis() - last_ms
        if step <= -STEP_MS:
            await self._store.write(lambda tx: time_shift.shift(tx, step))
            self._note(step)
        self._presence.shift(0, self._clock.millis())

    def _restore(self, offset: int) -> None:
        self._offset = offset

    def _note(self, step: int) -> None:
        self._steps.append((self._clock.monotonic(), step))
        self._presence.shift(step, self._clock.millis())
        self._counters.add("clock.steps")
        sentence = f"the clock was set {'forward' if step > 0 else 'back'} by {abs(step) / 1000:.0f} s"
        self._counters.problem("clock", sentence, self._clock.monotonic())
        _log.warning("%s; pending due times were shifted by the same amount", sentence)
