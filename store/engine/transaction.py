"""The argument of a write job: the connection inside an open transaction, the append buffer, the state in memory, and
callbacks."""

import sqlite3
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Final

import msgspec

from aghbus.store.engine.bulk_statement import BulkStatement
from aghbus.store.engine.state import InMemoryState, numbers_of
from aghbus.store.engine.unit_of_work import Callback, Replaced

Position = tuple[int, ...]
"""How many values each statement of an `AppendBuffer` has."""

_rank: Final = attrgetter("rank")


class AppendBuffer(dict[BulkStatement, list[Any]]):
    """The buffered rows, for each statement as one flat list of values: `rows[STATEMENT] += (value, ...)` appends a row.

    What every message appends is hardly ever read by a later job of the same transaction. So it is kept in memory, and
    written in bulk before COMMIT.
    """

    def __missing__(self, statement: BulkStatement) -> list[Any]:
        self[statement] = values = list[Any]()
        return values

    def undo(self, position: Position) -> None:
        """Drops the rows appended since `position`, which was `tuple(map(len, rows.values()))`."""
        for values, length in zip_longest(self.values(), position, fillvalue=0):
            assert isinstance(values, list)
            del values[length:]

    def flush(self, db: sqlite3.Connection) -> None:
        """Writes the rows into the open transaction of `db`, and drops them."""
        for statement in sorted(self, key=_rank):
            buffered, at = self[statement], 0
            if not buffered:
                continue
            values = buffered if statement.merge is None else statement.merge(buffered)
            for size, text in statement.texts:
                while len(values) - at >= size:
                    db.execute(text, values[at : at + size])
                    at += size
            buffered.clear()

    def discard(self) -> None:
        """Drops all rows."""
        for values in self.values():
            values.clear()


class Savepoint(msgspec.Struct, frozen=True):
    """A position in a transaction, to which `Transaction.undo` returns: how much of it was pending, and the numbers of
    the state in memory."""

    after_commit: int
    after_rollback: int
    replaced: int
    flushes: int
    rows: Position
    pending: tuple[int, ...]
    numbers: tuple[int, ...]


class Transaction:
    """The current transaction of the writer. Valid only inside the job it is given to.

    `db` executes statements (never BEGIN, COMMIT or ROLLBACK), `rows` are written before COMMIT, and `memory` is
    what the store keeps outside SQLite. `db_unflushed` is the same connection, for tables without buffered rows and for
    rows of earlier transactions. `replaced` are the values that were replaced in caches of memory. A callback given to
    `after_commit` runs on the event loop once the commit is durable, in order, before any job's future resolves.
    """

    __slots__ = (
        "_after_commit",
        "_after_rollback",
        "_changes",
        "_db",
        "_flush_failed",
        "_flushes",
        "_job_rows",
        "after_commit",
        "db_unflushed",
        "memory",
        "replaced",
        "rows",
    )

    def __init__(self, db: sqlite3.Connection, memory: InMemoryState) -> None:
        self.memory: Final = memory
        self.rows: Final = AppendBuffer()
        self.replaced: Final[list[Replaced]] = []
        self.db_unflushed: Final = db
        self._db: Final = db
        self._after_commit: Final[list[Callback]] = []
        self.after_commit: Final = self._after_commit.append
        self._after_rollback: list[Callback] = []
        self._flushes = 0
        self._flush_failed = False  # by rows of the current job or of an earlier one
        self._job_rows: Position = ()  # where the rows of the current job begin
        self._changes = 0  # of the connection, that are not the current job's

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, after the buffered rows were written: statements see them."""
        if any(self.rows.values()):
            self.flush()
        return self._db

    def flush(self) -> None:
        """Writes the buffered rows."""
        flushes_current_job, changes = self._position() != self._job_rows, self._db.total_changes
        self._flush_failed = True
        self.rows.flush(self._db)
        self._flush_failed = False
        self._flushes += 1
        self._job_rows = self._position()
        if not flushes_current_job:
            self._changes += self._db.total_changes - changes

    def after_rollback(self, callback: Callback) -> None:
        """`callback` runs when this job's changes are undone, last registered first: it restores memory."""
        self._after_rollback.append(callback)

    def begin_job(self) -> Savepoint:
        """Mark the start of the next job."""
        self._job_rows = tuple(map(len, self.rows.values()))
        self._changes = self._db.total_changes
        return Savepoint(
            len(self._after_commit),
            len(self._after_rollback),
            len(self.replaced),
            self._flushes,
            self._job_rows,
            tuple(map(len, self.memory.pending)),
            numbers_of(self.memory),
        )

    @property
    def can_undo(self) -> bool:
        """Whether `undo` takes back all that the current job has done: it has changed nothing in the file."""
        return self._db.total_changes == self._changes and not self._flush_failed

    def undo(self, savepoint: Savepoint) -> None:
        """Drops the buffered rows and the callbacks since `savepoint`, and restores memory."""
        del self._after_commit[savepoint.after_commit :]
        while len(self._after_rollback) > savepoint.after_rollback:
            self._after_rollback.pop()()
        while len(self.replaced) > savepoint.replaced:
            values, key, before = self.replaced.pop()
            if before is None:
                values.pop(key, None)
            else:
                values[key] = before
        self._flush_failed = False
        if self._flushes == savepoint.flushes:
            self.rows.undo(savepoint.rows)
        else:
            self.rows.discard()  # the earlier ones are written: these were appended since
        self.memory.undo(savepoint.pending, savepoint.numbers)

    def committed(self) -> list[Callback]:
        """The transaction is durable. Returns the callbacks to run, in order; nothing can be undone any more."""
        callbacks = self._after_commit.copy()
        self._after_commit.clear()
        memory = self.memory
        if memory.events.pending:
            memory.events.publish()
        self._after_rollback.clear()
        self.replaced.clear()
        for pending in memory.pending:
            pending.clear()
        return callbacks

    def _position(self) -> Position:
        return tuple(map(len, self.rows.values()))
