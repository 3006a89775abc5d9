"""The mark: a small file beside the store that says how many transactions have been committed.

SQLite ends recovery at the first damaged frame of the WAL and takes what comes before it for the whole truth: a torn, cut or
deleted WAL, and an older copy put in place, all look like a sound store. So every transaction counts itself in the store, and
soon after its COMMIT has returned the same count is written here. At the next start a mark ahead of the store means that something
that was committed is gone.

The mark is written after COMMIT and not synced: a crash of the process in between, and a loss of power, leave it behind the
store, which means nothing. It is ahead only if the store lost something (with synchronous=normal a loss of power may do that).
"""

import asyncio
import contextlib
import os
import struct
import zlib
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple, Self

SUFFIX: Final = ".mark"
LAG: Final = 0.02  # seconds, ours: one write for all commits in between, so that a single message does not pay for one
_RECORD: Final = struct.Struct("<8sQQQI")  # magic, identity, commits, last sequence, CRC-32 of the bytes before it
_MAGIC: Final = b"aghmark1"


class Mark(NamedTuple):
    """`commits` of the store `identity` were durable, and its sequence of envelopes had come to `last_seq`."""

    identity: int
    commits: int
    last_seq: int


def mark_path(store: Path) -> Path:
    """Where the mark of a store is."""
    return store.with_name(store.name + SUFFIX)


def read_mark(store: Path) -> Mark | None:
    """The mark of the store at `store`; None when there is none, or none that can be read. OSError as `open` raises it."""
    try:
        content = mark_path(store).read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _RECORD.size or not content.startswith(_MAGIC):
        return None
    _, identity, commits, last_seq, checksum = _RECORD.unpack(content)
    return Mark(identity, commits, last_seq) if checksum == _checksum(content) else None


class MarkFile:
    """The mark of an open store, for its writer. `commits` are those that it has been told of; the file follows within LAG, in
    the executor's thread."""

    def __init__(self, fd: int, mark: Mark, executor: Executor) -> None:
        """Use `open`."""
        self._fd = fd
        self._mark = mark
        self._executor = executor
        self._timer: asyncio.TimerHandle | None = None

    @classmethod
    def open(cls, store: Path, mark: Mark, executor: Executor) -> Self:
        """Makes the file if there is none, and writes `mark`. OSError when that fails."""
        fd = os.open(mark_path(store), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, _RECORD.size)
            os.pwrite(fd, _encode(mark), 0)
        except OSError:
            os.close(fd)
            raise
        return cls(fd, mark, executor)

    @property
    def commits(self) -> int:
        """Transactions of the store so far."""
        return self._mark.commits

    def set(self, commits: int, last_seq: int) -> None:
        """The store's `commits`-th transaction has become durable. Called on the event loop."""
        self._mark = self._mark._replace(commits=commits, last_seq=last_seq)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAG, self._follow)

    def close(self) -> None:
        """Writes what is not written yet and lets go of the file; without effect the second time."""
        if self._fd < 0:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._write()
        os.close(self._fd)
        self._fd = -1

    def _follow(self) -> None:
        self._timer = None
        self._executor.submit(self._write)

    def _write(self) -> None:
        """A mark that cannot be written stays behind, which is no more than less to check by."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _encode(self._mark), 0)


def _encode(mark: Mark) -> bytes:
    content = _RECORD.pack(_MAGIC, *mark, 0)
    return content[:-4] + struct.pack("<I", _checksum(content))


def _checksum(content: bytes) -> int:
    return zlib.crc32(content[:-4])
