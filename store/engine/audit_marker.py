"""The mark of the audit log: a small file beside the store that names the newest row, so that newest rows cannot vanish unseen.

Like the mark of the store it follows a commit within `mark.LAG` and is not synced: it may be behind the log, never ahead of it.
One line of text: the number of the row and its hash, of a fixed length.
"""

import asyncio
import contextlib
import os
import re
from concurrent.futures import Executor
from pathlib import Path
from typing import Final, NamedTuple

from aghbus.store.engine.commit_marker import LAG

SUFFIX: Final = ".audit"
_LINE: Final = re.compile(rb"aghbus-audit ([0-9]{19}):([0-9a-f]{64})\n")  # 19 digits hold SQLite's 63 bits
_TRIES: Final = 3  # ours: a reader may meet a write once


class AuditHead(NamedTuple):
    """A row of the log by its number and its hash (32 bytes); `str` gives `NUMBER:HASH`."""

    n: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.n}:{self.hash.hex()}"


NOTHING: Final = AuditHead(0, bytes(32))
"""The head of an empty log: what its first row follows."""


def parse_head(text: str) -> AuditHead:
    """`NUMBER:HASH` as `str(head)` gives it. Raises ValueError with the rule."""
    match = re.fullmatch(r"([0-9]{1,18}):([0-9a-fA-F]{64})", text)  # 18 digits fit SQLite's 63 bits
    if match is None:
        raise ValueError("must be NUMBER:HASH, as `aghctl audit head` prints it")
    return AuditHead(int(match[1]), bytes.fromhex(match[2]))


def audit_mark_path(store: Path) -> Path:
    """Where the mark of the log in `store` is."""
    return store.with_name(store.name + SUFFIX)


def read_audit_mark(store: Path) -> AuditHead | None:
    """The marked row of the log in `store`; None when there is no mark or none that can be read."""
    for _ in range(_TRIES):
        try:
            content, again = audit_mark_path(store).read_bytes(), audit_mark_path(store).read_bytes()
        except OSError:
            return None
        if content == again and (match := _LINE.fullmatch(content)):
            return AuditHead(int(match[1]), bytes.fromhex(match[2].decode()))
    return None


class AuditMarkFile:
    """The mark of an open log, for its writer; the file is made with the first row."""

    def __init__(self, store: Path, executor: Executor) -> None:
        """`executor` is the one of the store's commits, whose thread writes the file."""
        self.store: Final = store
        self._executor = executor
        self._head = NOTHING
        self._timer: asyncio.TimerHandle | None = None

    def set(self, head: AuditHead) -> None:
        """Row `head` has become durable. Called on the event loop."""
        self._head = head
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LAG, self._follow)

    def close(self) -> None:
        """Writes what is not written yet."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._write()

    def _follow(self) -> None:
        self._timer = None
        self._executor.submit(self._write)

    def _write(self) -> None:
        """A mark that cannot be written stays behind, which is no more than less to check by."""
        head = self._head  # once: the loop may set the next while this thread writes
        with contextlib.suppress(OSError):
            fd = os.open(audit_mark_path(self.store), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(fd, b"aghbus-audit %019d:%s\n" % (head.n, head.hash.hex().encode()))
            finally:
                os.close(fd)
