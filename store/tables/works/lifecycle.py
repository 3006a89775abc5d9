"""Works in a transaction: the lifecycle's view of one, its opening and its steps."""

from operator import attrgetter
from typing import Final

import msgspec

from aghbus.protocol.agh.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.protocol.api.works import Role
from aghbus.protocol.base.text import shorten
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.memory.cache import CachedWork
from aghbus.store.engine.sql import INTACT, INTACT_RAW, insert_into
from aghbus.store.tables.envelopes import Row

MESSAGE_CHARS: Final = 2_000  # of the last message; the history has it whole
TEXT_CHARS: Final = 200  # of the opening text, as `Work.text` promises

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


def _opening_text(envelope: Envelope) -> str:
    body = envelope.body
    if isinstance(body, Say):
        return body.text
    if isinstance(body, Capability):
        summary = body.document.get("summary")
        return summary if isinstance(summary, str) and summary else body.id
    return ""
