"""Reading the agent's inbox: pages of items, and how many there are."""

from collections.abc import Collection
from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.messages import Message
from aghbus.store.engine.memory.inbox import HELD, InboxMemory
from aghbus.store.engine.sql import INBOX_POSITION, INBOX_STATE, Reader, placeholders
from aghbus.store.tables.envelopes import Params, Row, fetch, fetch_messages, last_seq, message_of, within_bytes
from aghbus.store.tables.inbox import MAX_ATTEMPTS, SELECT_ITEM, read_item
from aghbus.store.tables.inbox_purge import waiting
from aghbus.store.tables.search import scan

_BY_SENDER: Final = """
SELECT count(*), coalesce(sum(e.outcome = 'opened'), 0), min(e.seq) FROM envelopes AS e
WHERE e.seq IN (SELECT value FROM json_each(?)) AND e.sender IN (SELECT value FROM json_each(?)) AND e.direction = 'in'
GROUP BY e.sender ORDER BY min(e.seq)
"""
_GIVEN_UP: Final = """
SELECT count(*) FROM inbox AS i CROSS JOIN log AS l ON l.seq = i.seq
CROSS JOIN works AS w ON w.work_id = l.work_id AND w.opened_seq = l.seq
WHERE i.state = 'dead' AND i.attempts >= ? AND w.role = 'target'
"""


class InboxPage(NamedTuple):
    """Inbox rows, oldest first, and the sequence after which the next page begins; None at the end."""

    items: list[InboxItem]
    next_since: int | None


async def items(
    reader: Reader,
    *,
    states: frozenset[str] = frozenset(),
    since: int = 0,
    limit: int = 100,
    senders: Collection[str] | None = None,
) -> InboxPage:
    """Up to `limit` rows after sequence `since` in one of `states` (none given: all but acked) and of `senders` (None: of all);
    fewer when PAGE_BYTES are reached."""
    wanted = sorted(states or {"ready", "leased", "dead"})
    named: Params = [] if senders is None else [msgspec.json.encode(list(senders)).decode()]
    where = "AND e.sender IN (SELECT value FROM json_each(?))" if named else ""
    hits = await _implied(reader, wanted, since, limit + 1, where, named)
    hits += await fetch(
        reader,
        "SELECT i.seq, length(e.raw) FROM inbox AS i CROSS JOIN envelopes AS e ON e.seq = i.seq"  # noqa: S608 - constants
        f" WHERE i.seq > ? AND i.state IN ({placeholders(wanted)}) {where} ORDER BY i.seq LIMIT ?",
        [since, *wanted, *named, limit + 1],
    )
    hits = sorted(set(hits))[: limit + 1]
    seqs, full = within_bytes(hits[:limit])
    rows = await fetch(
        reader,
        f"{SELECT_ITEM} WHERE e.seq IN (SELECT value FROM json_each(?)) AND {INBOX_STATE} IS NOT NULL ORDER BY e.seq",  # noqa: S608 - constants
        [msgspec.json.encode(seqs).decode()],
    )
    more = full or len(hits) > limit
    return InboxPage([read_item(row) for row in rows], seqs[-1] if more else None)


async def _implied(reader: Reader, wanted: list[str], since: int, limit: int, where: str, named: Params) -> list[Row]:
    """`(seq, bytes)` of messages without a row, and of some that have one: read before those that have one, because a
    message may get a row meanwhile."""
    ((position,),) = await fetch(reader, f"SELECT {INBOX_POSITION}", [])
    low = since if "acked" in wanted else max(since, position)
    high = await last_seq(reader) if "ready" in wanted else position
    where = f"AND e.inbox = 1 AND {INBOX_STATE} IN ({placeholders(wanted)}) {where}"
    return await scan(reader, where, [*wanted, *named], (low, high), limit)


class WaitingSender(NamedTuple):
    """Unread messages of one sender: how many they are and how many of them opened works, and the oldest one."""

    messages: int
    openings: int
    first: Message


async def by_sender(
    reader: Reader, untouched: list[int], senders: list[str], limit: int
) -> tuple[list[WaitingSender], int]:
    """What was received from `senders` and is ready or leased: the `limit` senders that have waited longest, the oldest first, and
    how many others there are. `untouched` as in `waiting`."""
    params = [msgspec.json.encode(values).decode() for values in (await waiting(reader, untouched), senders)]
    found = []
    rows = await fetch(reader, _BY_SENDER, params)
    for messages, openings, first in rows[:limit]:
        for row in await fetch_messages(reader, [first]):  # one at a time: it may have a megabyte
            found.append(WaitingSender(messages, openings, message_of(row)))
    return found, max(0, len(rows) - limit)


async def counts(reader: Reader, memory: InboxMemory) -> dict[str, int]:
    """How many are ready, leased and dead. Acked ones are history, and not counted; nor is what a page cannot have yet."""
    sql = "SELECT state, count(*) FROM inbox WHERE state IN ('leased', 'dead') GROUP BY state"
    found: dict[str, int] = dict(await fetch(reader, sql, []))
    unread, leased = memory.waiting_through(await last_seq(reader)), found.get("leased", 0)
    return {"ready": max(0, unread - leased), "leased": leased, "dead": found.get("dead", 0)}


async def held(reader: Reader) -> int:
    """How many openings are held since a restore."""
    ((count,),) = await fetch(reader, f"SELECT count(*) FROM inbox WHERE {HELD}", [])  # noqa: S608 - a constant
    return int(count)


async def given_up(reader: Reader) -> int:
    """How many openings of works for our agent are dead because all their attempts are used up."""
    ((count,),) = await fetch(reader, _GIVEN_UP, [MAX_ATTEMPTS])
    return int(count)


async def some_expired(reader: Reader, now_ms: int) -> bool:
    """Whether a lease has expired by `now_ms`."""
    sql = "SELECT 1 FROM inbox WHERE state = 'leased' AND lease_until_ms <= ? LIMIT 1"
    return bool(await fetch(reader, sql, [now_ms]))
