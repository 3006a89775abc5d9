"""Steps of the wall clock, under a running daemon and over a restart: due times in the store move with them.

Due times in the store (leases, retries, deadlines, delays) are wall times, because they must survive a restart. A change of the
wall clock shifts them by the same amount, in the first transaction that compares them with the new time. Retention and expiry use
a time that ignores forward changes for a day: a clock that is wrong for a while must not empty the store or the dedup window.

The store keeps a record of both clocks and of the ignored changes. A start on the same boot of the machine computes the change
since then exactly, because the steady clock ran on. A start after a reboot cannot tell a change from time during which the
machine was off: it does not shift due times, but ignores that time for a day too.
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

STEP_MS: Final = 2_000  # time services slew differences below half a second, and change by more
_INTERVAL: Final = 1.0  # seconds between two checks
_RECORD_INTERVAL: Final = 60  # checks between two records of the clocks in the store
_IGNORE_FORWARD_MS: Final = 86_400_000  # for which retention and expiry ignore a change forward, by the steady clock
_REPORTED_MS: Final = 300_000  # an ignored change of this size is a problem; peers refuse messages of such a clock
_PROBLEM: Final = "clock.ahead"


class ClockChanges:
    """The changes of one daemon's wall clock. A job that compares a stored time with now calls `now_after_clock_check`."""

    def __init__(self, clock: Clock, store: Store, presence: PresenceTable, counters: Counters) -> None:
        self._clock = clock
        self._store = store
        self._presence = presence
        self._counters = counters
        self._offset = clock.offset_millis()
        self._boot = clock.boot()
        self._changes: list[ClockChange] = []  # of the last day

    async def resume(self) -> None:
        """Find the change since the last run: call it once, before anything compares a stored time. Raises StoreUnavailable."""
        record, last_ms = await clock_record.get(self._store.reader), await time_shift.last_ms(self._store.reader)
        if record is not None and self._boot and record.boot == self._boot:
            self._changes = record.changes
            change = self._offset - (record.wall_ms - record.steady_ms)
        else:
            change = self._resume_after_boot(record, last_ms)
        await self._store.write(lambda tx: self._apply(tx, change))
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
        change = offset - before
        if abs(change) < STEP_MS:
            return now_ms
        tx.undo.append(lambda: self._restore(before))  # registered before anything that may raise
        self._apply(tx, change)
        return now_ms

    def now_millis(self) -> int:
        """Unix milliseconds on the clock of the times in the store: the wall clock less any change that is not yet applied.

        Due times are stored and compared in this time, because the wall clock may be set between two checks.
        """
        return self._clock.steady_millis() + self._offset

    def seconds_until(self, due_ms: int) -> float:
        """Seconds from now to a due time in the store; negative when it is past."""
        return (due_ms - self.now_millis()) / 1000

    def retention_now_ms(self) -> int:
        """Unix milliseconds, as if no forward change of the last day had happened: the time of retention and expiry."""
        now_ms = self._clock.millis()
        return min(now_ms, now_ms - sum(change.millis for change in self._recent()))

    def _recent(self) -> list[ClockChange]:
        since = self._clock.steady_millis() - _IGNORE_FORWARD_MS
        self._changes = [change for change in self._changes if change.steady_ms > since]
        return self._changes

    def _resume_after_boot(self, record: ClockRecord | None, last_ms: int) -> int:
        """The change back since the last run, or 0; a later time than the uptime explains is added to the ignored changes."""
        steady_ms, now_ms = self._clock.steady_millis(), self._clock.millis()
        if record is not None:  # as if no time had passed while the machine was off
            last_ms = max(last_ms, record.wall_ms)
            self._changes = [
                ClockChange(steady_ms - (record.steady_ms - change.steady_ms), change.millis, change.certain)
                for change in record.changes
            ]
        unexplained = now_ms - last_ms - steady_ms
        if last_ms and unexplained >= STEP_MS:
            self._changes = [*self._changes, ClockChange(steady_ms, unexplained, certain=False)]
        return min(0, now_ms - last_ms)

    def _apply(self, tx: Transaction, change: int) -> None:
        """Shift the due times by `change` if it is one, and record the clocks."""
        if abs(change) < STEP_MS:
            self._record(tx)
            return
        made = ClockChange(self._clock.steady_millis(), change, certain=True)
        time_shift.shift(tx, change)
        clock_record.put(tx, self._recorded([*self._recent(), made]))
        tx.after_commit(lambda: self._note(made))

    def _record(self, tx: Transaction) -> None:
        clock_record.put(tx, self._recorded(self._recent()))

    def _recorded(self, changes: list[ClockChange]) -> ClockRecord:
        steady_ms = self._clock.steady_millis()
        return ClockRecord(steady_ms + self._offset, steady_ms, self._boot, changes)

    def _report(self) -> None:
        """Show the ignored changes as a problem while they are ignored. After a reboot, less than a day is no problem."""
        changes = self._recent()
        ahead = sum(change.millis for change in changes if change.certain or change.millis >= _IGNORE_FORWARD_MS)
        if ahead < _REPORTED_MS:
            self._counters.solved(_PROBLEM)
            return
        left = max(change.steady_ms for change in changes) + _IGNORE_FORWARD_MS - self._clock.steady_millis()
        sentence = (
            f"the wall clock jumped forward by {ahead / 3_600_000:.1f} h: retention and the dedup window"
            f" ignore it for another {left / 3_600_000:.1f} h (set the clock if it is wrong)"
        )
        self._counters.problem(_PROBLEM, sentence, self._clock.monotonic())

    def _restore(self, offset: int) -> None:
        self._offset = offset

    def _note(self, made: ClockChange) -> None:
        change = made.millis
        self._changes = [*self._changes, made]
        self._presence.shift(change, self._clock.millis())
        self._counters.add("clock.changes")
        sentence = f"the clock was set {'forward' if change > 0 else 'back'} by {abs(change) / 1000:.0f} s"
        self._counters.problem("clock", sentence, self._clock.monotonic())
        self._report()
        event(
            _log,
            logging.WARNING,
            "the clock was set; pending due times were shifted by the same amount",
            step_ms=change,
        )
