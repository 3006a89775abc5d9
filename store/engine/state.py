"""The in-memory state of the store, loaded when it is opened. A job's changes to it are undone with the
job."""

import sqlite3
from collections.abc import Callable
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from aghbus.protocol.api.works import Role
from aghbus.protocol.lifecycle import WorkView
from aghbus.store.engine.audit_chain import AuditChain
from aghbus.store.engine.dedup import DedupWindow
from aghbus.store.engine.event_buffer import EventBuffer
from aghbus.store.engine.generational_cache import GenerationalCache
from aghbus.store.engine.trust_rules import TrustRules

_BRIDGED: Final = """
SELECT EXISTS (SELECT 1 FROM bridge_messages) OR EXISTS (SELECT 1 FROM bridge_links) OR EXISTS (SELECT 1 FROM bridge_log)
"""

StateSavepoint = tuple[int, ...]
"""The numbers of an `InMemoryState`, and how much of the open transaction is pending."""

_NUMBERS: Final = ("last_seq", "inbox_waiting", "inbox_due_ms", "quarantine_rows", "quarantine_bytes")
_numbers: Final[Callable[[object], tuple[int, ...]]] = attrgetter(*_NUMBERS)


class CachedWork(NamedTuple):
    """A work, our role in it, the `trace_id` of its opening, and the sequences of its first and its latest envelope.
    `has_deadline`: whether it ever had one."""

    work: WorkView
    role: Role
    trace_id: str | None
    opened_seq: int
    last_seq: int
    has_deadline: bool = False


class Addressed(NamedTuple):
    """The destination of an own envelope."""

    workspace_id: str
    message_id: str
    sender: str
    recipient: str
    subject: str


class InMemoryState:
    """`last_seq` is the last sequence that an envelope was given; `inbox_waiting` how many messages are ready or
    leased in the inbox; `inbox_due_ms` a time before which no lease expires and no returned message is ready;
    `quarantine_rows` and `quarantine_bytes` the size of the quarantine. `bridged`: whether there may be messages of
    a foreign format.

    Caches: `works` that were opened, by id, of each id the one that changed last; the destinations of own messages
    (`addressed`), by sequence; the own messages that have `arrived`, by workspace and id.
    """

    __slots__ = (
        "addressed",
        "arrived",
        "audit",
        "bridged",
        "dedup",
        "events",
        "inbox_due_ms",
        "inbox_waiting",
        "last_seq",
        "quarantine_bytes",
        "quarantine_rows",
        "trust",
        "works",
    )

    def __init__(self) -> None:
        self.last_seq = 0
        self.inbox_waiting = 0
        self.inbox_due_ms = 0
        self.quarantine_rows = 0
        self.quarantine_bytes = 0
        self.bridged = False
        self.audit = AuditChain()
        self.dedup = DedupWindow()
        self.events = EventBuffer()
        self.trust = TrustRules()
        self.works = GenerationalCache[str, CachedWork]()
        self.addressed = GenerationalCache[int, Addressed]()
        self.arrived = GenerationalCache[tuple[str, str], Literal[True]]()

    def savepoint(self) -> StateSavepoint:
        """Mark the start of the next job."""
        pending = (len(self.dedup.pending), len(self.audit.pending), len(self.events.pending))
        return pending + _numbers(self)

    def undo(self, savepoint: StateSavepoint) -> None:
        """The state as it was at `savepoint`, in the same transaction. Caches and trust rules undo themselves
        (`after_rollback`)."""
        dedup, audit, events, *numbers = savepoint
        self.dedup.undo(dedup)
        del self.audit.pending[audit:]
        del self.events.pending[events:]
        for name, value in zip(_NUMBERS, numbers, strict=True):
            setattr(self, name, value)

    def committed(self) -> None:
        """The transaction is durable."""
        self.dedup.pending.clear()
        self.events.publish()

    def load(self, db: sqlite3.Connection) -> None:
        """Reads everything from a store that is being opened: tenths of a second per hundred thousand ids of the dedup
        window."""
        self.dedup.load(db)
        self.trust.load(db)
        (bridged,) = db.execute(_BRIDGED).fetchone()
        self.bridged = bool(bridged)
        row = db.execute("SELECT seq FROM sqlite_sequence WHERE name = 'envelopes'").fetchone()
        self.last_seq = 0 if row is None else row[0]
        (self.inbox_waiting,) = db.execute("SELECT count(*) FROM inbox WHERE state IN ('ready', 'leased')").fetchone()
        self.quarantine_rows, self.quarantine_bytes = db.execute(
            "SELECT count(*), coalesce(sum(length(raw)), 0) FROM quarantine"
        ).fetchone()
