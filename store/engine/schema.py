"""The schema and how it changes: numbered SQL files, each applied once, in its own transaction."""

import re
import sqlite3
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Final, NamedTuple

from aghbus.store.errors import StoreDamaged, StoreTooNew

APPLICATION_ID: Final = 0x41474842  # "AGHB" in the file's header (sqlite.org/fileformat.html, offset 68)
_NAME: Final = re.compile(r"(\d{4})_[a-z0-9_]+\.sql")


class Migration(NamedTuple):
    """One step from version `number - 1` to `number`."""

    number: int
    sql: str


def shipped() -> tuple[Migration, ...]:
    """The migrations of this program, in order, numbered from 1 without a gap."""
    found = []
    for entry in files("aghbus.store").joinpath("migrations").iterdir():
        match = _NAME.fullmatch(entry.name)
        if match:
            found.append(Migration(int(match[1]), entry.read_text(encoding="utf-8")))
    return tuple(sorted(found))


def check_owner(db: sqlite3.Connection, path: Path) -> int:
    """The version of the schema, 0 for an empty file. Only reads.

    Raises StoreDamaged when the file is another program's, StoreTooNew when a later version wrote it.
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
    return int(version)


def migrate(db: sqlite3.Connection, version: int, migrations: Sequence[Migration]) -> None:
    """Brings a schema of `version` up to date. A migration that fails leaves the file as it was before it."""
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for migration in migrations[version:]:
        try:
            db.executescript(f"BEGIN IMMEDIATE;\n{migration.sql}\nPRAGMA user_version = {migration.number};\nCOMMIT;")
        except sqlite3.Error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise
