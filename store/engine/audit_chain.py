"""The chain of the audit log: each row is bound to the one before it by a hash (docs/audit.md).

    hash of row n = SHA-256(hash of row n-1, 32 bytes ‖ line of row n)
    line          = JSON array of the fields of `AuditLine`, without spaces, in UTF-8

Entries are collected while the jobs of a transaction run, and are numbered, hashed and written at its end. So the
order of the rows is that of the commits, and a job that is undone leaves none. A sidecar file names the newest row,
so that a loss of the newest rows shows.
"""

import re
import sqlite3
from concurrent.futures import Executor
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Final, Literal, NamedTuple

import msgspec

from aghbus.store.engine.append_buffer import BulkStatement
from aghbus.store.engine.sidecar import SidecarFile, sidecar_path
from aghbus.store.engine.unit_of_work import UnitOfWork

AuditEvent = Literal["send", "receive", "reject", "deliver", "policy"]

SUFFIX: Final = ".audit"
_RECORD: Final = re.compile(rb"aghbus-audit ([0-9]{19}):([0-9a-f]{64})\n")  # 19 digits hold SQLite's 63 bits
_READ_ATTEMPTS: Final = 3  # a reader may meet a write once
_INSERT: Final = BulkStatement.insert("audit", ("n", "line", "hash"))
_SET_HEAD: Final = "UPDATE meta SET value = ? WHERE key = 'audit_head'"
_GET: Final = "SELECT value FROM meta WHERE key = ?"
_encode: Final = msgspec.json.Encoder().encode


class AuditEntry(msgspec.Struct, frozen=True, array_like=True):
    """A row without its number and hash; `digest` is the SHA-256 of the envelope's bytes, in hexadecimal. None: does
    not apply."""

    at_ms: int
    event: AuditEvent
    outcome: str
    reason: str | None = None
    msg_id: str | None = None
    sender: str | None = None
    recipient: str | None = None
    channel: str | None = None
    kind: str | None = None
    work_id: str | None = None
    trust: str | None = None
    digest: str | None = None


class AuditLine(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The line of a row: its number, and the fields of `AuditEntry`."""

    n: int
    at_ms: int
    event: AuditEvent
    outcome: str
    reason: str | None
    msg_id: str | None
    sender: str | None
    recipient: str | None
    channel: str | None
    kind: str | None
    work_id: str | None
    trust: str | None
    digest: str | None


parse_line: Final = msgspec.json.Decoder(AuditLine).decode
"""Decodes a stored line. Raises msgspec.MsgspecError or UnicodeDecodeError when this program did not write it."""


class AuditHead(NamedTuple):
    """A row of the log by its number and its hash (32 bytes); `str` gives `NUMBER:HASH`."""

    n: int
    hash: bytes

    def __str__(self) -> str:
        return f"{self.n}:{self.hash.hex()}"


EMPTY: Final = AuditHead(0, bytes(32))
"""The head of an empty log, which the first row follows."""


def parse_head(text: str) -> AuditHead:
    """`NUMBER:HASH` as `str(head)` gives it. Raises ValueError with the rule."""
    match = re.fullmatch(r"([0-9]{1,18}):([0-9a-fA-F]{64})", text)  # 18 digits fit SQLite's 63 bits
    if match is None:
        raise ValueError("must be NUMBER:HASH, as `aghctl audit head` prints it")
    return AuditHead(int(match[1]), bytes.fromhex(match[2]))


def link(before: bytes, line: bytes) -> bytes:
    """The hash of a row with `line`, which follows a row with the hash `before`."""
    return sha256(before + line).digest()


def recorded_head(db: sqlite3.Connection) -> AuditHead:
    """The newest row, as table `meta` records it. Raises ValueError when the record is not valid."""
    return _recorded(db, "audit_head")


def recorded_pruning(db: sqlite3.Connection) -> AuditHead:
    """The newest row that retention has removed, as table `meta` records it. Raises ValueError as `recorded_head` does."""
    return _recorded(db, "audit_pruned")


def _recorded(db: sqlite3.Connection, key: str) -> AuditHead:
    row = db.execute(_GET, (key,)).fetchone()
    return parse_head(str(row[0]) if row is not None else "")


def head_path(store: Path) -> Path:
    """The path of the sidecar file of the log in `store`."""
    return sidecar_path(store, SUFFIX)


def read_head_file(store: Path) -> AuditHead | None:
    """The row that the sidecar file names; None when there is no file or none that can be read."""
    path = head_path(store)
    for _ in range(_READ_ATTEMPTS):
        try:
            content, again = path.read_bytes(), path.read_bytes()
        except OSError:
            return None
        if content == again and (match := _RECORD.fullmatch(content)):
            return AuditHead(int(match[1]), bytes.fromhex(match[2].decode()))
    return None


def head_file(store: Path, executor: Executor) -> SidecarFile[AuditHead]:
    """The sidecar file, for the store's writer; it is created with the first row."""
    return SidecarFile(
        head_path(store), executor, lambda head: b"aghbus-audit %019d:%s\n" % (head.n, head.hash.hex().encode())
    )


class AuditChain:
    """The end of the log of an open store. `enabled` is the daemon's to set; `pending` entries belong to the open
    transaction."""

    __slots__ = ("_file", "_head", "enabled", "gap", "pending")

    def __init__(self) -> None:
        self.enabled = False
        self.gap: str | None = None
        """How the log differed from its sidecar file when it was opened; None when it did not, or had none."""
        self.pending: list[AuditEntry] = []
        self._head = EMPTY
        self._file: SidecarFile[AuditHead] | None = None

    @property
    def head(self) -> AuditHead:
        """The newest row."""
        return self._head

    def open(self, db: sqlite3.Connection, store: Path, executor: Executor) -> None:
        """Finds the end of the log in `db`, and compares it with its sidecar file."""
        self._file = head_file(store, executor)
        last = db.execute("SELECT n, hash FROM audit ORDER BY n DESC LIMIT 1").fetchone()
        self._head = recorded_pruning(db) if last is None else AuditHead(*last)
        recorded = recorded_head(db)
        if recorded != self._head:
            self.gap = f"the newest row should have been {recorded}"
        filed = read_head_file(store)
        if filed is not None:
            self.gap = _difference(db, self._head.n, filed) or self.gap

    def close(self) -> None:
        """Brings the sidecar file up to date."""
        if self._file is not None:
            self._file.close()

    def flush(self, tx: UnitOfWork) -> None:
        """Numbers the pending entries and appends them to `tx.rows`: for the writer, after the last job of a
        transaction."""
        if not self.pending:
            return
        n, digest = self._head
        rows = tx.rows[_INSERT]
        for entry in self.pending:
            n += 1
            line = b"[%d,%b" % (n, _encode(entry)[1:])
            digest = link(digest, line)
            rows += (n, bytearray(line), bytearray(digest))
        head = AuditHead(n, digest)
        tx.db_unflushed.execute(_SET_HEAD, (str(head),))
        self.pending.clear()
        tx.after_rollback(partial(self._restore, self._head))
        tx.after_commit(self._committed)
        self._head = head

    def _restore(self, head: AuditHead) -> None:
        self._head = head

    def _committed(self) -> None:
        if self._file is not None:
            self._file.set(self._head)


def _difference(db: sqlite3.Connection, last: int, filed: AuditHead) -> str | None:
    row = db.execute("SELECT hash FROM audit WHERE n = ?", (filed.n,)).fetchone()
    if row is not None:
        return None if row[0] == filed.hash else f"row {filed.n} is not the one that the sidecar file names: {filed}"
    return None if filed.n <= recorded_pruning(db).n else f"rows after {last}, up to {filed} in the sidecar file"
