"""The schema: numbered SQL files, each applied once, in its own transaction. A released file never changes (CONTRIBUTING.md)."""

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aghbus.store.errors import StoreDamaged, StoreTooNew, StoreUnopenable

APPLICATION_ID: Final = 0x41474842  # "AGHB" in the file's header (sqlite.org/fileformat.html, offset 68)
MIGRATIONS: Final = Path(__file__).parent.parent / "migrations"
_LAST_OF_1: Final = "SELECT 1 FROM sqlite_schema WHERE name = 'follow_ups_chain'"
"""What schema 1 got last before it was frozen: a store without it is of a commit before, which also called itself 1."""


def shipped() -> list[str]:
    """The SQL files of this program in order: the first makes schema 1 from an empty file."""
    return [entry.read_text(encoding="utf-8") for entry in sorted(MIGRATIONS.glob("*.sql"))]


def check_owner(db: sqlite3.Connection, path: Path) -> int:
    """The version of the schema, 0 for an empty file. Only reads.

    Raises StoreDamaged when the file is another program's, StoreTooNew when a later version wrote it, StoreUnopenable
    when a commit before the first release did.
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
    if version == 1 and not db.execute(_LAST_OF_1).fetchone():
        raise StoreUnopenable(
            path,
            "was written by a development version before the first release, whose schema this program does not read",
            hint="run or restore it with that version; to start with an empty store, move store.db and the files next to it"
            " away",
        )
    return int(version)


def earlier(db: sqlite3.Connection) -> str | None:
    """What a store says whose schema is still to be brought up to date; None for one that is. Only reads."""
    (version,), known = db.execute("PRAGMA user_version").fetchone(), len(shipped())
    return f"has schema {version}, this program {known}" if 0 < version < known else None


def migrate(db: sqlite3.Connection, version: int, scripts: Sequence[str]) -> None:
    """Brings a schema of `version` up to date. A script that fails leaves the file as it was before it.

    Foreign keys are not enforced meanwhile, so that a script may replace a table, and are compared before the commit.
    """
    db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    (enforced,) = db.execute("PRAGMA foreign_keys").fetchone()
    db.execute("PRAGMA foreign_keys = OFF")
    try:
        for number, sql in enumerate(scripts[version:], version + 1):
            db.executescript(f"BEGIN IMMEDIATE;\n{sql}\n")
            if orphan := db.execute("PRAGMA foreign_key_check").fetchone():
                raise sqlite3.IntegrityError(
                    f"migration {number} leaves rows of {orphan[0]} without those of {orphan[2]}"
                )
            db.execute(f"PRAGMA user_version = {number}")
            db.execute("COMMIT")
    except sqlite3.Error:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
    finally:
        db.execute(f"PRAGMA foreign_keys = {enforced}")
