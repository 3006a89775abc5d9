"""Going out again: what was published and not answered, until it is answered, stale, or given up (outbox.next_ms).

An answer can only come to what was published, which was committed before: its rows do not wait to be written
(store/engine/append_buffer.py),
but what is changed of them may.
"""

from typing import NamedTuple

import msgspec

from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.outbox import SELECT_OUTGOING, Outgoing, within_bytes


class Failed(NamedTuple):
    """An envelope of ours that will not go out again, unanswered: what closes its work and tells the agent."""

    seq: int
    kind: str
    workspace_id: str
    channel: str
    work_id: str | None
    message_id: str
    state: str
    detail: str


class Schedule(msgspec.Struct, frozen=True):
    """When one published envelope goes out again: Unix milliseconds, None for never."""

    seq: int
    next_ms: int | None


def published(tx: Transaction, schedules: list[Schedule], now_ms: int) -> None:
    """The broker has them (for the first or another time), and when to try again. Answered ones stay answered."""
    rows = tx.rows
    for schedule in schedules:
        rows.published += (now_ms, schedule.next_ms, schedule.seq)
    rows.waiting = True


def due(tx: Transaction, now_ms: int, limit: int) -> list[Outgoing]:
    """What has to go out again at `now_ms`, in the order of the sequence among the `limit` that wait longest."""
    rows = tx.db.execute(f"{SELECT_OUTGOING} WHERE o.next_ms <= ? ORDER BY o.next_ms, o.seq LIMIT ?", (now_ms, limit))
    return sorted(within_bytes(rows))


def count_due(tx: Transaction, now_ms: int) -> int:
    """How many have to go out again at `now_ms`."""
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
    """A message goes out at `next_ms`, behind others to the same peer that wait for an answer.

    `tried`: nobody listens there. That is another try in vain of what was published before, and needs no publication.
    """
    tx.db.execute(
        "UPDATE outbox SET next_ms = ?, attempts = attempts + (? AND state = 'published')"
        " WHERE seq = ? AND state IN ('queued', 'published')",
        (next_ms, tried, seq),
    )


def hold(tx: Transaction, seqs: list[int], next_ms: int) -> dict[int, int]:
    """Those of `seqs` that are behind something unanswered of their work, each with the sequence of that.

    They go out at `next_ms`, or with the next try of what they are behind if that is later, or when they are released.
    """
    behind: dict[int, int] = {}
    for seq in seqs:
        row = tx.db.execute(f"{SELECT_OUTGOING} WHERE o.seq = ?", (seq,)).fetchone()
        first = Outgoing(*row).behind if row is not None else None
        if first is not None:
            (its_ms,) = tx.db.execute("SELECT next_ms FROM outbox WHERE seq = ?", (first,)).fetchone()
            hold_back(tx, seq, max(next_ms, its_ms or 0))
            behind[seq] = first
    return behind


def release(tx: Transaction, seq: int, now_ms: int) -> int:
    """Our envelope `seq` was answered or given up: what was held back behind it is due now. How many that are."""
    return tx.db.execute(
        "UPDATE outbox SET next_ms = ?1 WHERE state = 'queued' AND next_ms > ?1 AND seq IN"
        " (SELECT n.seq FROM envelopes AS a JOIN envelopes AS n ON n.work_id = a.work_id"
        "  WHERE a.seq = ?2 AND n.seq > a.seq AND n.workspace_id = a.workspace_id AND n.channel = a.channel)",
        (now_ms, seq),
    ).rowcount


def next_due_ms(tx: Transaction) -> int | None:
    """When the next one is due; None when nothing waits for an answer."""
    value: int | None = tx.db.execute("SELECT min(next_ms) FROM outbox WHERE next_ms IS NOT NULL").fetchone()[0]
    return value


def pull_in(tx: Transaction, now_ms: int, latest_ms: int) -> None:
    """What is due only after `latest_ms`, later than any pause that is ever made, is due now: the clock was set back."""
    tx.db.execute("UPDATE outbox SET next_ms = ? WHERE next_ms > ?", (now_ms, latest_ms))


def hasten(tx: Transaction, subject: str, now_ms: int) -> None:
    """The peer of `subject` is back: what waits for its answer is due now, at one time, so that `due` has it in order."""
    tx.db.execute("UPDATE outbox SET next_ms = ? WHERE next_ms IS NOT NULL AND subject = ?", (now_ms, subject))


def subject_of(tx: Transaction, seq: int) -> str | None:
    """Where our envelope `seq` goes; None when it does not go out (any more)."""
    if (sent := tx.memory.addressed.get(seq)) is not None:
        return sent.subject
    row = tx.apart.execute("SELECT subject FROM outbox WHERE seq = ?", (seq,)).fetchone()
    return None if row is None else row[0]


def ends_of(tx: Transaction, seq: int, message_id: str) -> tuple[str, str] | None:
    """Sender and recipient of our directed envelope `seq`; None when it has another id."""
    if (sent := tx.memory.addressed.get(seq)) is not None:
        return (sent.sender, sent.recipient) if sent.message_id == message_id else None
    sql = """SELECT e.sender, e.recipient FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq
             WHERE o.seq = ? AND e.msg_id = ? AND e.recipient IS NOT NULL"""
    found: tuple[str, str] | None = tx.apart.execute(sql, (seq, message_id)).fetchone()
    return found


def answered(tx: Transaction, seq: int, detail: str) -> None:
    """The receiver's daemon has committed our envelope `seq`."""
    tx.rows.answered += (detail, seq)
    tx.rows.waiting = True
    if (sent := tx.memory.addressed.get(seq)) is not None:
        tx.memory.arrived.put(tx, (sent.workspace_id, sent.message_id), True)


def give_up(tx: Transaction, seq: int, state: str, detail: str) -> Failed | None:
    """Ends envelope `seq` as `expired` or `dead` with the reason; None when it was answered or ended before."""
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
    """Queued or still waiting for an answer at Unix second `now`, but nobody would accept them any more."""
    rows = tx.db.execute(
        "SELECT seq FROM outbox WHERE state = 'queued' AND state IN ('queued', 'expired', 'dead') AND expires_at <= ?1"
        " UNION SELECT seq FROM outbox WHERE next_ms IS NOT NULL AND expires_at <= ?1 LIMIT ?2",
        (now, limit),
    )
    return sorted(seq for (seq,) in rows)


def stale_from(tx: Transaction) -> int | None:
    """The first Unix second at which `stale` finds something; None when nothing is queued or waits for an answer."""
    sql = (
        "SELECT min(first) FROM (SELECT min(expires_at) AS first FROM outbox WHERE state = 'queued' AND state IN"
        " ('queued', 'expired', 'dead') UNION ALL SELECT min(expires_at) FROM outbox WHERE next_ms IS NOT NULL)"
    )
    value: int | None = tx.db.execute(sql).fetchone()[0]
    return value
