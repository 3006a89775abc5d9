"""The types of both SQLite libraries, for the modules outside this package: only `store.engine` imports the libraries."""

from sqlite3 import Connection, Cursor, OperationalError
from sqlite3 import Error as DatabaseError

from aiosqlite import Connection as Reader

__all__ = ["Connection", "Cursor", "DatabaseError", "OperationalError", "Reader"]
