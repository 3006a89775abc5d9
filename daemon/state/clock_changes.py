"""Steps of the wall clock, under a running daemon and over a restart: due times in the store move with them.

Due times in the store (leases, retries, deadlines, delays) are wall times, because they must survive a restart. A step of the
wall clock shifts them by the same amount, in the first transaction that compares them with the new time. Retention and expiry use
a time that ignores forward steps for a day: a clock that is wrong for a while must not empty the store or the dedup window.

The store keeps a record of both clocks and of the ignored steps. A start on the same boot of the machine computes the step since
then exactly, because the steady clock ran on. A start after a reboot cannot tell a step from time during which the machine was
off: it does not shift due times, but ignores that time for a day too.
"""

import asyncio
import itertools
import logging
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import event
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.state.presence import PresenceTable
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import clock_record, time_shift
from aghbus.store.tables.clock_record import ClockChange, ClockRecord

_log = logging.getLogger("aghbus.clock")

STEP_MS: Final = 2_000  # time services slew differences below half a second, and step by more
_INTERVAL: Final = 1.0  # seconds between two checks
_RECORD_INTERVAL: Final = 60  # checks between two records of the clocks in the store
_IGNORE_FORWARD_MS: Final = 86_400_000  # for which retention and expiry ignore a step forward, by the steady clock
_REPORTED_MS: Final = 300_000  # an ignored step of this size is a problem; peers refuse messages of such a clock
_PROBLEM: Final = "clock.ahead"


class ClockChanges:
    """The steps of one daemon's wall clock. A job that compares a stored time with now calls `now_after_clock_check`."""

    def __init__(self, clock: Clock, store: Store, presence: PresenceTable, counters: Counters) -> None:
        self._clock = clock
        self._store = store
        self._presence = presence
        self._counters = counters
        self._offset = clock.offset_millis()
        self._boot = clock.boot()
        self._steps: list[ClockChange] = []  # of the last day

    async def resume(self) -> None:
        """Find the step since the last run: call it once, before anything compares a stored time. Raises StoreUnavailable."""
        record, last_ms = await clock_record.get(self._store.reader), await time_shift.last_ms(self._store.reader)
        if record is not None and self._boot and record.boot == self._boot:
            self._steps = record.steps
            step = self._offset - (record.wall_ms - record.steady_ms)
        else:
            step = self._resume_after_boot(record, last_ms)
        await self._store.write(lambda tx: self._apply(tx, step))
        self._presence.shift(0, self._clock.millis())
        self._report()

    async def run(self) -> None:
        """Check the clock every second until cancelled: presence has no job that would call `now_after_clock_check`."""
        for count in itertools.count(1):
            await asyncio.sleep(_INTERVAL)
            self._report()
            if count % _RECORD_INTERVAL == 0:
                self._store.write_deferred(self._record)
            if abs(self._clock.offset_millis() - self._offset) >= STEP_MS:
                try:
                    await self._store.write(self.now_after_clock_check)
                except StoreUnavailable:
                    self._counters.add("clock.shift_failed")  # the next check tries again

    def now_after_clock_check(self, tx: Transaction) -> int:
        """Shift the due times in the store if the clock was set since the last call; returns `now_millis`."""
        now_ms, before = self._clock.millis(), self._offset
        self._offset = offset = now_ms - self._clock.steady_millis()
        step = offset - before
        if abs(step) < STEP_MS:
            return now_ms
        tx.undo.append(lambda: self._restore(before))  # registered before anything that may raise
        self._apply(tx, step)
        return now_ms

    def now_millis(self) -> int:
        """Unix milliseconds on the clock of the times in the store: the wall clock less any step that is not yet applied.

        Due times are stored and compared in this time, because the wall clock may be set between two checks.
        """
        return self._clock.steady_millis() + self._offset

    def seconds_until(self, due_ms: int) -> float:
        """Seconds from now to a due time in the store; negative when it is past."""
        return (due_ms - self.now_millis()) / 1000

    def retention_now_ms(self) -> int:
        """Unix milliseconds, as if no forward step of the last day had happened: the time of retention and expiry."""
        now_ms = self._clock.millis()
        return min(now_ms, now_ms - sum(step.millis for step in self._recent()))

    def _recent(self) -> list[ClockChange]:
        since = self._clock.steady_millis() - _IGNORE_FORWARD_MS
        self._steps = [step for step in self._steps if step.steady_ms > since]
        return self._steps

    def _resume_after_boot(self, record: ClockRecord | None, last_ms: int) -> int:
        """The step back since the last run, or 0; a later time than the uptime explains is added to the ignored steps."""
        steady_ms, now_ms = self._clock.steady_millis(), self._clock.millis()
        if record is not None:  # as if no time had passed while the machine was off
            last_ms = max(last_ms, record.wall_ms)
            self._steps = [
                ClockChange(steady_ms - (record.steady_ms - step.steady_ms), step.millis, step.certain)
                for step in record.steps
            ]
        unexplained = now_ms - last_ms - steady_ms
        if last_ms and unexplained >= STEP_MS:
            self._steps = [*self._steps, ClockChange(steady_ms, unexplained, certain=False)]
        return min(0, now_ms - last_ms)

    def _apply(self, tx: Transaction, step: int) -> None:
        """Shift the due times by `step` if it is one, and record the clocks."""
        if abs(step) < STEP_MS:
            self._record(tx)
            return
        made = ClockChange(self._clock.steady_millis(), step, certain=True)
        time_shift.shift(tx, step)
        clock_record.put(tx, self._recorded([*self._recent(), made]))
        tx.after_commit(lambda: self._note(made))

    def _record(self, tx: Transaction) -> None:
        clock_record.put(tx, self._recorded(self._recent()))

    def _recorded(self, steps: list[ClockChange]) -> ClockRecord:
        steady_ms = self._clock.steady_millis()
        return ClockRecord(steady_ms + self._offset, steady_ms, self._boot, steps)

    def _report(self) -> None:
        """Show the ignored steps as a problem while they are ignored. After a reboot, less than a day is no problem."""
        steps = self._recent()
        ahead = sum(step.millis for step in steps if step.certain or step.millis >= _IGNORE_FORWARD_MS)
        if ahead < _REPORTED_MS:
            self._counters.solved(_PROBLEM)
            return
        left = max(step.steady_ms for step in steps) + _IGNORE_FORWARD_MS - self._clock.steady_millis()
        sentence = (
            f"the wall clock jumped forward by {ahead / 3_600_000:.1f} h: retention and the dedup window"
            f" ignore it for another {left / 3_600_000:.1f} h (set the clock if it is wrong)"
        )
        self._counters.problem(_PROBLEM, sentence, self._clock.monotonic())

    def _restore(self, offset: int) -> None:
        self._offset = offset

    def _note(self, made: ClockChange) -> None:
        step = made.millis
        self._steps = [*self._steps, made]
        self._presence.shift(step, self._clock.millis())
        self._counters.add("clock.steps")
        sentence = f"the clock was set {'forward' if step > 0 else 'back'} by {abs(step) / 1000:.0f} s"
        self._counters.problem("clock", sentence, self._clock.monotonic())
        self._report()
        event(
            _log, logging.WARNING, "the clock was set; pending due times were shifted by the same amount", step_ms=step
        )
