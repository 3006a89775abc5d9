"""What a write job gets: the connection inside an open transaction, and what follows its commit or its rollback."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from aghbus.store.engine.append_buffer import Position, Rows

if TYPE_CHECKING:
    import sqlite3

    from aghbus.store.audit.events import Entry
    from aghbus.store.engine.event_buffer import Fresh
    from aghbus.store.engine.state import Memory, MemoryMark

Callback = Callable[[], None]


class Mark(NamedTuple):
    """A position in a transaction: callbacks, rows that wait, what was added to memory, and the numbers that it keeps."""

    committed: int
    rolled_back: int
    writes: int
    remembered: int
    entries: int
    told: int
    rows: Position
    memory: MemoryMark


class NeedsFile(Exception):
    """A job that runs ahead asked for the connection, which still commits the transaction before it."""


class Transaction:
    """The current transaction of the writer. Valid only inside the job it is given to.

    `db` executes statements (never BEGIN, COMMIT or ROLLBACK), `rows` are appended at its end, and `memory` is what the store
    keeps outside SQLite. `remembered` keys are new in the dedup window, `entries` wait to be numbered in the audit log, and
    `told` is what followers learn after the commit.

    While it is `ahead`, the transaction before it is being committed: what it asks of the file raises NeedsFile.
    """

    __slots__ = (
        "_base",
        "_committed",
        "_db",
        "_job",
        "_rolled_back",
        "_writes",
        "ahead",
        "entries",
        "memory",
        "remembered",
        "rows",
        "told",
        "torn",
    )

    def __init__(self, db: sqlite3.Connection, memory: Memory) -> None:
        self.memory: Final = memory
        self.rows: Final = Rows()
        self.remembered: list[bytes] = []
        self.entries: list[Entry] = []
        self.told: list[Fresh] = []
        self.ahead = False
        self.torn = False  # rows of some job could not be written
        self._db: Final = db
        self._committed: list[Callback] = []
        self._rolled_back: list[Callback] = []
        self._job = self.rows.position()
        self._base = 0
        self._writes = 0  # times that rows were written

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, with all rows that were appended before."""
        if self.ahead:
            raise NeedsFile
        if self.rows.waiting:
            self.write_rows()
        return self._db

    @property
    def apart(self) -> sqlite3.Connection:
        """The connection, for what does not wait (store/engine/append_buffer.py):
        tables without appended rows, rows of earlier transactions."""
        if self.ahead:
            raise NeedsFile
        return self._db

    def write_rows(self) -> None:
        """Writes the rows that wait."""
        own, changes = self.rows.position() != self._job, self._db.total_changes
        self.torn = True
        self.rows.write(self._db)
        self.torn = False
        self._writes += 1
        self._job = self.rows.position()
        if not own:
            self._base += self._db.total_changes - changes

    def after_commit(self, callback: Callback) -> None:
        """`callback` runs on the event loop once the commit is durable, in order, before any job's future resolves."""
        self._committed.append(callback)

    def after_rollback(self, callback: Callback) -> None:
        """`callback` runs when this job's changes are undone, last registered first: it restores memory."""
        self._rolled_back.append(callback)

    def begin_job(self) -> Mark:
        """Where the next job begins."""
        self._job = self.rows.position()
        self._base = 0 if self.ahead else self._db.total_changes
        return Mark(
            len(self._committed),
            len(self._rolled_back),
            self._writes,
            len(self.remembered),
            len(self.entries),
            len(self.told),
            self._job,
            self.memory.mark(),
        )

    @property
    def written(self) -> bool:
        """Whether the job has changed anything that `undo` cannot take back."""
        return not self.ahead and self._db.total_changes != self._base

    def undo(self, mark: Mark) -> None:
        """Restores memory to what it was at `mark` and forgets the callbacks and the waiting rows since."""
        del self._committed[mark.committed :]
        while len(self._rolled_back) > mark.rolled_back:
            self._rolled_back.pop()()
        self.memory.dedup.forget(self.remembered[mark.remembered :])
        del self.remembered[mark.remembered :]
        del self.entries[mark.entries :]
        del self.told[mark.told :]
        self.torn = False
        if self._writes == mark.writes:
            self.rows.undo(mark.rows)
        else:
            self.rows.clear()  # those of before are written: what waits was appended since
        self.memory.undo(mark.memory)

    def take_committed(self) -> list[Callback]:
        """The callbacks of the committed transaction, in order; nothing can be undone afterwards."""
        callbacks, self._committed = self._committed, []
        self._rolled_back.clear()
        self.remembered.clear()
        told, self.told = self.told, []
        if told:
            self.memory.tail.publish(told)
        return callbacks
