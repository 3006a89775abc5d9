"""The types of both SQLite libraries, which only this package imports, and generated text of SQL statements."""

from collections.abc import Collection
from sqlite3 import Connection, Cursor, OperationalError
from sqlite3 import Error as DatabaseError

from aiosqlite import Connection as Reader

from aghbus.protocol.text import shorten

__all__ = [
    "Connection",
    "Cursor",
    "DatabaseError",
    "OperationalError",
    "Reader",
    "encodable",
    "insert_into",
    "placeholders",
]


def placeholders(columns: Collection[object]) -> str:
    """One `?` for each column: `?, ?, ?`."""
    return ", ".join("?" * len(columns))


def insert_into(table: str, columns: Collection[str], conflict: str = "") -> str:
    """`INSERT INTO table (columns) VALUES (?, …)`, and its ON CONFLICT clause."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders(columns)}) {conflict}"  # noqa: S608 - constants


def encodable(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, as UTF-8 can encode them: a text read from an invalid envelope may hold
    lone surrogates."""
    return shorten(text, limit).encode(errors="backslashreplace").decode()
