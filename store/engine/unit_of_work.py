"""The interface of a transaction that the in-memory parts of the store use."""

import sqlite3
from collections.abc import Callable
from typing import Any, Protocol

from aghbus.store.engine.bulk_statement import BulkStatement

Callback = Callable[[], None]
Replaced = tuple[dict[Any, Any], Any, Any]
"""A dictionary in memory, a key in it, and the value that the key had before; None: it had none."""


class UnitOfWork(Protocol):
    """The transaction that a job shares with others, as `Transaction` implements it."""

    @property
    def db(self) -> sqlite3.Connection:
        """The connection, after the buffered rows were written."""

    @property
    def db_unflushed(self) -> sqlite3.Connection:
        """The connection, for tables without buffered rows and for rows of earlier transactions."""

    @property
    def rows(self) -> dict[BulkStatement, list[Any]]:
        """Rows that are written before COMMIT."""

    @property
    def replaced(self) -> list[Replaced]:
        """What to put back when the job is undone, the last first."""

    @property
    def after_commit(self) -> Callable[[Callback], None]:
        """Takes a callback, which runs on the event loop once the commit is durable, in order, before any job's future resolves."""

    def after_rollback(self, callback: Callback) -> None:
        """`callback` runs when this job's changes are undone, last registered first: it restores memory."""
