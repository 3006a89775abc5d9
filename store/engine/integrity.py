"""Whether a store is complete: SQLite's check of its file, the commit watermark beside it, and the checksums of the
envelopes.

    the watermark is …       the store is …   what it means                                      what is done
    equal or older           any              complete (a crash after COMMIT leaves it older)    nothing
    equal or older           another ledger    commits were rewritten                             a note
    missing or unreadable    not new          copied without it: cannot be checked               a note
    of another store         any              another file was put in its place                  a note
    newer                    sound            commits are lost: torn or deleted WAL, an older    a loss, recorded in the
                                              copy, power loss with synchronous=normal           store, until accepted
    present                  new (empty)      the file, or its content, is lost                  the same
    any                      damaged          pages contradict each other                        StoreDamaged (page_check.py)

A store that lost commits and is sound starts: the rest of it is valid, and refusing to start would lose new
messages as well. The sequence continues after the lost ones, so that no stream confuses a new message with an old one.
"""

import logging
import secrets
import sqlite3
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.base.text import escape
from aghbus.store.engine import meta
from aghbus.store.engine.commit.ledger import COMMITS_MISSING, EMPTY, Ledger, stored_head
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.commit.watermark import CommitWatermark, read_watermark
from aghbus.store.engine.sql import checksum_of
from aghbus.store.errors import StoreDamaged

DAMAGED_HINT: Final = (
    "see `aghd check-store`; if the kernel's log (dmesg) has I/O errors, the disk could not be read, which looks the same;"
    " restore a backup, or save what can be read (sqlite3 store.db .recover | sqlite3 new.db),"
    " or move store.db and the files next to it away to start without them"
)
LOST_HINT: Final = (
    "ask the peers what they know of the time before (`aghctl work list` there); `aghd check-store --accept-loss` ends"
    " this warning"
)
_MAX_IDENTITY: Final = (1 << 62) - 1  # an identity fits SQLite's signed 64 bits

_log = logging.getLogger(__name__)


class Loss(NamedTuple):
    """Commits that were durable and are lost: the store ends at sequence `after`, and had reached `through`."""

    commits: int
    after: int
    through: int

    def __str__(self) -> str:
        return (
            f"{self.commits} commits that had been made durable are lost: messages after sequence {self.after}, up to"
            f" {self.through}, and changes to older ones (a damaged or deleted write-ahead log, an older copy of the"
            " file, or a loss of power with store.synchronous=normal)"
        )


class Opened(msgspec.Struct, frozen=True):
    """What opening found. `watermark` is of the store as it is now, `loss` not yet accepted, `notes` of this opening;
    `difference` as `difference` gives it."""

    watermark: CommitWatermark
    loss: Loss | None
    notes: tuple[str, ...]
    difference: str | None


def check_pages(db: sqlite3.Connection, path: Path) -> None:
    """Reads the whole file and compares its structures. Raises StoreDamaged."""
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreDamaged(path, f"failed its check: {escape(verdict)}", hint=DAMAGED_HINT)


def check_watermark(db: sqlite3.Connection, path: Path) -> Opened:
    """Compares a store that is being opened with its watermark, and records a loss. Raises StoreDamaged, OSError."""
    watermark = read_watermark(path)
    identity = meta.get(db, "identity")
    notes: list[str] = []
    if identity is None:
        identity = _create_identity(db, watermark)
    loss, unlike = find_loss(db, identity, watermark), difference(db, watermark)
    if loss is not None and watermark is not None:
        check_pages(db, path)
        _record_loss(db, loss, watermark)
        _log.error("the store %s has lost commits: %s; hint: %s", escape(str(path)), loss, LOST_HINT)
    elif note := watermark_problem(db, identity, watermark):
        notes.append(note)
        _log.warning("the store %s: %s", escape(str(path)), note)
    return Opened(CommitWatermark(identity, stored_head(db)), recorded_loss(db), tuple(notes), unlike)


def find_loss(db: sqlite3.Connection, identity: int | None, watermark: CommitWatermark | None) -> Loss | None:
    """The commits that the watermark counts and the store lacks; None when none are missing or the watermark is of
    another store."""
    head = stored_head(db)
    if watermark is None or watermark.head.n <= head.n:
        return None
    if identity is None and head == EMPTY:
        identity = watermark.identity  # the whole content may be lost: `_create_identity` takes that of the watermark
    if watermark.identity != identity:
        return None
    return Loss(watermark.head.n - head.n, head.last_seq, max(watermark.head.last_seq, head.last_seq))


def watermark_problem(db: sqlite3.Connection, identity: int | None, watermark: CommitWatermark | None) -> str | None:
    """Why this store cannot be compared with the watermark, or how it differs; None when it does not, or when there was
    nothing to lose yet."""
    if stored_head(db) == EMPTY:
        return None
    if watermark is None:
        return "it has no readable .mark file: lost commits cannot be detected at this start"
    if watermark.identity != identity:
        return "the .mark file beside it is another store's: the file was replaced"
    return difference(db, watermark)


def recorded_loss(db: sqlite3.Connection) -> Loss | None:
    """The loss that the operator has not accepted yet."""
    if not meta.get(db, "lost_commits"):
        return None
    return Loss(
        meta.get(db, "lost_commits") or 0, meta.get(db, "lost_after_seq") or 0, meta.get(db, "lost_through_seq") or 0
    )


def accept_loss(tx: Transaction) -> Loss | None:
    """The operator accepts the loss, which is returned: it is not reported any more. Streams still report its
    sequences as a gap."""
    loss = recorded_loss(tx.db)
    if loss is not None:
        meta.put(tx.db, "lost_commits", 0)
    return loss


def difference(db: sqlite3.Connection, watermark: CommitWatermark | None) -> str | None:
    """How the ledger differs from the entry that the watermark names; None when it does not, or cannot be compared."""
    if watermark is None or watermark.identity != meta.get(db, "identity"):
        return None
    row = db.execute("SELECT hash FROM ledger WHERE n = ?", (watermark.head.n,)).fetchone()
    if row is None or row[0] == watermark.head.hash:
        return None
    return f"commit {watermark.head.n} is not the one that the .mark file names: {watermark.head}"


def damaged(db: sqlite3.Connection) -> set[int]:
    """Sequences of envelopes whose bytes have another checksum, or are not the JSON object of their id."""
    rows = db.execute("SELECT seq, msg_id, raw, checksum FROM log")
    return {seq for seq, msg_id, raw, checksum in rows if checksum != checksum_of(raw) or _id_of(raw) != msg_id}


class _Id(msgspec.Struct):
    id: str


_decode_id: Final = msgspec.json.Decoder(_Id)


def _id_of(raw: bytes) -> str | None:
    try:
        return _decode_id.decode(raw).id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _create_identity(db: sqlite3.Connection, watermark: CommitWatermark | None) -> int:
    """An identity for a store that has none. An empty one takes that of the watermark beside it: its predecessor is
    lost."""
    lost = watermark is not None and stored_head(db) == EMPTY
    identity = watermark.identity if watermark is not None and lost else secrets.randbelow(_MAX_IDENTITY)
    meta.put(db, "identity", identity)
    return identity


def _record_loss(db: sqlite3.Connection, loss: Loss, watermark: CommitWatermark) -> None:
    """In one transaction, so that a crash here neither hides the loss nor counts it twice. Its entry follows those that were
    lost by number, and the last one that is left by hash."""
    earlier = recorded_loss(db)
    db.execute("BEGIN IMMEDIATE")
    meta.put(db, "lost_commits", loss.commits + (earlier.commits if earlier else 0))
    meta.put(db, "lost_after_seq", min(loss.after, earlier.after) if earlier else loss.after)
    meta.put(db, "lost_through_seq", loss.through)
    ledger = Ledger()
    ledger.load(db)
    lost = f"commits {ledger.head.n + 1} to {watermark.head.n}: the .mark file named {watermark.head}"
    ledger.events.append((ledger.at_ms, "policy", COMMITS_MISSING, lost))
    ledger.append(db, loss.through, watermark.head.n + 1)
    db.execute("COMMIT")
