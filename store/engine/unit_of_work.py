"""The transaction that jobs share, as far as the parts of the store in memory know it."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from operator import attrgetter, delitem
from typing import Any, Final

from aghbus.store.engine.bulk_statement import BulkStatement

Callback = Callable[[], object]
_FAILED: Final = -1  # no number of changes
_rank: Final = attrgetter("rank")


class UnitOfWork:
    """The connection, the buffered rows, and what undoes a job.

    `db` executes statements, never BEGIN, COMMIT or ROLLBACK. `undo` has a step for each change of memory, which takes it
    back: whoever changes memory in a job appends one. The steps of a job that fails run, the last one first.

    What every message appends is hardly ever read by a later job of the same transaction. So these `rows` are kept in memory,
    as one flat list of values for each statement, and written in bulk before COMMIT. A function that reads or changes a table
    with such rows calls `flush` before.
    """

    __slots__ = ("_changes", "_has_rows", "callbacks", "db", "rows", "undo")

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db: Final = db
        self.rows: Final = defaultdict[BulkStatement, list[Any]](list)
        self.undo: Final[list[Callback]] = []
        self.callbacks: Final[list[Callback]] = []
        self._has_rows = False  # whether the current job has appended some
        self._changes = 0  # of the connection when the current job had changed nothing in the file

    def append(self, statement: BulkStatement, values: tuple[Any, ...]) -> None:
        """Buffers a row, or several for the same statement."""
        rows = self.rows[statement]
        rows += values
        self._has_rows = True
        self.undo.append(partial(delitem, rows, slice(-len(values), None)))

    def flush(self) -> None:
        """Writes the buffered rows into the open transaction, so that statements see them."""
        if not any(self.rows.values()):
            return
        unchanged, self._changes = not self._has_rows and self.can_undo, _FAILED
        for statement in sorted(self.rows, key=_rank):
            if rows := self.rows[statement]:
                statement.write(self.db, rows)
                rows.clear()
        if unchanged:
            self._changes = self.db.total_changes

    def save(self, values: dict[Any, Any], key: object) -> None:
        """The job is about to change what a dictionary in memory has under `key`; None is no value."""
        self.undo.append(partial(_put_back, values, key, values.get(key)))

    def after_commit(self, callback: Callback) -> None:
        """`callback` runs on the event loop once the commit is durable, in order, before any job's future resolves."""
        self.callbacks.append(callback)
        self.undo.append(self.callbacks.pop)

    @property
    def can_undo(self) -> bool:
        """Whether `roll_back` takes back all that the current job has done: it has changed nothing in the file."""
        return self.db.total_changes == self._changes

    def roll_back(self, savepoint: int) -> None:
        """Undoes what the jobs since `savepoint` have changed in memory, and drops their buffered rows."""
        while len(self.undo) > savepoint:
            self.undo.pop()()


def _put_back(values: dict[Any, Any], key: object, before: object) -> None:
    if before is None:
        values.pop(key, None)
    else:
        values[key] = before
