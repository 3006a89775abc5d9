"""The daily audit log of the Sentient platform: `<root>/system/logs/YYYYMMDD.log` (seed 000, Audit Log Extraction).

An entry is committed with the message that it is about, and appended afterwards. A daemon that was killed in between does
not know what it had written: it looks for its entries at the end of the file before it appends them, and completes one
that was cut off. So each entry is in the file once, unless the file was changed by somebody else meanwhile. Several
daemons may share a root: the file is locked while one of them appends, and one that keeps the lock is not waited for.
"""

import asyncio
import logging
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.state.context import Core
from aghbus.protocol.adapters.sentient.log import log_path
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.host.file_lock import lock
from aghbus.store.host.files import sync_folder
from aghbus.store.tables import bridge_log
from aghbus.store.tables.bridge_log import Entry

_log = logging.getLogger("aghbus.bridge")

_BATCH: Final = 200  # entries between two syncs
_RECHECK_BYTES: Final = 16 * 1024 * 1024  # ours, of a file in which entries are looked for after a crash
_RETRY_DELAY: Final = 5.0  # seconds until a file that could not be written is tried again
_LOCK_WAIT: Final = 2.0  # seconds, ours: an append takes milliseconds; an exit of ours has to wait for so long
_END: Final = b"---\n"  # the last line of an entry


class SentientLog:
    """Appends what is committed to the files of its days."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._bell = asyncio.Event()
        self._recheck = True  # whether entries may be in their files that the store does not know of

    def note(self, tx: Transaction) -> None:
        """There will be an entry when `tx` is committed."""
        tx.after_commit(self._bell.set)

    async def run(self) -> None:
        """Append until cancelled. A file that cannot be written is reported and tried again; nothing is lost meanwhile."""
        while True:
            self._bell.clear()
            rows = await bridge_log.unwritten(self._core.store.reader, _BATCH)
            if not rows:
                await self._bell.wait()
                continue
            try:
                await self._append(rows)
            except (OSError, StoreUnavailable) as error:
                self._recheck = True
                self._report(error)
                await asyncio.sleep(_RETRY_DELAY)

    async def _append(self, rows: Sequence[Entry]) -> None:
        root = self._core.settings.sentient.log_root
        if root is not None:  # it may have been taken away since: the entries stay in the store alone then
            for day in dict.fromkeys(row.record["day"] for row in rows):
                texts = [str(row.record["entry"]).encode() for row in rows if row.record["day"] == day]
                await asyncio.to_thread(append, Path(root), day, texts, skip_existing=self._recheck)
        failpoint("bridge.appended")
        await self._core.store.write(lambda tx: bridge_log.written(tx, [row.id for row in rows]))
        self._recheck = False
        self._core.counters.solved("sentient.log")

    def _report(self, error: Exception) -> None:
        core = self._core
        cause = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        sentence = f"the audit log below sentient.log_root cannot be written: {cause}; its entries wait in the store"
        core.counters.problem("sentient.log", sentence, core.clock.monotonic())
        core.noise.event(logging.ERROR, "sentient.log", "the audit log cannot be written", cause=cause)


def append(root: Path, day: str, texts: Sequence[bytes], *, skip_existing: bool) -> None:
    """Append entries to the file of `day` (YYYYMMDD) and sync it. With `skip_existing` those that are there already are left out.

    Raises OSError, ValueError for a day that is none.
    """
    path = root.joinpath(*log_path(day))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(0, f"{path.name} is no file")
        if not lock(fd, _LOCK_WAIT):
            raise OSError(0, f"{path.name} is locked by another process")
        _write(fd, _to_append(fd, texts, skip_existing=skip_existing))
        os.fsync(fd)
    finally:
        os.close(fd)
    sync_folder(path.parent)


def _to_append(fd: int, texts: Sequence[bytes], *, skip_existing: bool) -> bytes:
    """What to append for `texts`: all of them, or what is not at the end of the file yet."""
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
    return b"\n" + _END + b"".join(wanted)  # somebody else's entry was cut off: close it, so that ours stands by itself


def _partial_length(tail: bytes, text: bytes) -> int:
    """How many bytes of `text` the file ends with: an append that was interrupted."""
    start = tail.rfind(_END) + len(_END) if _END in tail else 0
    rest = tail[start:]
    return len(rest) if rest and text.startswith(rest) else 0


def _write(fd: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(fd, view) :]
