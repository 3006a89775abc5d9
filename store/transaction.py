"""What a write job gets: the connection inside an open transaction, and what follows its commit or its rollback."""

import sqlite3
from collections.abc import Callable
from typing import Final, NamedTuple

from aghbus.store.memory import Memory

Callback = Callable[[], None]


class Mark(NamedTuple):
    """A position in a transaction's lists of callbacks."""

    committed: int
    rolled_back: int


class Transaction:
    """The current transaction of the writer. Valid only inside the job it is given to.

    `db` executes statements (never BEGIN, COMMIT or ROLLBACK), `memory` is what the store keeps outside SQLite.
    """

    __slots__ = ("_committed", "_rolled_back", "db", "memory")

    def __init__(self, db: sqlite3.Connection, memory: Memory) -> None:
        self.db: Final = db
        self.memory: Final = memory
        self._committed: list[Callback] = []
        self._rolled_back: list[Callback] = []

    def after_commit(self, callback: Callback) -> None:
        """`callback` runs on the event loop once the commit is durable, in order, before any job's future resolves."""
        self._committed.append(callback)

    def after_rollback(self, callback: Callback) -> None:
        """`callback` runs when this job's changes are undone, last registered first: it restores memory."""
        self._rolled_back.append(callback)

    def mark(self) -> Mark:
        """Where the callbacks of the next job begin."""
        return Mark(len(self._committed), len(self._rolled_back))

    def undo(self, mark: Mark) -> None:
        """Restores memory to what it was at `mark` and forgets the callbacks since."""
        del self._committed[mark.committed :]
        while len(self._rolled_back) > mark.rolled_back:
            self._rolled_back.pop()()

    def take_committed(self) -> list[Callback]:
        """The callbacks of the committed transaction, in order; both lists are empty afterwards."""
        callbacks, self._committed = self._committed, []
        self._rolled_back.clear()
        return callbacks
