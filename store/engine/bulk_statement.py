"""Statements that write the buffered rows of a transaction: many rows each.

Of many rows, a statement takes less than half of the time that one row each would (docs/adr/0002-writer-on-the-loop.md).
"""

import sqlite3
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final

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

    def write(self, db: sqlite3.Connection, values: list[Any]) -> None:
        """Executes it for all rows of these values."""
        at = 0
        if self.merge is not None:
            values = self.merge(values)
        for size, text in self.texts:
            while len(values) - at >= size:
                db.execute(text, values[at : at + size])
                at += size

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


def _values(columns: Sequence[str], rows: int) -> str:
    row = f"({', '.join('?' * len(columns))})"
    return f"VALUES {', '.join([row] * rows)}"
