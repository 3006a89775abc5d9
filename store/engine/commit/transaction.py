"""The argument of a write job."""

import sqlite3
from typing import Final

from aghbus.store.engine.commit.state import InMemoryState
from aghbus.store.engine.unit_of_work import Callback, UnitOfWork


class Transaction(UnitOfWork):
    """The current transaction of the writer. Valid only inside the job it is given to. `memory` is what the store keeps
    outside SQLite."""

    __slots__ = ("memory",)

    def __init__(self, db: sqlite3.Connection, memory: InMemoryState) -> None:
        super().__init__(db)
        self.memory: Final = memory

    def begin_job(self) -> int:
        """Marks the start of the next job. Returns the savepoint for `roll_back`."""
        savepoint = super().begin_job()
        self.undo.append(self.memory.restoring_numbers())
        return savepoint

    def committed(self) -> list[Callback]:
        """The transaction is durable. Returns the callbacks to run, in order; nothing can be undone any more."""
        callbacks = self.callbacks.copy()
        self.callbacks.clear()
        self.undo.clear()
        self.memory.committed()
        return callbacks
