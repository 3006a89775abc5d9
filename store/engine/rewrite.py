"""Writing the file anew, so that no bytes of deleted rows are left in it or in its write-ahead log.

SQLite overwrites a row that is deleted, but not the copies that stayed where it was moved from within the file: VACUUM leaves
those behind. The write-ahead log is overwritten before it is cut, when all of it is in the file and nobody reads it.
"""

import os
import sqlite3
from pathlib import Path
from typing import Final

from aghbus.protocol.base.text import escape
from aghbus.store.engine.wal_growth import reader_of

_PATIENCE_MS: Final = 5_000  # how long readers of an old state are waited for
_ZEROS: Final = bytes(1 << 20)


def rewrite(db: sqlite3.Connection, path: Path) -> str | None:
    """Writes the store at `path` anew; `db` is its writer, outside of transactions. Returns why that failed, as a sentence; None
    if nothing of deleted rows is left.

    Takes seconds for a gigabyte, and room on the disk for two copies of the store. A kill at any time leaves a sound store.
    """
    try:
        db.execute(f"PRAGMA busy_timeout = {_PATIENCE_MS}")
        _check_point(db, "TRUNCATE")
        _vacuum(db, path.parent)
        if _check_point(db, "RESTART"):
            _overwrite_wal(db, path.with_name(f"{path.name}-wal"))
            if _check_point(db, "TRUNCATE"):
                return None
        return f"the write-ahead log cannot be emptied while {reader_of(path)} reads an old state of the store"
    except (sqlite3.Error, OSError) as error:
        return f"the store cannot be written anew: {escape(str(error))}"
    finally:
        db.execute("PRAGMA busy_timeout = 0")


def _check_point(db: sqlite3.Connection, mode: str) -> bool:
    """Whether all of the WAL is in the file, and nobody reads it."""
    busy, _, _ = db.execute(f"PRAGMA wal_checkpoint({mode})").fetchone()
    return not busy


def _vacuum(db: sqlite3.Connection, folder: Path) -> None:
    """VACUUM with its copy in a file of `folder` that has no name: in memory it could be too large."""
    quoted = str(folder).replace("'", "''")
    db.execute(f"PRAGMA temp_store_directory = '{quoted}'")
    db.execute("PRAGMA temp_store = FILE")
    try:
        db.execute("VACUUM")
    finally:
        db.execute("PRAGMA temp_store = MEMORY")
        db.execute("PRAGMA temp_store_directory = ''")


def _overwrite_wal(db: sqlite3.Connection, wal: Path) -> None:
    """Overwrites the WAL, which is all in the file. The lock of a writer keeps others from appending to it meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    try:
        fd = os.open(wal, os.O_WRONLY | os.O_CLOEXEC)
        try:
            size, at = os.fstat(fd).st_size, 0
            while at < size:
                at += os.pwrite(fd, _ZEROS[: size - at], at)
            os.fsync(fd)
        finally:
            os.close(fd)
    finally:
        db.execute("ROLLBACK")
