"""Copies a store, also while a daemon writes to it, and checks the copy.

The copy is made by SQLite's backup API in one read transaction: commits that come meanwhile are not in it, and do not make
it begin again. Its mark file is written from the copy itself, because that of a running daemon may be older or newer.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from aghbus.store.engine import integrity, meta
from aghbus.store.engine.commit.ledger import Head, entry_hash, pruned, stored_head
from aghbus.store.engine.commit.watermark import CommitWatermark, encode_watermark, watermark_path
from aghbus.store.engine.database import explained
from aghbus.store.engine.log import segments
from aghbus.store.engine.log.dedup import MessageIds
from aghbus.store.engine.schema import check_owner, migrate, shipped
from aghbus.store.engine.store_lock import is_locked
from aghbus.store.errors import StoreDamaged

_PAGES: Final = 1_024  # that are copied between two calls of `progress`: 4 MiB
_NEWEST: Final = "SELECT n, at_ms, last_seq, content, events, hash FROM ledger ORDER BY n DESC LIMIT 1"
Progress = Callable[[int, int], None]
"""Called with the number of pages that are copied, and of all."""


class Copy(NamedTuple):
    """A copy of a store: its newest entry, the time of that commit in Unix milliseconds, and the size of the file."""

    head: Head
    at_ms: int
    bytes: int


def copy_store(source: Path, target: Path, progress: Progress) -> Copy:
    """Copies the store at `source` to the new file `target` (mode 0600), with a mark file beside it, and checks the copy.

    The copy is on the disk when this returns. Raises StoreError, and leaves no file then.
    """
    try:
        _copy_pages(source, target, progress)
        copy = _check(target)
        _sync(target)
    except BaseException as error:
        discard(target)
        if isinstance(error, sqlite3.Error | OSError):
            raise explained(source, error) from None
        raise
    return copy


def update(copy: Path) -> None:
    """Brings the schema of the copy, which no process uses, up to date, with the indexes of its log. Raises StoreError."""
    try:
        with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as db:
            version, scripts = check_owner(db, copy), shipped()
            if version < len(scripts):
                migrate(db, version, scripts)
                ids = MessageIds()
                ids.open(meta.get(db, "identity") or 0)
                segments.prepare(db, segments.SEGMENT, ids.id_key)
    except sqlite3.Error as error:
        raise explained(copy, error) from None


def discard(copy: Path) -> None:
    """Removes a copy and the files beside it, as far as there are any."""
    for path in (copy, watermark_path(copy), *(copy.with_name(copy.name + suffix) for suffix in ("-wal", "-shm"))):
        path.unlink(missing_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Writes the new file `path` with mode 0600, and to the disk. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _copy_pages(source: Path, target: Path, progress: Progress) -> None:
    with contextlib.closing(_open_source(source)) as db:
        check_owner(db, source)
        write_private(target, b"")
        with contextlib.closing(sqlite3.connect(target, isolation_level=None)) as copy:
            db.execute("BEGIN")
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()  # the transaction begins with its first read
            db.backup(copy, pages=_PAGES, progress=lambda _, left, total: progress(total - left, total))


def _open_source(path: Path) -> sqlite3.Connection:
    """A connection that only reads. A file that no process uses is read as it is: also from a folder that is read-only."""
    in_use = os.path.lexists(path.with_name(path.name + "-wal")) or is_locked(path)
    uri = f"{path.absolute().as_uri()}?mode=ro{'' if in_use else '&immutable=1'}"
    return sqlite3.connect(uri, uri=True, isolation_level=None)


def _check(copy: Path) -> Copy:
    """Reads every page of the copy, checks its newest entry, and writes its mark file. Raises StoreDamaged, sqlite3.Error."""
    uri = f"{copy.absolute().as_uri()}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as db:
        integrity.check_pages(db, copy)
        at_ms, head, identity = _newest_entry(db, copy), stored_head(db), meta.get(db, "identity")
    if identity is not None:
        write_private(watermark_path(copy), encode_watermark(CommitWatermark(identity, head)))
    return Copy(head, at_ms, copy.stat().st_size)


def _newest_entry(db: sqlite3.Connection, path: Path) -> int:
    """The time of the newest entry, 0 without one. Raises StoreDamaged when it does not follow from the one before."""
    row = db.execute(_NEWEST).fetchone()
    if row is None:
        return 0
    *contents, digest = row
    before = db.execute("SELECT hash FROM ledger WHERE n < ? ORDER BY n DESC LIMIT 1", contents[:1]).fetchone()
    if entry_hash(pruned(db).hash if before is None else before[0], *contents) != digest:
        cause = f"has a newest commit, {contents[0]}, that does not follow from the one before"
        raise StoreDamaged(path, cause, hint=integrity.DAMAGED_HINT)
    return int(contents[1])


def _sync(copy: Path) -> None:
    for path in (copy, copy.parent):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
