"""The dedup window (spec section 5 step 8): which envelopes came this far before, O(1) however many there are.

A set in memory answers; a table that only ever grows at the end of each expiry's range makes it survive a restart. Its rows are
numbered by the minute of their expiry, so that expiring reads a range from the front and tells which keys leave the set.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from aghbus.protocol.limits import MAX_LIFETIME

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from aghbus.protocol.envelope import Envelope
    from aghbus.store.engine.transaction import Transaction

KEY_BYTES: Final = 16  # 128 bits: among 10^9 ids a false match has a chance of 10^-21
GRACE: Final = 60  # seconds, ours: an id is kept this long after its envelope went stale, for clocks that step back
_BUCKET: Final = 60  # seconds of expiry that share a range of slots
_NUMBER_BITS: Final = 36  # running number below the minute: with 27 bits of minutes it fits SQLite's 63
_NUMBERS: Final = 1 << _NUMBER_BITS
_LATEST: Final = (1 << 27) - 1  # the last minute that fits (year 2225)


def dedup_key(workspace_id: str, sender: str, message_id: str) -> bytes:
    """The 16 bytes an envelope is remembered by. NUL separates: none of the three may hold it (spec section 1)."""
    text = f"{workspace_id}\0{sender}\0{message_id}"
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()


def key_of(envelope: Envelope) -> bytes:
    """`dedup_key` of an envelope."""
    return dedup_key(envelope.workspace_id, envelope.sender, envelope.id)


class DedupWindow:
    """The ids that are remembered, uncommitted ones of the running transaction included: ask it inside a write job only."""

    def __init__(self) -> None:
        self._keys: set[bytes] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._keys)

    def admits(self, remaining: int, capacity: int) -> bool:
        """Whether there is room for an id that would be kept for `remaining` seconds, with `capacity` ids at most in all.

        Up to half of it every id is taken, beyond it ever shorter-lived ones: what would fill the window for days has to wait,
        and what is gone in minutes still passes. Forgetting an id early instead would let its envelope in twice.
        """
        free = capacity - len(self._keys)
        return free > 0 and remaining * capacity <= 2 * free * MAX_LIFETIME

    def contains(self, key: bytes) -> bool:
        """Whether an envelope of this key came this far before, in this transaction or an earlier one."""
        return key in self._keys

    def remember(self, tx: Transaction, key: bytes, until: int) -> None:
        """Keeps `key` until Unix second `until` and the grace after it. A key that is kept already stays as it is."""
        keys = self._keys
        if key in keys:
            return
        self._number = number = (self._number + 1) % _NUMBERS
        rows = tx.rows
        rows.seen += (_first_slot(until + GRACE + _BUCKET) + number, bytearray(key))
        rows.waiting = True
        keys.add(key)
        tx.remembered.append(key)

    def forget(self, keys: Iterable[bytes]) -> None:
        """The transaction that added these keys is undone."""
        self._keys.difference_update(keys)

    def expire(self, tx: Transaction, now: int, limit: int = 500) -> int:
        """Forgets up to `limit` ids that are past their time at Unix second `now`, the oldest first; how many it were."""
        rows = tx.db.execute(
            "DELETE FROM seen WHERE slot IN (SELECT slot FROM seen WHERE slot < ? ORDER BY slot LIMIT ?) RETURNING key",
            (_first_slot(now), limit),
        ).fetchall()
        if rows:
            tx.after_commit(lambda: self._keys.difference_update(key for (key,) in rows))
        return len(rows)

    def load(self, db: sqlite3.Connection) -> None:
        """Reads the window of an opened store, row by row."""
        for slot, key in db.execute("SELECT slot, key FROM seen"):
            self._keys.add(key)
            self._number = max(self._number, slot % _NUMBERS)


def _first_slot(second: int) -> int:
    minute = second // _BUCKET
    return (minute if minute < _LATEST else _LATEST) << _NUMBER_BITS
