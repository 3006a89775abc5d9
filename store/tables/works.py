"""Works as this daemon knows them: the lifecycle's view of one, the list, and a work with its history."""

from typing import Any, Final, NamedTuple

import aiosqlite
import msgspec

from aghbus.protocol.api.works import Role, Work, WorkResponse, WorkStep
from aghbus.protocol.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.effects import Advance, Open
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.text import shorten
from aghbus.protocol.trust.trust import Trust
from aghbus.store.engine.generational_cache import RecentWork
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.envelopes import Row, fetch

TEXT_CHARS: Final = 200  # of the opening text, as `control.Work.text` promises
MESSAGE_CHARS: Final = 2_000  # ours, of the last message; the history has it whole
LISTED_RESULT_BYTES: Final = 65_536  # ours: a list shows the results of envelopes up to this size
HISTORY_STEPS: Final = 1_000  # ours, the newest steps of a history in one answer
HISTORY_BYTES: Final = 8 * 1024 * 1024  # ours, of the envelopes that these steps are read from

_COLUMNS: Final = """
w.workspace_id, w.channel, w.work_id, w.surface, w.container, w.initiator, w.target, w.state, w.opening_id, w.advanced,
    w.terminal_id, w.terminal_sender"""
_VIEW: Final = f"SELECT {_COLUMNS} FROM works AS w WHERE workspace_id = ? AND channel = ? AND work_id = ?"  # noqa: S608 - constants
_FIND: Final = f"""
SELECT {_COLUMNS}, e.raw FROM works AS w LEFT JOIN envelopes AS e ON e.seq = w.opened_seq
WHERE w.work_id = ?1 AND (?2 IS NULL OR w.channel = ?2) ORDER BY w.last_seq DESC LIMIT 1
"""  # noqa: S608 - constants
_MARKS: Final = """
SELECT iif(role = 'initiator', opened_seq, NULL), iif(terminal_id IS NULL, NULL, last_seq)
FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?
"""
_OPEN: Final = """
INSERT INTO works (workspace_id, channel, work_id, surface, container, initiator, target, role, state, trust, opening_id,
    advanced, opened_seq, opened_ms, last_seq, updated_ms, text)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
_ADVANCE: Final = """
UPDATE works SET state = ?, advanced = ?, terminal_id = ?, terminal_sender = ?, last_seq = ?, updated_ms = ?,
    message = coalesce(?, message), result_seq = coalesce(?, result_seq)
WHERE workspace_id = ? AND channel = ? AND work_id = ?
"""
_SELECT_WORK: Final = """
SELECT w.work_id, w.workspace_id, w.channel, w.surface, w.container, w.initiator, w.target, w.role, w.state, w.trust, w.text,
    w.opening_id, w.opened_ms, w.updated_ms, w.last_seq, w.message, CASE WHEN length(e.raw) <= ? THEN e.raw END, w.id
FROM works AS w LEFT JOIN envelopes AS e ON e.seq = w.result_seq
"""
_SELECT_STEPS: Final = """
SELECT seq, msg_id, kind, event, actor, outcome, state_before, state_after, received_ms, raw FROM (
    SELECT *, sum(length(raw)) OVER (ORDER BY seq DESC) AS bytes FROM work_history WHERE work = ? ORDER BY seq DESC LIMIT ?
) WHERE bytes <= ? ORDER BY seq
"""


def load(tx: Transaction, workspace_id: str, channel: str, work_id: str) -> WorkView | None:
    """Our copy of a work; None when it is not known here."""
    recent = _recent(tx, workspace_id, channel, work_id)
    if recent is not None:
        return recent.work
    row = tx.apart.execute(_VIEW, (workspace_id, channel, work_id)).fetchone()
    return None if row is None else _view_of(row)


def _view_of(row: Row) -> WorkView:
    return WorkView(
        workspace_id=row[0],
        channel=row[1],
        work_id=row[2],
        surface=row[3],
        container=row[4],
        initiator=row[5],
        target=row[6],
        state=row[7],
        opening_id=row[8],
        advanced=bool(row[9]),
        terminal_id=row[10],
        terminal_sender=row[11],
    )


def _recent(tx: Transaction, workspace_id: str, channel: str, work_id: str) -> RecentWork | None:
    recent = tx.memory.works.get(work_id)
    if recent is None or recent.work.channel != channel or recent.work.workspace_id != workspace_id:
        return None
    return recent


def role(tx: Transaction, workspace_id: str, channel: str, work_id: str) -> Role | None:
    """Our part in a work when it was opened; None when it is not known here."""
    recent = _recent(tx, workspace_id, channel, work_id)
    if recent is not None:
        return recent.role
    row = tx.apart.execute(
        "SELECT role FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?",
        (workspace_id, channel, work_id),
    ).fetchone()
    return None if row is None else row[0]


class Marks(NamedTuple):
    """The sequences of our envelope that opened a work, and of the one that ended it; None where there is none."""

    opened: int | None
    ended: int | None


def marks(tx: Transaction, workspace_id: str, channel: str, work_id: str) -> Marks | None:
    """Where a work begins and ends; None when it is not known here."""
    recent = _recent(tx, workspace_id, channel, work_id)
    if recent is not None:
        opened_seq = recent.opened_seq if recent.role == "initiator" else None
        return Marks(opened_seq, None if recent.work.terminal_id is None else recent.last_seq)
    row = tx.apart.execute(_MARKS, (workspace_id, channel, work_id)).fetchone()
    return None if row is None else Marks(*row)


class Known(NamedTuple):
    """A work of ours to act on, and the `trace_id` of the message that opened it, while that is stored."""

    work: WorkView
    trace_id: str | None


class _Traced(msgspec.Struct):
    trace_id: str | None = None


def find(tx: Transaction, work_id: str, channel: str | None) -> Known | None:
    """The work of this id; the latest when `channel` leaves it open. None when it is not known here."""
    recent = tx.memory.works.get(work_id)
    if recent is not None and channel in (None, recent.work.channel):
        return Known(recent.work, recent.trace_id)
    row = tx.apart.execute(_FIND, (work_id, channel)).fetchone()
    if row is not None and row[-1] is None:  # removed, or of this transaction and still to be written
        row = tx.db.execute(_FIND, (work_id, channel)).fetchone()
    if row is None:
        return None
    return Known(_view_of(row), None if row[-1] is None else msgspec.json.decode(row[-1], type=_Traced).trace_id)


def role_of(work: WorkView, us: str) -> Role:
    """Our part in a work."""
    if work.initiator == us:
        return "initiator"
    return "target" if work.target == us else "observer"


def open_work(tx: Transaction, effect: Open, envelope: Envelope, seq: int, trust: Trust, us: str, now_ms: int) -> None:
    """A new work, opened by `envelope`, stored under `seq`."""
    work, part = effect.work, role_of(effect.work, us)
    tx.apart.execute(
        _OPEN,
        (
            work.workspace_id,
            work.channel,
            work.work_id,
            work.surface,
            work.container,
            work.initiator,
            work.target,
            part,
            work.state,
            trust,
            work.opening_id,
            int(work.advanced),
            seq,
            now_ms,
            seq,
            now_ms,
            shorten(_opening_text(envelope), TEXT_CHARS),
        ),
    )
    tx.memory.works.put(tx, work.work_id, RecentWork(work, part, envelope.trace_id, seq, seq))


def advance(tx: Transaction, effect: Advance, envelope: Envelope, seq: int, now_ms: int) -> None:
    """The state of a known work after `envelope`, stored under `seq`."""
    work, body = effect.after, envelope.body
    message = _progress_text(envelope)
    tx.apart.execute(
        _ADVANCE,
        (
            work.state,
            int(work.advanced),
            work.terminal_id,
            work.terminal_sender,
            seq,
            now_ms,
            shorten(message, MESSAGE_CHARS) if message else None,
            seq if isinstance(body, Trace) and body.result is not None else None,
            work.workspace_id,
            work.channel,
            work.work_id,
        ),
    )
    recent = _recent(tx, work.workspace_id, work.channel, work.work_id)
    if recent is None:
        tx.memory.works.forget(work.work_id)  # another of this id is the latest no longer
    else:
        tx.memory.works.put(tx, work.work_id, recent._replace(work=work, last_seq=seq))


def begin_deadline(tx: Transaction, work: WorkView) -> None:
    """From now on it may be overdue some day."""
    recent = _recent(tx, work.workspace_id, work.channel, work.work_id)
    if recent is not None:
        tx.memory.works.put(tx, work.work_id, recent._replace(timed=True))


def has_deadline(tx: Transaction, work: WorkView) -> bool:
    """Whether it may have one: True where only the file knows."""
    recent = _recent(tx, work.workspace_id, work.channel, work.work_id)
    return recent is None or recent.timed


async def works(
    reader: aiosqlite.Connection,
    *,
    states: frozenset[str] = frozenset(),
    role: str | None = None,
    peer: str | None = None,
    channel: str | None = None,
    limit: int = 100,
) -> list[Work]:
    """Works, latest change first. `peer` is initiator or target. A result of more than LISTED_RESULT_BYTES is left out."""
    clauses, params = ["1"], list[Any]()
    if states:
        clauses.append(f"w.state IN ({', '.join('?' * len(states))})")
        params.extend(sorted(states))
    for clause, value in (("w.role = ?", role), ("? IN (w.initiator, w.target)", peer), ("w.channel = ?", channel)):
        if value is not None:
            clauses.append(clause)
            params.append(value)
    sql = f"{_SELECT_WORK} WHERE {' AND '.join(clauses)} ORDER BY w.last_seq DESC LIMIT ?"
    rows = await fetch(reader, sql, [LISTED_RESULT_BYTES, *params, limit])
    return [_work_of(row) for row in rows]


async def work(reader: aiosqlite.Connection, work_id: str, channel: str | None = None) -> WorkResponse | None:
    """A work with its history, oldest step first; the latest of that id when `channel` leaves it open. None when unknown.

    Of a long history the newest HISTORY_STEPS, as far as their envelopes fit HISTORY_BYTES.
    """
    clause, params = ("", []) if channel is None else (" AND w.channel = ?", [channel])
    rows = await fetch(
        reader,
        f"{_SELECT_WORK} WHERE w.work_id = ?{clause} ORDER BY w.last_seq DESC LIMIT 1",
        [1 << 62, work_id, *params],
    )
    if not rows:
        return None
    steps = await fetch(reader, _SELECT_STEPS, [rows[0][-1], HISTORY_STEPS, HISTORY_BYTES])
    return WorkResponse(work=_work_of(rows[0]), history=[_step_of(row) for row in steps])


async def counts(reader: aiosqlite.Connection) -> dict[str, int]:
    """How many works are open, by state."""
    sql = "SELECT state, count(*) FROM works WHERE state IN ('submitted', 'working', 'needs_input') GROUP BY state"
    found: dict[str, int] = dict(await fetch(reader, sql, []))
    return {state: found.get(state, 0) for state in ("submitted", "working", "needs_input")}


def _opening_text(envelope: Envelope) -> str:
    body = envelope.body
    if isinstance(body, Say):
        return body.text
    if isinstance(body, Capability):
        summary = body.document.get("summary")
        return summary if isinstance(summary, str) and summary else body.id
    return ""


def _progress_text(envelope: Envelope) -> str | None:
    body = envelope.body
    if isinstance(body, Trace):
        return body.message
    return body.detail if isinstance(body, Receipt) else None


def _work_of(row: Row) -> Work:
    surface, container = row[3], row[4]
    return Work(
        work_id=row[0],
        workspace_id=row[1],
        channel=row[2],
        surface=surface,
        thread_id=container if surface == "thread" else None,
        direct_id=container if surface == "direct" else None,
        initiator=row[5],
        target=row[6],
        role=row[7],
        state=row[8],
        trust=row[9],
        text=row[10],
        opening_id=row[11],
        opened_ms=row[12],
        updated_ms=row[13],
        last_seq=row[14],
        message=row[15],
        result=_body(row[16]).get("result") if row[16] is not None else None,
    )


def _step_of(row: Row) -> WorkStep:
    body = _body(row[9])
    refs = body.get("artifact_refs")
    return WorkStep(
        seq=row[0],
        id=row[1],
        kind=row[2],
        event=row[3],
        actor=row[4],
        outcome=row[5],
        before=row[6],
        after=row[7],
        at_ms=row[8],
        message=_first_text(body, "message", "detail", "text"),
        reason=_first_text(body, "reason_code"),
        result=body.get("result"),
        artifacts=refs if isinstance(refs, list) and refs else None,
    )


def _body(raw: bytes) -> dict[str, Any]:
    document: dict[str, Any] = msgspec.json.decode(raw)
    body: dict[str, Any] = document["body"]
    return body


def _first_text(body: dict[str, Any], *keys: str) -> str | None:
    values = (body.get(key) for key in keys)
    return next((value for value in values if isinstance(value, str)), None)
