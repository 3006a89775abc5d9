"""The dedup window (spec section 5 step 8): which envelopes were received before, in O(1) however many they are.

A set in memory answers. Opening a store rebuilds it from the log, whose rows say until when their ids are remembered, and
from table `remembered_ids`, which has the ids without a row there: those of discovery, and of envelopes that retention
has removed since. Memory has the keys by the minute of their expiry, so that expiring costs no search.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from aghbus.protocol.limits import MAX_LIFETIME
from aghbus.store.engine import meta
from aghbus.store.engine.bulk_statement import BulkStatement
from aghbus.store.engine.log.segments import last_indexed
from aghbus.store.engine.unit_of_work import UnitOfWork

GRACE: Final = 60  # seconds: an id is kept this long after its envelope went stale, for clocks that step back
_BUCKET: Final = 60  # seconds of expiry that are forgotten together
_IDENTITY_BYTES: Final = 8
_SENDERS: Final = 8_192  # in memory
_LATER: Final = GRACE + _BUCKET  # from the `until` of an id into its last minute: when that is over, the grace is too
_INSERT: Final = BulkStatement.insert("remembered_ids", ("until", "key"), "ON CONFLICT DO NOTHING")
"""An id may be in the log twice: it was forgotten while the clock was ahead, and its envelope came again."""
_INDEXED: Final = """
SELECT i.id_key, i.stream, i.remember_until FROM segments AS g CROSS JOIN log_ids AS i ON i.segment = g.n
WHERE g.remember_until >= ?1 AND i.remember_until >= ?1
"""
_TAIL: Final = "SELECT msg_id, stream, remember_until FROM log WHERE seq > ? AND remember_until >= ?"
_SENDER: Final = "SELECT workspace_id, sender FROM streams WHERE id = ?"
_HORIZON: Final = "ids_expired_through"


class MessageIds:
    """Numbers in place of ids: 64-bit hashes, keyed by the identity of the store, so that no sender can choose ids that meet.
    `open` gives it."""

    __slots__ = ("_identity", "_senders")

    def __init__(self) -> None:
        self._identity = bytes(_IDENTITY_BYTES)
        self._senders: dict[tuple[str, str], int] = {}

    def open(self, identity: int) -> None:
        """Uses the identity of a store that is being opened."""
        self._identity = identity.to_bytes(_IDENTITY_BYTES, "little")
        self._senders.clear()

    def id_key(self, text: str) -> int:
        """The number by which the log indexes an id."""
        return int.from_bytes(blake2b(text.encode(), digest_size=8, key=self._identity).digest(), "little", signed=True)

    def sender_key(self, workspace_id: str, sender: str) -> int:
        """The number of a sender."""
        key = self._senders.get((workspace_id, sender))
        if key is None:
            if len(self._senders) >= _SENDERS:
                self._senders.clear()
            key = self.id_key(f"{workspace_id}\0{sender}")  # neither holds NUL (spec section 1)
            self._senders[workspace_id, sender] = key
        return key

    def dedup_key(self, workspace_id: str, sender: str, message_id: str) -> int:
        """The number by which the dedup window remembers an id of this sender: both numbers, by XOR."""
        return self.id_key(message_id) ^ self.sender_key(workspace_id, sender)


class DedupWindow:
    """The remembered ids, those of the open transaction included: ask it inside a write job only.

    `keys` are those of the envelopes that were received before, as `MessageIds.dedup_key` gives them. `pending` are the
    minutes and keys that the open transaction has added.
    """

    def __init__(self) -> None:
        self.pending: list[tuple[int, int]] = []
        self.keys: set[int] = set()
        self._minutes: defaultdict[int, list[int]] = defaultdict(list)
        self._horizon = 0

    def __len__(self) -> int:
        return len(self.keys)

    def admits(self, remaining: int, capacity: int, more: int = 0) -> bool:
        """Whether there is room for an id that would be kept for `remaining` seconds, with `capacity` ids at most in
        all, after `more` other ids.

        Up to half of it every id is admitted, beyond it ever shorter-lived ones: an id that would take its place
        for days has to wait, and one that expires in minutes still passes. Forgetting an id early instead would let
        its envelope in twice.
        """
        free = capacity - len(self.keys) - more
        return free > 0 and remaining * capacity <= 2 * free * MAX_LIFETIME

    def remember_logged(self, key: int, until: int) -> None:
        """Keeps `key` until Unix second `until` and the grace after it. This transaction appends its envelope to the log,
        with this second."""
        minute = (until + _LATER) // _BUCKET
        self.keys.add(key)
        self._minutes[minute].append(key)
        self.pending.append((minute, key))

    def remember(self, tx: UnitOfWork, key: int, until: int) -> None:
        """The same for an envelope that is not stored. A key that is kept already stays as it is."""
        if key not in self.keys:
            tx.rows[_INSERT] += (until, key)
            self.remember_logged(key, until)

    def retain(self, tx: UnitOfWork, key: int, until: int) -> None:
        """The envelope of `key`, which is kept until Unix second `until`, is removed from the log."""
        if until >= _first_kept(self._horizon):
            tx.rows[_INSERT] += (until, key)

    def undo(self, pending: int) -> None:
        """Forgets the keys of the open transaction beyond the first `pending`."""
        for minute, key in reversed(self.pending[pending:]):
            self.keys.discard(key)
            if self._minutes[minute]:
                self._minutes[minute].pop()
        del self.pending[pending:]

    def expire(self, tx: UnitOfWork, now: int, limit: int = 500) -> int:
        """Forgets up to `limit` ids that have expired at Unix second `now`, the oldest first. Returns how many."""
        if now // _BUCKET != self._horizon // _BUCKET:
            self._horizon = now  # what has expired is not loaded again
            meta.put(tx.db, _HORIZON, now)
        first_kept = _first_kept(now)
        sql = "DELETE FROM remembered_ids WHERE (until, key) IN (SELECT until, key FROM remembered_ids WHERE until < ? LIMIT ?)"
        removed = tx.db.execute(sql, (first_kept, limit)).rowcount
        return max(removed, self._forget(now // _BUCKET, limit))

    def _forget(self, minute: int, limit: int) -> int:
        """Forgets up to `limit` keys of the minutes before `minute`. Returns how many."""
        left = limit
        for due in sorted(one for one in self._minutes if one < minute):
            keys = self._minutes[due]
            gone = keys[-left:]
            del keys[-left:]
            self.keys.difference_update(gone)
            left -= len(gone)
            if not keys:
                del self._minutes[due]
            if not left:
                break
        return limit - left

    def load(self, db: sqlite3.Connection, ids: MessageIds) -> None:
        """Reads the window of a store that is being opened."""
        self._horizon = meta.get(db, _HORIZON) or 0
        first_kept = max(1, _first_kept(self._horizon))
        self._load_logged(db, ids, db.execute(_INDEXED, (first_kept,)))
        tail = db.execute(_TAIL, (last_indexed(db), first_kept))
        self._load_logged(db, ids, ((ids.id_key(message_id), stream, until) for message_id, stream, until in tail))
        for key, until in db.execute("SELECT key, until FROM remembered_ids WHERE until >= ?", (first_kept,)):
            self.keys.add(key)
            self._minutes[(until + _LATER) // _BUCKET].append(key)

    def _load_logged(self, db: sqlite3.Connection, ids: MessageIds, rows: Iterable[tuple[int, int, int]]) -> None:
        senders: dict[int, int] = {}
        add, minutes = self.keys.add, self._minutes
        for id_key, stream, until in rows:
            sender = senders.get(stream)
            if sender is None:
                names = db.execute(_SENDER, (stream,)).fetchone()
                if names is None:
                    continue  # a damaged index: `aghd check-store` names it
                sender = senders[stream] = ids.sender_key(*names)
            add(key := id_key ^ sender)
            minutes[(until + _LATER) // _BUCKET].append(key)


def _first_kept(now: int) -> int:
    """The first `until` that has not expired at Unix second `now`."""
    return now // _BUCKET * _BUCKET - _LATER
