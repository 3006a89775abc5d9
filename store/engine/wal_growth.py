"""Why the write-ahead log grows: a process that reads an old state of the store, or a checkpoint that fails.

An automatic checkpoint reports neither: SQLite makes it within a COMMIT, which succeeds whatever becomes of it.
"""

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from aghbus.protocol.base.text import escape

_LOCKS: Final = range(120, 128)
"""The bytes of the -shm file that who writes, reads or makes a checkpoint locks (sqlite.org/walformat.html)."""


def wal_problem(path: Path, size: int) -> str | None:
    """Why the WAL of the store at `path`, of `size` bytes, cannot be emptied now, as a sentence; None if it can.

    Tries a checkpoint, which may take a second: call it in a thread.
    """
    said = f"the write-ahead log has {size >> 20} MiB"
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            busy, pages, copied = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    except sqlite3.Error as error:
        return f"{said}: its checkpoint fails: {escape(str(error))}"
    if not busy and copied >= pages:
        return None  # the next COMMIT begins it anew
    return f"{said}, and grows while {reader_of(path)} reads an old state of the store: end that transaction"


def reader_of(path: Path) -> str:
    """Who reads an old state of the store at `path`, as far as the kernel tells."""
    holders = _lock_holders(Path(f"{path}-shm"))
    others = " and ".join(_named(pid) for pid in holders if pid != os.getpid())
    return others or ("this daemon" if holders else "a process")


def _lock_holders(shm: Path) -> list[int]:
    """The processes that hold a lock of a transaction; none where the kernel does not tell."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        inode = str(shm.stat().st_ino)
        for line in Path("/proc/locks").read_text("utf-8").splitlines():
            match line.split():
                case [_, "POSIX", _, _, pid, place, first, _] if place.rpartition(":")[2] == inode:
                    if first.isdecimal() and int(first) in _LOCKS:
                        found.add(int(pid))
    return sorted(found)


def _named(pid: int) -> str:
    try:
        return f"process {pid} ({escape(Path(f'/proc/{pid}/comm').read_text('utf-8', 'replace').strip())})"
    except OSError:
        return f"process {pid}"
