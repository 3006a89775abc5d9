"""Checkpoints: the pages in the WAL are copied into the file of the store, nearly all of them beside the commits.

A COMMIT that makes a checkpoint of 16 MiB takes tens of milliseconds, in which no job can run. So commits make none. Once
the WAL has CHECKPOINT_PAGES, a thread copies them on a connection of its own, while the writer appends more. Then the
writer's connection copies the rest, which is short. SQLite writes the WAL from its start again when a transaction begins
after all of it has been copied and nobody reads it (sqlite.org/wal.html).

The header of the WAL has salts, which change when it is written from its start, and each of its frames has them too
(sqlite.org/fileformat2.html#walformat): a frame with other salts is left from an earlier time.

SQLite before 3.51.3 can lose pages when a checkpoint begins while another connection starts the WAL again
(sqlite.org/wal.html#walresetbug). That needs a WAL of which all is copied. The thread begins when some of it is not, and
nobody else makes a checkpoint before it has ended.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
from pathlib import Path
from typing import Final

from aghbus.protocol.base.text import escape

CHECKPOINT_PAGES: Final = 4_096  # 16 MiB: a page that changes often is copied once for many commits
_RETRY_PAGES: Final = 1_024  # more, before the next attempt, when an error or a reader kept the WAL from starting again
_HEADER, _FRAME_HEADER = 32, 24  # bytes
_SALTS, _FRAME_SALTS = 16, 8  # where the eight bytes of salts are in them
_CHECKPOINT: Final = "PRAGMA wal_checkpoint(PASSIVE)"  # copies what no reader holds back; waits for no lock

_log = logging.getLogger("aghbus.store")


class Checkpoints:
    """The checkpoints of an open store."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        """`db` is the writer's connection to the file `path`; its commits make no checkpoints from now on."""
        self._db = db
        self._uri = f"{path.as_uri()}?mode=rw"
        file = os.path.realpath(path)  # SQLite has the WAL beside it
        self._wal = os.open(f"{file}-wal", os.O_RDONLY | os.O_CLOEXEC)
        self._file = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        (page,) = db.execute("PRAGMA page_size").fetchone()
        self._frame: int = _FRAME_HEADER + page
        self._salts = b""
        self._pages = CHECKPOINT_PAGES  # at which a checkpoint begins, while the WAL has these salts
        self._copying: asyncio.Future[None] | None = None
        db.execute("PRAGMA wal_autocheckpoint = 0")

    def after_commits(self) -> bool:
        """Begins a checkpoint if the WAL is long. Returns whether `finish` is to run before the next transaction."""
        if self._copying is not None:
            return self._copying.done()
        try:
            salts = os.pread(self._wal, 8, _SALTS)
            if salts != self._salts:
                self._salts, self._pages = salts, CHECKPOINT_PAGES
            is_long = os.pread(self._wal, 8, _HEADER + (self._pages - 1) * self._frame + _FRAME_SALTS) == salts
        except OSError as error:
            _log.warning("the length of the WAL cannot be read: %s", escape(str(error)))
            return False
        if is_long:
            self._copying = asyncio.get_running_loop().run_in_executor(None, self._copy)
        return False

    def finish(self) -> None:
        """Copies what was committed while the thread copied, or everything if that failed. Runs in the store's thread."""
        self._copying = None
        try:
            _, pages, _ = self._db.execute(_CHECKPOINT).fetchone()
        except sqlite3.Error as error:
            _log.warning("a checkpoint failed, and is repeated later: %s", escape(str(error)))
            pages = -1
        self._pages = (
            self._pages if pages < 0 else max(CHECKPOINT_PAGES, pages)
        ) + _RETRY_PAGES  # -1: another one is at work

    async def ended(self) -> None:
        """Waits for the thread, if it copies."""
        if self._copying is not None:
            await asyncio.wait([self._copying])

    def close(self) -> None:
        """To be called when all connections are closed: SQLite's locks on the file end with the first descriptor of this
        process that is closed (sqlite.org/howtocorrupt.html)."""
        os.close(self._wal)
        os.close(self._file)

    def _copy(self) -> None:
        try:
            with contextlib.closing(sqlite3.connect(self._uri, uri=True, timeout=0, isolation_level=None)) as db:
                db.execute(_CHECKPOINT).fetchone()
            # SQLite does so only if nothing was committed meanwhile; else `finish` would wait for the disk.
            os.fdatasync(self._file)
        except (sqlite3.Error, OSError) as error:
            _log.warning("a checkpoint beside the commits failed: %s", escape(str(error)))
