"""What the store knows of an open work that does not move: by keys and the work's own messages, never by the whole log."""

from typing import Final

from aghbus.protocol.api.wait_reason import InboxMessage, OwnMessage, StoredFacts
from aghbus.protocol.api.works import Work
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.sql import INBOX_STATE, Query, Reader, read_here, read_of_work
from aghbus.store.tables.envelopes import Row
from aghbus.store.tables.retry import NO_SUBSCRIBER

_ENDS: Final = f"""
SELECT w.due_ms, w.opened_seq, e.seq, e.received_ms,
    o.state, o.attempts, o.published_ms, o.expires_at, o.detail, o.next_ms IS NOT NULL,
    {INBOX_STATE}, coalesce(i.attempts, 0), coalesce(i.available_ms, 0), i.lease_until_ms, i.last_error
FROM works AS w JOIN envelopes AS e ON e.seq IN (w.opened_seq, w.last_seq)
LEFT JOIN outbox AS o ON o.seq = e.seq LEFT JOIN inbox AS i ON i.seq = e.seq
WHERE w.work_id = ? AND w.channel = ? AND w.workspace_id = ?
"""  # noqa: S608 - constants
_TIMES: Final = f"""
SELECT min(CASE WHEN e.state_before = 'submitted' AND e.state_after <> 'submitted' THEN e.received_ms END),
    max(CASE WHEN e.sender = ? THEN e.received_ms END), max(e.sender = ? AND instr(e.msg_id, ?) = 1)
FROM envelopes AS e
WHERE e.seq IN ({SEQS_OF_WORK}) AND e.work_id = ? AND e.channel = ? AND e.workspace_id = ?
    AND e.outcome IN ('opened', 'advanced', 'unchanged')
"""  # noqa: S608 - constants
_CHAIN: Final = "SELECT run_id, node FROM chain_steps WHERE work_id = ? AND ended_ms IS NULL LIMIT 1"
_NEXT: Final = """
SELECT n.work_id, n.target FROM follow_ups AS f JOIN works AS n ON n.id = f.next
WHERE f.assigned = (SELECT id FROM works WHERE work_id = ? AND channel = ? AND workspace_id = ?) AND f.outcome IS NULL
ORDER BY f.id LIMIT 1
"""
_PASSED_ON: Final = """
SELECT h.work_id, h.initiator FROM follow_ups AS f JOIN works AS h ON h.id = f.assigned
WHERE f.next = (SELECT id FROM works WHERE work_id = ?1 AND channel = ?2 AND workspace_id = ?3)
    AND f.question IS NOT NULL AND f.outcome IS NULL
UNION ALL
SELECT n.work_id, n.target FROM follow_ups AS f JOIN works AS n ON n.id = f.next
WHERE f.assigned = (SELECT id FROM works WHERE work_id = ?1 AND channel = ?2 AND workspace_id = ?3)
    AND f.outcome IS NULL LIMIT 1
"""


async def read(reader: Reader, work: Work, waits_for_admission: str) -> StoredFacts | None:
    """The facts of `work`; None when it is not stored any more. The ids of messages by which a daemon says that a work waits for
    admission begin with `waits_for_admission`."""
    key = [work.work_id, work.channel, work.workspace_id]
    senders = [work.target, work.target, waits_for_admission]
    times = [*senders, *reader.log.of_work(work.work_id), *key]
    rest: list[Query] = [(_NEXT, key)] if work.role == "target" else []
    if work.role == "initiator":
        rest = [(_CHAIN, [work.work_id]), (_PASSED_ON, key)]
    ends = read_here(reader, _ENDS, key)
    if not ends:
        return None
    due_ms, opened_seq = ends[0][:2]
    messages = {row[2] == opened_seq: _message(row[2:]) for row in ends}
    queries = [(_TIMES, times), *rest]
    ((begun_ms, reported_ms, told),), *others = await read_of_work(reader, work.work_id, opened_seq, queries)
    chains, passed_on = others if work.role == "initiator" else ([], [])
    following = others[0] if work.role == "target" else []
    return StoredFacts(
        opening=messages.get(True),
        last=messages.get(False),
        begun_ms=begun_ms,
        reported_ms=reported_ms,
        due_ms=due_ms,
        told_to_wait=bool(told),
        chain=chains[0] if chains else None,
        next=following[0] if following else None,
        passed_on=passed_on[0] if passed_on else None,
    )


def _message(row: Row) -> OwnMessage | InboxMessage:
    seq, at_ms, state, tries, published_ms, expires_at, detail, retried, *inbox = row
    if state is None:
        names = ("state", "attempts", "available_ms", "lease_until_ms", "last_error")
        return InboxMessage(seq=seq, received_ms=at_ms, **dict(zip(names, inbox, strict=True)))
    return OwnMessage(
        state=state,
        tries=tries,
        sent_ms=at_ms,
        published_ms=published_ms,
        expires_at=expires_at,
        detail=detail,
        outstanding=state == "queued" or (state == "published" and bool(retried)),
        unsubscribed=detail == NO_SUBSCRIBER,
    )
