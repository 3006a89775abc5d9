"""The argument of a write job."""

import sqlite3
from functools import partial
from typing import Final

from aghbus.store.engine.commit.state import InMemoryState, numbers_of
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
        savepoint = len(self.undo)
        self.undo.append(partial(self.memory.restore, numbers_of(self.memory)))
        self._has_rows = False
        self._changes = self.db.total_changes
        return savepoint

    def committed(self) -> list[Callback]:
        """The transaction is durable. Returns the callbacks to run, in order; nothing can be undone any more."""
        memory, callbacks = self.memory, self.callbacks.copy()
        self.callbacks.clear()
        self.undo.clear()
        memory.ledger.records.clear()
        memory.ledger.events.clear()
        memory.inbox.changed_works.clear()
        if memory.events.pending:
            memory.events.publish()
        return callbacks
