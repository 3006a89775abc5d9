"""Disk space that is kept for the next start: a file beside the store, which is removed before the store is opened.

Without any free space SQLite cannot even read a store in WAL mode: it has to make the `-shm` file, and recovery may write.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

BYTES: Final = 1 << 19
"""The `-shm` file, the pages that a start writes, and the files of the API; for some starts, since a killed one leaves a WAL."""


class Reserve:
    """The file. It is released before the store is opened; `held` afterwards, unless the disk is full."""

    def __init__(self, store: Path) -> None:
        self._path = store.with_name(store.name + ".reserve")
        self.held = False

    def release(self) -> None:
        """Give the space back. A file that cannot be removed holds nothing up."""
        with contextlib.suppress(OSError):
            self._path.unlink()
        self.held = False

    def keep(self) -> bool:
        """Take the space; whether there was enough."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                self.held = os.write(fd, bytes(BYTES)) == BYTES
            finally:
                os.close(fd)
        except OSError:
            self.held = False
        if not self.held:
            self.release()
        return self.held
