"""Searching envelopes by filters, in pages.

Pages are bounded by rows and by bytes. They are searched in windows of the sequence, so that no query occupies the reader
for long: a filter by work, thread or room by the indexes of the log, in windows that grow while little is found, another
one row by row. Messages of a direct room are those of one pair, also when ids collide (spec section 4).

A text has no index (docs/adr/0017): the log is read, newest first, and a page ends after some time.
"""

from collections.abc import Callable
from time import monotonic
from typing import Any, Final, NamedTuple

from aghbus.protocol.api.messages import MessagesResponse
from aghbus.protocol.api.queries import EnvelopeFilter, MessagesQuery
from aghbus.store.engine.log.memory import as_json
from aghbus.store.engine.sql import INBOX_STATE, Reader, ends_in
from aghbus.store.tables.envelopes import (
    Params,
    Row,
    fetch,
    fetch_messages,
    last_seq,
    message_of,
    pruned_through,
    within_bytes,
)

WINDOW_ROWS: Final = 5_000  # rows that one query searches without an index: some milliseconds
_FIRST_SPAN: Final = 1_024  # sequences that the first query searches with an index: a busy thread fills a page of them
_GROWTH: Final = 4  # of each further one

_SEGMENTS: Final = "segments AS g CROSS JOIN"
_WITHIN: Final = "g.last_seq > ?2 AND g.first_seq <= ?3"
_OF_WORK: Final = f"""
e.seq IN (
    SELECT i.seq FROM {_SEGMENTS} log_works AS i ON i.segment = g.n AND i.work_id = ?1 AND i.seq > ?2 AND i.seq <= ?3
    WHERE {_WITHIN} UNION ALL SELECT value FROM json_each(?4))
"""  # noqa: S608 - constants
_OF_FLOWS: Final = f"""
e.seq IN (
    SELECT s.value FROM {_SEGMENTS} json_each(?1) AS t CROSS JOIN log_flows AS i
        ON i.segment = g.n AND i.flow = t.value AND i.block BETWEEN ?2 >> 8 AND ?3 >> 8
        CROSS JOIN json_each(i.seqs) AS s ON s.value > ?2 AND s.value <= ?3
    WHERE {_WITHIN} UNION ALL SELECT value FROM json_each(?4))
"""  # noqa: S608 - constants
SEARCH_SECONDS: Final = 1.0
"""Of one page by text. A megabyte takes 10 ms, or 0.4 s where it is nothing but the shortest texts: one window."""
_WINDOW_BYTES: Final = 1024 * 1024

# Any text in the body, as it reads without the escapes of JSON. Damaged bytes are no JSON.
_SAYS: Final = """EXISTS (
    SELECT 1 FROM json_tree(iif(json_valid(CAST(e.raw AS TEXT)), CAST(e.raw AS TEXT), '{}'), '$.body') AS t
    WHERE t.type = 'text' AND instr(lower(t.atom), lower(?)))"""
# The first of the newest rows up to a sequence that are a megabyte together.
_WINDOW: Final = """
SELECT seq FROM (
    SELECT seq, row_number() OVER newest AS n, sum(size) OVER newest AS bytes
    FROM (SELECT seq, length(raw) AS size FROM log WHERE seq > ? AND seq <= ? ORDER BY seq DESC LIMIT ?)
    WINDOW newest AS (ORDER BY seq DESC))
WHERE n = 1 OR bytes <= ? ORDER BY n DESC LIMIT 1
"""
Between = Callable[[int, int], tuple[str, Params]]
"""The condition of the envelopes to search with `low < seq <= high`, in SQL."""


async def messages(
    reader: Reader, wanted: EnvelopeFilter, *, since: int = 0, limit: int = 100, last: bool = False
) -> MessagesResponse:
    """One page after sequence `since`, oldest first; with `last` the newest `limit` of those."""
    page = await find(reader, wanted, since=since, limit=limit, last=last)
    rows = await fetch_messages(reader, page.seqs)
    return MessagesResponse(
        messages=[message_of(row) for row in rows],
        next_since=page.next_since,
        next_before=page.next_before,
        pruned_through=await pruned_through(reader),
    )


async def by_text(reader: Reader, wanted: MessagesQuery) -> MessagesResponse:
    """Up to `limit` messages that match and have `wanted.text` in a text of their body: the newest, oldest first.

    `next_before` is not None when earlier ones may match, too.
    """
    top = await _last_before(reader, wanted)
    hits, low = await _scan_text(reader, wanted, top)
    seqs, full = within_bytes(hits)
    if full or len(hits) >= wanted.limit:
        low = seqs[-1] - 1
    rows = await fetch_messages(reader, seqs)
    return MessagesResponse(
        messages=[message_of(row) for row in rows],
        next_since=max(wanted.since, top),
        next_before=low + 1 if low > wanted.since else None,
        pruned_through=await pruned_through(reader),
    )


async def _scan_text(reader: Reader, wanted: MessagesQuery, top: int) -> tuple[list[Row], int]:
    """`(seq, bytes)` of matches up to `top`, newest first, and the sequence down to which was searched."""
    where, params = _where(wanted)
    between = await _between(reader, wanted)
    hits: list[Row] = []
    high = top
    end = monotonic() + SEARCH_SECONDS
    while high > wanted.since and len(hits) < wanted.limit and (high == top or monotonic() < end):
        found = await fetch(reader, _WINDOW, [wanted.since, high, WINDOW_ROWS, _WINDOW_BYTES])
        if not found:
            return hits, wanted.since
        ((first,),) = found
        bounds, bound = ("e.seq > ? AND e.seq <= ?", [first - 1, high]) if between is None else between(first - 1, high)
        # Only constants are put together here; every value is bound.
        sql = f"SELECT e.seq, length(e.raw) FROM envelopes AS e WHERE {bounds} {where} AND {_SAYS} ORDER BY e.seq DESC LIMIT ?"  # noqa: S608
        hits += await fetch(reader, sql, [*bound, *params, wanted.text, wanted.limit - len(hits)])
        high = first - 1
    return hits, high


class Page(NamedTuple):
    """Sequences that match, ascending, and where the next page begins: after `next_since`, of the newest before `next_before`."""

    seqs: list[int]
    next_since: int
    next_before: int | None = None


async def find(reader: Reader, wanted: EnvelopeFilter, *, since: int, limit: int, last: bool = False) -> Page:
    """Up to `limit` sequences after `since` that match, or the newest ones; fewer when PAGE_BYTES are reached."""
    top = await _last_before(reader, wanted)
    where, params = _where(wanted)
    between = await _between(reader, wanted)
    hits = await scan(reader, where, params, (since, top), limit, between, newest=last)
    seqs, full = within_bytes(hits)
    more = full or len(hits) >= limit
    if last:
        return Page(sorted(seqs), max(since, top), seqs[-1] if more and seqs else None)
    return Page(seqs, seqs[-1] if more and seqs else max(since, top))


async def _last_before(reader: Reader, wanted: EnvelopeFilter) -> int:
    """The highest sequence that may be in a page."""
    top, before = await last_seq(reader), wanted.before if isinstance(wanted, MessagesQuery) else None
    return top if before is None else min(top, before - 1)


async def scan(
    reader: Reader,
    where: str,
    params: Params,
    span: tuple[int, int],
    limit: int,
    between: Between | None = None,
    *,
    newest: bool = False,
) -> list[Row]:
    """`(seq, bytes)` of up to `limit` rows `e` that match `where`, with `span[0] < seq <= span[1]`, in the order of the
    search. `between` finds them by an index."""
    order = "DESC" if newest else "ASC"
    low, high = span
    width = _FIRST_SPAN
    hits: list[Row] = []
    while len(hits) < limit and low < high:
        if between is None:
            start, end = await _window(reader, low, high, newest=newest)
        else:
            start, end = (max(low, high - width), high) if newest else (low, min(high, low + width))
            width *= _GROWTH
        bounds, bound = ("e.seq > ? AND e.seq <= ?", [start, end]) if between is None else between(start, end)
        # Only constants of this module are put together here; every value is bound.
        hits += await fetch(
            reader,
            f"SELECT e.seq, length(e.raw) FROM envelopes AS e WHERE {bounds} {where} ORDER BY e.seq {order} LIMIT ?",  # noqa: S608
            [*bound, *params, limit - len(hits)],
        )
        low, high = (low, start) if newest else (end, high)
    return hits


async def _between(reader: Reader, wanted: EnvelopeFilter) -> Between | None:
    """How the indexes of the log find the envelopes of the work, thread or room that is `wanted`; None without one."""
    tail = reader.log.tail
    if wanted.work_id is not None:
        work_id = wanted.work_id
        return lambda low, high: (_OF_WORK, _bounds(work_id, low, high, tail.of_work(work_id)))
    container = wanted.direct_id if wanted.thread_id is None else wanted.thread_id
    if container is None:
        return None
    # Those of an envelope that is committed later are not asked for: it has a higher sequence than the page.
    recent = reader.log.flows.in_container(container)  # first: a segment that is written meanwhile is in the index
    indexed = await fetch(reader, "SELECT id FROM flows WHERE container = ? AND messages > 0", [container])
    flows = {*recent, *(number for (number,) in indexed)}
    encoded = as_json(sorted(flows))
    return lambda low, high: (
        _OF_FLOWS,
        _bounds(encoded, low, high, [seq for number in flows for seq in tail.of_flow(number)]),
    )


def _bounds(first: str, low: int, high: int, recent: list[int]) -> Params:
    """The parameters of both conditions."""
    return [first, low, high, as_json([seq for seq in recent if low < seq <= high])]


async def _window(reader: Reader, low: int, high: int, *, newest: bool) -> tuple[int, int]:
    """The part of `(low, high]` to search next: WINDOW_ROWS stored envelopes at its end, or all of it."""
    order = "DESC" if newest else "ASC"
    found = await fetch(
        reader,
        f"SELECT seq FROM log WHERE seq > ? AND seq <= ? ORDER BY seq {order} LIMIT 1 OFFSET ?",  # noqa: S608 - constants
        [low, high, WINDOW_ROWS - 1],
    )
    if not found:
        return low, high
    return (found[0][0] - 1, high) if newest else (low, found[0][0])


# Damaged bytes are no JSON.
_CAUSE: Final = "iif(json_valid(CAST(e.raw AS TEXT)), json_extract(CAST(e.raw AS TEXT), '$.causation_id') = ?, 0)"
_ROOM_OF_CURRENT_PAIR: Final = """EXISTS (SELECT 1 FROM rooms AS r WHERE r.workspace_id = e.workspace_id
    AND r.channel = e.channel AND r.direct_id = e.container AND r.pair_a = e.pair_a AND r.pair_b = e.pair_b AND r.current = 1)"""


def _where(wanted: EnvelopeFilter) -> tuple[str, Params]:
    clauses: list[str] = []
    params: Params = []

    def add(clause: str, *values: Any) -> None:
        clauses.append(f"AND {clause}")
        params.extend(values)

    for column, values in (("kind", wanted.kinds), ("direction", wanted.directions)):
        if values:
            add(f"e.{column} IN ({', '.join('?' * len(values))})", *sorted(values))
    id_end, caused_by = (wanted.id_end, wanted.caused_by) if isinstance(wanted, MessagesQuery) else (None, None)
    for clause, value in (
        (ends_in("e.msg_id", id_end or ""), id_end),
        (_CAUSE, caused_by),
        ("e.work_id = ?", wanted.work_id),
        ("e.container = ? AND e.surface = 'thread'", wanted.thread_id),
        ("e.channel = ?", wanted.channel),
    ):
        if value is not None:
            add(clause, value)
    if wanted.direct_id is not None:
        add("e.container = ? AND e.surface = 'direct'", wanted.direct_id)
        if wanted.peer is not None:
            add("(e.pair_a = ? OR e.pair_b = ?)", wanted.peer, wanted.peer)
        else:
            add(_ROOM_OF_CURRENT_PAIR)
    elif wanted.peer is not None:
        add("(e.sender = ? OR e.recipient = ?)", wanted.peer, wanted.peer)
    if wanted.inbox:
        add(f"{INBOX_STATE} IN ('ready', 'leased')")
    if wanted.for_agent:
        add("(e.direction = 'in' OR e.seq IN (SELECT seq FROM own_terminal_messages))")
    return " ".join(clauses), params
