"""The log of the formats as files: for sentient `<root>/system/logs/YYYYMMDD.log` (seed 000, Audit Log Extraction).

A row is committed with its message and its entry appended to the file afterwards. After a crash the daemon does not know which
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
from aghbus.protocol.base.errors import Unavailable
from aghbus.protocol.formats.model import Conversion
from aghbus.protocol.formats.sentient.log import log_path
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables.bridge import log as bridge_log
from aghbus.store.tables.bridge.log import BridgeLogEntry

_log = logging.getLogger("aghbus.bridge")

_BATCH: Final = 200  # entries between two syncs
_RECHECK_BYTES: Final = 16 * 1024 * 1024  # at the end of the file, searched for entries after a crash
_RETRY_DELAY: Final = 5.0  # seconds before a failed append is retried
_LOCK_WAIT: Final = 2.0  # seconds: an append takes milliseconds; also delays our exit
_END: Final = b"---\n"  # the last line of an entry
_ERASED: Final = b"[PURGED]"  # begins an entry that was overwritten; every entry is longer


@dataclass(slots=True, eq=False)
class LogFiles:
    """Logs sent messages, and appends the committed rows of sentient to the daily files."""

    settings: LiveSettings
    log_limiter: EventLimiter
    clock: Clock
    store: Store
    counters: Counters
    _pending: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    # Whether the files may have entries that the store counts as unwritten.
    _recheck: bool = field(default=True, init=False)

    def keep_sent(self, tx: Transaction, name: str, result: Conversion, seq: int = 0) -> None:
        """Add the row of a sent message, if it has one. Its entry is appended to its file after `tx` is committed.

        `seq` is the sequence of its envelope, 0 if none was sent.
        """
        wants_file = name == NAME and self.settings.current.sentient.log_root is not None
        keep_record(tx, name, "out", result, at_ms=self.clock.millis(), seq=seq, unwritten=wants_file)
        if wants_file:
            tx.after_commit(self._pending.set)

    async def run(self) -> None:
        """Append until cancelled. A failed append is reported and retried; the entries stay in the store meanwhile."""
        while True:
            self._pending.clear()
            try:
                rows = await bridge_log.unwritten(self.store.reader, _BATCH)
                if rows:
                    await self._append(rows)
                else:
                    await self._pending.wait()
            except (OSError, StoreUnavailable) as error:
                self._recheck = True
                self._report(error)
                await asyncio.sleep(_RETRY_DELAY)

    async def erase(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Overwrite the entries of these records in the files below the present root. Raises Unavailable when a file cannot be
        written."""
        root = self.settings.current.sentient.log_root
        of_day: dict[str, list[bytes]] = {}
        for record in records:
            if root is not None and isinstance(record.get("day"), str) and isinstance(record.get("entry"), str):
                of_day.setdefault(record["day"], []).append(record["entry"].encode())
        for day, texts in of_day.items():
            try:
                await asyncio.to_thread(overwrite, Path(root or ""), day, texts)
            except (OSError, ValueError) as error:
                why = f"the audit log below sentient.log_root: {getattr(error, 'strerror', None) or error}"
                raise Unavailable(why, hint="make it writable, and purge again") from None

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
    with os.fdopen(fd, "ab") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, f"{path.name} is not a regular file")
        if not lock(fd, _LOCK_WAIT):
            raise OSError(0, f"{path.name} is locked by another process")
        file.write(_to_append(fd, texts, skip_existing=skip_existing))
        file.flush()
        os.fsync(fd)
    sync_folder(path.parent)


def overwrite(root: Path, day: str, texts: Sequence[bytes]) -> None:
    """Overwrite these entries in the file of `day` with spaces, up to their last line, so that all others stay where they are.

    Does nothing where the file or an entry is missing. Raises OSError, or ValueError for an invalid day.
    """
    path = root.joinpath(*log_path(day))
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return
    with os.fdopen(fd, "r+b") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, f"{path.name} is not a regular file")
        if not lock(fd, _LOCK_WAIT):
            raise OSError(0, f"{path.name} is locked by another process")
        content = file.read()
        for text in texts:
            at = content.find(text)
            while at >= 0:
                file.seek(at)
                file.write(_ERASED.ljust(len(text) - len(_END) - 1) + b"\n" + _END)
                at = content.find(text, at + len(text))
        file.flush()
        os.fsync(fd)


def _to_append(fd: int, texts: Sequence[bytes], *, skip_existing: bool) -> bytes:
    """The bytes to append for `texts`: all of them, or those that the end of the file does not have."""
    size = os.fstat(fd).st_size
    length = min(size, _RECHECK_BYTES if skip_existing else len(_END))
    tail = os.pread(fd, length, size - length)
    wanted = [text for text in texts if not (skip_existing and text in tail)]
    if not tail or tail.endswith(_END) or not wanted:
        return b"".join(wanted)
    partial = tail.rpartition(_END)[2]
    if skip_existing and wanted[0].startswith(partial):  # from an interrupted append
        return b"".join(wanted)[len(partial) :]
    return b"\n" + _END + b"".join(wanted)  # another writer's entry is incomplete: terminate it
