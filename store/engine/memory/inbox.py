"""The inbox in memory: a delivered message costs no row, and no query decides whether another one fits."""

import sqlite3
from collections import deque
from functools import partial
from typing import Final

from aghbus.protocol.agh.envelope import OPENING_KINDS
from aghbus.store.engine import meta
from aghbus.store.engine.unit_of_work import UnitOfWork

_UNTOUCHED: Final = """
SELECT l.seq, v.kind, s.sender, length(l.raw), l.work_id
FROM log AS l CROSS JOIN verdicts AS v ON v.id = l.verdict CROSS JOIN flows AS s ON s.id = l.flow
WHERE l.seq > ? AND v.inbox = 1 AND l.seq NOT IN (SELECT seq FROM inbox) ORDER BY l.seq
"""
_TAKEN: Final = """
SELECT v.kind, s.sender, length(l.raw), l.work_id FROM inbox AS i CROSS JOIN log AS l ON l.seq = i.seq
CROSS JOIN verdicts AS v ON v.id = l.verdict CROSS JOIN flows AS s ON s.id = l.flow
WHERE i.state IN ('ready', 'leased')
"""
HELD: Final = "state = 'dead' AND last_error LIKE 'held: %'"
"""The messages that are held since a restore, in SQL."""


class Unread:
    """Messages that are ready or leased: their number, their bytes, both by sender, and the number by work."""

    __slots__ = ("count", "senders", "size", "works")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.senders: dict[str, tuple[int, int]] = {}
        self.works: dict[str, int] = {}

    def add(self, sender: str, messages: int, size: int, work_id: str | None) -> None:
        """So many messages of `sender` and the work, of `size` bytes together; negative: they are no longer unread."""
        before = self.senders.get(sender, (0, 0))
        self.senders[sender] = after = (before[0] + messages, before[1] + size)
        if not after[0]:
            del self.senders[sender]
        if work_id is not None:
            self.works[work_id] = of_work = self.works.get(work_id, 0) + messages
            if not of_work:
                del self.works[work_id]
        self.count += messages
        self.size += size


class InboxMemory:
    """The position of the inbox, the messages that no consumer has taken, in sequence, and what waits in it by sender.

    All untouched messages are after the position `seq`. A message that is taken out of order stays after it, and has a row
    in table `inbox`. `messages` are the unread messages of conversations, `reactions` the unread receipts and traces.
    `holding`: openings may be held since a restore.
    `changed_works` are the works whose counts the open transaction has changed, None for messages without one.
    """

    __slots__ = (
        "_out_of_order",
        "_untouched",
        "changed_works",
        "holding",
        "messages",
        "reactions",
        "seq",
    )

    def __init__(self) -> None:
        self.seq = 0
        self.messages = Unread()
        self.reactions = Unread()
        self.holding = False
        self.changed_works: set[str | None] = set()
        self._untouched: deque[int] = deque()  # those taken out of order included
        self._out_of_order: set[int] = set()

    @property
    def waiting(self) -> int:
        """How many messages are ready or leased."""
        return self.messages.count + self.reactions.count

    @property
    def oldest(self) -> int | None:
        """The oldest message that was not taken."""
        return self._untouched[0] if self._untouched else None

    def untouched(self) -> list[int]:
        """The messages that were not taken."""
        return [seq for seq in self._untouched if seq not in self._out_of_order]

    def is_untouched(self, seq: int) -> bool:
        """Whether no consumer has taken the delivered message `seq`."""
        return seq > self.seq and seq not in self._out_of_order

    def may_wait(self, seq: int) -> bool:
        """Whether message `seq` may be ready, leased or held: False without a query if only untouched ones wait."""
        return self.holding or self.is_untouched(seq) or self.waiting > len(self._untouched) - len(self._out_of_order)

    def has_any(self, work_id: str | None) -> bool:
        """Whether a message of the work, or without one any message, is ready or leased, or may be if the open transaction is
        rolled back."""
        if work_id is None:
            return self.waiting > 0 or bool(self.changed_works)
        return any(work_id in works for works in (self.messages.works, self.reactions.works, self.changed_works))

    def add(self, tx: UnitOfWork, seq: int, kind: str, sender: str, size: int, work_id: str | None) -> None:
        """Envelope `seq`, the latest, of `size` bytes, is delivered."""
        self._untouched.append(seq)
        (self.messages if kind in OPENING_KINDS else self.reactions).add(sender, 1, size, work_id)
        self.changed_works.add(work_id)
        tx.undo.extend((self._untouched.pop, partial(self._count, kind, sender, -1, -size, work_id)))

    def count(self, tx: UnitOfWork, kind: str, sender: str, messages: int, size: int, work_id: str | None) -> None:
        """So many messages of `sender` and the work wait from now on, of `size` bytes together; negative: no longer."""
        self._count(kind, sender, messages, size, work_id)
        tx.undo.append(partial(self._count, kind, sender, -messages, -size, work_id))

    def _count(self, kind: str, sender: str, messages: int, size: int, work_id: str | None) -> None:
        (self.messages if kind in OPENING_KINDS else self.reactions).add(sender, messages, size, work_id)
        self.changed_works.add(work_id)

    def take(self, tx: UnitOfWork, seq: int) -> bool:
        """Message `seq`, which was not taken, is. Returns whether the position has passed it."""
        if self._untouched[0] != seq:
            self._out_of_order.add(seq)
            tx.undo.append(partial(self._out_of_order.discard, seq))
            return False
        passed = [self._untouched.popleft()]
        while self._untouched and self._untouched[0] in self._out_of_order:
            passed.append(self._untouched.popleft())
        self._out_of_order.difference_update(passed)
        tx.undo.append(partial(self._restore, self.seq, passed))
        self.seq = passed[-1]
        return True

    def advance(self, tx: UnitOfWork, last_seq: int) -> bool:
        """Moves the position to just before the oldest message, or to `last_seq`. Returns whether it has moved."""
        end = self._end(last_seq)
        if end <= self.seq:
            return False
        tx.undo.append(partial(self._restore, self.seq, []))
        self.seq = end
        return True

    def load(self, db: sqlite3.Connection, last_seq: int) -> None:
        """Reads the position of a store that is being opened, and the messages after it, and moves the position as far as
        possible: the next opening searches less."""
        (self.seq,) = db.execute("SELECT value FROM meta WHERE key = 'inbox_position'").fetchone()
        for seq, kind, sender, size, work_id in db.execute(_UNTOUCHED, (self.seq,)):
            self._untouched.append(seq)
            self._count(kind, sender, 1, size, work_id)
        self.holding = bool(db.execute(f"SELECT EXISTS (SELECT 1 FROM inbox WHERE {HELD})").fetchone()[0])  # noqa: S608 - a constant
        for kind, sender, size, work_id in db.execute(_TAKEN):
            self._count(kind, sender, 1, size, work_id)
        self.changed_works.clear()
        if (end := self._end(last_seq)) > self.seq:
            self.seq = end
            meta.put(db, "inbox_position", end)

    def _end(self, last_seq: int) -> int:
        """The last sequence that the position may have."""
        return last_seq if self.oldest is None else self.oldest - 1

    def _restore(self, position: int, passed: list[int]) -> None:
        self.seq = position
        self._untouched.extendleft(reversed(passed))
        self._out_of_order.update(passed[1:])
