"""The audit log: what happened, row by row, each row bound to the one before it by a hash (docs/audit.md).

    hash of row n = SHA-256(hash of row n-1, 32 bytes ‖ line of row n)
    line          = JSON array of the fields of `Numbered`, without spaces, in UTF-8

Rows gather in memory while the jobs of a transaction run, and are numbered, hashed and written at its end, in one statement for
all: so the order of the rows is that of the commits, and a job that is undone leaves none. A row never holds what somebody said.
"""

import sqlite3
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.text import shorten
from aghbus.store.engine.audit_marker import NOTHING, AuditHead, AuditMarkFile, parse_head, read_audit_mark

if TYPE_CHECKING:
    from aghbus.store.engine.database import Store
    from aghbus.store.engine.transaction import Transaction

Event = Literal["send", "receive", "reject", "deliver", "policy"]

PRUNED: Final = "pruned"
"""Outcome of the row by which retention says through which row the log was shortened."""
ROWS_MISSING: Final = "rows_missing"
"""Outcome of the row by which a start says that the log was not the one that the last run left."""

STEP_ROWS: Final = 1024  # ours, rows that one job of retention removes: about a millisecond
_SLACK: Final = (
    16  # retention goes on to one part in so many below the bound, so that a full log does not prune all the time
)
_TEXT_CHARS: Final = 512  # ours, of a text that could be read of a refused envelope, and of a reason

_SET: Final = "UPDATE meta SET value = ? WHERE key = ?"
_GET: Final = "SELECT value FROM meta WHERE key = ?"
_encode: Final = msgspec.json.Encoder().encode


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """A row without its number and hash; `digest` is the SHA-256 of the envelope's bytes, in hexadecimal. None: does not apply."""

    at_ms: int
    event: Event
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


class Numbered(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the line of a row says, in the order of the line."""

    n: int
    at_ms: int
    event: Event
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


parse_line: Final = msgspec.json.Decoder(Numbered).decode
"""What a stored line says. Raises msgspec.MsgspecError or UnicodeDecodeError when it is none of ours."""


def link(before: bytes, line: bytes) -> bytes:
    """The hash of a row with `line`, which follows a row with the hash `before`."""
    return sha256(before + line).digest()


def noted_head(db: sqlite3.Connection) -> AuditHead:
    """The newest row, as the store notes it. Raises ValueError when the note is none of ours."""
    return _noted(db, "audit_head")


def noted_pruning(db: sqlite3.Connection) -> AuditHead:
    """The newest row that retention has removed, as the store notes it. Raises ValueError as `noted_head` does."""
    return _noted(db, "audit_pruned")


def _noted(db: sqlite3.Connection, key: str) -> AuditHead:
    row = db.execute(_GET, (key,)).fetchone()
    return parse_head(str(row[0]) if row is not None else "")


class AuditLog:
    """The end of the log of an open store. `enabled` is the daemon's to set."""

    __slots__ = ("_head", "_mark", "enabled", "gap")

    def __init__(self) -> None:
        self.enabled = False
        self.gap: str | None = None
        """How the log differed from its mark when it was opened; None when it did not, or had none."""
        self._head = NOTHING
        self._mark: AuditMarkFile | None = None

    @property
    def head(self) -> AuditHead:
        """The newest row."""
        return self._head

    def open(self, db: sqlite3.Connection, mark: AuditMarkFile) -> None:
        """Finds the end of the log in `db`, and compares it with its mark."""
        self._mark = mark
        last = db.execute("SELECT n, hash FROM audit ORDER BY n DESC LIMIT 1").fetchone()
        self._head = noted_pruning(db) if last is None else AuditHead(*last)
        noted = noted_head(db)
        if noted != self._head:
            self.gap = f"the newest row should have been {noted}"
        marked = read_audit_mark(mark.store)
        if marked is not None:
            self.gap = _difference(db, self._head.n, marked) or self.gap

    def close(self) -> None:
        """Brings the mark up to date."""
        if self._mark is not None:
            self._mark.close()

    def add(self, tx: "Transaction", entry: Entry) -> None:
        """One row more in `tx`. Ask `enabled` before."""
        tx.entries.append(entry)

    def flush(self, tx: "Transaction") -> None:
        """Numbers the rows of `tx` and appends them: for the writer, once, after the last job of a transaction."""
        if not tx.entries:
            return
        n, before = self._head
        rows = tx.rows
        for entry in tx.entries:
            n += 1
            line = b"[%d,%b" % (n, _encode(entry)[1:])
            before = link(before, line)
            rows.audit += (n, bytearray(line), bytearray(before))
        head = AuditHead(n, before)
        rows.note("audit_head", str(head))
        tx.entries.clear()
        tx.after_rollback(partial(self._restore, self._head))
        tx.after_commit(self._committed)
        self._head = head

    def _restore(self, head: AuditHead) -> None:
        self._head = head

    def _committed(self) -> None:
        if self._mark is not None:
            self._mark.set(self._head)


def _difference(db: sqlite3.Connection, last: int, marked: AuditHead) -> str | None:
    row = db.execute("SELECT hash FROM audit WHERE n = ?", (marked.n,)).fetchone()
    if row is not None:
        return None if row[0] == marked.hash else f"row {marked.n} is not the one that was marked: {marked}"
    return None if marked.n <= noted_pruning(db).n else f"rows after {last}, up to the marked one: {marked}"


# What happens, as rows. Each is nothing while the log is off.


def note_start(tx: "Transaction", at_ms: int, how: str) -> None:
    """The daemon has started; `how` says what it does about trust. A log that is not as it was left is named."""
    log = tx.memory.audit
    note_policy(tx, at_ms, "started", how)
    if log.gap is not None:
        note_policy(tx, at_ms, ROWS_MISSING, log.gap)


def note_envelope(
    tx: "Transaction",
    at_ms: int,
    event: Event,
    envelope: Envelope,
    outcome: str,
    reason: str | None,
    trust: str,
) -> None:
    """A valid envelope was kept for sending, or received."""
    log = tx.memory.audit
    if log.enabled:
        log.add(tx, _of_envelope(at_ms, event, envelope, outcome, reason, trust))


def note_refused(
    tx: "Transaction", at_ms: int, raw: bytes, reason: str, *, envelope: Envelope | None, msg_id: str, sender: str
) -> None:
    """Bytes were refused for `reason`, a code of the wire; `msg_id` and `sender` as far as they could be read, else empty.

    What only could be read is not known to be true: a refused envelope's sender is a claim.
    """
    log = tx.memory.audit
    if not log.enabled:
        return
    if envelope is not None:
        log.add(tx, _of_envelope(at_ms, "reject", envelope, "refused", reason, None))
        return
    digest = sha256(raw).hexdigest()
    log.add(
        tx,
        Entry(at_ms, "reject", "refused", reason, _storable(msg_id) or None, _storable(sender) or None, digest=digest),
    )


def note_delivery(tx: "Transaction", at_ms: int, item: InboxItem, outcome: str) -> None:
    """The agent's hold of a message of its inbox has changed: `leased`, `acked`, `returned`, `dead` or `requeued`."""
    log = tx.memory.audit
    if not log.enabled:
        return
    message = item.message
    entry = Entry(
        at_ms,
        "deliver",
        outcome,
        None,
        message.id,
        message.sender,
        message.to,
        message.channel,
        message.kind,
        message.work_id,
        message.trust,
        sha256(message.envelope).hexdigest(),
    )
    log.add(tx, entry)


def note_outgoing(tx: "Transaction", at_ms: int, seq: int, outcome: str, reason: str) -> None:
    """What became of our envelope `seq` after it was kept: sent `again` once more, or given up as `expired` or `dead`; why."""
    log = tx.memory.audit
    if not log.enabled:
        return
    sql = "SELECT msg_id, sender, recipient, channel, kind, work_id, trust, raw FROM envelopes WHERE seq = ?"
    msg_id, sender, recipient, channel, kind, work_id, trust, raw = tx.db.execute(sql, (seq,)).fetchone()
    digest = sha256(raw).hexdigest()
    reason = shorten(reason, _TEXT_CHARS)
    log.add(tx, Entry(at_ms, "send", outcome, reason, msg_id, sender, recipient, channel, kind, work_id, trust, digest))


def note_policy(
    tx: "Transaction", at_ms: int, outcome: str, reason: str | None = None, *, envelope: Envelope | None = None
) -> None:
    """A decision of ours that no envelope of the others explains; `envelope` is the one that it is about."""
    log = tx.memory.audit
    if not log.enabled:
        return
    reason = None if reason is None else shorten(reason, _TEXT_CHARS)
    if envelope is not None:
        log.add(tx, _of_envelope(at_ms, "policy", envelope, outcome, reason, None))
    else:
        log.add(tx, Entry(at_ms, "policy", outcome, reason))


def _of_envelope(
    at_ms: int, event: Event, envelope: Envelope, outcome: str, reason: str | None, trust: str | None
) -> Entry:
    return Entry(
        at_ms,
        event,
        outcome,
        reason,
        envelope.id,
        envelope.sender,
        envelope.to,
        envelope.channel,
        envelope.kind,
        envelope.work_id,
        trust,
        sha256(envelope.raw).hexdigest(),
    )


def _storable(text: str) -> str:
    """Short, and encodable: what could be read of a broken envelope may hold lone surrogates."""
    return shorten(text, _TEXT_CHARS).encode(errors="backslashreplace").decode()


# Retention


async def sweep(store: "Store", max_rows: int, max_age: float, now_ms: int) -> int:
    """Removes the oldest rows beyond `max_rows`, and those older than `max_age` seconds; how many went.

    Each step is a write job of its own and leaves a row that says through which row it went, with that row's hash.
    A log that is off is left alone: nothing could say what went.
    """
    before_ms, total = now_ms - int(max_age * 1000), 0
    while True:
        through = await store.write(lambda tx: _last_to_go(tx, max_rows, before_ms))
        gone = await store.write(partial(_prune, through=through, now_ms=now_ms))
        total += gone
        if gone < STEP_ROWS:
            return total


def _last_to_go(tx: "Transaction", max_rows: int, before_ms: int) -> int:
    last, pruned = tx.memory.audit.head.n, noted_pruning(tx.db).n
    surplus = 0 if last - pruned <= max_rows else last - max_rows + max_rows // _SLACK
    return min(last, max(surplus, _aged(tx.db, pruned, before_ms)))


def _aged(db: sqlite3.Connection, pruned: int, before_ms: int) -> int:
    """The last row of those, from the oldest on, that are older than `before_ms`: those of one step, which the next continues."""
    for n, line in db.execute("SELECT n, line FROM audit ORDER BY n LIMIT ?", (STEP_ROWS,)):
        try:
            if parse_line(line).at_ms >= before_ms:
                break
        except (msgspec.MsgspecError, UnicodeDecodeError):
            break  # somebody wrote over it: not ours to remove
        pruned = n
    return pruned


def _prune(tx: "Transaction", through: int, now_ms: int) -> int:
    pruned = noted_pruning(tx.db).n
    end = min(through, pruned + STEP_ROWS)
    row = tx.db.execute("SELECT hash FROM audit WHERE n = ?", (end,)).fetchone()
    if (
        end <= pruned or row is None or not tx.memory.audit.enabled
    ):  # no such row: somebody else left a gap, which stays
        return 0
    mark = str(AuditHead(end, row[0]))
    tx.db.execute(_SET, (mark, "audit_pruned"))
    gone = tx.db.execute("DELETE FROM audit WHERE n <= ?", (end,)).rowcount
    note_policy(tx, now_ms, PRUNED, mark)
    return gone
