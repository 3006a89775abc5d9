"""What the store keeps in memory beside SQLite, loaded when it is opened: each change is undone when its job is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aghbus.store.audit import AuditLog
from aghbus.store.dedup import DedupWindow
from aghbus.store.tail import Tail
from aghbus.store.trust import TrustRules

if TYPE_CHECKING:
    import sqlite3

    from aghbus.store.transaction import Transaction


class Gauge:
    """A number that follows the rows of a table, so that no message pays for counting them."""

    __slots__ = ("value",)

    def __init__(self, value: int = 0) -> None:
        self.value = value

    def add(self, tx: Transaction, change: int) -> None:
        """Changes the value within `tx`."""
        if change:
            self.value += change
            tx.after_rollback(lambda: self._restore(change))

    def _restore(self, change: int) -> None:
        self.value -= change


class Memory:
    """The end of the audit log; the dedup window; how many messages wait in the inbox (ready or leased); rows and bytes of the
    quarantine; the tail of the event stream; whom we listen to."""

    __slots__ = ("audit", "dedup", "inbox_waiting", "quarantine_bytes", "quarantine_rows", "tail", "trust")

    def __init__(self) -> None:
        self.audit = AuditLog()
        self.dedup = DedupWindow()
        self.inbox_waiting = Gauge()
        self.quarantine_rows = Gauge()
        self.quarantine_bytes = Gauge()
        self.tail = Tail()
        self.trust = TrustRules()

    def load(self, db: sqlite3.Connection) -> None:
        """Reads everything from an open store: tenths of a second per hundred thousand ids of the window."""
        self.dedup.load(db)
        self.trust.load(db)
        (self.inbox_waiting.value,) = db.execute(
            "SELECT count(*) FROM inbox WHERE state IN ('ready', 'leased')"
        ).fetchone()
        self.quarantine_rows.value, self.quarantine_bytes.value = db.execute(
            "SELECT count(*), coalesce(sum(length(raw)), 0) FROM quarantine"
        ).fetchone()
