"""Rows that write jobs append in memory and that are written in bulk before COMMIT.

What every message appends (its envelope, dedup key, outbox row, thread activity) is
hardly ever read by a later job of the same transaction. So it is buffered, and written with few statements of many
rows each. Such a statement holds the interpreter lock only while its values are bound: a thread can run it beside a
busy event loop (docs/adr/0002-writer-on-the-loop.md).

BLOBs are buffered as bytearrays: sqlite3 looks for no adapter for those, which takes longer than to copy them
(store/engine/database.py).
"""

import sqlite3
from collections.abc import Callable, Sequence
from enum import IntEnum
from itertools import zip_longest
from operator import attrgetter
from typing import Any, Final

Position = tuple[int, ...]
"""How many values each statement of an `AppendBuffer` has."""

_rank: Final = attrgetter("rank")
_ROWS_PER_STATEMENT: Final = (64, 16, 4, 1)  # each is a statement that SQLite keeps compiled


class Rank(IntEnum):
    """The order in which the statements of one transaction are written."""

    REFERENCED = 0  # rows that the foreign keys of others name
    INSERT = 1
    UPDATE = 2
    LAST_UPDATE = 3  # of rows that an UPDATE may change as well


class BulkStatement:
    """A statement over many rows of values for `columns`, which it has between `head` and `tail`."""

    def __init__(
        self,
        columns: Sequence[str],
        head: str,
        tail: str = "",
        *,
        rank: Rank = Rank.UPDATE,
        merge: Callable[[list[Any]], list[Any]] | None = None,
    ) -> None:
        """`merge` replaces the values of all rows of a transaction by those of fewer rows with the same effect."""
        row = f"({', '.join('?' * len(columns))})"
        self.columns: Final = tuple(columns)
        self.rank: Final = rank
        self._merge: Final = merge
        self._sql = [(size, f"{head} VALUES {', '.join([row] * size)} {tail}") for size in _ROWS_PER_STATEMENT]

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
        return cls(columns, f"INSERT INTO {table} ({', '.join(columns)})", conflict, rank=rank, merge=merge)

    def column(self, values: list[Any], name: str) -> list[Any]:
        """The values of one column, of all rows."""
        return values[self.columns.index(name) :: len(self.columns)]

    def find(self, values: list[Any], name: str, value: object) -> slice | None:
        """Where in `values` the first row is that has this value in column `name`; None when there is none."""
        try:
            start = self.column(values, name).index(value) * len(self.columns)
        except ValueError:
            return None
        return slice(start, start + len(self.columns))

    def write(self, db: sqlite3.Connection, values: list[Any]) -> None:
        """Writes the rows, in order."""
        if self._merge is not None:
            values = self._merge(values)
        at = 0
        for size, sql in self._sql:
            step = size * len(self.columns)
            while len(values) - at >= step:
                db.execute(sql, values[at : at + step])
                at += step


class AppendBuffer(dict[BulkStatement, list[Any]]):
    """The buffered rows, for each statement as one flat list of values: `rows[STATEMENT] += (value, ...)` appends a
    row."""

    def __missing__(self, statement: BulkStatement) -> list[Any]:
        self[statement] = values = list[Any]()
        return values

    def undo(self, position: Position) -> None:
        """Drops the rows appended since `position`, which was `tuple(map(len, rows.values()))`."""
        for values, length in zip_longest(self.values(), position, fillvalue=0):
            assert isinstance(values, list)
            del values[length:]

    def flush(self, db: sqlite3.Connection) -> None:
        """Writes the rows into the open transaction of `db`."""
        for statement in sorted(self, key=_rank):
            if values := self[statement]:
                statement.write(db, values)
                values.clear()

    def discard(self) -> None:
        """Drops all rows."""
        for values in self.values():
            values.clear()
