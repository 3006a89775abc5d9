"""Works as this daemon knows them: the lifecycle's view of one, the list, and a work with its history."""

from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.protocol.agh.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.agh.decoding import decoder
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.handover import Handover
from aghbus.protocol.agh.lifecycle import OPEN_STATES, TERMINAL_STATES, WorkView
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import WorksQuery
from aghbus.protocol.api.works import HistoryEntry, Role, Work, WorkAttempt, WorkLimits, WorkResponse, WorksResponse
from aghbus.protocol.base.text import shorten
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.memory.cache import CachedWork
from aghbus.store.engine.sql import (
    INTACT,
    INTACT_RAW,
    Connection,
    Cursor,
    Reader,
    Reading,
    as_struct,
    ends_in,
    insert_into,
    placeholders,
    read_all,
)
from aghbus.store.tables.envelopes import Row, fetch, within_bytes

MESSAGE_CHARS: Final = 2_000  # of the last message; the history has it whole
TEXT_CHARS: Final = 200  # of the opening text, as `Work.text` promises
LISTED_RESULT_BYTES: Final = 65_536  # a list shows the results of envelopes up to this size
SEARCHED_WORKS: Final = 50_000  # that one query compares with filters: some 50 milliseconds
HISTORY_ENTRIES: Final = 1_000  # the newest steps of a history in one answer
HISTORY_BYTES: Final = 8 * 1024 * 1024  # of the envelopes that these steps are read from

_VIEW_COLUMNS: Final = WorkView.__struct_fields__
_values_of_view: Final = attrgetter(*_VIEW_COLUMNS)
_COLUMNS: Final = ", ".join(f"w.{name}" for name in _VIEW_COLUMNS)
_VIEW: Final = f"SELECT {_COLUMNS} FROM works AS w WHERE id = ?"  # noqa: S608 - constants
_FIND: Final = f"""
SELECT {_COLUMNS}, {INTACT_RAW} FROM works AS w LEFT JOIN log AS e ON e.seq = w.opened_seq
WHERE w.work_id = ?1 AND (?2 IS NULL OR w.channel = ?2) ORDER BY w.last_seq DESC LIMIT 1
"""  # noqa: S608 - constants
_OPEN: Final = insert_into(
    "works",
    (*_VIEW_COLUMNS, "role", "trust", "opened_seq", "opened_ms", "last_seq", "updated_ms", "text", "others_bytes"),
)
_ADVANCE: Final = """
UPDATE works SET state = ?, advanced = ?, terminal_id = ?, terminal_sender = ?, last_seq = ?, updated_ms = ?,
    message = coalesce(?, message), result_seq = coalesce(?, result_seq), others_bytes = ?
WHERE id = ?
"""
_LAST_HEARD: Final = f"""
SELECT max(json_extract(CAST(e.raw AS TEXT), '$.ts')) FROM envelopes AS e
WHERE e.seq IN ({SEQS_OF_WORK}) AND e.work_id = ? AND e.sender = ? AND {INTACT}
"""  # noqa: S608 - constants
_ROW: Final = "SELECT id FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?"
_ROW_AND_BYTES: Final = "SELECT id, others_bytes FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?"
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


def load(tx: Transaction, workspace_id: str, channel: str, work_id: str) -> WorkView | None:
    """Our copy of a work; None when it is not known here."""
    cached = tx.memory.works.get(work_id)
    if cached is not None and (cached.work.workspace_id, cached.work.channel) == (workspace_id, channel):
        return cached.work
    row = tx.db.execute(_ROW, (workspace_id, channel, work_id)).fetchone()  # most are new, and have none
    return None if row is None else _view_of(tx.db.execute(_VIEW, row).fetchone())


def _view_of(row: Row) -> WorkView:
    return msgspec.convert(
        dict(zip(_VIEW_COLUMNS, row, strict=False)), WorkView, strict=False
    )  # SQLite has no booleans


def _cached(tx: Transaction, workspace_id: str, channel: str, work_id: str) -> CachedWork | None:
    cached = tx.memory.works.get(work_id)
    if cached is None or cached.work.channel != channel or cached.work.workspace_id != workspace_id:
        return None
    return cached


def last_heard(tx: Transaction, work: WorkView) -> int:
    """The latest `ts` of a message of the target in this work, by its clock; 0 without one."""
    tx.flush()
    params = (*tx.memory.log.of_work(work.work_id), work.work_id, work.target)
    return tx.db.execute(_LAST_HEARD, params).fetchone()[0] or 0


def role(tx: Transaction, workspace_id: str, channel: str, work_id: str) -> Role | None:
    """Our role in a work when it was opened; None when it is not known here."""
    cached = _cached(tx, workspace_id, channel, work_id)
    if cached is not None:
        return cached.role
    row = tx.db.execute(
        "SELECT role FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?",
        (workspace_id, channel, work_id),
    ).fetchone()
    return None if row is None else row[0]


def opened_seq(tx: Transaction, work: WorkView) -> int | None:
    """The sequence of the message that opened a known work."""
    cached = _cached(tx, work.workspace_id, work.channel, work.work_id)
    if cached is not None:
        return cached.opened_seq
    row = tx.db.execute(
        "SELECT opened_seq FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?",
        (work.workspace_id, work.channel, work.work_id),
    ).fetchone()
    return None if row is None else int(row[0])


class Known(msgspec.Struct, frozen=True):
    """An own work to act on, and the `trace_id` of the message that opened it, while that message is stored."""

    work: WorkView
    trace_id: str | None


class _Traced(msgspec.Struct):
    trace_id: str | None = None


def find(tx: Transaction, work_id: str, channel: str | None) -> Known | None:
    """The work of this id; the latest when `channel` leaves it open. None when it is not known here."""
    cached = tx.memory.works.get(work_id)
    if cached is not None and channel in (None, cached.work.channel):
        return Known(cached.work, cached.trace_id)
    tx.flush()
    row = tx.db.execute(_FIND, (work_id, channel)).fetchone()
    if row is None:
        return None
    return Known(_view_of(row), None if row[-1] is None else msgspec.json.decode(row[-1], type=_Traced).trace_id)


def role_of(work: WorkView, self_id: str) -> Role:
    """The role of peer `self_id` in a work."""
    if work.initiator == self_id:
        return "initiator"
    return "target" if work.target == self_id else "observer"


def open_work(
    tx: Transaction,
    work: WorkView,
    envelope: Envelope,
    seq: int,
    trust: Trust,
    self_id: str,
    now_ms: int,
    *,
    by_other: bool = False,
) -> None:
    """A new work, opened by `envelope`, stored under `seq`; `by_other`: its sender is one of others."""
    role, text = role_of(work, self_id), shorten(_opening_text(envelope), TEXT_CHARS)
    held = len(envelope.raw) if by_other and role == "target" else None
    values = (*_values_of_view(work), role, trust, seq, now_ms, seq, now_ms, text, held)
    row = tx.db.execute(_OPEN, values).lastrowid
    assert row is not None
    tx.memory.works.put(tx, work.work_id, CachedWork(work, row, role, envelope.trace_id, seq, seq, others_bytes=held))
    if held is not None:
        tx.memory.others_works += 1
        tx.memory.others_bytes += held


def advance(tx: Transaction, work: WorkView, envelope: Envelope, seq: int, now_ms: int) -> bool:
    """The state of a known work after `envelope`, stored under `seq`. Returns whether the work may have a deadline: True where
    it is not cached."""
    cached = _cached(tx, work.workspace_id, work.channel, work.work_id)
    if cached is not None:
        row, held = cached.row, cached.others_bytes
    else:
        row, held = tx.db.execute(_ROW_AND_BYTES, (work.workspace_id, work.channel, work.work_id)).fetchone()
    if held is not None:
        held = _count_held(tx, work, held, len(envelope.raw))
    body, message = envelope.body, None
    if isinstance(body, Trace):
        message = body.message
    elif isinstance(body, Receipt) and body.status != "duplicate":  # which says nothing of the work
        message = body.detail
    has_result = isinstance(body, Trace) and (body.result is not None or body.artifact_refs)
    message = shorten(message, MESSAGE_CHARS) if message else None
    state = (work.state, work.advanced, work.terminal_id, work.terminal_sender)
    if tx.memory.inbox.held_back:
        tx.memory.inbox.may_release(tx)  # a message may have waited for this state
    tx.db.execute(_ADVANCE, (*state, seq, now_ms, message, seq if has_result else None, held, row))
    if cached is None:
        tx.memory.works.forget(work.work_id)  # the cache holds the latest of this id
        return True
    changed = CachedWork(work, row, cached.role, cached.trace_id, cached.opened_seq, seq, cached.has_deadline, held)
    tx.memory.works.put(tx, work.work_id, changed)
    return cached.has_deadline


def _count_held(tx: Transaction, work: WorkView, held: int, more: int) -> int:
    """The bytes of an open work of others with those of one more message, which may end it."""
    if work.is_terminal:
        tx.memory.others_works -= 1
        tx.memory.others_bytes -= held
    else:
        tx.memory.others_bytes += more
    return held + more


def begin_deadline(tx: Transaction, work: WorkView) -> None:
    """From now on the work may become overdue."""
    cached = _cached(tx, work.workspace_id, work.channel, work.work_id)
    if cached is not None:
        tx.memory.works.put(tx, work.work_id, msgspec.structs.replace(cached, has_deadline=True))


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


async def counts(reader: Reader) -> dict[str, int]:
    """How many works are open, by state."""
    sql = "SELECT state, count(*) FROM works WHERE state IN ('submitted', 'working', 'needs_input') GROUP BY state"
    found: dict[str, int] = dict(await fetch(reader, sql, []))
    return {state: found.get(state, 0) for state in ("submitted", "working", "needs_input")}


async def counts_by_role(reader: Reader) -> dict[tuple[str, str], int]:
    """How many works are open, by state and our role; only pairs that occur."""
    sql = """
        SELECT state, role, count(*) FROM works WHERE state IN ('submitted', 'working', 'needs_input') GROUP BY state, role
    """
    return {(state, role): count for state, role, count in await fetch(reader, sql, [])}


class Waiting(NamedTuple):
    """An open work with us, and who opened it."""

    initiator: str
    workspace_id: str
    channel: str
    work_id: str


async def unaccepted(reader: Reader) -> list[Waiting]:
    """Works that our agent could do and has not accepted, oldest change first: also those that their initiator moved on."""
    sql = """
        SELECT initiator, workspace_id, channel, work_id FROM works
        WHERE role = 'target' AND (state = 'submitted' OR (state IN ('working', 'needs_input') AND accept_ms IS NOT NULL))
        ORDER BY last_seq
    """
    return [Waiting(*row) for row in await fetch(reader, sql, [])]


def is_unaccepted(tx: Transaction, work: WorkView) -> bool:
    """Whether `unaccepted` would name the open work, as it is in `tx`."""
    if work.state == "submitted":
        return True
    sql = "SELECT accept_ms IS NOT NULL FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?"
    return bool(tx.db.execute(sql, (work.workspace_id, work.channel, work.work_id)).fetchone()[0])


def has_open(tx: Transaction, peer_id: str) -> bool:
    """Whether `peer_id` takes part in an open work. Reads all open works."""
    sql = """
        SELECT EXISTS (SELECT 1 FROM works
            WHERE state IN ('submitted', 'working', 'needs_input') AND (initiator = ?1 OR target = ?1))
    """
    return bool(tx.db.execute(sql, (peer_id,)).fetchone()[0])


def _opening_text(envelope: Envelope) -> str:
    body = envelope.body
    if isinstance(body, Say):
        return body.text
    if isinstance(body, Capability):
        summary = body.document.get("summary")
        return summary if isinstance(summary, str) and summary else body.id
    return ""


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
