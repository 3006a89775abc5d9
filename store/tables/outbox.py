"""The outbox: sent messages and their delivery: queued -> published -> receipted | expired | dead.

Published means that the broker has the message, nothing more; receipted that the receiver's own envelopes show its
arrival.
"""

from typing import Final, NamedTuple

from aghbus.protocol.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.identifiers import subject_for
from aghbus.store.engine.append_buffer import BulkStatement, Rank
from aghbus.store.engine.sql import Cursor, Reader
from aghbus.store.engine.state import Addressed
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import works
from aghbus.store.tables.envelopes import fetch

PAGE_BYTES: Final = 16 * 1024 * 1024  # of envelopes that are read at once: sixteen of the largest

_INSERT: Final = BulkStatement.insert("outbox", ("seq", "state", "attempts", "expires_at", "subject"))
_ANSWERED: Final = BulkStatement(
    ("seq", "detail"),
    "WITH new (seq, detail) AS (",
    ") UPDATE outbox SET state = 'receipted', detail = new.detail, next_ms = NULL"
    " FROM new WHERE outbox.seq = new.seq AND outbox.state <> 'receipted'",
    rank=Rank.LAST_UPDATE,
)

SELECT_OUTGOING: Final = """
SELECT o.seq, o.subject, e.workspace_id, e.sender, e.recipient, e.msg_id, o.expires_at, o.attempts,
    e.kind IN ('say', 'capability') AND e.work_id IS NOT NULL, e.raw,
    (SELECT f.seq FROM works AS w JOIN outbox AS f ON f.seq IN (w.opened_seq, iif(w.terminal_id IS NULL, NULL, w.last_seq))
     WHERE w.workspace_id = e.workspace_id AND w.channel = e.channel AND w.work_id = e.work_id AND f.seq < o.seq
       AND (f.state = 'queued' OR f.state = 'published' AND f.next_ms IS NOT NULL) LIMIT 1)
FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq
"""
# The condition of the index outbox_open is repeated wherever it is to be used: SQLite does not conclude IN from =.
_QUEUED: Final = (
    SELECT_OUTGOING
    + "WHERE o.state = 'queued' AND o.state IN ('queued', 'expired', 'dead') AND o.seq > ? ORDER BY o.seq LIMIT ?"
)


class Outgoing(NamedTuple):
    """One envelope to publish: `raw` goes to `subject`; expired from Unix second `expires_at`.

    `answerable`: every peer answers it at some time, if only with a `duplicate` receipt (spec section 5).
    `attempts` counts earlier publications. `blocked_by` is the sequence of our opening or end of the same work,
    while that is unanswered.
    """

    seq: int
    subject: str
    workspace_id: str
    sender: str
    recipient: str | None
    message_id: str
    expires_at: int
    attempts: int
    answerable: int
    raw: bytes
    blocked_by: int | None = None


def add(tx: Transaction, seq: int, envelope: Envelope) -> Outgoing:
    """Queues the envelope stored under `seq`."""
    workspace_id, message_id, sender, to = envelope.workspace_id, envelope.id, envelope.sender, envelope.to
    subject, fresh_until = subject_for(workspace_id, envelope.channel, to), envelope.fresh_until
    tx.rows[_INSERT] += (seq, "queued", 0, fresh_until, subject)
    if to is not None:
        tx.memory.addressed.put(tx, seq, Addressed(workspace_id, message_id, sender, to, subject))
    answerable, blocked_by = 0, None
    if envelope.work_id is not None:
        answerable, blocked_by = int(envelope.kind in OPENING_KINDS), _blocked_by(tx, seq, envelope)
    return Outgoing(
        seq, subject, workspace_id, sender, to, message_id, fresh_until, 0, answerable, envelope.raw, blocked_by
    )


def _blocked_by(tx: Transaction, seq: int, envelope: Envelope) -> int | None:
    """`Outgoing.blocked_by` of a new row, as SELECT_OUTGOING has it, without a flush of the buffered rows."""
    sequences = works.sequences(tx, envelope.workspace_id, envelope.channel, envelope.work_id or "")
    for before in sequences or ():
        if before is not None and before < seq and _is_unanswered(tx, before):
            return int(before)
    return None


def _is_unanswered(tx: Transaction, seq: int) -> bool:
    if seq in _ANSWERED.column(tx.rows[_ANSWERED], "seq"):
        return False
    if seq in _INSERT.column(tx.rows[_INSERT], "seq"):
        return True
    sql = "SELECT 1 FROM outbox WHERE seq = ? AND (state = 'queued' OR state = 'published' AND next_ms IS NOT NULL)"
    return tx.db_unflushed.execute(sql, (seq,)).fetchone() is not None


def requeue(tx: Transaction, workspace_id: str, message_id: str, *, only_failed: bool = False) -> Outgoing | None:
    """Queues an own envelope again, same bytes; None when it is not stored any more.

    With `only_failed` only one that was given up: None for any other.
    """
    sql = (
        "UPDATE outbox SET state = 'queued', detail = NULL WHERE seq ="
        " (SELECT seq FROM envelopes WHERE msg_id = ? AND direction = 'out' AND workspace_id = ?)"
        " AND (NOT ? OR state IN ('expired', 'dead')) RETURNING seq"
    )
    row = tx.db.execute(sql, (message_id, workspace_id, only_failed)).fetchone()
    if row is None:
        return None
    tx.memory.arrived.forget((workspace_id, message_id))
    return Outgoing(*tx.db.execute(f"{SELECT_OUTGOING} WHERE o.seq = ?", row).fetchone())


def load_queued(tx: Transaction, after_seq: int, limit: int) -> list[Outgoing]:
    """Messages queued after `after_seq`, in order, inside a write job: those of this transaction included."""
    return within_bytes(tx.db.execute(_QUEUED, (after_seq, limit)))


def within_bytes(cursor: Cursor) -> list[Outgoing]:
    """The rows of a SELECT_OUTGOING until their envelopes fill PAGE_BYTES; at least one, where there is one."""
    found: list[Outgoing] = []
    room = PAGE_BYTES
    for row in cursor:
        found.append(Outgoing(*row))
        room -= len(found[-1].raw)
        if room <= 0:
            break
    cursor.close()
    return found


async def queued(reader: Reader, after_seq: int, limit: int) -> list[Outgoing]:
    """Committed messages queued after `after_seq`, in order."""
    return [Outgoing(*row) for row in await fetch(reader, _QUEUED, [after_seq, limit])]


def mark_receipted(tx: Transaction, workspace_id: str, message_id: str, by: str) -> bool:
    """Peer `by`, its receiver, showed that our envelope `message_id` arrived. Returns whether that was new.

    A message that arrived was committed before it was published: its row is not in the append buffer.
    """
    if tx.memory.arrived.get((workspace_id, message_id)):
        return False
    sql = (
        "UPDATE outbox SET state = 'receipted', next_ms = NULL WHERE state <> 'receipted' AND seq ="
        " (SELECT seq FROM envelopes WHERE msg_id = ? AND direction = 'out' AND workspace_id = ? AND recipient = ?)"
    )
    is_new = tx.db_unflushed.execute(sql, (message_id, workspace_id, by)).rowcount > 0
    if is_new:
        tx.memory.arrived.put(tx, (workspace_id, message_id), True)
    return is_new


def mark_answered(tx: Transaction, seq: int, detail: str) -> None:
    """The receiver's daemon has committed our envelope `seq`."""
    tx.rows[_ANSWERED] += (seq, detail)
    if (sent := tx.memory.addressed.get(seq)) is not None:
        tx.memory.arrived.put(tx, (sent.workspace_id, sent.message_id), True)


async def counts(reader: Reader) -> dict[str, int]:
    """How many are queued, expired and dead. Published and receipted ones are history, and not counted."""
    sql = "SELECT state, count(*) FROM outbox WHERE state IN ('queued', 'expired', 'dead') GROUP BY state"
    found: dict[str, int] = dict(await fetch(reader, sql, []))
    return {state: found.get(state, 0) for state in ("queued", "expired", "dead")}
