"""Advisory locks on files (BSD flock): the kernel drops them when their holder dies, however it dies.

A lock belongs to the open file, not to the process: a child that inherits the descriptor keeps the lock alive. The folder
must be on a local disk; network file systems emulate flock with rules of their own.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import random
from typing import TYPE_CHECKING

from aghbus.protocol.base.backoff import Backoff

if TYPE_CHECKING:
    from pathlib import Path

_FIRST_POLL = 0.002  # seconds; elections are short, so the second look comes soon
_LONGEST_POLL = 0.05  # seconds


class FileLock:
    """One lock file, opened when first needed, created with mode 0600."""

    def __init__(self, path: Path) -> None:
        """`path` is the lock file; its folder must exist by the time of the first attempt."""
        self._path = path
        self._fd: int | None = None
        self._held = False

    @property
    def held(self) -> bool:
        """Whether this object holds the lock, shared or exclusive."""
        return self._held

    def try_lock(self, *, shared: bool) -> bool:
        """Takes the lock if that needs no waiting; an OSError means that the file cannot be opened."""
        self._reopen_if_replaced()
        if self._fd is None:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._held = True
        return True

    async def lock(self, *, shared: bool, timeout: float) -> bool:
        """Polls for the lock without blocking the loop; False when `timeout` seconds have passed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        backoff = Backoff(_FIRST_POLL, _LONGEST_POLL)
        while not self.try_lock(shared=shared):
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(backoff.next() * random.uniform(0.5, 1.0))  # noqa: S311 - spreads the pollers, hides nothing
        return True

    def release(self) -> None:
        """Gives the lock up and closes the file; without effect when nothing is held."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._held = None, False

    def _reopen_if_replaced(self) -> None:
        """A lock on a file that was deleted or replaced excludes nobody: let it go and open the one in place."""
        if self._fd is None:
            return
        try:
            same = os.path.samestat(os.fstat(self._fd), self._path.stat())
        except FileNotFoundError:
            same = False
        if not same:
            self.release()


def is_locked(path: Path) -> bool:
    """Whether somebody holds `path` exclusively at this moment; a missing file is held by nobody."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(fd)
