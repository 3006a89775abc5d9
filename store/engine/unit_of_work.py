"""The transaction that jobs share, as far as the parts of the store in memory know it, and its buffered rows."""

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import partial
from operator import attrgetter, delitem
from typing import Any, Final

Callback = Callable[[], object]
_rank: Final = attrgetter("rank")
_ROWS_PER_INSERT: Final = (64, 16, 4, 1)  # each is a statement that SQLite keeps compiled
_ROWS_PER_UPDATE: Final = (64, 16)  # of fewer rows, one UPDATE each takes less time: SQLite makes tables of new values


class Rank(IntEnum):
    """The order in which the statements of one transaction are written."""

    REFERENCED = 0  # rows that the foreign keys of others name
    INSERT = 1
    UPDATE = 2
    LAST_UPDATE = 3  # of rows that an UPDATE may change as well


class BulkStatement:
    """A statement over many rows of values for `columns`. `texts` are its SQL for different numbers of values, most first."""

    def __init__(
        self,
        columns: Sequence[str],
        texts: list[tuple[int, str]],
        *,
        rank: Rank,
        merge: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        """`merge` replaces the values of all rows of a transaction by those of fewer rows with the same effect."""
        self.columns: Final = tuple(columns)
        self.texts: Final = texts
        self.rank: Final = rank
        self.merge: Final = merge

    @classmethod
    def insert(
        cls,
        table: str,
        columns: Sequence[str],
        conflict: str = "",
        *,
        rank: Rank = Rank.INSERT,
        merge: Callable[[list[Any]], list[Any]] | None = None,
    ) -> "BulkStatement":
        """An INSERT of these columns; `conflict` is its ON CONFLICT clause."""
        head = f"INSERT INTO {table} ({', '.join(columns)})"
        texts = [(size * len(columns), f"{head} {_values(columns, size)} {conflict}") for size in _ROWS_PER_INSERT]
        return cls(columns, texts, rank=rank, merge=merge)

    @classmethod
    def update(
        cls, table: str, columns: Sequence[str], change: str, condition: str, *, rank: Rank = Rank.UPDATE
    ) -> "BulkStatement":
        """An UPDATE of the rows with the values of the first column; `change` is its SET clause, `condition` a further condition.
        In both `new.` leads to the values."""
        key, one = columns[0], f"UPDATE {table} SET {change} WHERE {columns[0]} = ?1 AND {condition}"  # noqa: S608 - constants
        for number, column in enumerate(columns, 1):
            one = one.replace(f"new.{column}", f"?{number}")
        many = f"UPDATE {table} SET {change} FROM new WHERE {table}.{key} = new.{key} AND {condition}"  # noqa: S608 - as above
        texts = [
            (size * len(columns), f"WITH new ({', '.join(columns)}) AS ({_values(columns, size)}) {many}")
            for size in _ROWS_PER_UPDATE
        ]
        return cls(columns, [*texts, (len(columns), one)], rank=rank)

    def find(self, values: list[Any], name: str, value: object) -> slice | None:
        """Where in `values` the first row is that has this value in column `name`; None when there is none."""
        column = values[self.columns.index(name) :: len(self.columns)]
        try:
            start = column.index(value) * len(self.columns)
        except ValueError:
            return None
        return slice(start, start + len(self.columns))


def _values(columns: Sequence[str], rows: int) -> str:
    row = f"({', '.join('?' * len(columns))})"
    return f"VALUES {', '.join([row] * rows)}"


class UnitOfWork:
    """The connection, the buffered rows, and what undoes a job.

    `db` executes statements, never BEGIN, COMMIT or ROLLBACK. `undo` has a step for each change of memory, which takes it
    back: whoever changes memory in a job appends one. The steps of a job that fails run, the last one first.

    What every message appends is hardly ever read by a later job of the same transaction. So these `rows` are kept in memory,
    as one flat list of values for each statement, and written in bulk before COMMIT: of many rows, a statement takes less than
    half of the time that one row each would (docs/adr/0002-writer-on-the-loop.md). A function that reads or changes a table with
    such rows calls `flush` before; the writer sets `flushed` to False before each job.
    """

    __slots__ = ("callbacks", "db", "flushed", "rows", "undo")

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db: Final = db
        self.rows: Final = defaultdict[BulkStatement, list[Any]](list)
        self.undo: Final[list[Callback]] = []
        self.callbacks: Final[list[Callback]] = []
        self.flushed = False

    def append(self, statement: BulkStatement, values: tuple[Any, ...]) -> None:
        """Buffers a row, or several for the same statement."""
        rows = self.rows[statement]
        rows += values
        self.undo.append(partial(delitem, rows, slice(-len(values), None)))

    def flush(self) -> None:
        """Writes the buffered rows into the open transaction, so that statements see them."""
        if not any(self.rows.values()):
            return
        self.flushed = True
        for statement in sorted(self.rows, key=_rank):
            if not (rows := self.rows[statement]):
                continue
            values, at = rows if statement.merge is None else statement.merge(rows), 0
            for size, text in statement.texts:
                while len(values) - at >= size:
                    self.db.execute(text, values[at : at + size])
                    at += size
            rows.clear()

    def after_commit(self, callback: Callback) -> None:
        """`callback` runs on the event loop once the commit is durable, in order, before any job's future resolves."""
        self.callbacks.append(callback)
        self.undo.append(self.callbacks.pop)

    def roll_back(self, savepoint: int) -> None:
        """Undoes what the jobs since `savepoint` have changed in memory, and drops their buffered rows."""
        while len(self.undo) > savepoint:
            self.undo.pop()()


def put_back(values: dict[Any, Any], key: object, before: object) -> None:
    """A step of `undo`: a dictionary has this value again under `key`; None is no value."""
    if before is None:
        values.pop(key, None)
    else:
        values[key] = before
