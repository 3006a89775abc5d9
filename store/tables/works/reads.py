"""Works as the API shows them: pages of the list, and one work with its history."""

from typing import Any, Final, NamedTuple

import msgspec

from aghbus.protocol.agh.decoding import decoder
from aghbus.protocol.agh.handover import Handover
from aghbus.protocol.agh.lifecycle import OPEN_STATES, TERMINAL_STATES
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import WorksQuery
from aghbus.protocol.api.works import HistoryEntry, Work, WorkAttempt, WorkLimits, WorkResponse, WorksResponse
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.sql import (
    INTACT,
    INTACT_RAW,
    Connection,
    Cursor,
    Reader,
    Reading,
    as_struct,
    ends_in,
    placeholders,
    read_all,
)
from aghbus.store.tables.envelopes import Row, fetch, within_bytes

LISTED_RESULT_BYTES: Final = 65_536  # a list shows the results of envelopes up to this size
SEARCHED_WORKS: Final = 50_000  # that one query compares with filters: some 50 milliseconds
HISTORY_ENTRIES: Final = 1_000  # the newest steps of a history in one answer
HISTORY_BYTES: Final = 8 * 1024 * 1024  # of the envelopes that these steps are read from

_SELECT_WORK: Final = f"""
SELECT w.work_id, w.workspace_id, w.channel, w.surface, w.container, w.initiator, w.target, w.role, w.state, w.trust, w.text,
    w.opening_id, w.opened_ms, w.updated_ms, w.last_seq, w.message, CASE WHEN length(e.raw) <= ? AND {INTACT} THEN e.raw END,
    w.handover, w.next, w.id, w.opened_seq, w.accept_ms, w.progress_ms, w.result_seq
FROM works AS w LEFT JOIN log AS e ON e.seq = w.result_seq
"""  # noqa: S608 - constants
# One branch for each state reads the index works_states from its end; SQLite merges them, and stops at the limit. A work
# that was opened later has a higher id.
_BY_UPDATE: Final = "SELECT w.id, w.result_seq, w.last_seq AS place FROM works AS w WHERE w.state = ? AND {clauses}"
_BY_OPENING: Final = """
SELECT w.id, w.result_seq, w.opened_seq AS place FROM works AS w NOT INDEXED WHERE w.state IN ({states}) AND {clauses}
ORDER BY w.id DESC
"""
_SELECT_SIZES: Final = """
SELECT w.id, CASE WHEN length(e.raw) <= ? THEN length(e.raw) ELSE 0 END, w.place
FROM ({works} LIMIT ?) AS w LEFT JOIN log AS e ON e.seq = w.result_seq ORDER BY w.place DESC
"""
# Each applied envelope is a row of the work's history (spec section 6), so the history needs no table. Retention removes
# the envelopes of a work only together with the work.
_HISTORY: Final = f"""
FROM envelopes AS e
WHERE e.seq IN ({SEQS_OF_WORK}) AND e.outcome IN ('opened', 'advanced', 'unchanged') AND e.state_after IS NOT NULL
    AND e.work_id = ? AND e.workspace_id = ? AND e.channel = ? AND e.seq >= ? AND e.seq < ?
"""
_SELECT_STEPS: Final = f"""
SELECT e.seq, e.msg_id, e.kind, e.event, e.sender, e.outcome, e.state_before, e.state_after, e.received_ms,
    {INTACT_RAW}, length(e.raw)
{_HISTORY} ORDER BY e.seq DESC
"""
_COUNT_STEPS: Final = f"SELECT count(*) {_HISTORY}"
_PLACES: Final = {"updated": "last_seq", "opened": "opened_seq"}
_FIRST: Final = 1  # the first sequence
_END: Final = (1 << 63) - 1  # beyond every sequence


class _Body(msgspec.Struct):
    """What a history shows of a body, of whatever type it is there."""

    message: Any = None
    detail: Any = None
    text: Any = None
    reason_code: Any = None
    result: Any = None
    artifact_refs: Any = None


class _Step(msgspec.Struct):
    """What a history shows of an envelope, as it is stored."""

    body: _Body = msgspec.field(default_factory=_Body)
    causation_id: Any = None


_decode_step: Final = decoder(_Step)
_DAMAGED: Final = _Step()


class _Newest(NamedTuple):
    """The newest steps of a history, newest first; `complete` if there are no others."""

    rows: list[Row]
    complete: bool


async def works(reader: Reader, query: WorksQuery) -> WorksResponse:
    """One page of works, latest first; fewer than `limit` when the results that are shown reach PAGE_BYTES, or when
    SEARCHED_WORKS were compared with the filters.

    A result of more than LISTED_RESULT_BYTES is left out.
    """
    place = _PLACES[query.order]
    span = [(f"w.{place} < ?", _END if query.before is None else query.before)]
    filters = _filters(query)
    floor = await _floor(reader, query, span) if filters else 0
    found, params = _matching(query, [*span, (f"w.{place} >= ?", floor), *filters])
    sizes = _SELECT_SIZES.format(works=found)
    hits = await fetch(reader, sizes, [LISTED_RESULT_BYTES, *params, query.limit + 1])
    ids, full = within_bytes((work, size) for work, size, _ in hits[: query.limit])
    sql = f"{_SELECT_WORK} WHERE w.id IN (SELECT value FROM json_each(?)) ORDER BY w.{place} DESC"  # noqa: S608 - constants
    rows = await fetch(reader, sql, [LISTED_RESULT_BYTES, msgspec.json.encode(ids).decode()])
    more = full or len(hits) > query.limit
    next_before = hits[len(ids) - 1][2] if more else floor or None
    return WorksResponse(works=[_work_of(row) for row in rows], next_before=next_before)


_Clauses = list[tuple[str, Any]]
"""Conditions in SQL, each with its one parameter."""


def _filters(query: WorksQuery) -> _Clauses:
    """The conditions that no index knows."""
    wanted = (
        ("w.role = ?", query.role),
        ("? IN (w.initiator, w.target)", query.peer),
        ("w.channel = ?", query.channel),
        ("w.updated_ms >= ?", query.updated_since_ms),
        (ends_in("w.work_id", query.id_end or ""), query.id_end),
        ("instr(lower(w.text), lower(?))", query.text),
    )
    return [(clause, value) for clause, value in wanted if value is not None]


async def _floor(reader: Reader, query: WorksQuery, span: _Clauses) -> int:
    """The place of the last of the next SEARCHED_WORKS; 0 when there are not that many."""
    found, params = _matching(query, span)
    rows = await fetch(reader, f"SELECT place FROM ({found} LIMIT 1 OFFSET ?)", [*params, SEARCHED_WORKS - 1])  # noqa: S608 - constants
    return int(rows[0][0]) if rows else 0


def _matching(query: WorksQuery, wanted: _Clauses) -> tuple[str, list[Any]]:
    """A query for the works in the states that are asked for, in their order, with its parameters."""
    clauses, params = " AND ".join(clause for clause, _ in wanted), [value for _, value in wanted]
    if query.id_end is None:
        clauses += " AND w.next IS NULL"  # the work to which it was handed over is there
    states = [state for state in (*OPEN_STATES, *TERMINAL_STATES) if not query.states or state in query.states]
    if query.order == "opened":
        return _BY_OPENING.format(states=placeholders(states), clauses=clauses), [*states, *params]
    branches = " UNION ALL ".join(_BY_UPDATE.format(clauses=clauses) for _ in states)
    return f"{branches} ORDER BY place DESC", [value for state in states for value in (state, *params)]


async def work(
    reader: Reader, work_id: str, channel: str | None = None, *, before: int | None = None
) -> WorkResponse | None:
    """A work with its history before sequence `before`, oldest step first; the latest of that id when `channel` leaves it
    open. None when unknown.

    Of a long history the newest HISTORY_ENTRIES, as far as their envelopes fit HISTORY_BYTES. A work that was handed over is the
    one that took its place, with the history of both.
    """
    end = _END if before is None else before
    with Reading(reader) as db:
        row = _present(db, work_id, channel)
        if row is None:
            return None
        kept = _handover(row)
        tried = () if kept is None else kept.tried
        rows = [row, *(_row(db, one.work_id, row[2]) for one in reversed(tried))] if end > _FIRST else []
        params = [(*reader.log.of_work(each[0]), *each[:3], each[20], end) for each in rows if each is not None]
        found = None
        if not tried and reader.log.is_at_hand(row[0], row[20]):
            found = [_newest(db.execute(_SELECT_STEPS, each)) for each in params]
    if found is None:
        found = await read_all(reader, [(_SELECT_STEPS, each) for each in params], _newest)
    steps = [step for newest in found for step in newest.rows][:HISTORY_ENTRIES]
    omitted = 0
    if not all(newest.complete for newest in found) or len(steps) < sum(len(newest.rows) for newest in found):
        counts = await read_all(reader, [(_COUNT_STEPS, each) for each in params], Cursor.fetchone)
        omitted = sum(count for (count,) in counts) - len(steps)
    steps.reverse()
    return WorkResponse(
        work=_work_of(row),
        history=[_step_of(step) for step in steps],
        history_omitted=omitted,
        next_before=steps[0][0] if omitted and steps else None,
        attempts=[WorkAttempt(work_id=one.work_id, peer=one.peer, why=one.why) for one in tried],
        limits=_limits_of(row, kept),
        why=None,
    )


def standing(reader: Reader, event: Event) -> Work | None:
    """The work that an event of ours ended or made ask, or the one that took its place; None if its result is in another
    envelope. Reads by key, at once."""
    assert event.message is not None and event.message.work_id is not None
    with Reading(reader) as db:
        row = _present(db, event.message.work_id, event.message.channel)
    return None if row is None or row[23] not in (None, event.seq) else _work_of(row)


def _newest(cursor: Cursor) -> _Newest:
    """The rows of _SELECT_STEPS that fit HISTORY_ENTRIES and HISTORY_BYTES."""
    rows: list[Row] = []
    room = HISTORY_BYTES
    for row in cursor:
        room -= row[-1]
        if room < 0 or len(rows) == HISTORY_ENTRIES:
            cursor.close()
            return _Newest(rows, complete=False)
        rows.append(row)
    return _Newest(rows, complete=True)


def _present(db: Connection, work_id: str, channel: str | None) -> Row | None:
    """The row of a work, or of the one that took its place."""
    row = _row(db, work_id, channel)
    while row is not None and row[18] is not None and (then := _row(db, row[18], row[2])) is not None:
        row = then
    return row


def _row(db: Connection, work_id: str, channel: str | None) -> Row | None:
    clause, params = ("", []) if channel is None else (" AND w.channel = ?", [channel])
    sql = f"{_SELECT_WORK} WHERE w.work_id = ?{clause} ORDER BY w.last_seq DESC LIMIT 1"
    row: Row | None = db.execute(sql, [1 << 62, work_id, *params]).fetchone()
    return row


def _work_of(row: Row) -> Work:
    surface, container = row[3], row[4]
    rooms = (container if surface == "thread" else None, container if surface == "direct" else None)
    body = _DAMAGED.body if row[16] is None else _decode_step(row[16]).body
    kept = _handover(row)
    return as_struct(
        Work,
        (*row[:4], *rooms, *row[5:16]),
        result=body.result,
        artifacts=_references(body),
        capability=None if kept is None else kept.capability,
        first_id=kept.tried[0].work_id if kept is not None and kept.tried else None,
    )


def _limits_of(row: Row, kept: Handover | None) -> WorkLimits:
    if kept is not None:
        return as_struct(WorkLimits, (kept.accept_within, kept.progress_within, kept.hedge))
    accept_within, progress_within = (None if limit is None else limit / 1000 for limit in row[21:23])
    return WorkLimits(accept_within=accept_within, progress_within=progress_within, hedge=False)


def _handover(row: Row) -> Handover | None:
    return None if row[17] is None else msgspec.json.decode(row[17], type=Handover)


def _step_of(row: Row) -> HistoryEntry:
    step = _DAMAGED if row[9] is None else _decode_step(row[9])
    body = step.body
    seq, message_id, kind, event, sender, outcome, before, after, at_ms = row[:9]
    return HistoryEntry(
        seq=seq,
        id=message_id,
        kind=kind,
        event=event,
        actor=sender,
        outcome=outcome,
        before=before,
        after=after,
        at_ms=at_ms,
        causation_id=step.causation_id,
        message=next((said for said in (body.message, body.detail, body.text) if isinstance(said, str)), None),
        reason=body.reason_code if isinstance(body.reason_code, str) else None,
        result=body.result,
        artifacts=_references(body),
        damaged=row[9] is None,
    )


def _references(body: _Body) -> list[Any] | None:
    refs = body.artifact_refs
    return refs if isinstance(refs, list) and refs else None
