"""Rows that write jobs have appended and that SQLite does not have yet: they are written together, many to a statement.

What every message appends (its envelope, its id, its place in the inbox or the outbox, the activity of its thread, its rows of the
audit log) is never changed by what the next message needs to know, so it can wait for the end of the transaction. There it is
written in few statements, each of which keeps the interpreter lock only while its values are bound: that is what a thread beside a
busy event loop can do (docs/adr/0002-writer-on-the-loop.md).

Blobs are bytearrays: for those sqlite3 looks for no adapter, which takes longer than to copy them (store/engine/database.py).
"""

import sqlite3
from collections.abc import Iterable
from typing import Any, Final

_SIZES: Final = (64, 16, 4, 1)  # rows of one statement: each size is a statement that SQLite keeps compiled


class Many:
    """A statement over many rows of `width` values, which it has between `head` and `tail`."""

    def __init__(self, width: int, head: str, tail: str = "") -> None:
        row = f"({', '.join('?' * width)})"
        self.width: Final = width
        self._statements = [(size, f"{head} VALUES {', '.join([row] * size)} {tail}") for size in _SIZES]

    def write(self, db: sqlite3.Connection, values: list[Any]) -> None:
        """Writes rows whose values follow each other in `values`."""
        at = 0
        for size, sql in self._statements:
            step = size * self.width
            while len(values) - at >= step:
                db.execute(sql, values[at : at + step])
                at += step


def _insert(into: str, width: int, conflict: str = "") -> Many:
    return Many(width, f"INSERT INTO {into}", conflict)


_ENVELOPES: Final = _insert(
    "envelopes (seq, direction, workspace_id, channel, kind, msg_id, sender, recipient, surface, container, pair_a, pair_b,"
    " work_id, trust, event, outcome, reason, state_before, state_after, received_ms, raw)",
    21,
)
# Of most messages half of that is NULL: what needs not be bound is not.
_PLAIN: Final = _insert(
    "envelopes (seq, direction, workspace_id, channel, kind, msg_id, sender, recipient, surface, container, trust, received_ms,"
    " raw)",
    13,
)
# Available since ever: a clock that steps back must not hide it.
_INBOX: Final = _insert("inbox (state, attempts, available_ms, seq)", 4)
_TAKEN: Final = _insert("inbox (state, attempts, available_ms, seq, lease, lease_until_ms)", 6)
_OUTBOX: Final = _insert("outbox (state, attempts, seq, expires_at, subject)", 5)
_PUBLISHED: Final = Many(
    3,
    "WITH now (at_ms, next_ms, seq) AS (",
    ") UPDATE outbox SET state = 'published', attempts = attempts + 1, published_ms = now.at_ms, next_ms = now.next_ms"
    " FROM now WHERE outbox.seq = now.seq AND outbox.state IN ('queued', 'published')",
)
_ANSWERED: Final = Many(
    2,
    "WITH now (detail, seq) AS (",
    ") UPDATE outbox SET state = 'receipted', detail = now.detail, next_ms = NULL"
    " FROM now WHERE outbox.seq = now.seq AND outbox.state <> 'receipted'",
)
_SEEN: Final = _insert("seen (slot, key)", 2)
_AUDIT: Final = _insert("audit (n, line, hash)", 3)
_THREADS: Final = _insert(
    "threads (workspace_id, channel, thread_id, messages, first_ms, last_ms, last_seq)",
    7,
    "ON CONFLICT DO UPDATE SET messages = messages + excluded.messages, last_ms = excluded.last_ms,"
    " last_seq = excluded.last_seq",
)
_ROOM: Final = """
UPDATE rooms SET messages = messages + ?, last_ms = ?, last_seq = ?
WHERE workspace_id = ? AND channel = ? AND direct_id = ? AND pair_a = ? AND pair_b = ?
"""
_META: Final = "UPDATE meta SET value = ? WHERE key = ?"


Position = tuple[int, ...]
"""How much of everything was waiting, list by list."""

Touch = tuple[tuple[str, ...], int, int]
"""A message in a thread, or in the room of a pair: the key of its row, when it was, in Unix milliseconds, and its sequence."""


class Rows:
    """Rows that wait, by table, as flat lists of values. `waiting` is whether there are any; who appends says so."""

    __slots__ = (
        "_flat",
        "_lists",
        "_meta",
        "answered",
        "audit",
        "envelopes",
        "inbox",
        "outbox",
        "plain",
        "published",
        "rooms",
        "seen",
        "taken",
        "threads",
        "waiting",
    )

    def __init__(self) -> None:
        self.waiting = False
        self.envelopes: list[Any] = []
        self.plain: list[Any] = []  # envelopes of no work and in no direct room
        self.inbox: list[Any] = []
        self.taken: list[Any] = []  # messages of the inbox that an agent has already
        self.outbox: list[Any] = []
        self.published: list[Any] = []  # changes of rows of the outbox
        self.answered: list[Any] = []  # the same, after those
        self.seen: list[Any] = []
        self.audit: list[Any] = []
        self.threads: list[Touch] = []
        self.rooms: list[Touch] = []
        self._meta: dict[str, str] = {}
        self._flat: Final = (  # in the order in which they are written
            (_ENVELOPES, self.envelopes),
            (_PLAIN, self.plain),
            (_INBOX, self.inbox),
            (_TAKEN, self.taken),
            (_OUTBOX, self.outbox),
            (_PUBLISHED, self.published),
            (_ANSWERED, self.answered),
            (_SEEN, self.seen),
            (_AUDIT, self.audit),
        )
        self._lists: Final[tuple[list[Any], ...]] = (*(values for _, values in self._flat), self.threads, self.rooms)

    def note(self, key: str, value: str) -> None:
        """An entry of `meta`, which is there, will have this value."""
        self._meta[key] = value
        self.waiting = True

    def position(self) -> Position:
        """Where the rows of the next job begin."""
        return tuple(map(len, self._lists))

    def envelope(self, seq: int) -> list[Any] | None:
        """The values of the envelope `seq`, as `envelopes` has them; None when it does not wait."""
        row = _row(_PLAIN, self.plain, seq)
        if row is None:
            return _row(_ENVELOPES, self.envelopes, seq)
        *where, trust, received_ms, raw = row
        return [*where, None, None, None, trust, None, None, None, None, None, received_ms, raw]

    def take_ready(self, seq: int, state: str, lease: str, lease_until_ms: int | None) -> bool:
        """The message `seq`, which this job has put into the inbox, goes to an agent at once; False when it is written."""
        at = _place(_INBOX, self.inbox, 3, seq)
        if at is None:
            return False
        del self.inbox[at : at + _INBOX.width]
        self.taken += (state, 1, 0, seq, lease, lease_until_ms)
        return True

    @property
    def size(self) -> int:
        """Rows that wait, and rows of activity that will become fewer."""
        return sum(len(values) // many.width for many, values in self._flat) + len(self.threads) + len(self.rooms)

    def undo(self, to: Position) -> None:
        """Forgets what was appended since."""
        for values, length in zip(self._lists, to, strict=True):
            del values[length:]

    def write(self, db: sqlite3.Connection) -> None:
        """Writes what waits into the open transaction of `db`."""
        for many, values in self._flat:
            if values:
                many.write(db, values)
        threads: list[Any] = []
        for place, messages, first_ms, last_ms, last_seq in _activity(self.threads):
            threads += (*place, messages, first_ms, last_ms, last_seq)
        _THREADS.write(db, threads)
        for place, messages, _, last_ms, last_seq in _activity(self.rooms):
            db.execute(_ROOM, (messages, last_ms, last_seq, *place))
        for key, value in self._meta.items():
            db.execute(_META, (value, key))
        self.clear()

    def clear(self) -> None:
        """Nothing waits any more."""
        for values in self._lists:
            values.clear()
        self._meta.clear()
        self.waiting = False


def _place(many: Many, values: list[Any], column: int, seq: int) -> int | None:
    """Where the row begins that has `seq` in this column."""
    try:
        return values[column :: many.width].index(seq) * many.width
    except ValueError:
        return None


def _row(many: Many, values: list[Any], seq: int) -> list[Any] | None:
    at = _place(many, values, 0, seq)
    return None if at is None else values[at : at + many.width]


_Activity = tuple[tuple[str, ...], int, int, int, int]


def _activity(touches: Iterable[Touch]) -> Iterable[_Activity]:
    """For each place how many messages it had, the time of the first and the last, and the sequence of the last."""
    found: dict[tuple[str, ...], _Activity] = {}
    for place, now_ms, seq in touches:
        before = found.get(place)
        found[place] = (
            (place, 1, now_ms, now_ms, seq) if before is None else (place, before[1] + 1, before[2], now_ms, seq)
        )
    return found.values()
