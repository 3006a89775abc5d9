"""The outbox: sent messages and their delivery: queued -> published -> receipted | refused | expired | dead.

Published means that the broker has the message, nothing more; receipted that its receiver has committed it with effect;
refused that its receiver has judged it, without effect. A message is outstanding while it is queued, or published and
unanswered.
"""

from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.lifecycle import OPEN_STATES
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.works import Role
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.memory.cache import Addressed
from aghbus.store.engine.sql import INTACT_RAW, Cursor, Reader, with_bools
from aghbus.store.engine.unit_of_work import BulkStatement, Rank
from aghbus.store.tables.envelopes import OURS, Row, fetch, find_by_id, find_committed
from aghbus.store.tables.works import lifecycle

PAGE_BYTES: Final = 16 * 1024 * 1024  # of envelopes that are read at once: sixteen of the largest

_INSERT: Final = BulkStatement.insert("outbox", ("seq", "state", "attempts", "expires_at", "subject"))
_ANSWERED: Final = BulkStatement.update(
    "outbox",
    ("seq",),
    "state = 'receipted', detail = NULL, next_ms = NULL",
    "state <> 'receipted'",
    rank=Rank.LAST_UPDATE,
)

SELECT_OUTGOING: Final = f"""
SELECT o.seq, o.subject, e.workspace_id, e.sender, e.recipient, e.msg_id, o.expires_at, o.attempts,
    e.kind IN ('say', 'capability') AND e.work_id IS NOT NULL, coalesce({INTACT_RAW}, x'')
FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq
"""  # noqa: S608 - constants
# The condition of the index outbox_open is repeated wherever it is to be used: SQLite does not conclude NOT IN from =.
_QUEUED: Final = (
    SELECT_OUTGOING
    + "WHERE o.state = 'queued' AND o.state NOT IN ('published', 'receipted') AND o.seq > ? ORDER BY o.seq LIMIT ?"
)


# When an opening was answered is not stored; it was published before that, perhaps again.
_OPEN_BETWEEN: Final = f"""
SELECT w.role, w.opened_ms, w.workspace_id, w.channel, w.work_id FROM works AS w LEFT JOIN outbox AS o ON o.seq = w.opened_seq
WHERE w.state IN {OPEN_STATES} AND w.opened_ms <= ?3 AND (
    (w.role = 'target' AND w.initiator = ?1 AND w.opened_ms >= ?2)
    OR (w.role = 'initiator' AND w.target = ?1 AND o.state = 'receipted'
        AND max(w.opened_ms, coalesce(o.published_ms, 0)) >= ?2))
"""  # noqa: S608 - constants


class Outgoing(msgspec.Struct, frozen=True, order=True):
    """One envelope to publish: `raw` goes to `subject`; expired from Unix second `expires_at`. `raw` is empty when the
    stored bytes are damaged.

    `answerable`: every peer answers it at some time, if only with a `duplicate` receipt (spec section 5).
    `attempts` counts earlier publications. `settled` is the header that settles its predecessor, empty without one
    (protocol/agh/delivery/order.py), `tag` the one of that name (protocol/agh/trust/tags.py).
    """

    seq: int
    subject: str
    workspace_id: str
    sender: str
    recipient: str | None
    message_id: str
    expires_at: int
    attempts: int
    answerable: bool
    raw: bytes
    settled: str = ""
    tag: str = ""


_ANSWERABLE: Final = Outgoing.__struct_fields__.index("answerable")


def outgoing_of(row: Row) -> Outgoing:
    """A row of SELECT_OUTGOING."""
    return Outgoing(*with_bools(row, _ANSWERABLE))


def add(tx: Transaction, seq: int, envelope: Envelope) -> Outgoing:
    """Queues the envelope stored under `seq`."""
    workspace_id, message_id, sender, to = envelope.workspace_id, envelope.id, envelope.sender, envelope.to
    subject, fresh_until = subject_for(workspace_id, envelope.channel, to), envelope.fresh_until
    tx.append(_INSERT, (seq, "queued", 0, fresh_until, subject))
    if to is not None:
        tx.memory.addressed.put(tx, seq, Addressed(workspace_id, message_id, sender, to, subject, envelope.digest))
        flow = (workspace_id, envelope.channel, sender, to, envelope.container)
        tx.memory.flows.put(tx, flow, seq, message_id, fresh_until, envelope.ts)
    answerable = envelope.work_id is not None and envelope.kind in OPENING_KINDS
    return Outgoing(seq, subject, workspace_id, sender, to, message_id, fresh_until, 0, answerable, envelope.raw)


def following(tx: Transaction, draft: Draft) -> Draft:
    """`draft` with the predecessor that it has, if this transaction queues it, and with whether it continues a work."""
    if draft.to is None:
        return draft
    workspace_id, channel, work_id = draft.workspace_id, draft.channel, draft.work_id
    after = tx.memory.flows.predecessor((workspace_id, channel, draft.sender, draft.to, draft.container))
    continues = (
        work_id is not None
        and draft.kind in OPENING_KINDS
        and lifecycle.load(tx, workspace_id, channel, work_id) is not None
    )
    return msgspec.structs.replace(draft, after=after, continues=continues) if continues or after is not None else draft


def requeue(tx: Transaction, workspace_id: str, message_id: str, *, only_failed: bool = False) -> Outgoing | None:
    """Queues an own envelope again, same bytes; None when it is not stored any more.

    With `only_failed` only one that was given up: None for any other.
    """
    row = find_by_id(tx, "e.seq", message_id, OURS, workspace_id)
    if row is None:
        return None
    sql = (
        "UPDATE outbox SET state = 'queued', detail = NULL, attempts = max(attempts, 1) WHERE seq = ?"
        " AND (NOT ? OR state IN ('expired', 'dead'))"
    )
    if not tx.db.execute(sql, (*row, only_failed)).rowcount:
        return None
    tx.memory.arrived.forget((workspace_id, message_id))
    return outgoing_of(tx.db.execute(f"{SELECT_OUTGOING} WHERE o.seq = ?", row).fetchone())


def load_queued(tx: Transaction, after_seq: int, limit: int) -> list[Outgoing]:
    """Messages queued after `after_seq`, in order, inside a write job: those of this transaction included."""
    tx.flush()
    return within_bytes(tx.db.execute(_QUEUED, (after_seq, limit)))


def within_bytes(cursor: Cursor) -> list[Outgoing]:
    """The rows of a SELECT_OUTGOING until their envelopes fill PAGE_BYTES; at least one, where there is one."""
    found: list[Outgoing] = []
    room = PAGE_BYTES
    for row in cursor:
        found.append(outgoing_of(row))
        room -= len(found[-1].raw)
        if room <= 0:
            break
    cursor.close()
    return found


async def queued(reader: Reader, after_seq: int, limit: int) -> list[Outgoing]:
    """Committed messages queued after `after_seq`, in order."""
    return [outgoing_of(row) for row in await fetch(reader, _QUEUED, [after_seq, limit])]


def mark_receipted(tx: Transaction, workspace_id: str, message_id: str, by: str) -> bool:
    """Peer `by`, its receiver, showed that our envelope `message_id` arrived. Returns whether that was new.

    A message that arrived was committed before it was published: its row is not in the append buffer.
    """
    if tx.memory.arrived.get((workspace_id, message_id)):
        return False
    row = find_committed(tx, "e.seq", message_id, f"{OURS} AND e.recipient = ?", workspace_id, by)
    if row is None:
        return False
    sql = (
        "UPDATE outbox SET state = 'receipted', detail = NULL, next_ms = NULL"
        " WHERE seq = ? AND state NOT IN ('receipted', 'refused')"
    )
    if not tx.db.execute(sql, row).rowcount:
        return False
    tx.memory.arrived.put(tx, (workspace_id, message_id), True)
    tx.memory.flows.settle(tx, row[0])
    return True


def mark_answered(tx: Transaction, seq: int) -> None:
    """The receiver's daemon has committed our envelope `seq`."""
    tx.append(_ANSWERED, (seq,))
    tx.memory.flows.settle(tx, seq)
    if (sent := tx.memory.addressed.get(seq)) is not None:
        tx.memory.arrived.put(tx, (sent.workspace_id, sent.message_id), True)


class OpenWork(NamedTuple):
    """An open work, and our role in it."""

    role: Role
    opened_ms: int
    workspace_id: str
    channel: str
    work_id: str


async def open_works_between(reader: Reader, peer: str, since_ms: int, until_ms: int) -> list[OpenWork]:
    """The open works with `peer` that were opened, and taken by the side that did not open them, between these times."""
    return [OpenWork(*row) for row in await fetch(reader, _OPEN_BETWEEN, [peer, since_ms, until_ms])]


async def counts(reader: Reader) -> dict[str, int]:
    """How many are queued, refused, expired and dead. Published and receipted ones are history, and not counted."""
    sql = "SELECT state, count(*) FROM outbox WHERE state NOT IN ('published', 'receipted') GROUP BY state"
    found: dict[str, int] = dict(await fetch(reader, sql, []))
    return {state: found.get(state, 0) for state in ("queued", "refused", "expired", "dead")}
