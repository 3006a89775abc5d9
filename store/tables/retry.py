"""Retries of published messages, until they are answered, expired, or given up (column `next_ms` of the outbox).

Only a published message is answered. It was committed before, so its rows are not in the append buffer; changes of
them may be.
"""

from typing import Final, NamedTuple

import msgspec

from aghbus.store.engine.append_buffer import BulkStatement
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.outbox import SELECT_OUTGOING, Outgoing, within_bytes

_PUBLISHED: Final = BulkStatement(
    ("seq", "at_ms", "next_ms"),
    "WITH new (seq, at_ms, next_ms) AS (",
    ") UPDATE outbox SET state = 'published', attempts = attempts + 1, published_ms = new.at_ms, next_ms = new.next_ms"
    " FROM new WHERE outbox.seq = new.seq AND outbox.state IN ('queued', 'published')",
)


class Failed(NamedTuple):
    """An own envelope that was given up unanswered. Its work is closed and the agent is notified."""

    seq: int
    kind: str
    workspace_id: str
    channel: str
    work_id: str | None
    message_id: str
    state: str
    detail: str


class Schedule(msgspec.Struct, frozen=True):
    """When a published envelope is sent again: Unix milliseconds, None for never."""

    seq: int
    next_ms: int | None


def published(tx: Transaction, schedules: list[Schedule], now_ms: int) -> None:
    """The broker has them, for the first or another time. An answered message stays answered."""
    rows = tx.rows[_PUBLISHED]
    for schedule in schedules:
        rows += (schedule.seq, now_ms, schedule.next_ms)


def due(tx: Transaction, now_ms: int, limit: int) -> list[Outgoing]:
    """The `limit` messages that have been due longest at `now_ms`, in order of the sequence."""
    rows = tx.db.execute(f"{SELECT_OUTGOING} WHERE o.next_ms <= ? ORDER BY o.next_ms, o.seq LIMIT ?", (now_ms, limit))
    return sorted(within_bytes(rows))


def count_due(tx: Transaction, now_ms: int) -> int:
    """How many messages are due at `now_ms`."""
    count: int = tx.db.execute("SELECT count(*) FROM outbox WHERE next_ms <= ?", (now_ms,)).fetchone()[0]
    return count


def unanswered(tx: Transaction, subject: str, before_seq: int, limit: int) -> list[Outgoing]:
    """The oldest `limit` messages to `subject` before sequence `before_seq` that wait for an answer, in order."""
    rows = tx.db.execute(
        f"{SELECT_OUTGOING} WHERE o.next_ms IS NOT NULL AND o.subject = ? AND o.seq < ? ORDER BY o.seq LIMIT ?",
        (subject, before_seq, limit),
    )
    return [Outgoing(*row) for row in rows]


def hold_back(tx: Transaction, seq: int, next_ms: int, *, tried: bool = False) -> None:
    """Schedules a message for `next_ms`, since earlier ones to the same peer are unanswered.

    `tried`: the subject has no subscriber. For a message published before, that counts as another attempt.
    """
    tx.db.execute(
        "UPDATE outbox SET next_ms = ?, attempts = attempts + (? AND state = 'published')"
        " WHERE seq = ? AND state IN ('queued', 'published')",
        (next_ms, tried, seq),
    )


def hold_blocked(tx: Transaction, seqs: list[int], next_ms: int) -> dict[int, int]:
    """Holds back those of `seqs` that are blocked by an unanswered message of their work. Returns the blocking
    sequence of each.

    They are due at `next_ms`, or with the next try of the blocking message if that is later, or when they are
    released.
    """
    blocked: dict[int, int] = {}
    for seq in seqs:
        row = tx.db.execute(f"{SELECT_OUTGOING} WHERE o.seq = ?", (seq,)).fetchone()
        blocking = Outgoing(*row).blocked_by if row is not None else None
        if blocking is not None:
            (its_ms,) = tx.db.execute("SELECT next_ms FROM outbox WHERE seq = ?", (blocking,)).fetchone()
            hold_back(tx, seq, max(next_ms, its_ms or 0))
            blocked[seq] = blocking
    return blocked


def release(tx: Transaction, seq: int, now_ms: int) -> int:
    """Our envelope `seq` was answered or given up: messages that it blocked are due now. Returns how many."""
    return tx.db.execute(
        "UPDATE outbox SET next_ms = ?1 WHERE state = 'queued' AND next_ms > ?1 AND seq IN"
        " (SELECT n.seq FROM envelopes AS a JOIN envelopes AS n ON n.work_id = a.work_id"
        "  WHERE a.seq = ?2 AND n.seq > a.seq AND n.workspace_id = a.workspace_id AND n.channel = a.channel)",
        (now_ms, seq),
    ).rowcount


def next_due_ms(tx: Transaction) -> int | None:
    """When the next message is due; None when none waits for an answer."""
    value: int | None = tx.db.execute("SELECT min(next_ms) FROM outbox WHERE next_ms IS NOT NULL").fetchone()[0]
    return value


def pull_in(tx: Transaction, now_ms: int, latest_ms: int) -> None:
    """Makes messages due now that are due after `latest_ms`, later than any backoff: the clock was set back."""
    tx.db.execute("UPDATE outbox SET next_ms = ? WHERE next_ms > ?", (now_ms, latest_ms))


def expedite(tx: Transaction, subject: str, now_ms: int) -> None:
    """The peer of `subject` is back: makes the messages that wait for its answer due now, all at one time, so that
    `due` keeps their order."""
    tx.db.execute("UPDATE outbox SET next_ms = ? WHERE next_ms IS NOT NULL AND subject = ?", (now_ms, subject))


def subject_of(tx: Transaction, seq: int) -> str | None:
    """The subject of our envelope `seq`; None when it is not in the outbox (any more)."""
    if (sent := tx.memory.addressed.get(seq)) is not None:
        return sent.subject
    row = tx.db_unflushed.execute("SELECT subject FROM outbox WHERE seq = ?", (seq,)).fetchone()
    return None if row is None else row[0]


def endpoints_of(tx: Transaction, seq: int, message_id: str) -> tuple[str, str] | None:
    """Sender and recipient of our directed envelope `seq`; None when it has another id."""
    if (sent := tx.memory.addressed.get(seq)) is not None:
        return (sent.sender, sent.recipient) if sent.message_id == message_id else None
    sql = """SELECT e.sender, e.recipient FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq
             WHERE o.seq = ? AND e.msg_id = ? AND e.recipient IS NOT NULL"""
    found: tuple[str, str] | None = tx.db_unflushed.execute(sql, (seq, message_id)).fetchone()
    return found


def give_up(tx: Transaction, seq: int, state: str, detail: str) -> Failed | None:
    """Gives envelope `seq` up as `expired` or `dead` with the reason; None when it was answered or given up before."""
    changed = tx.db.execute(
        "UPDATE outbox SET state = ?, detail = ?, next_ms = NULL WHERE seq = ? AND state IN ('queued', 'published')",
        (state, detail, seq),
    ).rowcount
    if not changed:
        return None
    row = tx.db.execute(
        "SELECT seq, kind, workspace_id, channel, work_id, msg_id FROM envelopes WHERE seq = ?", (seq,)
    ).fetchone()
    _, kind, workspace_id, channel, work_id, message_id = row
    return Failed(seq, kind, workspace_id, channel, work_id, message_id, state, detail)


def stale(tx: Transaction, now: int, limit: int) -> list[int]:
    """Messages that are queued or unanswered and have expired at Unix second `now`: no peer would accept them."""
    rows = tx.db.execute(
        "SELECT seq FROM outbox WHERE state = 'queued' AND state IN ('queued', 'expired', 'dead') AND expires_at <= ?1"
        " UNION SELECT seq FROM outbox WHERE next_ms IS NOT NULL AND expires_at <= ?1 LIMIT ?2",
        (now, limit),
    )
    return sorted(seq for (seq,) in rows)


def stale_from(tx: Transaction) -> int | None:
    """The first Unix second at which a message is `stale`; None when none is queued or unanswered."""
    sql = (
        "SELECT min(first) FROM (SELECT min(expires_at) AS first FROM outbox WHERE state = 'queued' AND state IN"
        " ('queued', 'expired', 'dead') UNION ALL SELECT min(expires_at) FROM outbox WHERE next_ms IS NOT NULL)"
    )
    value: int | None = tx.db.execute(sql).fetchone()[0]
    return value
