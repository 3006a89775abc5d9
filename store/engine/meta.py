"""Table `meta`: single integers by name."""

import sqlite3
from typing import Final

MOVED: Final = "moved"
"""When the store was copied to go on somewhere else (`aghctl backup --move`), in Unix milliseconds; 0 or missing: it was not."""


def get(db: sqlite3.Connection, key: str) -> int | None:
    """The value of `key`; None when it was never set."""
    row = db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else int(row[0])


def put(db: sqlite3.Connection, key: str, value: int) -> None:
    """Sets the value of `key`."""
    db.execute(
        "INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value)
    )


def bump(db: sqlite3.Connection, key: str) -> None:
    """Adds one to the value of `key`, which begins at 0."""
    db.execute("INSERT INTO meta (key, value) VALUES (?, 1) ON CONFLICT DO UPDATE SET value = value + 1", (key,))
