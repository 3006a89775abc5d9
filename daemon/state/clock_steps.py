"""When the wall clock is set under a running daemon: what waits goes on waiting as long as it would have.

Times that the store waits for (leases, retries, deadlines, delays) are wall times, because they must survive a restart. A step of
the wall clock moves them along, in the transaction that first looks at them after it, so that hours forward do not end
every lease and work at once, and hours back do not hold them for hours. What is removed for good, by age or expiry, is judged by a
time that ignores steps forward for a day: a clock that is wrong for a while must not empty the store or the dedup window.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import time_shift as waits

if TYPE_CHECKING:
    from aghbus.daemon.state.context import Core

_log = logging.getLogger("aghbus.clock")

STEP_MS: Final = 2_000  # ours: time services slew differences below half a second, and step by more
_INTERVAL: Final = 1.0  # seconds between two looks
_DOUBT: Final = 86_400.0  # seconds that a step forward is not believed for what cannot be undone


class ClockSteps:
    """The steps of one daemon's wall clock. `settle` is part of every job that compares a stored time with now."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        self._offset = core.clock.offset_millis()
        self._steps: list[tuple[float, int]] = []

    async def run(self) -> None:
        """Look from time to time, until cancelled: presence has no job of its own."""
        await self._since_the_last_run()
        while True:
            await asyncio.sleep(_INTERVAL)
            if abs(self._core.clock.offset_millis() - self._offset) >= STEP_MS:
                try:
                    await self._core.store.write(self.settle)
                except StoreUnavailable:
                    self._core.counters.add("clock.unsettled")  # the next look tries again

    def settle(self, tx: Transaction) -> int:
        """Moves what waits, if the clock was set since the last time; `now_millis` after that."""
        offset, before = self._core.clock.offset_millis(), self._offset
        step = offset - before
        self._offset = offset
        if abs(step) < STEP_MS:
            return self.now_millis()
        tx.after_rollback(lambda: self._restore(before))  # before anything that may raise
        waits.shift(tx, step)
        tx.after_commit(lambda: self._note(step))
        return self.now_millis()

    def now_millis(self) -> int:
        """Now, in Unix milliseconds of the clock that the times in the store are of: the wall clock but for a step not yet settled.

        What is compared with such a time, and what is stored to wait for, goes by this: the clock may be set between two looks.
        """
        return self._core.clock.steady_millis() + self._offset

    def seconds_until(self, due_ms: int) -> float:
        """From now to a time in the store, negative when it is past."""
        return (due_ms - self.now_millis()) / 1000

    def prudent_millis(self) -> int:
        """Now, in Unix milliseconds, as if no step forward of the last day had happened."""
        now, now_ms = self._core.clock.monotonic(), self._core.clock.millis()
        self._steps = [(at, step) for at, step in self._steps if now - at < _DOUBT]
        return min(now_ms, now_ms - sum(step for _, step in self._steps))

    async def _since_the_last_run(self) -> None:
        """A clock that is now behind what the store has seen was set back while nobody looked."""
        last_ms = await waits.last_ms(self._core.store.reader)
        step = self._core.clock.millis() - last_ms
        if step <= -STEP_MS:
            await self._core.store.write(lambda tx: waits.shift(tx, step))
            self._note(step)
        self._core.roster.shift(0, self._core.clock.millis())

    def _restore(self, offset: int) -> None:
        self._offset = offset

    def _note(self, step: int) -> None:
        core = self._core
        self._steps.append((core.clock.monotonic(), step))
        core.roster.shift(step, core.clock.millis())
        core.counters.add("clock.steps")
        sentence = f"the clock was set {'forward' if step > 0 else 'back'} by {abs(step) / 1000:.0f} s"
        core.counters.problem("clock", sentence, core.clock.monotonic())
        _log.warning("%s; what waits goes on waiting as long as it would have", sentence)
