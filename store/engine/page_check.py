"""The check of a file that was not closed in order: SQLite reads every page and compares its structures.

After a loss of power or a reboot it precedes the start, because pages may be torn. When only the process ended, the kernel has
all that it wrote: the store is used at once, and a thread checks the file meanwhile, on a connection of its own.
"""

import asyncio
import contextlib
import logging
import sqlite3
from hashlib import sha256
from pathlib import Path
from typing import Final

from aghbus.host.boot import boot_id
from aghbus.protocol.base.text import escape
from aghbus.store.engine import integrity
from aghbus.store.errors import StoreDamaged

_PATIENCE: Final = 0.5  # seconds that closing waits for a check that has nearly ended
_RETRY: Final = 0.02  # seconds between two attempts to interrupt it: one before its statement runs has no effect

_log = logging.getLogger("aghbus.store")


def boot_number() -> int:
    """`boot_id` as a number; 0 where the system does not tell."""
    boot = boot_id()
    return int.from_bytes(sha256(boot.encode()).digest()[:7], "big") if boot else 0


class PageCheck:
    """A check that runs beside the store. `damage` is what it has found, `sound` whether it has passed."""

    def __init__(self, path: Path) -> None:
        self.sound = False
        self.damage: StoreDamaged | None = None
        self._path = path
        uri = f"{path.as_uri()}?mode=ro"
        self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
        self._task = asyncio.create_task(asyncio.to_thread(self._check), name="store page check")

    async def ended(self) -> None:
        """Waits for the end of the check, or for `stop`."""
        await asyncio.wait([self._task])

    async def stop(self) -> None:
        """Ends the check, finished or not."""
        await asyncio.wait([self._task], timeout=_PATIENCE)
        while not self._task.done():
            self._db.interrupt()
            await asyncio.wait([self._task], timeout=_RETRY)
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _check(self) -> None:
        try:
            integrity.check_pages(self._db, self._path)
        except StoreDamaged as error:
            self.damage = error
        except sqlite3.Error as error:
            cause, code = escape(str(error)), error.sqlite_errorcode & 0xFF
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                self.damage = StoreDamaged(self._path, f"is damaged: {cause}", hint=integrity.DAMAGED_HINT)
            elif code != sqlite3.SQLITE_INTERRUPT:
                _log.warning("the pages of the store could not be checked: %s", cause)
        else:
            self.sound = True
