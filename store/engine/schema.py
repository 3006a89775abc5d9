"""The schema: numbered SQL files, each applied once, in its own transaction."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aghbus.store.errors import StoreDamaged, StoreTooNew, StoreUnopenable

APPLICATION_ID: Final = 0x41474842  # "AGHB" in the file's header (sqlite.org/fileformat.html, offset 68)


def shipped() -> list[str]:
    """The SQL files of this program in order: the first makes schema 1 from an empty file."""
    folder = Path(__file__).parent.parent / "migrations"
    return [entry.read_text(encoding="utf-8") for entry in sorted(folder.glob("*.sql"))]


def check_owner(db: sqlite3.Connection, path: Path) -> int:
    """The version of the schema, 0 for an empty file. Only reads.

    Raises StoreDamaged when the file is another program's, StoreTooNew when a later version wrote it, StoreUnopenable
    when a version before the first release did.
    """
    (version,) = db.execute("PRAGMA user_version").fetchone()
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (tables,) = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION_ID and (application, version, tables) != (0, 0, 0):
        raise StoreDamaged(path, "is an SQLite file of another program", hint="name another file as the store")
    known = len(shipped())
    if version > known:
        raise StoreTooNew(
            path,
            f"has schema {version}, this program knows {known}",
            hint="run the newer version that wrote it, or use another store",
        )
    if version and not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'log'").fetchone():
        raise StoreUnopenable(
            path,
            "was written by an earlier version, whose schema this program does not read",
            hint="move store.db and the files next to it away to start with an empty store, or run that version",
        )
    return int(version)


def migrate(db: sqlite3.Connection, version: int, scripts: Sequence[str]) -> None:
    """Brings a schema of `version` up to date. A script that fails leaves the file as it was before it."""
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for number, sql in enumerate(scripts[version:], version + 1):
        try:
            db.executescript(f"BEGIN IMMEDIATE;\n{sql}\nPRAGMA user_version = {number};\nCOMMIT;")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
