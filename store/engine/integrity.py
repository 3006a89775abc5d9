"""Whether a store is whole: what SQLite can tell of its file, what the mark tells of commits, what envelopes tell of themselves.

    the mark is …                the store is …      what it means                                   what is done
    equal or behind              any                 whole (a crash after COMMIT leaves it behind)   nothing
    missing or unreadable        not new             copied without its mark: cannot be checked      a note
    of another store             any                 another file was put in its place               a note
    ahead                        sound               commits are gone: torn or deleted WAL, an       a loss, booked in the
                                                     older copy, power loss with synchronous=normal  store, until accepted
    there                        new (empty)         the file, or all of it, is gone                 the same
    any                          damaged             pages contradict each other                     StoreDamaged

A store that lost commits and is sound starts: what is left is true, and refusing would lose the future as well. The sequence
goes on after the lost ones, so that no stream takes a new message for an old one.
"""

import logging
import secrets
import sqlite3
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.text import escape
from aghbus.store.engine import meta
from aghbus.store.engine.commit_marker import Mark, read_mark
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreDamaged

DAMAGED_HINT: Final = (
    "see `aghd check-store`; restore a backup, or save what can be read (sqlite3 store.db .recover | sqlite3 new.db),"
    " or move store.db and the files beside it away to start without them"
)
LOST_HINT: Final = (
    "ask the peers what they know of the time before (`aghctl work list` there); `aghd check-store --accept-loss` ends"
    " this warning"
)
_COUNT: Final = "UPDATE meta SET value = ? WHERE key = 'commits'"
_LAST_SEQ: Final = "SELECT seq FROM sqlite_sequence WHERE name = 'envelopes'"
_LARGEST: Final = (1 << 62) - 1  # an identity fits SQLite's signed 64 bits

_log = logging.getLogger(__name__)


class Loss(NamedTuple):
    """Commits that were durable and are gone: what is there ends at sequence `after`, what was there at `through`."""

    commits: int
    after: int
    through: int

    def __str__(self) -> str:
        return (
            f"{self.commits} commits that had been made durable are gone: messages after sequence {self.after}, up to"
            f" {self.through}, and changes to older ones (a damaged or deleted write-ahead log, an older copy of the"
            " file, or a loss of power with store.synchronous=normal)"
        )


class Opened(msgspec.Struct, frozen=True):
    """What opening found. `mark` is how the store stands now, `loss` not yet accepted, `notes` of this opening."""

    mark: Mark
    loss: Loss | None
    notes: tuple[str, ...]


def check_pages(db: sqlite3.Connection, path: Path) -> None:
    """Reads the whole file and compares its structures. Raises StoreDamaged."""
    (verdict,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if verdict != "ok":
        raise StoreDamaged(path, f"failed its check: {escape(verdict)}", hint=DAMAGED_HINT)


def reckon(db: sqlite3.Connection, path: Path) -> Opened:
    """Compares a store that is being opened with its mark, and books what is gone. Raises StoreDamaged, OSError."""
    mark = read_mark(path)
    identity = meta.get(db, "identity")
    notes: list[str] = []
    if identity is None:
        identity = _adopt(db, mark)
    loss = lost(db, identity, mark)
    if loss is not None and mark is not None:
        check_pages(db, path)
        _book(db, loss, mark)
        _log.error("the store %s has lost something: %s; hint: %s", escape(str(path)), loss, LOST_HINT)
    elif note := remark(db, identity, mark):
        notes.append(note)
        _log.warning("the store %s: %s", escape(str(path)), note)
    return Opened(Mark(identity, commits(db), last_seq(db)), booked(db), tuple(notes))


def lost(db: sqlite3.Connection, identity: int | None, mark: Mark | None) -> Loss | None:
    """What the mark knows and the store does not; None when nothing is missing or the mark says nothing about this store."""
    if mark is None or mark.commits <= commits(db):
        return None
    if identity is None and last_seq(db) == 0:
        identity = (
            mark.identity
        )  # all of it may be gone, its identity too: an opening takes the mark for its own (`_adopt`)
    if mark.identity != identity:
        return None
    return Loss(mark.commits - commits(db), last_seq(db), max(mark.last_seq, last_seq(db)))


def remark(db: sqlite3.Connection, identity: int | None, mark: Mark | None) -> str | None:
    """Why the mark cannot vouch for this store; None when it can, or when there was nothing to lose yet."""
    if commits(db) == 0:
        return None
    if mark is None:
        return "it has no readable mark beside it: whether it lost something cannot be told this time"
    if mark.identity != identity:
        return "the mark beside it is another store's: the file was replaced"
    return None


def booked(db: sqlite3.Connection) -> Loss | None:
    """The loss that nobody has accepted yet."""
    if not meta.get(db, "lost_commits"):
        return None
    return Loss(
        meta.get(db, "lost_commits") or 0, meta.get(db, "lost_after_seq") or 0, meta.get(db, "lost_through_seq") or 0
    )


def accept_loss(tx: Transaction) -> Loss | None:
    """Somebody knows about the loss, which is returned: it is no problem any more. Where it was stays known to the streams."""
    loss = booked(tx.db)
    if loss is not None:
        meta.put(tx.db, "lost_commits", 0)
    return loss


def commits(db: sqlite3.Connection) -> int:
    """Transactions that this store has counted."""
    return meta.get(db, "commits") or 0


def count(db: sqlite3.Connection, number: int) -> None:
    """Notes in the open transaction that it is the `number`-th."""
    db.execute(_COUNT, (number,))


def last_seq(db: sqlite3.Connection) -> int:
    """The last sequence that was given to an envelope."""
    rows = db.execute(_LAST_SEQ).fetchall()
    return int(rows[0][0]) if rows else 0


def unreadable(db: sqlite3.Connection) -> list[int]:
    """Sequences of envelopes whose bytes are not the JSON object of their id: SQLite keeps no checksum of its pages."""
    return [seq for seq, msg_id, raw in db.execute("SELECT seq, msg_id, raw FROM envelopes") if _id_of(raw) != msg_id]


class _Id(msgspec.Struct):
    id: str


_decode_id: Final = msgspec.json.Decoder(_Id)


def _id_of(raw: bytes) -> str | None:
    try:
        return _decode_id.decode(raw).id
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _adopt(db: sqlite3.Connection, mark: Mark | None) -> int:
    """An identity for a store that has none. An empty one takes over that of the mark it finds: its predecessor is gone."""
    identity = mark.identity if mark is not None and last_seq(db) == 0 else secrets.randbelow(_LARGEST)
    db.execute("BEGIN IMMEDIATE")
    meta.put(db, "identity", identity)
    meta.put(db, "commits", commits(db))
    db.execute("COMMIT")
    return identity


def _book(db: sqlite3.Connection, loss: Loss, mark: Mark) -> None:
    """In one transaction, so that a crash here neither hides the loss nor counts it twice."""
    earlier = booked(db)
    db.execute("BEGIN IMMEDIATE")
    meta.put(db, "lost_commits", loss.commits + (earlier.commits if earlier else 0))
    meta.put(db, "lost_after_seq", min(loss.after, earlier.after) if earlier else loss.after)
    meta.put(db, "lost_through_seq", loss.through)
    meta.put(db, "commits", mark.commits)
    if not db.execute("UPDATE sqlite_sequence SET seq = ? WHERE name = 'envelopes'", (loss.through,)).rowcount:
        db.execute("INSERT INTO sqlite_sequence (name, seq) VALUES ('envelopes', ?)", (loss.through,))
    db.execute("COMMIT")
