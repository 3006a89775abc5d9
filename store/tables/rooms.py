"""Threads and direct rooms: the pair of each direct id, and the latest activity in each."""

from collections.abc import Iterable
from operator import itemgetter
from typing import Final

from aghbus.protocol.agh.identifiers import is_handle
from aghbus.protocol.agh.rooms import Binding
from aghbus.protocol.api.messages import Direct, Thread
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.dictionaries import Flow
from aghbus.store.engine.sql import Reader, as_struct, insert_into
from aghbus.store.tables.envelopes import fetch

_KEY: Final = ("workspace_id", "channel", "direct_id", "pair_a", "pair_b")
_BIND: Final = insert_into(
    "rooms",
    (*_KEY, "authoritative", "current"),
    f"ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET authoritative = excluded.authoritative, current = 1",
)
# Flows with the counts of all their envelopes: those of the segments, and of the log after them.
_ACTIVITY: Final = """
WITH recent AS MATERIALIZED (
    SELECT flow, count(*) AS messages, min(received_ms) AS first_ms, max(received_ms) AS last_ms, max(seq) AS last_seq
    FROM log WHERE seq > (SELECT coalesce(max(last_seq), 0) FROM segments) GROUP BY flow
), activity AS (
    SELECT s.workspace_id, s.channel, s.surface, s.container, s.pair_a, s.pair_b,
        s.messages + coalesce(r.messages, 0) AS messages, coalesce(s.first_ms, r.first_ms) AS first_ms,
        coalesce(r.last_ms, s.last_ms) AS last_ms, coalesce(r.last_seq, s.last_seq) AS last_seq
    FROM flows AS s LEFT JOIN recent AS r ON r.flow = s.id
)
"""
_THREADS: Final = f"""{_ACTIVITY}
SELECT workspace_id, channel, container, sum(messages), min(first_ms), max(last_ms), max(last_seq) FROM activity
WHERE surface = 'thread' AND (?1 IS NULL OR channel = ?1)
GROUP BY workspace_id, channel, container ORDER BY max(last_seq) DESC LIMIT ?2
"""  # noqa: S608 - constants
_DIRECTS: Final = f"""{_ACTIVITY}
SELECT r.workspace_id, r.channel, r.direct_id,
    CASE WHEN r.pair_a = ?1 THEN r.pair_b WHEN r.pair_b = ?1 THEN r.pair_a
        WHEN r.pair_a IN (SELECT peer_id FROM identities) THEN r.pair_b ELSE r.pair_a END,
    r.authoritative, coalesce(sum(a.messages), 0), coalesce(max(a.last_ms), 0), coalesce(max(a.last_seq), 0)
FROM rooms AS r LEFT JOIN activity AS a ON a.workspace_id = r.workspace_id AND a.channel = r.channel
    AND a.surface = 'direct' AND a.container = r.direct_id AND a.pair_a = r.pair_a AND a.pair_b = r.pair_b
WHERE (?2 IS NULL OR r.channel = ?2) AND (?1 IN (r.pair_a, r.pair_b)
    OR r.pair_a IN (SELECT peer_id FROM identities) OR r.pair_b IN (SELECT peer_id FROM identities))
GROUP BY r.workspace_id, r.channel, r.direct_id, r.pair_a, r.pair_b ORDER BY max(a.last_seq) DESC LIMIT ?3
"""  # noqa: S608 - constants
_IN_USE: Final = """
SELECT 1 FROM flows WHERE messages > 0
    AND workspace_id = ? AND channel = ? AND surface = ? AND container = ? AND pair_a IS ? AND pair_b IS ? LIMIT 1
"""
_FORGET: Final = (
    "DELETE FROM rooms WHERE workspace_id = ? AND channel = ? AND direct_id = ? AND pair_a = ? AND pair_b = ?"
)
_place_of: Final = itemgetter(
    *map(Flow._fields.index, ("workspace_id", "channel", "surface", "container", "pair_a", "pair_b"))
)


def bound(tx: Transaction, workspace_id: str, channel: str, direct_id: str) -> Binding | None:
    """The current pair of `direct_id`; None when it was never used."""
    row = tx.db.execute(
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
    tx.db.execute(_BIND, (*key, int(binding.authoritative), 1))


def forget_empty(tx: Transaction, flows: Iterable[Flow]) -> int:
    """`flows` have no envelopes any more: drops the bindings of their rooms, when no other flow is in them. Returns how
    many threads and rooms have ended."""
    places = set(map(_place_of, flows))
    if places:
        places -= set(map(_place_of, tx.memory.log.flows.ids))  # which the index may not have
    ended = 0
    tx.flush()
    for place in places:
        workspace_id, channel, surface, container, *pair = place
        if container is None or tx.db.execute(_IN_USE, place).fetchone() is not None:
            continue
        ended += 1
        if surface == "direct":
            tx.db.execute(_FORGET, (workspace_id, channel, container, *pair))
    return ended


async def threads(reader: Reader, *, channel: str | None = None, limit: int = 100) -> list[Thread]:
    """Threads with activity, latest first."""
    rows = await fetch(reader, _THREADS, [channel, limit])
    return [as_struct(Thread, row) for row in rows]


async def directs(reader: Reader, *, self_id: str, channel: str | None = None, limit: int = 100) -> list[Direct]:
    """Direct rooms of `self_id`, or of a former id of this daemon, and one other peer, latest activity first."""
    rows = await fetch(reader, _DIRECTS, [self_id, channel, limit])
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
