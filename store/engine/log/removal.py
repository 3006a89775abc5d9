"""Removing envelopes from the log, with their rows in its indexes and their place in the counts of their flows."""

import sqlite3
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from aghbus.protocol.agh.lifecycle import REFUSING_OUTCOMES
from aghbus.store.engine.log.dedup import Answer, DedupWindow
from aghbus.store.engine.log.dictionaries import Flow
from aghbus.store.engine.log.memory import LogMemory, as_json
from aghbus.store.engine.unit_of_work import UnitOfWork

_SEGMENT_OF: Final = "SELECT n FROM segments WHERE first_seq <= ?1 AND last_seq >= ?1"
_DELETE: Final = "DELETE FROM log WHERE seq = ? RETURNING flow, msg_id, remember_until, work_id, verdict, raw"
_DELETE_ID: Final = "DELETE FROM log_ids WHERE segment = ? AND id_key = ? AND seq = ?"
_DELETE_IN_WORK: Final = "DELETE FROM log_works WHERE segment = ? AND work_id = ? AND seq = ?"
_UNCOUNT: Final = "UPDATE flows SET messages = messages - ? WHERE id = ?"
_DELETE_SEGMENT: Final = """
DELETE FROM segments WHERE n = ? AND NOT EXISTS (SELECT 1 FROM log WHERE seq BETWEEN first_seq AND last_seq)
"""
_DELETE_FLOWS_OF: Final = (
    "DELETE FROM log_flows WHERE segment = ?1 AND NOT EXISTS (SELECT 1 FROM segments WHERE n = ?1)"
)
_DELETE_FLOW: Final = """
DELETE FROM flows WHERE id = ? AND messages = 0
    AND NOT EXISTS (SELECT 1 FROM log WHERE seq IN (SELECT value FROM json_each(?)))
"""


class _Removed(NamedTuple):
    seq: int
    segment: int | None
    flow: int
    id_key: int
    remember_until: int
    work_id: str | None
    answer: Answer | None  # None where the id is not remembered any more


def remove(tx: UnitOfWork, log: LogMemory, dedup: DedupWindow, seqs: Sequence[int]) -> list[Flow]:
    """Removes these envelopes. Returns the flows of which none is left.

    Ids that are still in the dedup window stay in it, with the answer to a repetition.
    """
    tx.flush()
    db = tx.db
    removed = [row for seq in seqs if (row := _delete(db, log, dedup, seq)) is not None]
    flows = {row.flow: log.flows.value(tx, row.flow) for row in removed}
    for row in removed:
        if row.answer is not None:
            flow = flows[row.flow]
            sender = log.ids.sender_key(flow.workspace_id, flow.sender)
            dedup.retain(tx, row.id_key ^ sender, row.remember_until, row.answer)
    _delete_from_indexes(db, [row for row in removed if row.segment is not None])
    return [flow for number, flow in flows.items() if _drop(tx, log, number)]


def _delete(db: sqlite3.Connection, log: LogMemory, dedup: DedupWindow, seq: int) -> _Removed | None:
    segment = db.execute(_SEGMENT_OF, (seq,)).fetchone()
    row = db.execute(_DELETE, (seq,)).fetchone()
    if row is None:
        return None
    flow, message_id, remember_until, work_id, verdict, raw = row
    number = None if segment is None else segment[0]
    answer = None
    if remember_until and dedup.keeps(remember_until):
        decided = log.verdicts.value(verdict)
        answer = Answer(sha256(raw).digest(), decided.reason if decided.outcome in REFUSING_OUTCOMES else None)
    return _Removed(seq, number, flow, log.ids.id_key(message_id), remember_until, work_id, answer)


def _delete_from_indexes(db: sqlite3.Connection, rows: list[_Removed]) -> None:
    db.executemany(_DELETE_ID, [(row.segment, row.id_key, row.seq) for row in rows])
    db.executemany(_DELETE_IN_WORK, [(row.segment, row.work_id, row.seq) for row in rows if row.work_id is not None])
    counts = Counter(row.flow for row in rows)
    db.executemany(_UNCOUNT, [(count, flow) for flow, count in counts.items()])
    for sql in (_DELETE_SEGMENT, _DELETE_FLOWS_OF):
        db.executemany(sql, [(segment,) for segment in {row.segment for row in rows}])


def _drop(tx: UnitOfWork, log: LogMemory, flow: int) -> bool:
    """Drops a flow without envelopes. Whether it was one."""
    recent = as_json(log.tail.of_flow(flow))
    if not tx.db.execute(_DELETE_FLOW, (flow, recent)).rowcount:
        return False
    log.flows.forget(tx, flow)
    return True
