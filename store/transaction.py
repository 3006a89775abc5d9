"""What a write job gets: the connection inside an open transaction, and what follows its commit or its rollback."""

import sqlite3
from collections.abc import Callable
from typing import Final, NamedTuple

from aghbus.store.memory import Memory, MemoryMark
from aghbus.store.rows import Position, Rows

Callback = Callable[[], None]


class Mark(NamedTuple):
    """A position in a transaction: callbacks, rows that wait, and what the store keeps in memory."""

    committed: int
    rolled_back: int
    rows: Position
    memory: MemoryMark


class Transaction:
    """The current transaction of the writer. Valid only inside the job it is given to.

    `db` executes statements (never BEGIN, COMMIT or ROLLBACK), `rows` are appended at its end, and `memory` is what the store
    keeps outside SQLite.
    """

    __slots__ = ("_base", "_committed", "_db", "_job", "_rolled_back", "memory", "rows")

    def __init__(self, db: sqlite3.Connection, memory: Memory) -> None:
        self.memory: Final = memory
        self.rows: Final = Rows()
        self._db: Final = db
        self._committed: list[Callback] = []
        self._rolled_back: list[Callback] = []
        self._job = self.rows.position()
        self._base = 0

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, with all rows that were appended before."""
        if self.rows.waiting:
            self.write_rows()
        return self._db

    @property
    def apart(self) -> sqlite3.Connection:
        """The connection, for what does not wait (store/rows.py): tables without appended rows, rows of earlier transactions."""
        return self._db

    def write_rows(self) -> None:
        """Writes the rows that wait."""
        own, changes = self.rows.position() != self._job, self._db.total_changes
        self.rows.write(self._db)
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
        self._base = self._db.total_changes
        return Mark(len(self._committed), len(self._rolled_back), self._job, self.memory.mark())

    @property
    def written(self) -> bool:
        """Whether the job has changed anything that `undo` cannot take back."""
        return self._db.total_changes != self._base

    def undo(self, mark: Mark) -> None:
        """Restores memory to what it was at `mark` and forgets the callbacks and the waiting rows since."""
        del self._committed[mark.committed :]
        while len(self._rolled_back) > mark.rolled_back:
            self._rolled_back.pop()()
        self.rows.undo(mark.rows)
        self.memory.undo(mark.memory)

    def take_committed(self) -> list[Callback]:
        """The callbacks of the committed transaction, in order; nothing can be undone afterwards."""
        callbacks, self._committed = self._committed, []
        self._rolled_back.clear()
        self.memory.settle()
        return callbacks
