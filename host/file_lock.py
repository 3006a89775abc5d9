"""Advisory locks on files (flock(2)): the kernel drops them when their holder dies, however it dies.

A lock belongs to the open file, not to the process: a child that inherits the descriptor keeps the lock alive. The
folder must be on a local disk; network file systems emulate flock with their own rules.
"""

from __future__ import annotations

import fcntl
import os
import random
import time
from collections.abc import Callable
from functools import partial

from aghbus.protocol.base.backoff import Backoff

_FIRST_POLL = 0.002  # seconds; most locks are held for a moment, so the second look comes soon
_LONGEST_POLL = 0.05  # seconds


def try_lock(file: int, *, shared: bool = False) -> bool:
    """Lock the open file `file`; False if another holder excludes that. Held until the last descriptor of it is closed."""
    try:
        fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(file: int, timeout: float = float("inf")) -> bool:
    """Lock the open file `file` exclusively, waiting for up to `timeout` seconds; False after that. Blocks the thread."""
    deadline = time.monotonic() + timeout
    backoff = Backoff(_FIRST_POLL, _LONGEST_POLL)
    while not try_lock(file):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_jittered(backoff.next()))
    return True


async def poll_lock(attempt: Callable[[], bool], timeout: float) -> bool:
    """Repeat `attempt` (a `try_lock`) until it is true; False after `timeout` seconds. Does not block the loop."""
    import asyncio

    deadline = time.monotonic() + timeout
    backoff = Backoff(_FIRST_POLL, _LONGEST_POLL)
    while not attempt():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(_jittered(backoff.next()))
    return True


def is_locked(path: str | os.PathLike[str]) -> bool:
    """Whether a process holds an exclusive lock on `path` at this moment; a file that cannot be opened is not locked."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        return not try_lock(file, shared=True)
    finally:
        os.close(file)


def _jittered(delay: float) -> float:
    return delay * random.uniform(0.5, 1.0)  # noqa: S311 - spreads the pollers, hides nothing


class FileLock:
    """One lock file, opened when first needed, created with mode 0600."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
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
        if not try_lock(self._fd, shared=shared):
            return False
        self._held = True
        return True

    async def lock(self, *, shared: bool, timeout: float) -> bool:
        """Waits for the lock without blocking the loop; False when `timeout` seconds have passed."""
        return await poll_lock(partial(self.try_lock, shared=shared), timeout)

    def release(self) -> None:
        """Gives the lock up and closes the file; without effect when nothing is held."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd, self._held = None, False

    def _reopen_if_replaced(self) -> None:
        """A lock on a file that was deleted or replaced excludes no process: release it and open the one in place."""
        if self._fd is None:
            return
        try:
            same = os.path.samestat(os.fstat(self._fd), os.stat(self._path))  # noqa: PTH116 - pathlib is slow to load
        except FileNotFoundError:
            same = False
        if not same:
            self.release()
