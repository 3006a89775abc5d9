"""The ledger: one entry for each commit, bound to the entry before it by a hash (docs/audit.md, docs/adr/0010).

    hash of entry n = SHA-256(hash of entry n-1, 32 bytes ‖ [n,at_ms,last_seq,content,events])
    content        = SHA-256 of the JSON array of the records of the commit's envelopes, in sequence; null: none
    events        = JSON array of the other events of the commit; null: none

The line is JSON without spaces, in UTF-8, with `content` in hexadecimal. `n` counts the commits, `last_seq` is the last
sequence that an envelope was given. Records and events are collected in memory while the jobs of a transaction run, so a
job that is undone leaves none; the writer appends the entry before COMMIT.
"""

import re
import sqlite3
from hashlib import sha256
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.store.engine.sql import insert_into
from aghbus.store.engine.unit_of_work import UnitOfWork

RECORD_COLUMNS: Final = (
    *("seq", "received_ms", "remember_until"),
    *("direction", "kind", "trust", "inbox", "event", "outcome", "reason", "state_before", "state_after"),
    *("pair_a", "pair_b"),
)
"""The columns of `envelopes` that a record begins with; the digest of the bytes follows."""
COMMITS_MISSING: Final = "commits_missing"
"""Outcome of the event by which a start says that the ledger is not the one that the last run left."""

_INSERT: Final = insert_into("ledger", ("n", "at_ms", "last_seq", "content", "events", "hash"))
_HEAD: Final = re.compile(r"([0-9]{1,18}):([0-9a-fA-F]{64})")  # 18 digits fit SQLite's 63 bits
_PRUNED: Final = re.compile(r"([0-9]{1,18}):([0-9a-f]{64}):([0-9]{1,18})")
_encode: Final = msgspec.json.Encoder().encode

KeptHead = tuple[int, bytes]
"""Number and hash of an entry, as an operator keeps them elsewhere."""
Record = tuple[Any, ...]
"""The values of RECORD_COLUMNS, and the SHA-256 of the envelope's bytes in hexadecimal."""
Event = tuple[Any, ...]
"""An event: `(at_ms, event, outcome, reason, seq, …)` without nulls at the end (store/audit/events.py)."""


class Head(NamedTuple):
    """An entry by number and hash (32 bytes), and its last sequence; `str` gives `NUMBER:HASH`."""

    n: int
    hash: bytes
    last_seq: int

    def __str__(self) -> str:
        return f"{self.n}:{self.hash.hex()}"


EMPTY: Final = Head(0, bytes(32), 0)
"""The head of an empty ledger, which the first entry follows."""


def parse_head(text: str) -> KeptHead:
    """`NUMBER:HASH` as `str(head)` gives it. Raises ValueError with the rule."""
    match = _HEAD.fullmatch(text)
    if match is None:
        raise ValueError("must be NUMBER:HASH, as `aghctl audit head` prints it")
    return int(match[1]), bytes.fromhex(match[2])


def entry_hash(before: bytes, n: int, at_ms: int, last_seq: int, content: bytes | None, events: bytes | None) -> bytes:
    """The hash of an entry that follows one with the hash `before`."""
    quoted = b"null" if content is None else b'"%b"' % content.hex().encode()
    return sha256(b"%b[%d,%d,%d,%b,%b]" % (before, n, at_ms, last_seq, quoted, events or b"null")).digest()


def content_of(records: list[Record]) -> bytes:
    """The content of an entry with these records, which are in sequence."""
    return sha256(_encode(records)).digest()


def pruned(db: sqlite3.Connection) -> Head:
    """The newest entry that retention removed; EMPTY when none was. Raises ValueError when the record of it is not valid."""
    row = db.execute("SELECT value FROM meta WHERE key = 'audit_pruned'").fetchone()
    if row is None:
        return EMPTY
    match = _PRUNED.fullmatch(str(row[0]))
    if match is None:
        raise ValueError("the record of the last pruned entry is not valid")
    return Head(int(match[1]), bytes.fromhex(match[2]), int(match[3]))


def as_pruned(head: Head) -> str:
    """The record of `head` as the newest entry that retention removed: `NUMBER:HASH:LAST_SEQ`."""
    return f"{head}:{head.last_seq}"


def stored_head(db: sqlite3.Connection) -> Head:
    """The newest entry in `db`. Raises ValueError as `pruned` does."""
    row = db.execute("SELECT n, hash, last_seq FROM ledger ORDER BY n DESC LIMIT 1").fetchone()
    return pruned(db) if row is None else Head(*row)


class Ledger:
    """The end of the ledger of an open store. `records` and `events` belong to the open transaction."""

    __slots__ = ("at_ms", "events", "gap", "head", "records")

    def __init__(self) -> None:
        self.head = EMPTY
        self.records: list[Record] = []
        self.events: list[Event] = []
        self.at_ms = 0
        """The time of the newest entry."""
        self.gap: str | None = None
        """How the ledger differed from the watermark when the store was opened; None when it did not."""

    def note(self, tx: UnitOfWork, event: Event) -> None:
        """Adds an event to the entry of `tx`."""
        self.events.append(event)
        tx.undo.append(self.events.pop)

    def load(self, db: sqlite3.Connection) -> None:
        """Finds the end of the ledger in `db`."""
        self.head = stored_head(db)
        row = db.execute("SELECT at_ms FROM ledger ORDER BY n DESC LIMIT 1").fetchone()
        self.at_ms = 0 if row is None else row[0]

    def append(self, db: sqlite3.Connection, last_seq: int, number: int | None = None) -> Head:
        """Writes the entry of the open transaction, with the next number or `number`: for the writer, before COMMIT. The entry
        is the new `head` once it is durable.

        Its time is that of the transaction's last event, else of its last record, else of the entry before.
        """
        n = self.head.n + 1 if number is None else number
        content = events = None
        if self.records:
            content, self.at_ms = content_of(self.records), self.records[-1][1]
        if self.events:
            events, self.at_ms = _encode(self.events), self.events[-1][0]
        digest = entry_hash(self.head.hash, n, self.at_ms, last_seq, content, events)
        db.execute(_INSERT, (n, self.at_ms, last_seq, content, events, digest))
        return Head(n, digest, last_seq)
