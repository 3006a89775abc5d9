"""What the store knows of an open work that does not move: by keys and the work's own messages, never by the whole log."""

from typing import Final

import msgspec

from aghbus.protocol.agh.delivery.notices import WAITS_FOR, reason_in
from aghbus.protocol.api.wait_reason import InboxMessage, OwnMessage, StoredFacts
from aghbus.protocol.api.works import Role, Work
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.sql import INBOX_STATE, Cursor, Reader, Reading, read_all
from aghbus.store.tables.envelopes import Row
from aghbus.store.tables.retry import NO_SUBSCRIBER

_DIGITS: Final = 19  # of a sequence, so that its text sorts
_ENDS: Final = f"""
SELECT w.id, w.due_ms, w.opened_seq, e.seq, e.received_ms,
    o.state, o.attempts, o.published_ms, o.expires_at, o.detail, o.next_ms IS NOT NULL,
    {INBOX_STATE}, coalesce(i.attempts, 0), coalesce(i.available_ms, 0), i.lease_until_ms, i.last_error
FROM works AS w JOIN envelopes AS e ON e.seq IN (w.opened_seq, w.last_seq)
LEFT JOIN outbox AS o ON o.seq = e.seq LEFT JOIN inbox AS i ON i.seq = e.seq
WHERE w.work_id = ? AND w.channel = ? AND w.workspace_id = ?
"""  # noqa: S608 - constants
_CHAIN: Final = """
(SELECT json_array(run_id, node) FROM chain_steps WHERE work_id = ?2 AND ended_ms IS NULL LIMIT 1)
"""
_NEXT: Final = """
(SELECT json_array(n.work_id, n.target) FROM follow_ups AS f JOIN works AS n ON n.id = f.next
    WHERE f.assigned = ?1 AND f.outcome IS NULL ORDER BY f.id LIMIT 1)
"""
_PASSED_ON: Final = f"""
coalesce((SELECT json_array(h.work_id, h.initiator) FROM follow_ups AS f JOIN works AS h ON h.id = f.assigned
    WHERE f.next = ?1 AND f.question IS NOT NULL AND f.outcome IS NULL), {_NEXT})
"""  # noqa: S608 - constants
# ?1 to ?8: the row of the work, its id, channel and workspace, its target, the prefix of notices, and those of SEQS_OF_WORK.
_REST: Final = f"""
SELECT min(CASE WHEN e.state_before = 'submitted' AND e.state_after <> 'submitted' THEN e.received_ms END),
    max(CASE WHEN e.sender = ?5 THEN e.received_ms END),
    max(CASE WHEN e.sender = ?5 AND instr(e.msg_id, ?6) = 1 THEN printf('%0{_DIGITS}d%s', e.seq, e.msg_id) END), {{others}}
FROM envelopes AS e
WHERE e.seq IN ({SEQS_OF_WORK}) AND e.work_id = ?2 AND e.channel = ?3 AND e.workspace_id = ?4
    AND e.outcome IN ('opened', 'advanced', 'unchanged')
"""  # noqa: S608 - constants
_REST_OF_ROLE: Final[dict[Role, str]] = {
    "initiator": _REST.format(others=f"{_CHAIN}, NULL, {_PASSED_ON}"),
    "target": _REST.format(others=f"NULL, {_NEXT}, NULL"),
    "observer": _REST.format(others="NULL, NULL, NULL"),
}
_pair: Final = msgspec.json.Decoder(tuple[str, str]).decode


async def read(reader: Reader, work: Work) -> StoredFacts | None:
    """The facts of `work`; None when it is not stored any more."""
    key, found = (work.work_id, work.channel, work.workspace_id), None
    with Reading(reader) as db:
        ends = db.execute(_ENDS, key).fetchall()
        if not ends:
            return None
        row_id, due_ms, opened_seq = ends[0][:3]
        seqs = reader.log.of_work(work.work_id)
        rest = _REST_OF_ROLE[work.role], (row_id, *key, work.target, WAITS_FOR, *seqs)
        if reader.log.is_at_hand(work.work_id, opened_seq):
            found = db.execute(*rest).fetchone()
    if found is None:
        (found,) = await read_all(reader, [rest], Cursor.fetchone)
    messages = {row[3] == opened_seq: _message(row[3:]) for row in ends}
    begun_ms, reported_ms, notice, *others = found
    chain, following, passed_on = (None if pair is None else _pair(pair) for pair in others)
    return StoredFacts(
        opening=messages.get(True),
        last=messages.get(False),
        begun_ms=begun_ms,
        reported_ms=reported_ms,
        due_ms=due_ms,
        waits_for=None if notice is None else reason_in(notice[_DIGITS:]),
        chain=chain,
        next=following,
        passed_on=passed_on,
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
