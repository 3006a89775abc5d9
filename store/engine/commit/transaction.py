"""The argument of a write job."""

import sqlite3
from typing import Final

from aghbus.store.engine.commit.state import InMemoryState
from aghbus.store.engine.unit_of_work import UnitOfWork


class Transaction(UnitOfWork):
    """The current transaction of the writer. Valid only inside the job it is given to. `memory` is what the store keeps
    outside SQLite."""

    __slots__ = ("memory",)

    def __init__(self, db: sqlite3.Connection, memory: InMemoryState) -> None:
        super().__init__(db)
        self.memory: Final = memory
