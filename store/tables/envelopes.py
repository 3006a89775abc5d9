"""Envelopes: appending one to the log, finding one by its id, and reading them as messages."""

from collections.abc import Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec

from aghbus.protocol.agh.delivery.acks import Ack, stored_ack
from aghbus.protocol.agh.effects import StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import REFUSING_OUTCOMES, State, Transition, WorkView, event_of, transition
from aghbus.protocol.api.messages import Message, OutboxState
from aghbus.protocol.api.works import Role
from aghbus.protocol.base.errors import Refused
from aghbus.protocol.base.text import escape
from aghbus.store.engine.commit.state import InMemoryState
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.segments import IS_INDEXED, SEQS_OF_ID
from aghbus.store.engine.sql import CHECKSUM_BASE, INBOX_STATE, INTACT, Reader, read, with_bools
from aghbus.store.engine.unit_of_work import BulkStatement, Rank

BRIDGED: Final = b".message"
"""In the `ext` of every envelope that carries a message of a foreign format (`agentos.message`), or a reference to one."""
PAGE_BYTES: Final = 8 * 1024 * 1024  # of raw envelopes in one page: eight of the largest
PRUNED: Final = "pruned_through"
OTHERS_PRUNED: Final = "others_pruned_through"
"""Values of table `meta`: the last sequences that retention removed, of the oldest envelopes and of those of others."""
_DAMAGED: Final = b"{}"  # in place of damaged bytes

Row = tuple[Any, ...]
Params = list[Any]

_COLUMNS: Final = (
    "seq",
    "flow",
    "verdict",
    "received_ms",
    "remember_until",
    "msg_id",
    "work_id",
    "checksum",
    "raw",
)
OURS: Final = "e.direction = 'out' AND e.workspace_id = ?"
"""The condition of an envelope that we sent, in SQL."""
_WITH_OUTBOX: Final = "LEFT JOIN outbox AS o ON o.seq = e.seq"
_NONE: Final = "[]"
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
    intact: bool
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
_INTACT: Final = MessageRow._fields.index("intact")
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
    remembered: tuple[int, int] | None,
) -> int:
    """Appends `envelope` to the log, and its record to the ledger. Returns its sequence.

    `state_before` is that of its work, `delivered` whether it goes into the inbox, `remembered` the key by which the
    dedup window keeps its id, and the Unix second until which it does (None: it does not).
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
    first, second = pair = effect.pair or _NO_PAIR
    sender, surface, container = envelope.sender, envelope.surface, envelope.container
    route = (envelope.workspace_id, envelope.channel, sender, envelope.to, surface, container, first, second)
    flow = log.flows.ids.get(route) or log.flows.number(tx, route)
    if remembered is None:
        id_key, remember_until = log.ids.id_key(envelope.id), 0
    else:
        key, remember_until = remembered
        id_key = key ^ log.ids.sender_key(envelope.workspace_id, envelope.sender)
        memory.dedup.remember_logged(tx, key, remember_until)
    number = log.verdicts.ids.get(verdict) or log.verdicts.number(tx, verdict)
    message_id, work_id, checksum = envelope.id, envelope.work_id, crc32(raw) - CHECKSUM_BASE  # as `checksum_of`
    tx.append(_INSERT, (seq, flow, number, received_ms, remember_until, message_id, work_id, checksum, raw))
    memory.ledger.records.append((seq, received_ms, remember_until, *verdict, *pair, envelope.digest))
    log.tail.rows.append((seq, id_key, flow, work_id))
    tx.undo.append(partial(_forget_last, memory))
    return seq


def _forget_last(memory: InMemoryState) -> None:
    memory.ledger.records.pop()
    memory.log.tail.pop()


def find_by_id(
    tx: Transaction, columns: str, message_id: str, where: str, *params: str, joined: str = ""
) -> Row | None:
    """`columns` of the newest envelope `e` with this id for which `where` holds, of a table that is `joined` too; None
    when there is none. The tail is searched first: most questions are about recent messages."""
    if tx.memory.log.tail.of_id(tx.memory.log.ids.id_key(message_id)):
        tx.flush()  # it may be in the append buffer
    return find_committed(tx, columns, message_id, where, *params, joined=joined)


def find_committed(
    tx: Transaction, columns: str, message_id: str, where: str, *params: str, joined: str = ""
) -> Row | None:
    """As `find_by_id`, without the envelopes of this transaction that are not written yet."""
    db, (key, recent) = tx.db, tx.memory.log.of_id(message_id)
    select = f"SELECT {columns} FROM envelopes AS e {joined}"  # noqa: S608 - constants of the callers
    tail = f"AND e.msg_id = ? AND {where} ORDER BY e.seq DESC LIMIT 1"
    row: Row | None = None
    if recent != _NONE:
        sql = f"{select} WHERE e.seq IN (SELECT value FROM json_each(?)) {tail}"  # noqa: S608 - as above
        row = db.execute(sql, (recent, message_id, *params)).fetchone()
    if row is None and db.execute(IS_INDEXED, (key,)).fetchone() is not None:
        sql = f"{select} WHERE e.seq IN ({SEQS_OF_ID}) {tail}"
        row = db.execute(sql, (key, _NONE, message_id, *params)).fetchone()
    return row


def raw_of(tx: Transaction, workspace_id: str, message_id: str, sender: str) -> bytes | None:
    """The envelope of this id and sender; None when it is not stored, or damaged."""
    where = f"{INTACT} AND e.workspace_id = ? AND e.sender = ?"
    row = find_by_id(tx, "e.raw", message_id, where, workspace_id, sender)
    return None if row is None else bytes(row[0])


def find_sent(tx: Transaction, workspace_id: str, message_id: str) -> Sent | None:
    """The envelope that we sent under this id; None when there is none."""
    row = find_by_id(tx, "e.seq, e.raw, o.state", message_id, OURS, workspace_id, joined=_WITH_OUTBOX)
    return None if row is None else Sent(*row)


def was_sent(tx: Transaction, workspace_id: str, message_id: str) -> bool:
    """Whether we sent an envelope under this id."""
    return find_by_id(tx, "1", message_id, OURS, workspace_id) is not None


def received_ack(tx: Transaction, envelope: Envelope, work: WorkView | None) -> Ack:
    """The answer to a duplicate: what became of the first copy of `envelope`, which may belong to our `work`.

    Of one that was removed from the log since, the dedup window has the answer. One that never was in it is refused, as another
    one would be now, or as `duplicate`.
    """
    columns = "e.raw, e.outcome, e.state_after, e.reason"
    where = "e.direction = 'in' AND e.workspace_id = ? AND e.sender = ?"
    row = find_by_id(tx, columns, envelope.id, where, envelope.workspace_id, envelope.sender)
    if row is None:
        memory = tx.memory
        key = memory.log.ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
        if (known := memory.dedup.answer(tx, key, envelope.fresh_until)) is not None:
            return Ack(envelope.id, "refused" if known.refused else "committed", known.refused, known.digest.hex())
        again = Transition("unchanged", None) if envelope.work_id is None else transition(work, envelope)
        reason = again.reason if again.outcome in REFUSING_OUTCOMES else "duplicate"
        return Ack(envelope.id, "refused", reason, envelope.digest)
    raw, outcome, state, reason = row
    return stored_ack(
        envelope.id, sha256(raw).hexdigest(), None if outcome is None else Transition(outcome, state, reason)
    )


def message_row_of(row: Row) -> MessageRow:
    """A row of SELECT_MESSAGE."""
    return MessageRow(*with_bools(row, _INTACT))


def message_of(row: MessageRow) -> Message:
    """A stored envelope as the API shows it."""
    damaged = not row.intact
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
    _, number, decided, received_ms, _, message_id, work_id, _, raw = values[where]
    flow, verdict = tx.memory.log.flows.value(tx, number), tx.memory.log.verdicts.value(decided)
    return Message(
        seq,
        message_id,
        verdict.direction,
        verdict.kind,
        flow.workspace_id,
        flow.channel,
        flow.sender,
        flow.recipient,
        flow.container if flow.surface == "thread" else None,
        flow.container if flow.surface == "direct" else None,
        work_id,
        verdict.trust,
        received_ms,
        verdict.outcome,
        verdict.reason,
        delivery,
        None,
        msgspec.Raw(raw),
    )


async def message(reader: Reader, message_id: str) -> Message | None:
    """The envelope with this id: our own one, else the newest of its sender. Raises Refused when several others used the id."""
    of_id = f"WHERE seq IN ({SEQS_OF_ID}) AND msg_id = ? GROUP BY direction = 'out', sender"
    newest = f"SELECT max(seq) FROM envelopes {of_id}"  # noqa: S608 - constants
    sql = f"{SELECT_MESSAGE} WHERE e.seq IN ({newest}) ORDER BY e.direction = 'out' DESC, e.seq DESC LIMIT 2"
    found = [
        message_of(message_row_of(row)) for row in await fetch(reader, sql, [*reader.log.of_id(message_id), message_id])
    ]
    if len(found) > 1 and found[0].direction != "out":
        peers = " and ".join(sorted(escape(each.sender) for each in found))
        hint = "`aghctl messages list --peer PEER` shows those of each"
        raise Refused(f"the id {message_id} is used by more than one sender, as {peers}", code="conflict", hint=hint)
    return found[0] if found else None


async def last_seq(reader: Reader) -> int:
    """The highest sequence so far; 0 in an empty store."""
    rows = await fetch(reader, "SELECT last_seq FROM ledger ORDER BY n DESC LIMIT 1", [])
    return int(rows[0][0]) if rows else 0


async def pruned_through(reader: Reader) -> int:
    """The highest sequence that retention removed; 0 when none was."""
    rows = await fetch(reader, "SELECT max(value) FROM meta WHERE key IN (?, ?)", [PRUNED, OTHERS_PRUNED])
    return rows[0][0] or 0


async def lost_through(reader: Reader) -> int:
    """The highest sequence that was lost with damage to the store (store/engine/integrity.py); 0 when none was."""
    rows = await fetch(reader, "SELECT value FROM meta WHERE key = 'lost_through_seq'", [])
    return int(rows[0][0]) if rows else 0


async def fetch_messages(reader: Reader, seqs: Sequence[int]) -> list[MessageRow]:
    """The rows of these sequences, ascending; those that were removed meanwhile are missing."""
    sql = f"{SELECT_MESSAGE} WHERE e.seq IN (SELECT value FROM json_each(?)) ORDER BY e.seq"  # noqa: S608 - constants
    return [message_row_of(row) for row in await fetch(reader, sql, [msgspec.json.encode(seqs).decode()])]


async def fetch(reader: Reader, sql: str, params: Params) -> list[Row]:
    """All rows of a query, as tuples. Raises StoreUnavailable when the file cannot be read now."""
    return [tuple(row) for row in await read(reader, sql, params)]


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
