"""The dedup window (spec section 5 step 8): which envelopes were received before, in O(1) however many they are.

A set in memory answers. A table that only grows at the end of each expiry's range makes the set survive a restart:
its rows are numbered by the minute of their expiry, so that expiring reads a range from the front and finds the
keys that leave the set.
"""

import hashlib
import sqlite3
from typing import Final

from aghbus.protocol.envelope import Envelope
from aghbus.protocol.limits import MAX_LIFETIME
from aghbus.store.engine.append_buffer import BulkStatement
from aghbus.store.engine.unit_of_work import UnitOfWork

KEY_BYTES: Final = 16  # 128 bits: among 10^9 ids a false match has a chance of 10^-21
GRACE: Final = 60  # seconds: an id is kept this long after its envelope went stale, for clocks that step back
_BUCKET: Final = 60  # seconds of expiry that share a range of slots
_NUMBER_BITS: Final = 36  # running number below the minute: with 27 bits of minutes it fits SQLite's 63
_NUMBERS: Final = 1 << _NUMBER_BITS
_LATEST: Final = (1 << 27) - 1  # the last minute that fits (year 2225)
_INSERT: Final = BulkStatement.insert("seen", ("slot", "key"))


def dedup_key(workspace_id: str, sender: str, message_id: str) -> bytes:
    """The 16 bytes an envelope is remembered by. NUL separates: none of the three may hold it (spec section 1)."""
    text = f"{workspace_id}\0{sender}\0{message_id}"
    return hashlib.blake2b(text.encode(), digest_size=KEY_BYTES).digest()


def key_of(envelope: Envelope) -> bytes:
    """`dedup_key` of an envelope."""
    return dedup_key(envelope.workspace_id, envelope.sender, envelope.id)


class DedupWindow:
    """The remembered ids, those of the open transaction included: ask it inside a write job only.

    `pending` are the keys that the open transaction has added.
    """

    def __init__(self) -> None:
        self.pending: list[bytes] = []
        self._keys: set[bytes] = set()
        self._number = 0

    def __len__(self) -> int:
        return len(self._keys)

    def admits(self, remaining: int, capacity: int) -> bool:
        """Whether there is room for an id that would be kept for `remaining` seconds, with `capacity` ids at most in
        all.

        Up to half of it every id is admitted, beyond it ever shorter-lived ones: an id that would take its place
        for days has to wait, and one that expires in minutes still passes. Forgetting an id early instead would let
        its envelope in twice.
        """
        free = capacity - len(self._keys)
        return free > 0 and remaining * capacity <= 2 * free * MAX_LIFETIME

    def contains(self, key: bytes) -> bool:
        """Whether an envelope of this key was received before, in this transaction or an earlier one."""
        return key in self._keys

    def remember(self, tx: UnitOfWork, key: bytes, until: int) -> None:
        """Keeps `key` until Unix second `until` and the grace after it. A key that is kept already stays as it is."""
        if key in self._keys:
            return
        self._number = number = (self._number + 1) % _NUMBERS
        tx.rows[_INSERT] += (_first_slot(until + GRACE + _BUCKET) + number, bytearray(key))
        self._keys.add(key)
        self.pending.append(key)

    def undo(self, pending: int) -> None:
        """Forgets the keys of the open transaction beyond the first `pending`."""
        self._keys.difference_update(self.pending[pending:])
        del self.pending[pending:]

    def expire(self, tx: UnitOfWork, now: int, limit: int = 500) -> int:
        """Forgets up to `limit` ids that have expired at Unix second `now`, the oldest first. Returns how many."""
        rows = tx.db.execute(
            "DELETE FROM seen WHERE slot IN (SELECT slot FROM seen WHERE slot < ? ORDER BY slot LIMIT ?) RETURNING key",
            (_first_slot(now), limit),
        ).fetchall()
        if rows:
            tx.after_commit(lambda: self._keys.difference_update(key for (key,) in rows))
        return len(rows)

    def load(self, db: sqlite3.Connection) -> None:
        """Reads the window of a store that is being opened, row by row."""
        for slot, key in db.execute("SELECT slot, key FROM seen"):
            self._keys.add(key)
            self._number = max(self._number, slot % _NUMBERS)


def _first_slot(second: int) -> int:
    minute = second // _BUCKET
    return (minute if minute < _LATEST else _LATEST) << _NUMBER_BITS
