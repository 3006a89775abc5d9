"""Retries of published messages, until they are answered, expired, or given up (column `next_ms` of the outbox).

Only a published message is answered. It was committed before, so its rows are not in the append buffer; changes of
them may be.
"""

from bisect import bisect_right
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.agh.delivery.order import predecessor_in
from aghbus.protocol.agh.lifecycle import OPEN_STATES
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.memory.cache import Addressed
from aghbus.store.engine.unit_of_work import BulkStatement
from aghbus.store.tables.envelopes import OURS, find_by_id
from aghbus.store.tables.outbox import SELECT_OUTGOING, Outgoing, outgoing_of, within_bytes
from aghbus.store.tables.works import lifecycle

_PUBLISHED: Final = BulkStatement.update(
    "outbox",
    ("seq", "at_ms", "next_ms"),
    "state = 'published', detail = NULL, attempts = attempts + 1, published_ms = new.at_ms, next_ms = new.next_ms",
    "state IN ('queued', 'published')",
)

_NEXT_INDEXED: Final = """
SELECT l.seq FROM segments AS g CROSS JOIN log_flows AS i ON i.segment = g.n AND i.flow = ?1 AND i.block >= ?2 >> 8
    CROSS JOIN json_each(i.seqs) AS s ON s.value > ?2 CROSS JOIN log AS l ON l.seq = s.value
WHERE g.last_seq > ?2 ORDER BY g.n, i.block LIMIT 1
"""

_FOLLOWERS: Final = f"""
SELECT e.seq FROM envelopes AS e JOIN outbox AS o ON o.seq = e.seq
WHERE e.seq IN ({SEQS_OF_WORK}) AND e.seq > ? AND e.work_id = ? AND e.channel = ? AND e.workspace_id = ?
    AND e.kind IN ('say', 'capability') AND o.state IN ('queued', 'published') ORDER BY e.seq
"""  # noqa: S608 - constants

NO_SUBSCRIBER: Final = "nobody subscribes"
"""Why a message stays queued that the broker could pass on to nobody."""

_STOP_ENDED: Final = f"""
UPDATE outbox SET next_ms = NULL WHERE state = 'published' AND next_ms IS NOT NULL AND subject = ? AND seq IN (
    SELECT e.seq FROM envelopes AS e JOIN works AS w
        ON w.workspace_id = e.workspace_id AND w.channel = e.channel AND w.work_id = e.work_id
    WHERE e.seq = outbox.seq AND w.state NOT IN {OPEN_STATES})
RETURNING seq
"""  # noqa: S608 - constants


class Failed(NamedTuple):
    """An own envelope that was refused, for the reason code `reason`, or given up unanswered. Its work is closed and the agent is
    notified."""

    seq: int
    kind: str
    workspace_id: str
    channel: str
    work_id: str | None
    message_id: str
    state: str
    detail: str
    reason: str | None = None


class RetrySchedule(msgspec.Struct, frozen=True):
    """When a published envelope is sent again: Unix milliseconds, None for never."""

    seq: int
    next_ms: int | None


def published(tx: Transaction, schedules: list[RetrySchedule], now_ms: int) -> None:
    """The broker has them, for the first or another time. An answered message stays answered."""
    for schedule in schedules:
        tx.append(_PUBLISHED, (schedule.seq, now_ms, schedule.next_ms))


def unsubscribed(tx: Transaction, seq: int, next_ms: int | None) -> None:
    """The broker had nobody to pass this message on to. It is tried again at `next_ms`; one never passed on stays queued."""
    tx.flush()
    tx.db.execute(
        "UPDATE outbox SET attempts = attempts + 1, next_ms = ?, detail = iif(state = 'queued', ?, detail)"
        " WHERE seq = ? AND state IN ('queued', 'published')",
        (next_ms, NO_SUBSCRIBER, seq),
    )


def stop_ended(tx: Transaction, subject: str) -> set[int]:
    """Repeat no published message to `subject` any more whose work has ended. Returns their sequences."""
    tx.flush()
    stopped = {seq for (seq,) in tx.db.execute(_STOP_ENDED, (subject,))}
    for seq in stopped:
        tx.memory.flows.settle(tx, seq)
    return stopped


def due(tx: Transaction, now_ms: int, limit: int) -> list[Outgoing]:
    """The `limit` messages that have been due longest at `now_ms`, in order of the sequence."""
    tx.flush()
    rows = tx.db.execute(f"{SELECT_OUTGOING} WHERE o.next_ms <= ? ORDER BY o.next_ms, o.seq LIMIT ?", (now_ms, limit))
    return sorted(within_bytes(rows))


def count_due(tx: Transaction, now_ms: int) -> int:
    """How many messages are due at `now_ms`."""
    tx.flush()
    count: int = tx.db.execute("SELECT count(*) FROM outbox WHERE next_ms <= ?", (now_ms,)).fetchone()[0]
    return count


def unanswered(tx: Transaction, subject: str, before_seq: int, limit: int) -> list[Outgoing]:
    """The oldest `limit` messages to `subject` before sequence `before_seq` that wait for an answer, in order."""
    tx.flush()
    rows = tx.db.execute(
        f"{SELECT_OUTGOING} WHERE o.next_ms IS NOT NULL AND o.subject = ? AND o.seq < ? ORDER BY o.seq LIMIT ?",
        (subject, before_seq, limit),
    )
    return [outgoing_of(row) for row in rows]


def hold_back(tx: Transaction, seq: int, next_ms: int, *, tried: bool = False) -> None:
    """Schedules a message for `next_ms`, since earlier ones to the same peer are unanswered.

    `tried`: the subject has no subscriber. For a message tried before, that counts as another attempt.
    """
    tx.flush()
    tx.db.execute(
        "UPDATE outbox SET next_ms = ?, attempts = attempts + (? AND attempts > 0)"
        " WHERE seq = ? AND state IN ('queued', 'published')",
        (next_ms, tried, seq),
    )


def next_due_ms(tx: Transaction) -> int | None:
    """When the next message is due; None when none waits for an answer."""
    tx.flush()
    value: int | None = tx.db.execute("SELECT min(next_ms) FROM outbox WHERE next_ms IS NOT NULL").fetchone()[0]
    return value


def pull_in(tx: Transaction, now_ms: int, latest_ms: int) -> None:
    """Makes messages due now that are due after `latest_ms`, later than any backoff: the clock was set back."""
    tx.flush()
    tx.db.execute("UPDATE outbox SET next_ms = ? WHERE next_ms > ?", (now_ms, latest_ms))


def expedite(tx: Transaction, subject: str, now_ms: int, after_seq: int = 0, *, only_queued: bool = False) -> bool:
    """The peer of `subject` is back: makes the messages after `after_seq` that wait for its answer due now, all at one time, so
    that `due` keeps their order. With `only_queued` those that nobody had. Returns whether there are any."""
    tx.flush()
    sql = "UPDATE outbox SET next_ms = ? WHERE next_ms IS NOT NULL AND subject = ? AND seq > ? AND (NOT ? OR state = 'queued')"
    return tx.db.execute(sql, (now_ms, subject, after_seq, only_queued)).rowcount > 0


def start_over(tx: Transaction, subject: str) -> None:
    """The peer of `subject` has answered: messages that wait for its answer count as tried once. Their backoff begins again, and
    none of them reaches `retry.limit` while the peer takes others."""
    tx.flush()
    tx.db.execute(
        "UPDATE outbox SET attempts = 1 WHERE next_ms IS NOT NULL AND subject = ? AND attempts > 1", (subject,)
    )


def subjects(tx: Transaction) -> list[tuple[str, str]]:
    """The subjects with messages that wait for an answer, each with its peer."""
    tx.flush()
    sql = """SELECT DISTINCT o.subject, e.recipient FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq
             WHERE o.next_ms IS NOT NULL AND e.recipient IS NOT NULL"""
    return tx.db.execute(sql).fetchall()


def addressed(tx: Transaction, seq: int, message_id: str) -> Addressed | None:
    """Where our directed envelope `seq` goes; None when it has another id, or is not in the outbox (any more)."""
    if (sent := tx.memory.addressed.get(seq)) is not None:
        return sent if sent.message_id == message_id else None
    sql = """SELECT e.workspace_id, e.msg_id, e.sender, e.recipient, o.subject, e.raw
             FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq
             WHERE o.seq = ? AND e.msg_id = ? AND e.recipient IS NOT NULL"""
    row = tx.db.execute(sql, (seq, message_id)).fetchone()
    return None if row is None else Addressed(row[0], row[1], row[2], row[3], row[4], sha256(row[5]).hexdigest())


def is_settled(tx: Transaction, workspace_id: str, message_id: str) -> bool:
    """Whether neither our envelope `message_id` nor any before it in its flow is outstanding."""
    columns, outbox = "o.state, o.next_ms, e.raw", "JOIN outbox AS o ON o.seq = e.seq"
    while (row := find_by_id(tx, columns, message_id, OURS, workspace_id, joined=outbox)) is not None:
        state, next_ms, raw = row
        if state == "queued" or next_ms is not None:
            return False
        after = None if state == "receipted" else predecessor_in(raw)  # who has taken it has taken all before it
        if after is None:
            return True
        message_id = after.id
    return True


def release_next(tx: Transaction, seq: int, now_ms: int) -> bool:
    """Makes the message after our envelope `seq` in its flow due now, if it waits for an answer. Returns whether it does."""
    tx.flush()
    sql = "UPDATE outbox SET next_ms = ?2 WHERE next_ms > ?2 AND seq = ?1"
    return tx.db.execute(sql, (_next_of_flow(tx, seq), now_ms)).rowcount > 0


def _next_of_flow(tx: Transaction, seq: int) -> int | None:
    db = tx.db
    (flow,) = db.execute("SELECT flow FROM log WHERE seq = ?", (seq,)).fetchone()
    if (indexed := db.execute(_NEXT_INDEXED, (flow, seq)).fetchone()) is not None:
        return int(indexed[0])
    recent = tx.memory.log.tail.of_flow(flow)
    later = recent[bisect_right(recent, seq) :]
    return next((one for one in later if db.execute("SELECT 1 FROM log WHERE seq = ?", (one,)).fetchone()), None)


def refuse(tx: Transaction, workspace_id: str, message_id: str, by: str, detail: str, reason: str) -> Failed | None:
    """Peer `by`, its receiver, has refused our envelope `message_id`; None when that changes nothing."""
    where = f"{OURS} AND e.recipient = ?"
    row = find_by_id(tx, "e.seq", message_id, where, workspace_id, by)
    return None if row is None else give_up(tx, row[0], "refused", detail, reason)


def give_up(
    tx: Transaction, seq: int, state: str, detail: str, reason: str | None = None, *, forgotten: bool = False
) -> Failed | None:
    """Ends envelope `seq` as `refused`, `expired` or `dead` with the reason; None when it was answered or ended before.

    `forgotten`: one that was answered, by a receiver that does not know it any more.
    """
    tx.flush()
    changed = tx.db.execute(
        "UPDATE outbox SET state = ?, detail = ?, next_ms = NULL"
        " WHERE seq = ? AND (state = 'receipted') = ? AND state IN ('queued', 'published', 'receipted')",
        (state, detail, seq, forgotten),
    ).rowcount
    if not changed:
        return None
    row = tx.db.execute(
        "SELECT seq, kind, workspace_id, channel, work_id, msg_id FROM envelopes WHERE seq = ?", (seq,)
    ).fetchone()
    _, kind, workspace_id, channel, work_id, message_id = row
    if forgotten:
        tx.memory.arrived.forget((workspace_id, message_id))
    return Failed(seq, kind, workspace_id, channel, work_id, message_id, state, detail, reason)


def followers(tx: Transaction, failed: Failed) -> list[int]:
    """Our outstanding conversation in the work that `failed` should have opened: its receiver would take the first of it for the
    opening."""
    if failed.work_id is None:
        return []
    work = lifecycle.load(tx, failed.workspace_id, failed.channel, failed.work_id)
    if work is None or lifecycle.opened_seq(tx, work) != failed.seq:
        return []
    tx.flush()
    params = (*tx.memory.log.of_work(work.work_id), failed.seq, work.work_id, work.channel, work.workspace_id)
    return [seq for (seq,) in tx.db.execute(_FOLLOWERS, params)]


def stale(tx: Transaction, now: int, limit: int) -> list[int]:
    """Messages that are queued or unanswered and have expired at Unix second `now`: no peer would accept them."""
    tx.flush()
    rows = tx.db.execute(
        "SELECT seq FROM outbox WHERE state = 'queued' AND state NOT IN ('published', 'receipted') AND expires_at <= ?1"
        " UNION SELECT seq FROM outbox WHERE next_ms IS NOT NULL AND expires_at <= ?1 LIMIT ?2",
        (now, limit),
    )
    return sorted(seq for (seq,) in rows)


def stale_from(tx: Transaction) -> int | None:
    """The first Unix second at which a message is `stale`; None when none is queued or unanswered."""
    tx.flush()
    sql = (
        "SELECT min(first) FROM (SELECT min(expires_at) AS first FROM outbox WHERE state = 'queued'"
        " AND state NOT IN ('published', 'receipted') UNION ALL SELECT min(expires_at) FROM outbox WHERE next_ms IS NOT NULL)"
    )
    value: int | None = tx.db.execute(sql).fetchone()[0]
    return value
