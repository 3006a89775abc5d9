"""Envelopes: writing one, and reading them as messages, by the page, with filters.

Pages are bounded by rows and by bytes, and a filter without an index is looked for in windows of rows, so that no query keeps the
reader to itself. Messages of a direct room are those of one pair, whatever ids collide (spec section 4).
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import aiosqlite
import msgspec

from aghbus.protocol.api.messages import Message, MessagesResponse, OutboxState
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.protocol.effects import Store
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.lifecycle import State, event_of
from aghbus.store.engine.gil_yield import with_room
from aghbus.store.engine.transaction import Transaction

MARK: Final = b".message"
"""In the `ext` of every envelope that carries a message of a foreign format (`agentos.message`), or a reference to one."""
PAGE_BYTES: Final = 8 * 1024 * 1024  # ours, of raw envelopes in one page: eight of the largest
WINDOW_ROWS: Final = 5_000  # ours, rows that one query looks through: some milliseconds

Row = tuple[Any, ...]
Params = list[Any]

# The columns of `message_of`, then those of a change (events.py). All joins are look-ups by a primary or unique key.
SELECT_MESSAGE: Final = """
SELECT e.seq, e.msg_id, e.direction, e.kind, e.workspace_id, e.channel, e.sender, e.recipient, e.surface, e.container,
    e.work_id, e.trust, e.received_ms, e.outcome, e.reason, coalesce(o.state, i.state), coalesce(o.detail, i.last_error),
    e.raw, e.event, e.state_before, e.state_after, w.role
FROM envelopes AS e
LEFT JOIN outbox AS o ON o.seq = e.seq
LEFT JOIN inbox AS i ON i.seq = e.seq
LEFT JOIN works AS w
    ON w.workspace_id = e.workspace_id AND w.channel = e.channel AND w.work_id = e.work_id AND e.seq >= w.opened_seq
"""


class Sent(NamedTuple):
    """An envelope of ours that is stored: where it stands in the outbox, None when it never had a row there."""

    seq: int
    raw: bytes
    state: OutboxState | None


def insert(tx: Transaction, envelope: Envelope, store: Store, before: State | None, received_ms: int) -> int:
    """Keeps `envelope` with the verdict of `store`; `before` is the work's state before it. Its sequence."""
    last_seq = tx.memory.last_seq
    last_seq.value = seq = last_seq.value + 1
    if envelope.ext is not None and MARK in bytes(envelope.ext):
        tx.memory.bridged = True
    tx.rows.waiting = True
    head = (
        seq,
        store.direction,
        envelope.workspace_id,
        envelope.channel,
        envelope.kind,
        envelope.id,
        envelope.sender,
        envelope.to,
        envelope.surface,
        envelope.container,
    )
    raw, verdict = bytearray(envelope.raw), store.verdict
    if verdict is None and store.pair is None and envelope.work_id is None:
        tx.rows.plain += (*head, store.trust, received_ms, raw)
        return seq
    tx.rows.envelopes += (
        *head,
        *(store.pair or (None, None)),
        envelope.work_id,
        store.trust,
        event_of(envelope) if verdict is not None else None,
        verdict.outcome if verdict is not None else None,
        verdict.reason if verdict is not None else None,
        before,
        verdict.state if verdict is not None else None,
        received_ms,
        raw,
    )
    return seq


def find_sent(tx: Transaction, workspace_id: str, message_id: str) -> Sent | None:
    """What we sent under this id; None when nothing."""
    row = tx.db.execute(
        "SELECT e.seq, e.raw, o.state FROM envelopes AS e LEFT JOIN outbox AS o ON o.seq = e.seq"
        " WHERE e.msg_id = ? AND e.direction = 'out' AND e.workspace_id = ?",
        (message_id, workspace_id),
    ).fetchone()
    return None if row is None else Sent(*row)


def was_sent(tx: Transaction, workspace_id: str, message_id: str) -> bool:
    """Whether we sent an envelope under this id."""
    row = tx.db.execute(
        "SELECT 1 FROM envelopes WHERE msg_id = ? AND direction = 'out' AND workspace_id = ?",
        (message_id, workspace_id),
    ).fetchone()
    return row is not None


def message_of(row: Sequence[Any]) -> Message:
    """A row of SELECT_MESSAGE as the API shows it."""
    surface, container = row[8], row[9]
    return Message(
        seq=row[0],
        id=row[1],
        direction=row[2],
        kind=row[3],
        workspace_id=row[4],
        channel=row[5],
        sender=row[6],
        to=row[7],
        thread_id=container if surface == "thread" else None,
        direct_id=container if surface == "direct" else None,
        work_id=row[10],
        trust=row[11],
        received_ms=row[12],
        outcome=row[13],
        reason=row[14],
        delivery=row[15],
        delivery_detail=row[16],
        envelope=msgspec.Raw(row[17]),
    )


def waiting_message(tx: Transaction, seq: int, delivery: str) -> Message | None:
    """As `message_of`, of an envelope that waits to be written (store/engine/append_buffer.py); None when it does not."""
    row = tx.rows.envelope(seq)
    if row is None:
        return None
    _, direction, workspace_id, channel, kind, msg_id, sender, recipient, surface, container, _, _, work_id, trust = (
        row[:14]
    )
    outcome, reason, received_ms, raw = *row[15:17], *row[19:]
    where = (workspace_id, channel, sender, recipient, surface, container, work_id)
    return message_of((seq, msg_id, direction, kind, *where, trust, received_ms, outcome, reason, delivery, None, raw))


async def message(reader: aiosqlite.Connection, message_id: str) -> Message | None:
    """The envelope with this id: our own first, then the newest, since other senders may reuse an id."""
    rows = await fetch(
        reader,
        SELECT_MESSAGE + " WHERE e.msg_id = ? ORDER BY e.direction = 'out' DESC, e.seq DESC LIMIT 1",
        [message_id],
    )
    return message_of(rows[0]) if rows else None


async def messages(
    reader: aiosqlite.Connection, wanted: EnvelopeFilter, *, since: int = 0, limit: int = 100, last: bool = False
) -> MessagesResponse:
    """One page after sequence `since`, oldest first; with `last` the newest `limit` of those."""
    page = await find(reader, wanted, since=since, limit=limit, last=last)
    rows = await fetch_messages(reader, page.seqs)
    return MessagesResponse(
        messages=[message_of(row) for row in rows],
        next_since=page.next_since,
        pruned_through=await pruned_through(reader),
    )


async def last_seq(reader: aiosqlite.Connection) -> int:
    """The highest sequence given so far; 0 in an empty store."""
    rows = await fetch(reader, "SELECT seq FROM sqlite_sequence WHERE name = 'envelopes'", [])
    return int(rows[0][0]) if rows else 0


async def pruned_through(reader: aiosqlite.Connection) -> int:
    """The highest sequence that retention removed; 0 when none was."""
    rows = await fetch(reader, "SELECT value FROM meta WHERE key = 'pruned_through'", [])
    return int(rows[0][0]) if rows else 0


async def lost_through(reader: aiosqlite.Connection) -> int:
    """The highest sequence that damage to the store took (store/engine/integrity.py); 0 when none did."""
    rows = await fetch(reader, "SELECT value FROM meta WHERE key = 'lost_through_seq'", [])
    return int(rows[0][0]) if rows else 0


class Page(NamedTuple):
    """Sequences that match, ascending, and where the next page begins."""

    seqs: list[int]
    next_since: int


async def find(
    reader: aiosqlite.Connection, wanted: EnvelopeFilter, *, since: int, limit: int, last: bool = False
) -> Page:
    """Up to `limit` sequences after `since` that match, or the newest ones; fewer when PAGE_BYTES are reached."""
    top = await last_seq(reader)
    where, params = _where(wanted)
    indexed = wanted.work_id is not None or wanted.thread_id is not None or wanted.direct_id is not None
    window = None if indexed else WINDOW_ROWS
    hits = await _search(reader, where, params, (since, top), limit, window, newest=last)
    seqs, full = _within_bytes(hits)
    if last:
        return Page(sorted(seqs), max(since, top))
    more = full or len(hits) >= limit
    return Page(seqs, seqs[-1] if more and seqs else max(since, top))


async def fetch_messages(reader: aiosqlite.Connection, seqs: Sequence[int]) -> list[Row]:
    """The rows of SELECT_MESSAGE for these sequences, ascending; what was removed meanwhile is missing."""
    return await fetch(
        reader,
        f"{SELECT_MESSAGE} WHERE e.seq IN (SELECT value FROM json_each(?)) ORDER BY e.seq",  # noqa: S608 - constants
        [msgspec.json.encode(seqs).decode()],
    )


async def fetch(reader: aiosqlite.Connection, sql: str, params: Params) -> list[Row]:
    """All rows of a query, as tuples."""
    return [tuple(row) for row in await with_room(reader.execute_fetchall(sql, params))]


async def _search(
    reader: aiosqlite.Connection,
    where: str,
    params: Params,
    span: tuple[int, int],
    limit: int,
    window: int | None,
    *,
    newest: bool,
) -> list[Row]:
    """`(seq, bytes)` of matches with `span[0] < seq <= span[1]`, in the order in which they are looked for."""
    order = "DESC" if newest else "ASC"
    low, high = span
    hits: list[Row] = []
    while len(hits) < limit and low < high:
        start, end = await _window(reader, low, high, window, newest=newest)
        # Only constants of this module are put together here; every value is bound.
        hits += await fetch(
            reader,
            f"SELECT e.seq, length(e.raw) FROM envelopes AS e WHERE e.seq > ? AND e.seq <= ? {where}"  # noqa: S608
            f" ORDER BY e.seq {order} LIMIT ?",
            [start, end, *params, limit - len(hits)],
        )
        low, high = (low, start) if newest else (end, high)
    return hits


async def _window(
    reader: aiosqlite.Connection, low: int, high: int, rows: int | None, *, newest: bool
) -> tuple[int, int]:
    """The part of `(low, high]` to look through next: `rows` stored envelopes at its end, or all of it."""
    if rows is None:
        return low, high
    order = "DESC" if newest else "ASC"
    found = await fetch(
        reader,
        f"SELECT seq FROM envelopes WHERE seq > ? AND seq <= ? ORDER BY seq {order} LIMIT 1 OFFSET ?",  # noqa: S608 - constants
        [low, high, rows - 1],
    )
    if not found:
        return low, high
    return (found[0][0] - 1, high) if newest else (low, found[0][0])


def _within_bytes(hits: Iterable[Row]) -> tuple[list[int], bool]:
    """The first sequences whose envelopes fit PAGE_BYTES together (at least one), and whether some did not."""
    seqs: list[int] = []
    total = 0
    for seq, size in hits:
        total += size
        if seqs and total > PAGE_BYTES:
            return seqs, True
        seqs.append(seq)
    return seqs, False


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
    if wanted.work_id is not None:
        add("e.work_id = ?", wanted.work_id)
    if wanted.thread_id is not None:
        add("e.container = ? AND e.surface = 'thread'", wanted.thread_id)
    if wanted.direct_id is not None:
        add("e.container = ? AND e.surface = 'direct'", wanted.direct_id)
        if wanted.peer is not None:
            add("(e.pair_a = ? OR e.pair_b = ?)", wanted.peer, wanted.peer)
        else:
            add(_ROOM_OF_CURRENT_PAIR)
    elif wanted.peer is not None:
        add("(e.sender = ? OR e.recipient = ?)", wanted.peer, wanted.peer)
    if wanted.channel is not None:
        add("e.channel = ?", wanted.channel)
    if wanted.inbox:
        add("e.seq IN (SELECT seq FROM inbox WHERE state IN ('ready', 'leased'))")
    if wanted.for_agent:
        add("(e.direction = 'in' OR e.seq IN (SELECT seq FROM own_ends))")
    return " ".join(clauses), params
