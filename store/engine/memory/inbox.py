"""The inbox in memory: a delivered message costs no row, and no query decides whether another one fits."""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from aghbus.protocol.agh.envelope import OPENING_KINDS
from aghbus.store.engine import meta
from aghbus.store.engine.unit_of_work import UnitOfWork

_UNTOUCHED: Final = """
SELECT l.seq, v.kind, length(l.raw), s.channel, s.sender, s.container, l.work_id
FROM log AS l CROSS JOIN verdicts AS v ON v.id = l.verdict CROSS JOIN flows AS s ON s.id = l.flow
WHERE l.seq > ? AND v.inbox = 1 AND l.seq NOT IN (SELECT seq FROM inbox) ORDER BY l.seq
"""
_TAKEN: Final = """
SELECT i.lease, v.outcome, l.seq, v.kind, length(l.raw), s.channel, s.sender, s.container, l.work_id
FROM inbox AS i CROSS JOIN log AS l ON l.seq = i.seq
CROSS JOIN verdicts AS v ON v.id = l.verdict CROSS JOIN flows AS s ON s.id = l.flow
WHERE i.state IN ('ready', 'leased')
"""
HELD: Final = "state = 'dead' AND attempts = 0 AND last_error LIKE 'held: %'"
"""The messages that are held since a restore, in SQL."""


Group = tuple[str, str, str | None, str | None]
"""What is handed out in order: the messages of one sender in one work, or outside of works in one container. Channel, sender,
container, work."""


class Taken(NamedTuple):
    """A message that was leased, and is not settled. Later messages of its group wait for it while its work is in the state
    `until` (None: in any)."""

    lease: str | None
    until: str | None


_NONE: Final[Mapping[int, Taken]] = {}


def waits_until(kind: str, outcome: str | None) -> str | None:
    """`Taken.until`: the agent has an opening once it accepts the work, and a question once it answers."""
    return "submitted" if outcome == "opened" else "needs_input" if kind == "trace" else None


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
    `held_back` are the groups of which a consumer has found a message and did not get it. `on_release` is called after the
    commit that may let it have one, `on_dead` after the commit that makes a message dead because of its attempts, or its damage.
    """

    __slots__ = (
        "_out_of_order",
        "_taken",
        "_untouched",
        "_waiting",
        "changed_works",
        "held_back",
        "holding",
        "messages",
        "on_dead",
        "on_release",
        "reactions",
        "seq",
    )

    def __init__(self) -> None:
        self.seq = 0
        self.messages = Unread()
        self.reactions = Unread()
        self.holding = False
        self.changed_works: set[str | None] = set()
        self.held_back: set[Group] = set()
        self.on_release: Callable[[], object] = _nothing
        self.on_dead: Callable[[int], object] = _nothing
        self._untouched: deque[int] = deque()  # those taken out of order included
        self._out_of_order: set[int] = set()
        self._waiting: dict[int, tuple[str, int, Group]] = {}  # kind, size and group of each unread message
        self._taken: dict[Group, dict[int, Taken]] = {}

    @property
    def waiting(self) -> int:
        """How many messages are ready or leased."""
        return self.messages.count + self.reactions.count

    def waiting_through(self, seq: int) -> int:
        """`waiting` without the messages after sequence `seq`: those of a transaction that is not committed."""
        later = takewhile(lambda each: each > seq, reversed(self._untouched))
        return self.waiting - sum(each in self._waiting for each in later)

    @property
    def oldest(self) -> int | None:
        """The oldest message that was not taken."""
        return self._untouched[0] if self._untouched else None

    def untouched(self) -> list[int]:
        """The messages that were not taken."""
        return [*self.oldest_first()]

    def oldest_first(self) -> Iterator[int]:
        """The messages that were not taken, while none is."""
        return (seq for seq in self._untouched if seq not in self._out_of_order)

    def group(self, seq: int) -> Group:
        """The group of an unread message."""
        return self._waiting[seq][2]

    def taken(self, group: Group) -> Mapping[int, Taken]:
        """The messages of a group that were leased and are not settled, by sequence."""
        return self._taken.get(group, _NONE)

    def leases(self) -> list[tuple[int, str]]:
        """The messages that are leased, or were when their lease ended, with its token."""
        taken = (each for of_group in self._taken.values() for each in of_group.items())
        return [(seq, each.lease) for seq, each in taken if each.lease is not None]

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

    def add(self, tx: UnitOfWork, seq: int, kind: str, size: int, group: Group) -> None:
        """Envelope `seq`, the latest, of `size` bytes, is delivered."""
        self._untouched.append(seq)
        self._waiting[seq] = (kind, size, group)
        (self.messages if kind in OPENING_KINDS else self.reactions).add(group[1], 1, size, group[3])
        self.changed_works.add(group[3])
        undo = self._untouched.pop, partial(self._waiting.pop, seq), partial(self._count, kind, group, -1, -size)
        tx.undo.extend(undo)

    def enter(self, tx: UnitOfWork, seq: int, kind: str, size: int, group: Group) -> None:
        """Message `seq` of `size` bytes, which did not wait, does."""
        self._waiting[seq] = (kind, size, group)
        self._count(kind, group, 1, size)
        tx.undo.extend((partial(self._waiting.pop, seq), partial(self._count, kind, group, -1, -size)))

    def leave(self, tx: UnitOfWork, seq: int) -> None:
        """Message `seq` waits no longer, and no other one waits for it."""
        kind, size, group = waiting = self._waiting.pop(seq)
        self._count(kind, group, -1, -size)
        tx.undo.append(partial(self._waiting.__setitem__, seq, waiting))
        tx.undo.append(partial(self._count, kind, group, 1, size))
        if (before := self.taken(group).get(seq)) is not None:
            self._put(group, seq, None)
            tx.undo.append(partial(self._put, group, seq, before))
            self.may_release(tx)

    def _count(self, kind: str, group: Group, messages: int, size: int) -> None:
        (self.messages if kind in OPENING_KINDS else self.reactions).add(group[1], messages, size, group[3])
        self.changed_works.add(group[3])

    def lease(self, tx: UnitOfWork, seq: int, taken: Taken) -> None:
        """Message `seq`, which waits, is leased, or was returned: later ones of its group wait for it."""
        group = self.group(seq)
        tx.undo.append(partial(self._put, group, seq, self.taken(group).get(seq)))
        self._put(group, seq, taken)

    def _put(self, group: Group, seq: int, taken: Taken | None) -> None:
        if taken is not None:
            self._taken.setdefault(group, {})[seq] = taken
        elif (of_group := self._taken.get(group)) is not None:
            of_group.pop(seq, None)
            if not of_group:
                del self._taken[group]

    def may_release(self, tx: UnitOfWork) -> None:
        """A group may have a message again for those who found it held back."""
        if self.held_back:
            tx.after_commit(self._release)

    def _release(self) -> None:
        self.held_back.clear()
        self.on_release()

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
        for seq, kind, size, *group in db.execute(_UNTOUCHED, (self.seq,)):
            self._untouched.append(seq)
            self._load(seq, kind, size, tuple(group))
        self.holding = bool(db.execute(f"SELECT EXISTS (SELECT 1 FROM inbox WHERE {HELD})").fetchone()[0])  # noqa: S608 - a constant
        for lease, outcome, seq, kind, size, *group in db.execute(_TAKEN):
            self._load(seq, kind, size, tuple(group))
            self._put(self.group(seq), seq, Taken(lease, waits_until(kind, outcome)))
        self.changed_works.clear()
        if (end := self._end(last_seq)) > self.seq:
            self.seq = end
            meta.put(db, "inbox_position", end)

    def _load(self, seq: int, kind: str, size: int, group: Group) -> None:
        self._waiting[seq] = (kind, size, group)
        self._count(kind, group, 1, size)

    def _end(self, last_seq: int) -> int:
        """The last sequence that the position may have."""
        return last_seq if self.oldest is None else self.oldest - 1

    def _restore(self, position: int, passed: list[int]) -> None:
        self.seq = position
        self._untouched.extendleft(reversed(passed))
        self._out_of_order.update(passed[1:])


def _nothing(*_: object) -> None:
    pass
