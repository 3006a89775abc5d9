"""Envelopes: writing one, and reading them as messages, in pages, with filters.

Pages are bounded by rows and by bytes. A filter without an index is searched in windows of rows, so that no query
occupies the reader for long. Messages of a direct room are those of one pair, also when ids collide (spec section
4).
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from aghbus.protocol.api.messages import Message, MessagesResponse, OutboxState
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.protocol.api.works import Role
from aghbus.protocol.delivery.acks import Ack, stored_ack
from aghbus.protocol.effects import StoreEnvelope
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.lifecycle import State, Step, event_of
from aghbus.store.engine.append_buffer import BulkStatement, Rank
from aghbus.store.engine.gil_yield import yield_gil_while
from aghbus.store.engine.sql import INBOX_STATE, INTACT, Reader
from aghbus.store.engine.transaction import Transaction

BRIDGED: Final = b".message"
"""In the `ext` of every envelope that carries a message of a foreign format (`agentos.message`), or a reference to one."""
PAGE_BYTES: Final = 8 * 1024 * 1024  # of raw envelopes in one page: eight of the largest
_DAMAGED: Final = b"{}"  # in place of damaged bytes
WINDOW_ROWS: Final = 5_000  # rows that one query searches: some milliseconds

Row = tuple[Any, ...]
Params = list[Any]

_COLUMNS: Final = (
    "seq",
    "stream",
    "verdict",
    "received_ms",
    "id_key",
    "remember_until",
    "msg_id",
    "work_id",
    "checksum",
    "raw",
)
_NO_PAIR: Final = (None, None)
_INSERT: Final = BulkStatement.insert("log", _COLUMNS, rank=Rank.REFERENCED)


class MessageRow(NamedTuple):
    """A row of SELECT_MESSAGE: a stored envelope with its delivery, and the change of its work (events.py)."""

    seq: int
    msg_id: str
    direction: str
    kind: str
    workspace_id: str
    channel: str
    sender: str
    recipient: str | None
    surface: str | None
    container: str | None
    work_id: str | None
    trust: str
    received_ms: int
    outcome: str | None
    reason: str | None
    raw: bytes
    intact: int | None
    event: str | None
    state_before: State | None
    state_after: State | None
    delivery: str | None
    delivery_detail: str | None
    role: Role | None


_JOINED: Final = {
    "intact": INTACT,
    "delivery": f"coalesce(o.state, {INBOX_STATE})",
    "delivery_detail": "coalesce(o.detail, i.last_error)",
    "role": "w.role",
}
MESSAGE_COLUMNS: Final = ", ".join(_JOINED.get(name, f"e.{name}") for name in MessageRow._fields)
# All joins are look-ups by a primary or unique key.
MESSAGE_TABLES: Final = """
FROM envelopes AS e
LEFT JOIN outbox AS o ON o.seq = e.seq
LEFT JOIN inbox AS i ON i.seq = e.seq
LEFT JOIN works AS w
    ON w.workspace_id = e.workspace_id AND w.channel = e.channel AND w.work_id = e.work_id AND e.seq >= w.opened_seq
"""
SELECT_MESSAGE: Final = f"SELECT {MESSAGE_COLUMNS} {MESSAGE_TABLES}"


class Sent(NamedTuple):
    """A stored own envelope, with its state in the outbox; None when it never had a row there."""

    seq: int
    raw: bytes
    state: OutboxState | None


def insert(
    tx: Transaction,
    envelope: Envelope,
    effect: StoreEnvelope,
    state_before: State | None,
    received_ms: int,
    *,
    delivered: bool,
    remember_until: int,
) -> int:
    """Appends `envelope` to the log, and its record to the chain. Returns its sequence.

    `state_before` is that of its work, `delivered` whether it goes into the inbox, `remember_until` the Unix second
    until which its id is in the dedup window (0: it is not).
    """
    memory = tx.memory
    log, step, raw = memory.log, effect.verdict, envelope.raw
    memory.last_seq = seq = memory.last_seq + 1
    if envelope.ext is not None and BRIDGED in bytes(envelope.ext):
        memory.bridged = True
    event = outcome = reason = state = None
    if step is not None:
        event, outcome, reason, state = event_of(envelope), step.outcome, step.reason, step.state
    before = None if step is None else state_before
    verdict = (effect.direction, envelope.kind, effect.trust, int(delivered), event, outcome, reason, before, state)
    tx.rows[_INSERT] += (
        seq,
        log.streams.number(tx, _stream_of(envelope, effect)),
        log.verdicts.number(tx, verdict),
        received_ms,
        log.id_key(envelope.id),
        remember_until,
        envelope.id,
        envelope.work_id,
        crc32(raw),
        bytearray(raw),
    )
    memory.chain.records.append(
        (seq, received_ms, remember_until, *verdict, *(effect.pair or _NO_PAIR), envelope.digest)
    )
    return seq


def _stream_of(envelope: Envelope, effect: StoreEnvelope) -> tuple[str | None, ...]:
    """The values of `Stream`."""
    pair_a, pair_b = _NO_PAIR if effect.pair is None else effect.pair
    return (
        envelope.workspace_id,
        envelope.channel,
        envelope.sender,
        envelope.to,
        envelope.surface,
        envelope.container,
        pair_a,
        pair_b,
    )


def find_sent(tx: Transaction, workspace_id: str, message_id: str) -> Sent | None:
    """The envelope that we sent under this id; None when there is none."""
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


def received_ack(tx: Transaction, envelope: Envelope) -> Ack:
    """The answer to a duplicate: what became of the first copy of `envelope`.

    Refused as `duplicate` when that is known no more: its row is removed.
    """
    row = tx.db.execute(
        "SELECT raw, outcome, state_after, reason FROM envelopes"
        " WHERE msg_id = ? AND direction = 'in' AND workspace_id = ? AND sender = ?",
        (envelope.id, envelope.workspace_id, envelope.sender),
    ).fetchone()
    if row is None:
        return Ack(envelope.id, "refused", "duplicate", envelope.digest)
    raw, outcome, state, reason = row
    return stored_ack(envelope.id, sha256(raw).hexdigest(), None if outcome is None else Step(outcome, state, reason))


def message_of(row: MessageRow) -> Message:
    """A stored envelope as the API shows it."""
    damaged = row.intact == 0
    return Message(
        seq=row.seq,
        id=row.msg_id,
        direction=row.direction,
        kind=row.kind,
        workspace_id=row.workspace_id,
        channel=row.channel,
        sender=row.sender,
        to=row.recipient,
        thread_id=row.container if row.surface == "thread" else None,
        direct_id=row.container if row.surface == "direct" else None,
        work_id=row.work_id,
        trust=row.trust,
        received_ms=row.received_ms,
        outcome=row.outcome,
        reason=row.reason,
        delivery=row.delivery,
        delivery_detail=row.delivery_detail,
        envelope=msgspec.Raw(_DAMAGED if damaged else row.raw),
        damaged=damaged,
    )


def buffered_message(tx: Transaction, seq: int, delivery: str) -> Message | None:
    """As `message_of`, of an envelope in the append buffer, with this delivery state; None when it is not there."""
    values = tx.rows[_INSERT]
    where = _INSERT.find(values, "seq", seq)
    if where is None:
        return None
    row = dict(zip(_COLUMNS, values[where], strict=True))
    row |= tx.memory.log.streams.value(tx, row["stream"])._asdict()
    row |= tx.memory.log.verdicts.value(row["verdict"])._asdict()
    return message_of(MessageRow._make(row.get(name) for name in MessageRow._fields)._replace(delivery=delivery))


async def message(reader: Reader, message_id: str) -> Message | None:
    """The envelope with this id: our own first, then the newest, since other senders may reuse an id."""
    rows = await fetch(
        reader,
        SELECT_MESSAGE + " WHERE e.msg_id = ? ORDER BY e.direction = 'out' DESC, e.seq DESC LIMIT 1",
        [message_id],
    )
    return message_of(MessageRow(*rows[0])) if rows else None


async def messages(
    reader: Reader, wanted: EnvelopeFilter, *, since: int = 0, limit: int = 100, last: bool = False
) -> MessagesResponse:
    """One page after sequence `since`, oldest first; with `last` the newest `limit` of those."""
    page = await find(reader, wanted, since=since, limit=limit, last=last)
    rows = await fetch_messages(reader, page.seqs)
    return MessagesResponse(
        messages=[message_of(row) for row in rows],
        next_since=page.next_since,
        pruned_through=await pruned_through(reader),
    )


async def last_seq(reader: Reader) -> int:
    """The highest sequence so far; 0 in an empty store."""
    rows = await fetch(reader, "SELECT last_seq FROM chain ORDER BY n DESC LIMIT 1", [])
    return int(rows[0][0]) if rows else 0


async def pruned_through(reader: Reader) -> int:
    """The highest sequence that retention removed; 0 when none was."""
    rows = await fetch(reader, "SELECT value FROM meta WHERE key = 'pruned_through'", [])
    return int(rows[0][0]) if rows else 0


async def lost_through(reader: Reader) -> int:
    """The highest sequence that was lost with damage to the store (store/engine/integrity.py); 0 when none was."""
    rows = await fetch(reader, "SELECT value FROM meta WHERE key = 'lost_through_seq'", [])
    return int(rows[0][0]) if rows else 0


class Page(NamedTuple):
    """Sequences that match, ascending, and where the next page begins."""

    seqs: list[int]
    next_since: int


async def find(reader: Reader, wanted: EnvelopeFilter, *, since: int, limit: int, last: bool = False) -> Page:
    """Up to `limit` sequences after `since` that match, or the newest ones; fewer when PAGE_BYTES are reached."""
    top = await last_seq(reader)
    where, params = _where(wanted)
    indexed = wanted.work_id is not None or wanted.thread_id is not None or wanted.direct_id is not None
    window = None if indexed else WINDOW_ROWS
    hits = await search(reader, where, params, (since, top), limit, window, newest=last)
    seqs, full = within_bytes(hits)
    if last:
        return Page(sorted(seqs), max(since, top))
    more = full or len(hits) >= limit
    return Page(seqs, seqs[-1] if more and seqs else max(since, top))


async def fetch_messages(reader: Reader, seqs: Sequence[int]) -> list[MessageRow]:
    """The rows of these sequences, ascending; those that were removed meanwhile are missing."""
    sql = f"{SELECT_MESSAGE} WHERE e.seq IN (SELECT value FROM json_each(?)) ORDER BY e.seq"  # noqa: S608 - constants
    return [MessageRow(*row) for row in await fetch(reader, sql, [msgspec.json.encode(seqs).decode()])]


async def fetch(reader: Reader, sql: str, params: Params) -> list[Row]:
    """All rows of a query, as tuples."""
    return [tuple(row) for row in await yield_gil_while(reader.execute_fetchall(sql, params))]


async def search(
    reader: Reader, where: str, params: Params, span: tuple[int, int], limit: int, window: int | None, *, newest: bool
) -> list[Row]:
    """`(seq, bytes)` of up to `limit` rows `e` that match `where`, with `span[0] < seq <= span[1]`, in the order of the search.

    One query searches `window` rows; None: all.
    """
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


async def _window(reader: Reader, low: int, high: int, rows: int | None, *, newest: bool) -> tuple[int, int]:
    """The part of `(low, high]` to search next: `rows` stored envelopes at its end, or all of it."""
    if rows is None:
        return low, high
    order = "DESC" if newest else "ASC"
    found = await fetch(
        reader,
        f"SELECT seq FROM log WHERE seq > ? AND seq <= ? ORDER BY seq {order} LIMIT 1 OFFSET ?",  # noqa: S608 - constants
        [low, high, rows - 1],
    )
    if not found:
        return low, high
    return (found[0][0] - 1, high) if newest else (low, found[0][0])


def within_bytes(hits: Iterable[Row]) -> tuple[list[int], bool]:
    """Of rows `(number, bytes)` the first numbers that fit PAGE_BYTES together (at least one), and whether some did not."""
    seqs: list[int] = []
    total = 0
    for seq, size in hits:
        total += size
        if seqs and total > PAGE_BYTES:
            return seqs, True
        seqs.append(seq)
    return seqs, False


_STREAMS_OF: Final = "(SELECT id FROM streams WHERE container = ?)"
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
        add(f"e.stream IN {_STREAMS_OF} AND e.surface = 'thread'", wanted.thread_id)
    if wanted.direct_id is not None:
        add(f"e.stream IN {_STREAMS_OF} AND e.surface = 'direct'", wanted.direct_id)
        if wanted.peer is not None:
            add("(e.pair_a = ? OR e.pair_b = ?)", wanted.peer, wanted.peer)
        else:
            add(_ROOM_OF_CURRENT_PAIR)
    elif wanted.peer is not None:
        add("(e.sender = ? OR e.recipient = ?)", wanted.peer, wanted.peer)
    if wanted.channel is not None:
        add("e.channel = ?", wanted.channel)
    if wanted.inbox:
        add(f"{INBOX_STATE} IN ('ready', 'leased')")
    if wanted.for_agent:
        add("(e.direction = 'in' OR e.seq IN (SELECT seq FROM own_terminal_messages))")
    return " ".join(clauses), params
