"""The commit watermark: a file beside the store that names the newest entry of the ledger.

SQLite ends recovery at the first damaged frame of the WAL and treats what comes before it as complete: a torn, cut or
deleted WAL, and an older copy put in place, all look like a sound store. The newest entry is written here up to LAG
seconds after its COMMIT has returned, in place, with a sync at the start only. A crash of the process in between, and a loss
of power, leave the file older than the store, which means nothing. It is newer only if the store lost commits
(store/engine/integrity.py).
"""

import asyncio
import contextlib
import os
import struct
import zlib
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple

from aghbus.host.files import sync_folder
from aghbus.store.engine.commit.ledger import Head, Ledger

LAG: Final = 1.0  # seconds: one write, and one wake-up of the thread, for all commits in between
_RECORD: Final = struct.Struct("<8sQQQ32s")  # magic, identity, number and last sequence of the entry, its hash
_MAGIC: Final = b"aghmark2"
_CRC: Final = struct.Struct("<I")  # CRC-32 of the record


class CommitWatermark(NamedTuple):
    """The entry `head` of the store `identity` was durable."""

    identity: int
    head: Head


def watermark_path(store: Path) -> Path:
    """The path of the watermark of a store."""
    return store.with_name(store.name + ".mark")


def encode_watermark(watermark: CommitWatermark) -> bytes:
    """The contents of the file: 68 bytes."""
    n, digest, last_seq = watermark.head
    record = _RECORD.pack(_MAGIC, watermark.identity, n, last_seq, digest)
    return record + _CRC.pack(zlib.crc32(record))


def read_watermark(store: Path) -> CommitWatermark | None:
    """The watermark of the store at `store`; None when there is none, or none that can be read. OSError as `open`
    raises it."""
    try:
        content = watermark_path(store).read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _RECORD.size + _CRC.size or not content.startswith(_MAGIC):
        return None
    _, identity, n, last_seq, digest = _RECORD.unpack_from(content)
    watermark = CommitWatermark(identity, Head(n, digest, last_seq))
    return watermark if encode_watermark(watermark) == content else None


class WatermarkFile:
    """The file, for the writer of its store. `pending`: it will be written."""

    def __init__(self, store: Path, executor: Executor, identity: int, ledger: Ledger) -> None:
        """`executor` is the one of the store's commits: its thread writes the file."""
        self.path: Final = watermark_path(store)
        self.pending = False
        self._executor = executor
        self._identity = identity
        self._ledger = ledger
        self._timer: asyncio.TimerHandle | None = None

    def write_soon(self) -> None:
        """The ledger has a new head: the file says so within LAG. Call it on the event loop, while nothing is `pending`."""
        self._timer = asyncio.get_running_loop().call_later(LAG, self._write_in_thread)
        self.pending = True

    def write(self, *, sync: bool = False) -> None:
        """Writes the head of the ledger now; with `sync`, the file is there after a loss of power. Raises OSError."""
        content = encode_watermark(CommitWatermark(self._identity, self._ledger.head))
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.pwrite(fd, content, 0)
            os.ftruncate(fd, len(content))
            if sync:
                os.fsync(fd)
                sync_folder(self.path.parent)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Writes what is pending."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._try_write()

    def _write_in_thread(self) -> None:
        self._timer, self.pending = None, False
        self._executor.submit(self._try_write)

    def _try_write(self) -> None:
        """A file that cannot be written stays older than the store, and less can be checked at the next start."""
        with contextlib.suppress(OSError):
            self.write()
