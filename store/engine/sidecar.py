"""Small files beside the store that follow its commits: what they say shows at the next start whether commits were
lost.

A sidecar file is written up to LAG seconds after a COMMIT has returned and is not synced. A crash of the process in
between, and a loss of power, leave it older than the store, which means nothing. It is newer only if the store lost
something.
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, Generic, TypeVar

T = TypeVar("T")

LAG: Final = 1.0  # seconds: one write, and one wake-up of the thread, for all commits in between


class SidecarFile(Generic[T]):
    """One sidecar file, for the writer of its store. `encode` gives contents of one fixed length."""

    def __init__(self, path: Path, executor: Executor, encode: Callable[[T], bytes]) -> None:
        """`executor` is the one of the store's commits: its thread writes the file."""
        self.path: Final = path
        self._executor = executor
        self._encode = encode
        self._value: T | None = None
        self._timer: asyncio.TimerHandle | None = None

    def set(self, value: T) -> None:
        """`value` is durable in the store: the file says so within LAG. Call it on the event loop."""
        self._value = value
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAG, self._write_in_thread)

    def write(self, value: T) -> None:
        """Writes `value` now. Raises OSError."""
        content = self._encode(value)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
        finally:
            os.close(fd)

    def close(self) -> None:
        """Writes the pending value."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._try_write()

    def _write_in_thread(self) -> None:
        self._timer = None
        self._executor.submit(self._try_write)

    def _try_write(self) -> None:
        """A file that cannot be written stays older than the store, and less can be checked at the next start."""
        value = self._value  # once: the event loop may set the next while this thread writes
        if value is not None:
            with contextlib.suppress(OSError):
                self.write(value)


def sidecar_path(store: Path, suffix: str) -> Path:
    """The path of the sidecar file with this suffix."""
    return store.with_name(store.name + suffix)
