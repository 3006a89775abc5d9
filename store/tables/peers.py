"""Known peers: the latest card of each, kept so that presence survives a restart."""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.decoding import decoder
from aghbus.protocol.agh.presence import PeerSeen
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import Reader, as_struct, insert_into
from aghbus.store.tables.envelopes import Row, fetch

MAX_PEERS: Final = 10_000  # rows kept: anybody may greet under any number of names
MAX_BYTES: Final = 64 * 1024 * 1024  # of their cards: each may have a megabyte

_encode: Final = msgspec.json.Encoder().encode
_decode_card: Final = decoder(PeerCard)

_SEEN_COLUMNS: Final = (
    "workspace_id",
    "channel",
    "peer_id",
    "trust",
    "first_seen_ms",
    "last_seen_ms",
    "acknowledges",
    "summary",
)  # of PeerSeen
_SEEN: Final = insert_into(
    "peers",
    (*_SEEN_COLUMNS, "card"),
    "ON CONFLICT DO UPDATE SET trust = excluded.trust, last_seen_ms = excluded.last_seen_ms, card = excluded.card,"
    " acknowledges = excluded.acknowledges, summary = excluded.summary",
)
_values_of: Final[Callable[[PeerSeen], tuple[Any, ...]]] = attrgetter(*_SEEN_COLUMNS)
_SELECT: Final = (
    "SELECT workspace_id, channel, card, trust, first_seen_ms, last_seen_ms, acknowledges, summary FROM peers"
)


def seen(tx: Transaction, peer: PeerSeen) -> None:
    """Keeps the peer's latest card and the time of its last greet; the time of the first stays."""
    tx.db.execute(_SEEN, (*_values_of(peer), _encode(peer.card)))


def drop(tx: Transaction, keys: Sequence[tuple[str, str, str]]) -> None:
    """Drops the peers of these `(workspace_id, channel, peer_id)`."""
    tx.db.executemany("DELETE FROM peers WHERE workspace_id = ? AND channel = ? AND peer_id = ?", keys)


def forget(tx: Transaction, rows: list[Row]) -> None:
    """Drops these `rows` of `stale`, except peers that greeted again meanwhile."""
    tx.db.executemany(
        "DELETE FROM peers WHERE workspace_id = ? AND channel = ? AND peer_id = ? AND last_seen_ms = ?", rows
    )


async def stale(
    reader: Reader, before_ms: int, limit: int, keep: int = MAX_PEERS, keep_bytes: int = MAX_BYTES
) -> list[Row]:
    """Up to `limit` peers, as `forget` takes them: last seen before `before_ms`, or not among the `keep` seen last.

    Nor among those seen last whose cards fit `keep_bytes` together.
    """
    sql = """
        SELECT workspace_id, channel, peer_id, last_seen_ms
        FROM (SELECT *, row_number() OVER latest AS place,
                sum(length(card) + coalesce(length(summary), 0)) OVER latest AS bytes FROM peers
            WINDOW latest AS (ORDER BY last_seen_ms DESC ROWS UNBOUNDED PRECEDING))
        WHERE last_seen_ms < ? OR place > ? OR bytes > ? LIMIT ?
    """
    return await fetch(reader, sql, [before_ms, keep, keep_bytes, limit])


async def load(reader: Reader) -> list[PeerSeen]:
    """All kept peers, for presence after a restart."""
    return [_seen_of(row) for row in await fetch(reader, _SELECT, [])]


def _seen_of(row: Row) -> PeerSeen:
    *columns, acknowledges, summary = row
    known = None if acknowledges is None else bool(acknowledges)
    return as_struct(PeerSeen, (*columns[:2], _decode_card(columns[2]), *columns[3:], known, summary))
