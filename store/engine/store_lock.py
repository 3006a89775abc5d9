"""One process per store: a lock on a file beside it, which the kernel releases when its holder dies."""

import contextlib
import os
from pathlib import Path

from aghbus.host import file_lock
from aghbus.host.file_lock import try_lock
from aghbus.protocol.base.text import escape
from aghbus.store.errors import StoreLocked, StoreUnopenable

_NOTE_BYTES = 256  # `pid name`, and a name is at most 128 bytes


class StoreLock:
    """The exclusive lock of one store, held from `acquire` until `release`. The lock file stays, empty."""

    def __init__(self, store: Path) -> None:
        self._store = store
        self.path = _path_of(store)
        self._fd: int | None = None

    def acquire(self, name: str) -> None:
        """Takes the lock and leaves pid and `name` in the file.

        Raises StoreLocked naming the holder, StoreUnopenable when the file cannot be opened.
        """
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise StoreUnopenable(
                self._store,
                f"its lock file cannot be opened: {error.strerror}",
                hint=f"make {self.path.parent} writable for this user",
            ) from None
        if not try_lock(fd):
            note = os.pread(fd, _NOTE_BYTES, 0)
            os.close(fd)
            raise _locked(self._store, note)
        with contextlib.suppress(OSError):  # the note is for people: on a full disk it is missing
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()} {name}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Releases the lock; without effect when it is not held."""
        if self._fd is None:
            return
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
        os.close(self._fd)
        self._fd = None


def is_locked(store: Path) -> bool:
    """Whether a process holds the lock of `store` now. The check itself takes a shared lock for a moment."""
    return file_lock.is_locked(_path_of(store))


def _path_of(store: Path) -> Path:
    return store.with_name(store.name + ".lock")


def _locked(store: Path, note: bytes) -> StoreLocked:
    pid, _, name = note.decode(errors="replace").strip().partition(" ")
    if not pid.isdecimal():
        return StoreLocked(store, "another process", None)
    return StoreLocked(store, f"{escape(name) or 'a process'} (pid {pid})", int(pid))
