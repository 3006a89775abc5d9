"""The epoch of a store that was restored, or began empty: three values of table `meta`, and for a restore an event in
the ledger (docs/backup.md)."""

import contextlib
import secrets
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.store.engine import meta
from aghbus.store.engine.backup.copying import write_private
from aghbus.store.engine.commit.ledger import Ledger, stored_head
from aghbus.store.engine.commit.watermark import CommitWatermark, encode_watermark, watermark_path
from aghbus.store.engine.database import explained
from aghbus.store.engine.schema import check_owner
from aghbus.store.errors import StoreUnopenable

RESTORED: Final = "restored"
"""Outcome of the event by which a restore begins an epoch."""
UNKNOWN_SEQUENCES: Final = 1_000_000
"""Sequences that are left out after the last that is known of the lost store, so that no stream mistakes a new message for a
lost one: a mark file is up to a second old."""


def read(db: sqlite3.Connection) -> Restored | None:
    """The epoch of the store; None for one that an earlier version made, and that was never restored."""
    epoch = meta.get(db, "epoch")
    if epoch is None:
        return None
    backup_ms, restored_ms = (meta.get(db, key) or 0 for key in ("epoch_backup_ms", "epoch_restored_ms"))
    return Restored(f"{epoch:016x}", backup_ms, restored_ms)


def begin_empty(db: sqlite3.Connection, now_ms: int) -> None:
    """Begins the epoch of a new store at Unix millisecond `now_ms`, in the caller's transaction."""
    for key, value in (("epoch", secrets.randbits(62)), ("epoch_backup_ms", 0), ("epoch_restored_ms", now_ms)):
        meta.put(db, key, value)


def seal(store: Path, now_ms: int) -> None:
    """Mark the store at `store`, which no process uses, as moved at Unix millisecond `now_ms`: it is not opened any more, and its
    copies go on where it ended. Raises StoreError."""
    try:
        with contextlib.closing(sqlite3.connect(store, isolation_level=None)) as db:
            check_owner(db, store)
            if meta.get(db, "closed") != 1:
                raise StoreUnopenable(store, "was not closed in order", hint="start its daemon, stop it, and try again")
            meta.put(db, meta.MOVED, now_ms)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    except sqlite3.Error as error:
        raise explained(store, error) from None


def unseal(copy: Path) -> bool:
    """Let the copy at `copy`, which no process uses, be opened, if its store was moved; whether it was. Raises StoreError."""
    try:
        with contextlib.closing(sqlite3.connect(copy, isolation_level=None)) as db:
            if not meta.get(db, meta.MOVED):
                return False
            meta.put(db, meta.MOVED, 0)
    except sqlite3.Error as error:
        raise explained(copy, error) from None
    return True


def begin(path: Path, now_ms: int, replaced: CommitWatermark | None) -> Restored:
    """Begins an epoch in the copy at `path`, which no process uses and whose pages were checked, at Unix millisecond
    `now_ms`. `replaced` is the watermark of the store whose place it takes. Raises StoreError."""
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            watermark = _begin(db, path, now_ms, replaced)
            db.execute("COMMIT")
            restored = read(db)
        watermark_path(path).unlink(missing_ok=True)
        write_private(watermark_path(path), encode_watermark(watermark))
    except (sqlite3.Error, OSError) as error:
        raise explained(path, error) from None
    assert restored is not None
    return restored


def _begin(db: sqlite3.Connection, path: Path, now_ms: int, replaced: CommitWatermark | None) -> CommitWatermark:
    identity = meta.get(db, "identity")
    if identity is None:
        raise StoreUnopenable(path, "was never used by a daemon", hint="there is nothing to restore: start without it")
    ledger = Ledger()
    ledger.load(db)
    known = ledger.head.last_seq
    if replaced is not None and replaced.identity == identity:
        known = max(known, replaced.head.last_seq)
    through = known + UNKNOWN_SEQUENCES
    meta.put(db, "epoch", secrets.randbits(62))
    meta.put(db, "epoch_backup_ms", ledger.at_ms)
    now_ms = max(now_ms, ledger.at_ms)  # a clock that is behind must not let an opening through
    meta.put(db, "epoch_restored_ms", now_ms)
    meta.put(db, "lost_commits", 0)  # a loss that the backup has on record is one of an earlier epoch
    meta.put(db, "lost_after_seq", ledger.head.last_seq)
    meta.put(db, "lost_through_seq", through)
    meta.put(db, "closed", 1)
    ledger.events.append((now_ms, "policy", RESTORED, f"from a backup of {spell(ledger.at_ms)}"))
    ledger.append(db, through)
    return CommitWatermark(identity, stored_head(db))


def spell(at_ms: int) -> str:
    """A time in Unix milliseconds as people read it: `2026-11-22 20:45:00 UTC`."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
