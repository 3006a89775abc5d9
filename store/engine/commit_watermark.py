"""The commit watermark: a sidecar file that says how many transactions have been committed.

SQLite ends recovery at the first damaged frame of the WAL and takes what comes before it for the whole: a torn, cut
or deleted WAL, and an older copy put in place, all look like a sound store. So every transaction counts itself in
the store, and the same count is written here after its COMMIT. At the next start a watermark ahead of the store
means that commits were lost (store/engine/integrity.py).
"""

import struct
import zlib
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple

from aghbus.store.engine.sidecar import SidecarFile, sidecar_path

SUFFIX: Final = ".mark"
_RECORD: Final = struct.Struct("<8sQQQI")  # magic, identity, commits, last sequence, CRC-32 of the bytes before it
_MAGIC: Final = b"aghmark1"


class CommitWatermark(NamedTuple):
    """`commits` of the store `identity` were durable, and its sequence of envelopes had reached `last_seq`."""

    identity: int
    commits: int
    last_seq: int


def watermark_path(store: Path) -> Path:
    """The path of the watermark of a store."""
    return sidecar_path(store, SUFFIX)


def read_watermark(store: Path) -> CommitWatermark | None:
    """The watermark of the store at `store`; None when there is none, or none that can be read. OSError as `open`
    raises it."""
    try:
        content = watermark_path(store).read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _RECORD.size or not content.startswith(_MAGIC):
        return None
    _, identity, commits, last_seq, checksum = _RECORD.unpack(content)
    return CommitWatermark(identity, commits, last_seq) if checksum == zlib.crc32(content[:-4]) else None


def watermark_file(store: Path, executor: Executor) -> SidecarFile[CommitWatermark]:
    """The file, for the store's writer."""
    return SidecarFile(watermark_path(store), executor, _encode)


def _encode(watermark: CommitWatermark) -> bytes:
    content = _RECORD.pack(_MAGIC, *watermark, 0)
    return content[:-4] + struct.pack("<I", zlib.crc32(content[:-4]))
