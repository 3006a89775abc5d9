"""Threads and direct rooms: the pair of each direct id, and the latest activity in each."""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from aghbus.protocol.api.messages import Direct, Thread
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.identifiers import is_handle
from aghbus.protocol.rooms import Binding, Pair
from aghbus.store.engine.append_buffer import BulkStatement
from aghbus.store.engine.sql import Reader, as_struct, insert_into
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.envelopes import fetch

_KEY: Final = ("workspace_id", "channel", "direct_id", "pair_a", "pair_b")
_ROOM_COLUMNS: Final = (*_KEY, "authoritative", "current", "messages", "last_ms", "last_seq")
_BIND: Final = insert_into(
    "rooms",
    _ROOM_COLUMNS,
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET authoritative = excluded.authoritative, current = 1",
)
_ROOM_ACTIVITY: Final = BulkStatement.insert(
    "rooms",
    _ROOM_COLUMNS,
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET messages = messages + 1, last_ms = excluded.last_ms,"
    " last_seq = excluded.last_seq",
)
_THREAD_COLUMNS: Final = ("workspace_id", "channel", "thread_id", "messages", "first_ms", "last_ms", "last_seq")


def _one_row_per_thread(values: list[Any]) -> list[Any]:
    """A transaction often has hundreds of messages of one thread: an update for each would cost more than the rest of the row."""
    threads: dict[tuple[Any, ...], list[Any]] = {}
    for at in range(0, len(values), len(_THREAD_COLUMNS)):
        row = threads.get(key := (values[at], values[at + 1], values[at + 2]))
        if row is None:
            threads[key] = values[at : at + len(_THREAD_COLUMNS)]
        else:
            row[3] += 1
            row[5:] = values[at + 5 : at + 7]
    return [value for row in threads.values() for value in row]


_THREAD_ACTIVITY: Final = BulkStatement.insert(
    "threads",
    _THREAD_COLUMNS,
    "ON CONFLICT DO UPDATE SET messages = messages + excluded.messages, last_ms = excluded.last_ms,"
    " last_seq = excluded.last_seq",
    merge=_one_row_per_thread,
)
_FORGET_THREAD: Final = """
DELETE FROM threads WHERE workspace_id = :workspace_id AND channel = :channel AND thread_id = :container
    AND NOT EXISTS (SELECT 1 FROM streams AS s JOIN log AS l ON l.stream = s.id
        WHERE s.container = :container AND s.workspace_id = :workspace_id AND s.channel = :channel)
"""
_FORGET_ROOM: Final = """
DELETE FROM rooms WHERE workspace_id = :workspace_id AND channel = :channel AND direct_id = :container
    AND pair_a = :pair_a AND pair_b = :pair_b
    AND NOT EXISTS (SELECT 1 FROM streams AS s JOIN log AS l ON l.stream = s.id
        WHERE s.container = :container AND s.workspace_id = :workspace_id AND s.channel = :channel
        AND s.pair_a = :pair_a AND s.pair_b = :pair_b)
"""
_SELECT_ROOMS: Final = """
SELECT workspace_id, channel, direct_id,
    CASE WHEN pair_a = ?1 THEN pair_b WHEN pair_b = ?1 THEN pair_a
        WHEN pair_a IN (SELECT peer_id FROM identities) THEN pair_b ELSE pair_a END,
    authoritative, messages, last_ms, last_seq
FROM rooms
WHERE (?1 IN (pair_a, pair_b) OR pair_a IN (SELECT peer_id FROM identities) OR pair_b IN (SELECT peer_id FROM identities))
    AND (?2 IS NULL OR channel = ?2) ORDER BY last_seq DESC LIMIT ?3
"""


class Place(NamedTuple):
    """A thread, or a direct room of one pair."""

    workspace_id: str
    channel: str
    surface: str
    container: str
    pair_a: str | None
    pair_b: str | None


def bound(tx: Transaction, workspace_id: str, channel: str, direct_id: str) -> Binding | None:
    """The current pair of `direct_id`; None when it was never used."""
    row = tx.db_unflushed.execute(
        "SELECT pair_a, pair_b, authoritative FROM rooms"
        " WHERE workspace_id = ? AND channel = ? AND direct_id = ? AND current = 1",
        (workspace_id, channel, direct_id),
    ).fetchone()
    return None if row is None else Binding((row[0], row[1]), authoritative=bool(row[2]))


def bind(tx: Transaction, workspace_id: str, channel: str, direct_id: str, binding: Binding) -> None:
    """From now on `direct_id` stands for the pair of `binding`; another pair's room stays, with its own messages."""
    key = (workspace_id, channel, direct_id, *binding.pair)
    tx.db.execute(
        "UPDATE rooms SET current = 0 WHERE workspace_id = ? AND channel = ? AND direct_id = ? AND current = 1"
        " AND (pair_a, pair_b) <> (?, ?)",
        key,
    )
    tx.db.execute(_BIND, (*key, int(binding.authoritative), 1, 0, 0, 0))


def touch(tx: Transaction, envelope: Envelope, pair: Pair | None, seq: int, now_ms: int) -> None:
    """Counts `envelope` in its thread or in its pair's room; without effect for discovery and unbound rooms."""
    key = (envelope.workspace_id, envelope.channel, envelope.container or "")
    if envelope.surface == "thread":
        tx.rows[_THREAD_ACTIVITY] += (*key, 1, now_ms, now_ms, seq)
    elif pair is not None:  # its room was bound before: a new row only if retention has removed that since
        tx.rows[_ROOM_ACTIVITY] += (*key, *pair, 0, 0, 1, now_ms, seq)


def forget_empty(tx: Transaction, places: Iterable[Place]) -> int:
    """Drops the threads and rooms among `places` of which no envelope is left, with their bindings. Returns how many."""
    dropped = 0
    for place in places:
        sql = _FORGET_THREAD if place.surface == "thread" else _FORGET_ROOM
        dropped += tx.db.execute(sql, place._asdict()).rowcount
    return dropped


async def threads(reader: Reader, *, channel: str | None = None, limit: int = 100) -> list[Thread]:
    """Threads with activity, latest first."""
    rows = await fetch(
        reader,
        "SELECT workspace_id, channel, thread_id, messages, first_ms, last_ms, last_seq FROM threads"
        " WHERE ?1 IS NULL OR channel = ?1 ORDER BY last_seq DESC LIMIT ?2",
        [channel, limit],
    )
    return [as_struct(Thread, row) for row in rows]


async def directs(reader: Reader, *, self_id: str, channel: str | None = None, limit: int = 100) -> list[Direct]:
    """Direct rooms of `self_id`, or of a former id of this daemon, and one other peer, latest activity first."""
    rows = await fetch(reader, _SELECT_ROOMS, [self_id, channel, limit])
    return [
        Direct(
            workspace_id=row[0],
            channel=row[1],
            direct_id=row[2],
            peer=row[3],
            trust="verified" if is_handle(row[3]) else "unverified",  # spec section 8: no handle gets in unverified
            derived=bool(row[4]),
            messages=row[5],
            last_ms=row[6],
            last_seq=row[7],
        )
        for row in rows
    ]
