"""The dedup window (spec section 5 step 8): which envelopes were received before, in O(1) however many they are.

A set in memory answers. Opening a store rebuilds it from the log, whose rows say until when their ids are remembered, and
from table `remembered_ids`, which has the ids without a row there: those of discovery, and of envelopes that retention
has removed since. Memory has the keys by the minute of their expiry, so that expiring costs no search.
"""

import sqlite3
import struct
from collections import defaultdict
from functools import partial
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.agh.limits import MAX_LIFETIME
from aghbus.store.engine import meta
from aghbus.store.engine.log.segments import last_indexed
from aghbus.store.engine.unit_of_work import BulkStatement, UnitOfWork

GRACE: Final = 60  # seconds: an id is kept this long after its envelope went stale, for clocks that step back
_BUCKET: Final = 60  # seconds of expiry that are forgotten together
_IDENTITY_BYTES: Final = 8
_SENDERS: Final = 8_192  # in memory
_LATER: Final = GRACE + _BUCKET  # from the `until` of an id into its last minute: when that is over, the grace is too
_INSERT: Final = BulkStatement.insert("remembered_ids", ("until", "key"), "ON CONFLICT DO NOTHING")
_RETAIN: Final = BulkStatement.insert("remembered_ids", ("until", "key", "digest", "refused"), "ON CONFLICT DO NOTHING")
"""An id may be in the log twice: it was forgotten while the clock was ahead, and its envelope came again."""
_SENDER_KEYS: Final = "CREATE TEMP TABLE sender_keys (flow INTEGER PRIMARY KEY, key INTEGER NOT NULL)"
_FLOWS: Final = "SELECT id, workspace_id, sender FROM flows NOT INDEXED"
_INDEXED: Final = f"""
SELECT json_group_array((i.id_key | s.key) - (i.id_key & s.key)),
    json_group_array((i.remember_until + {_LATER}) / {_BUCKET})
FROM segments AS g CROSS JOIN log_ids AS i ON i.segment = g.n CROSS JOIN temp.sender_keys AS s ON s.flow = i.flow
WHERE g.remember_until >= ?1 AND i.remember_until >= ?1 GROUP BY g.n
"""  # noqa: S608 - constants
"""The keys of each segment, and their minutes: a row for each id would take most of the time. SQLite has no XOR."""
_TAIL: Final = "SELECT msg_id, flow, remember_until FROM log WHERE seq > ? AND remember_until >= ?"
_HORIZON: Final = "ids_expired_through"
_decode: Final = msgspec.json.Decoder(list[int]).decode
_number: Final = struct.Struct("<q").unpack


class Answer(NamedTuple):
    """What became of an envelope: the SHA-256 of its bytes, and the reason for which the lifecycle refused it; None: it was
    taken."""

    digest: bytes
    refused: str | None


def _keyed(identity: int) -> blake2b:
    return blake2b(digest_size=8, key=identity.to_bytes(_IDENTITY_BYTES, "little"))


class MessageIds:
    """Numbers in place of ids: 64-bit hashes, keyed by the identity of the store, so that no sender can choose ids that meet.
    `open` gives it."""

    __slots__ = ("_keyed", "_senders")

    def __init__(self) -> None:
        self._keyed = _keyed(0)
        self._senders: dict[tuple[str, str], int] = {}

    def open(self, identity: int) -> None:
        """Uses the identity of a store that is being opened."""
        self._keyed = _keyed(identity)
        self._senders.clear()

    def id_key(self, text: str) -> int:
        """The number by which the log indexes an id."""
        keyed = self._keyed.copy()
        keyed.update(text.encode())
        number: int = _number(keyed.digest())[0]
        return number

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

    `keys` are those of the envelopes that were received before, as `MessageIds.dedup_key` gives them. `pending` are those of
    discovery that the store does not have yet, with the Unix second until which they are kept (docs/adr/0004).
    """

    def __init__(self) -> None:
        self.keys: set[int] = set()
        self.pending: dict[int, int] = {}
        self._minutes: defaultdict[int, list[int]] = defaultdict(list)
        self._horizon = 0

    def __len__(self) -> int:
        return len(self.keys)

    def admits(self, remaining: int, capacity: int, more: int = 0) -> bool:
        """Whether there is room for an id that would be kept for `remaining` seconds, with `capacity` ids at most in
        all, after `more` other ids.

        When the window is more than half full, it admits only short-lived ids: the fuller it is, the shorter. Forgetting
        an id early instead would let its envelope in twice.
        """
        free = capacity - len(self.keys) - more
        return free > 0 and remaining * capacity <= 2 * free * MAX_LIFETIME

    def remember_logged(self, tx: UnitOfWork, key: int, until: int) -> None:
        """Keeps `key` until Unix second `until` and the grace after it. This transaction appends its envelope to the log,
        with this second."""
        minute = (until + _LATER) // _BUCKET
        self.keys.add(key)
        self._minutes[minute].append(key)
        tx.undo.append(partial(self._remove, minute, key))

    def remember(self, tx: UnitOfWork, key: int, until: int) -> None:
        """The same for an envelope that is not stored. A key that is kept already stays as it is."""
        if key not in self.keys:
            tx.append(_INSERT, (until, key))
            self.remember_logged(tx, key, until)

    def keeps(self, until: int) -> bool:
        """Whether an id that is kept until Unix second `until` still is."""
        return until >= _first_kept(self._horizon)

    def retain(self, tx: UnitOfWork, key: int, until: int, answer: Answer) -> None:
        """The envelope of `key`, which is kept until Unix second `until`, is removed from the log."""
        tx.append(_RETAIN, (until, key, *answer))

    def answer(self, tx: UnitOfWork, key: int, until: int) -> Answer | None:
        """What became of an envelope that was removed from the log since; None for one that was never in it."""
        tx.flush()
        sql = "SELECT digest, refused FROM remembered_ids WHERE until = ? AND key = ? AND digest IS NOT NULL"
        row = tx.db.execute(sql, (until, key)).fetchone()
        return None if row is None else Answer(*row)

    def _remove(self, minute: int, key: int) -> None:
        self.keys.discard(key)
        if self._minutes[minute]:
            self._minutes[minute].pop()

    def expire(self, tx: UnitOfWork, now: int, limit: int = 500) -> int:
        """Forgets up to `limit` ids that have expired at Unix second `now`, the oldest first. Returns how many."""
        if now // _BUCKET != self._horizon // _BUCKET:
            self._horizon = now  # what has expired is not loaded again
            meta.put(tx.db, _HORIZON, now)
        first_kept = _first_kept(now)
        tx.flush()
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
        """Reads the window of a store that is being opened. SQLite does what has to be done for each id, as far as it can."""
        self._horizon = meta.get(db, _HORIZON) or 0
        first_kept = max(1, _first_kept(self._horizon))
        senders = {flow: ids.sender_key(*names) for flow, *names in db.execute(_FLOWS)}
        db.execute(_SENDER_KEYS)
        db.executemany("INSERT INTO temp.sender_keys VALUES (?, ?)", senders.items())
        for keys, minutes in db.execute(_INDEXED, (first_kept,)):
            self._add(_decode(keys), _decode(minutes))
        db.execute("DROP TABLE temp.sender_keys")
        for message_id, flow, until in db.execute(_TAIL, (last_indexed(db), first_kept)):
            if flow in senders:  # else a damaged log: `aghd check-store` names it
                self._add([ids.id_key(message_id) ^ senders[flow]], [(until + _LATER) // _BUCKET])
        for key, until in db.execute("SELECT key, until FROM remembered_ids WHERE until >= ?", (first_kept,)):
            self._add([key], [(until + _LATER) // _BUCKET])

    def _add(self, keys: list[int], minutes: list[int]) -> None:
        self.keys.update(keys)
        for key, minute in zip(keys, minutes, strict=True):
            self._minutes[minute].append(key)


def _first_kept(now: int) -> int:
    """The first `until` that has not expired at Unix second `now`."""
    return now // _BUCKET * _BUCKET - _LATER
