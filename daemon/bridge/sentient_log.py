"""The daily audit log of the Sentient platform: `<root>/system/logs/YYYYMMDD.log` (seed 000, Audit Log Extraction).

An entry is committed with its message and appended to the file afterwards. After a crash the daemon does not know which
entries were appended: it searches the end of the file for them first, and completes a partial one. So each entry is in the
file once, unless another program changed the file. Several daemons may share a root: each locks the file while it appends,
and waits for the lock for a limited time.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.bridge.format_log import keep_record
from aghbus.daemon.bridge.sentient_chain import NAME
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.host.file_lock import lock
from aghbus.host.files import make_private_folder, sync_folder
from aghbus.protocol.formats.sentient.log import log_path
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import bridge_log
from aghbus.store.tables.bridge_log import BridgeLogEntry

_log = logging.getLogger("aghbus.bridge")

_BATCH: Final = 200  # entries between two syncs
_RECHECK_BYTES: Final = 16 * 1024 * 1024  # at the end of the file, searched for entries after a crash
_RETRY_DELAY: Final = 5.0  # seconds before a failed append is retried
_LOCK_WAIT: Final = 2.0  # seconds: an append takes milliseconds; also delays our exit
_END: Final = b"---\n"  # the last line of an entry


@dataclass(slots=True, eq=False)
class SentientLog:
    """Appends committed entries to the daily files."""

    settings: LiveSettings
    log_limiter: EventLimiter
    clock: Clock
    store: Store
    counters: Counters
    _pending: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    # Whether the files may have entries that the store counts as unwritten.
    _recheck: bool = field(default=True, init=False)

    def keep(self, tx: Transaction, record: Mapping[str, Any], *, seq: int, message_id: str | None) -> None:
        """Add the entry of a sent message; it is appended to its file after `tx` is committed."""
        wants_file = self.settings.current.sentient.log_root is not None
        at_ms = self.clock.millis()
        keep_record(tx, NAME, "out", record, at_ms=at_ms, seq=seq, message_id=message_id, unwritten=wants_file)
        if wants_file:
            tx.after_commit(self._pending.set)

    async def run(self) -> None:
        """Append until cancelled. A failed append is reported and retried; the entries stay in the store meanwhile."""
        while True:
            self._pending.clear()
            rows = await bridge_log.unwritten(self.store.reader, _BATCH)
            if not rows:
                await self._pending.wait()
                continue
            try:
                await self._append(rows)
            except (OSError, StoreUnavailable) as error:
                self._recheck = True
                self._report(error)
                await asyncio.sleep(_RETRY_DELAY)

    async def _append(self, rows: Sequence[BridgeLogEntry]) -> None:
        root = self.settings.current.sentient.log_root
        if root is not None:  # without a root the entries stay in the store only
            for day in dict.fromkeys(row.record["day"] for row in rows):
                texts = [str(row.record["entry"]).encode() for row in rows if row.record["day"] == day]
                await asyncio.to_thread(append, Path(root), day, texts, skip_existing=self._recheck)
        failpoint("bridge.appended")
        await self.store.write(lambda tx: bridge_log.written(tx, [row.id for row in rows]))
        self._recheck = False
        self.counters.solved("sentient.log")

    def _report(self, error: Exception) -> None:
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        sentence = f"the audit log below sentient.log_root cannot be written: {cause}; its entries stay in the store"
        self.counters.problem("sentient.log", sentence, self.clock.monotonic())
        self.log_limiter.event(logging.ERROR, "sentient.log", "the audit log cannot be written", cause=cause)


def append(root: Path, day: str, texts: Sequence[bytes], *, skip_existing: bool) -> None:
    """Append entries to the file of `day` (YYYYMMDD) and sync it. `skip_existing` skips entries that the file already has.

    Raises OSError, or ValueError for an invalid day.
    """
    path = root.joinpath(*log_path(day))
    make_private_folder(path.parent)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, f"{path.name} is not a regular file")
        if not lock(fd, _LOCK_WAIT):
            raise OSError(0, f"{path.name} is locked by another process")
        _write(fd, _to_append(fd, texts, skip_existing=skip_existing))
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(path.parent)


def _to_append(fd: int, texts: Sequence[bytes], *, skip_existing: bool) -> bytes:
    """The bytes to append for `texts`: all of them, or those that the end of the file does not have."""
    size = os.fstat(fd).st_size
    tail = os.pread(
        fd,
        min(size, _RECHECK_BYTES if skip_existing else len(_END)),
        max(0, size - (_RECHECK_BYTES if skip_existing else len(_END))),
    )
    wanted = [text for text in texts if not (skip_existing and text in tail)]
    if not tail or tail.endswith(_END) or not wanted:
        return b"".join(wanted)
    cut = _partial_length(tail, wanted[0]) if skip_existing else 0
    if cut:
        return wanted[0][cut:] + b"".join(wanted[1:])
    return b"\n" + _END + b"".join(wanted)  # another writer's entry is incomplete: terminate it


def _partial_length(tail: bytes, text: bytes) -> int:
    """How many bytes of `text` the file ends with, from an interrupted append."""
    start = tail.rfind(_END) + len(_END) if _END in tail else 0
    rest = tail[start:]
    return len(rest) if rest and text.startswith(rest) else 0


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
