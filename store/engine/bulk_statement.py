"""Statements that write the buffered rows of a transaction: many rows each.

Of many rows, a statement takes less than half of the time that one row each would (docs/adr/0002-writer-on-the-loop.md).

BLOBs are buffered as bytearrays: sqlite3 looks for no adapter for those, which takes longer than to copy them
(store/engine/database.py).
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, Final

_ROWS_PER_STATEMENT: Final = (64, 16, 4, 1)  # each is a statement that SQLite keeps compiled


class Rank(IntEnum):
    """The order in which the statements of one transaction are written."""

    REFERENCED = 0  # rows that the foreign keys of others name
    INSERT = 1
    UPDATE = 2
    LAST_UPDATE = 3  # of rows that an UPDATE may change as well


class BulkStatement:
    """A statement over many rows of values for `columns`, which it has between `head` and `tail`. `texts` are its SQL for
    different numbers of values, most first."""

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
        self.merge: Final = merge
        self.texts: Final = [
            (size * len(columns), f"{head} VALUES {', '.join([row] * size)} {tail}") for size in _ROWS_PER_STATEMENT
        ]

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
