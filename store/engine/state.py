"""What the store keeps in memory beside SQLite, loaded when it is opened: each change is undone when its job is."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Final, Literal

from aghbus.store.audit.events import AuditLog
from aghbus.store.engine.dedup import DedupWindow
from aghbus.store.engine.event_buffer import Tail
from aghbus.store.engine.generational_cache import Addressed, Recent, RecentWork
from aghbus.store.engine.trust_rules import TrustRules

if TYPE_CHECKING:
    import sqlite3

_BRIDGED: Final = """
SELECT EXISTS (SELECT 1 FROM bridge_messages) OR EXISTS (SELECT 1 FROM bridge_links) OR EXISTS (SELECT 1 FROM bridge_log)
"""


class Gauge:
    """A number that follows the rows of a table, so that no message pays for counting them. Jobs change it."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def add(self, change: int) -> None:
        """Changes the value within the transaction of the job that calls."""
        self.value += change


MemoryMark = tuple[int, ...]
"""The numbers as they stood before a job."""

_NUMBERS: Final = ("last_seq", "inbox_waiting", "inbox_due_ms", "quarantine_rows", "quarantine_bytes")
_numbers: Final = attrgetter(*(f"{name}.value" for name in _NUMBERS))


class Memory:
    """The last sequence that an envelope was given; the end of the audit log; the dedup window; how many messages wait in the
    inbox (ready or leased), and a time before which no lease runs out and none that was returned is ready; rows and bytes of the
    quarantine; the tail of the event stream; whom we listen to. `bridged`: whether a message of a foreign format was ever seen, so
    that who looks for them need not; it may be true in vain.

    Of late: `works` that were opened, by id, of each id the one that changed last; where messages of ours go to (`addressed`), by
    sequence; those of ours that have `arrived`, by workspace and id.
    """

    __slots__ = (
        "addressed",
        "arrived",
        "audit",
        "bridged",
        "dedup",
        "inbox_due_ms",
        "inbox_waiting",
        "last_seq",
        "quarantine_bytes",
        "quarantine_rows",
        "tail",
        "trust",
        "works",
    )

    def __init__(self) -> None:
        self.last_seq = Gauge()
        self.audit = AuditLog()
        self.bridged = False
        self.dedup = DedupWindow()
        self.inbox_waiting = Gauge()
        self.inbox_due_ms = Gauge()
        self.quarantine_rows = Gauge()
        self.quarantine_bytes = Gauge()
        self.tail = Tail()
        self.trust = TrustRules()
        self.works = Recent[str, RecentWork]()
        self.addressed = Recent[int, Addressed]()
        self.arrived = Recent[tuple[str, str], Literal[True]]()

    def mark(self) -> MemoryMark:
        """The numbers as they stand."""
        mark: MemoryMark = _numbers(self)
        return mark

    def undo(self, to: MemoryMark) -> None:
        """The numbers as they stood then, in the same transaction."""
        for name, value in zip(_NUMBERS, to, strict=True):
            getattr(self, name).value = value

    def load(self, db: sqlite3.Connection) -> None:
        """Reads everything from an open store: tenths of a second per hundred thousand ids of the window."""
        self.dedup.load(db)
        self.trust.load(db)
        (bridged,) = db.execute(_BRIDGED).fetchone()
        self.bridged = bool(bridged)
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'envelopes'").fetchone()
        self.last_seq.value = 0 if row is None else row[0]
        (self.inbox_waiting.value,) = db.execute(
            "SELECT count(*) FROM inbox WHERE state IN ('ready', 'leased')"
        ).fetchone()
        self.quarantine_rows.value, self.quarantine_bytes.value = db.execute(
            "SELECT count(*), coalesce(sum(length(raw)), 0) FROM quarantine"
        ).fetchone()
