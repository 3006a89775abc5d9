"""The in-memory state of the store, loaded when it is opened. A job's changes to it are undone with the
job."""

import sqlite3
from collections.abc import Callable
from operator import attrgetter
from typing import Final, Literal, NamedTuple

from aghbus.protocol.agh.lifecycle import OPEN_STATES
from aghbus.store.engine.commit.ledger import Ledger
from aghbus.store.engine.log.dedup import DedupWindow
from aghbus.store.engine.log.memory import LogMemory
from aghbus.store.engine.memory.cache import Addressed, CachedWork, GenerationalCache
from aghbus.store.engine.memory.events import EventBuffer
from aghbus.store.engine.memory.flows import OpenFlows
from aghbus.store.engine.memory.inbox import InboxMemory
from aghbus.store.engine.memory.trust import TrustRules

_BRIDGED: Final = """
SELECT EXISTS (SELECT 1 FROM bridge_messages) OR EXISTS (SELECT 1 FROM follow_ups) OR EXISTS (SELECT 1 FROM bridge_log)
"""
_OF_OTHERS: Final = f"""
SELECT count(*), coalesce(sum(others_bytes), 0) FROM works
WHERE others_bytes IS NOT NULL AND state IN ({", ".join(f"'{state}'" for state in OPEN_STATES)})
"""  # noqa: S608 - constants
_NUMBERS: Final = (
    "last_seq",
    "inbox_acked",
    "inbox_due_ms",
    "quarantine_rows",
    "quarantine_bytes",
    "others_works",
    "others_bytes",
)
numbers_of: Final[Callable[[object], tuple[int, ...]]] = attrgetter(*_NUMBERS)
"""The numbers of an `InMemoryState`, which each job may change."""


class Kept(NamedTuple):
    """Bytes of envelopes that retention may not remove, by whose conversations they belong to."""

    contacts: int
    others: int


NOTHING_KEPT: Final = Kept(0, 0)


class InMemoryState:
    """`last_seq` is the last sequence that an envelope was given; `inbox_acked` about how many acked messages have a row
    in the inbox; `inbox_due_ms` a time before which no lease expires and no returned message is ready; `kept` what
    retention may not remove, if the store is larger than its bound; `others_works` how many works of others with us are open,
    `others_bytes` the bytes of their messages; `quarantine_rows` and `quarantine_bytes` the size of the quarantine. `bridged`:
    whether there may be messages of a foreign format.
    `acknowledging`: whether the daemon of a peer acknowledges commits, by peer id; the presence table keeps it.

    Caches: `works` that were opened, by id, of each id the one that changed last; the destinations of own messages
    (`addressed`), by sequence; the own messages that have `arrived`, by workspace and id.
    """

    __slots__ = (
        "acknowledging",
        "addressed",
        "arrived",
        "bridged",
        "dedup",
        "events",
        "flows",
        "inbox",
        "inbox_acked",
        "inbox_due_ms",
        "kept",
        "last_seq",
        "ledger",
        "log",
        "others_bytes",
        "others_works",
        "quarantine_bytes",
        "quarantine_rows",
        "trust",
        "works",
    )

    def __init__(self) -> None:
        self.last_seq = 0
        self.inbox_acked = 0
        self.inbox_due_ms = 0
        self.kept = NOTHING_KEPT
        self.others_works = 0
        self.others_bytes = 0
        self.quarantine_rows = 0
        self.quarantine_bytes = 0
        self.bridged = False
        self.acknowledging: dict[str, bool] = {}
        self.ledger = Ledger()
        self.dedup = DedupWindow()
        self.inbox = InboxMemory()
        self.events = EventBuffer()
        self.log = LogMemory()
        self.flows = OpenFlows()
        self.trust = TrustRules()
        self.works = GenerationalCache[str, CachedWork]()
        self.addressed = GenerationalCache[int, Addressed]()
        self.arrived = GenerationalCache[tuple[str, str], Literal[True]]()

    def restore(self, values: tuple[int, ...]) -> None:
        """The numbers are these, as before the job."""
        for name, value in zip(_NUMBERS, values, strict=True):
            setattr(self, name, value)

    def load(self, db: sqlite3.Connection) -> None:
        """Reads everything from a store that is being opened: tenths of a second per hundred thousand ids of the dedup
        window."""
        self.log.load(db)
        self.dedup.load(db, self.log.ids)
        self.flows.load(db)
        self.trust.load(db)
        (bridged,) = db.execute(_BRIDGED).fetchone()
        self.bridged = bool(bridged)
        self.ledger.load(db)
        (stored,) = db.execute("SELECT coalesce(max(seq), 0) FROM log").fetchone()
        self.last_seq = max(self.ledger.head.last_seq, stored)  # a ledger may have lost its end to another program
        self.inbox.load(db, self.last_seq)
        (self.inbox_acked,) = db.execute("SELECT count(*) FROM inbox WHERE state = 'acked'").fetchone()
        self.others_works, self.others_bytes = db.execute(_OF_OTHERS).fetchone()
        self.quarantine_rows, self.quarantine_bytes = db.execute(
            "SELECT count(*), coalesce(sum(length(raw)), 0) FROM quarantine"
        ).fetchone()
