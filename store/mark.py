"""The mark: a small file beside the store that says how many transactions have been committed.

SQLite ends recovery at the first damaged frame of the WAL and takes what comes before it for the whole truth: a torn, cut or
deleted WAL, and an older copy put in place, all look like a sound store. So every transaction counts itself in the store, and
once its COMMIT has returned the same count is written here. At the next start a mark ahead of the store means that something
that was committed is gone.

The mark is written after COMMIT and not synced: a crash of the process in between, and a loss of power, leave it behind the
store, which means nothing. It is ahead only if the store lost something (with synchronous=normal a loss of power may do that).
"""

import contextlib
import os
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple, Self

SUFFIX: Final = ".mark"
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
    """The mark of an open store, for its writer. `set` may be called in any one thread at a time."""

    def __init__(self, fd: int, identity: int) -> None:
        """Use `open`."""
        self._fd = fd
        self._identity = identity

    @classmethod
    def open(cls, store: Path, mark: Mark) -> Self:
        """Makes the file if there is none, and writes `mark`. OSError when that fails."""
        fd = os.open(mark_path(store), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, _RECORD.size)
            os.pwrite(fd, _encode(mark), 0)
        except OSError:
            os.close(fd)
            raise
        return cls(fd, mark.identity)

    def set(self, commits: int, last_seq: int) -> None:
        """A commit has become durable. A mark that cannot be written stays behind, which is no more than less to check by."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _encode(Mark(self._identity, commits, last_seq)), 0)

    def close(self) -> None:
        """Lets go of the file; without effect the second time."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _encode(mark: Mark) -> bytes:
    content = _RECORD.pack(_MAGIC, *mark, 0)
    return content[:-4] + struct.pack("<I", _checksum(content))


def _checksum(content: bytes) -> int:
    return zlib.crc32(content[:-4])
