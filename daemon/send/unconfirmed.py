"""Messages that the carrier was given, and of which the broker has not said yet that it has them.

What was published at once is confirmed by a PONG, or by an answer of its receiver: most answers are earlier, and no PONG is asked
for. What is carried in a batch is confirmed with it.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.metrics import Counters
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.outbox import Outgoing

_CONFIRM_AFTER: Final = 0.02  # seconds in which most receivers acknowledge a message, and no PONG has to confirm it
_NOBODY: Final[frozenset[int]] = frozenset()


class Unconfirmed:
    """The unconfirmed messages of one publisher, by sequence. In memory only: the store has them as queued."""

    def __init__(self, counters: Counters, confirm: Callable[[], None]) -> None:
        """`confirm` is called when a PONG has to confirm some of them."""
        self._counters = counters
        self._confirm = confirm
        self._timer: asyncio.TimerHandle | None = None
        self.handed: dict[int, Outgoing] = {}  # published at once
        self._answering: set[int] = set()  # of these, those whose answer waits for its job
        self._carried: dict[int, Outgoing] = {}  # in a batch
        self._unsubscribed: set[int] = set()  # of both, those that the broker had nobody to pass on to

    def find(self, seq: int) -> Outgoing | None:
        """Message `seq`, if it is on its way."""
        return self.handed.get(seq) or self._carried.get(seq)

    def no_subscriber(self, seq: int) -> None:
        """The broker had nobody to pass on message `seq` to, which is on its way."""
        self._unsubscribed.add(seq)

    def reconnected(self) -> None:
        """The link is up again: what was handed over before may be lost."""
        self.forget_handed()
        self._unsubscribed.clear()

    # at once

    def hand(self, row: Outgoing) -> None:
        """`row` was published at once."""
        self.handed[row.seq] = row
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_CONFIRM_AFTER, self._confirm)

    def without_answer(self) -> list[int]:
        """What was handed over until now, and a PONG has to confirm."""
        return [seq for seq in self.handed if seq not in self._answering]

    def confirmed(self, seqs: list[int]) -> tuple[list[Outgoing], frozenset[int]]:
        """A PONG has confirmed these: the messages that were not answered meanwhile, and which of them had no subscriber."""
        rows = [row for seq in seqs if (row := self.handed.pop(seq, None)) is not None]
        return rows, self._take_unsubscribed(seqs) if rows else _NOBODY

    def forget_handed(self) -> None:
        """No PONG has come: what was handed over is published again."""
        self._take_unsubscribed(self.handed)
        self.handed.clear()
        self._answering.clear()

    def stop_timer(self) -> None:
        """Nothing is left to confirm, or it is being confirmed."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # in a batch

    def carry(self, rows: Mapping[int, Outgoing]) -> None:
        """These go out in a batch."""
        self._carried |= rows

    def carried(self, seqs: Iterable[int]) -> frozenset[int]:
        """The batch of these has ended. Returns which of them had no subscriber."""
        for seq in seqs:
            self._carried.pop(seq, None)
        return self._take_unsubscribed(seqs)

    def _take_unsubscribed(self, seqs: Iterable[int]) -> frozenset[int]:
        """Which of these messages, no longer on their way, the broker had nobody to pass on to."""
        if not self._unsubscribed:
            return _NOBODY
        found = self._unsubscribed.intersection(seqs)
        self._unsubscribed -= found
        return frozenset(found)

    # answers

    def answers_wait(self, seqs: Iterable[int]) -> None:
        """Answers to these messages wait for the job that checks them: until then no PONG has to confirm the messages."""
        self._answering.update(seq for seq in seqs if seq in self.handed)

    def answered(self, tx: Transaction, seqs: list[int]) -> None:
        """The receivers of these messages have them, and so has the broker: no PONG has to confirm them."""
        if self.handed:
            if ARMED:
                failpoint("publish.confirmed")
            tx.after_commit(partial(self._note_answered, seqs))

    def _note_answered(self, seqs: list[int]) -> None:
        published = sum([self.handed.pop(seq, None) is not None for seq in seqs])
        self._counters.add("outbox.published", published)
        self._answering.difference_update(seqs)
        if self._unsubscribed:
            self._unsubscribed.difference_update(seqs)
        if not self.handed:
            self.stop_timer()

    def answers_judged(self, seqs: Iterable[int]) -> None:
        """The job that checks these answers has ended: a PONG has to confirm the messages to which they were no answers."""
        if left := self._answering.intersection(seqs):
            self._answering -= left
            self._confirm()
