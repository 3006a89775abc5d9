"""Rows of the formats' own logs. In the message log of agentos, an answer settles the row of its question."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.formats import common
from aghbus.protocol.formats.agentos import log as agentos_log
from aghbus.protocol.formats.model import SubmitPlan
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import bridge_log
from aghbus.store.tables.bridge_log import BridgeLogEntry

FORMAT_WITH_TIMEOUTS: Final = "agentos"
"""The format whose log tracks answers and times to live."""

GRACE_MS: Final = 5_000
"""Time in which the asker's daemon may end its unanswered work before the daemon of the target does."""

FORMATS_LOGGING_REFUSED: Final = frozenset({"sacp"})
"""Formats that also log refused messages (adapters.md, sacp: every response is a row)."""


def keep_record(
    tx: Transaction,
    name: str,
    direction: str,
    record: Mapping[str, Any],
    *,
    at_ms: int,
    seq: int = 0,
    message_id: str | None = None,
    unwritten: bool = False,
    answers: bool = True,
) -> None:
    """Add one row for a submitted or delivered message, unless its envelope has one already.

    `answers`: whether the message may settle the question that it refers to.
    """
    if bridge_log.has(tx, name, seq):
        return
    due_ms = None
    if name == FORMAT_WITH_TIMEOUTS:
        kept = agentos_log.from_plain(record)
        message_id = kept.row.message_id
        due_ms = due_at(kept, at_ms)
        question = None if kept.answers is None else _question(tx, kept.answers, direction)
        if question is not None:
            record = agentos_log.to_plain(agentos_log.answering(kept, question.at_ms, at_ms))
            if answers:
                _answered(tx, question, at_ms)
    bridge_log.add(
        tx, name, direction, record, at_ms=at_ms, seq=seq, message_id=message_id, due_ms=due_ms, unwritten=unwritten
    )


def due_at(kept: agentos_log.LogRecord, at_ms: int) -> int | None:
    """When an unanswered message that crossed at `at_ms` has to end, in Unix milliseconds; None when it does not wait."""
    if kept.waits is None:
        return None
    return at_ms + kept.waits * 1000 + (GRACE_MS if kept.row.direction == "received" else 0)


def check_log_duplicate(tx: Transaction, name: str, plan: SubmitPlan) -> SubmitPlan:
    """Mark a repeated message that sends no envelope. Only its log row shows that it was submitted before."""
    if plan.refused or plan.repeats or plan.record is None or plan.foreign_id is None:
        return plan
    earlier = bridge_log.of_message(tx, name, plan.foreign_id, "out")
    if earlier is None:
        return plan
    if earlier.record == plan.record:
        return msgspec.structs.replace(plan, repeats=True)
    why = common.error("/message_id", "id_conflict", f"{plan.foreign_id!r} was submitted before with other content")
    return msgspec.structs.replace(plan, findings=(*plan.findings, why))


def expire(tx: Transaction, entry: BridgeLogEntry) -> None:
    """Set the row's status to `timeout`: no answer came within the time to live."""
    kept = agentos_log.from_plain(entry.record)
    bridge_log.replace(tx, entry.id, agentos_log.to_plain(agentos_log.timed_out(kept)))


def public_row(name: str, record: dict[str, Any]) -> dict[str, Any]:
    """A row for the API; for agentos only the ten fields of its schema."""
    row: dict[str, Any] = record["row"] if name == FORMAT_WITH_TIMEOUTS else record
    return row


def _answered(tx: Transaction, question: BridgeLogEntry, at_ms: int) -> None:
    """Settle a question whose answer was received at `at_ms`, also when the answer is processed after the timeout."""
    after_all = agentos_log.in_time(agentos_log.from_plain(question.record), question.at_ms, at_ms)
    if after_all is None:
        bridge_log.mark_answered(tx, question.id)
    else:
        bridge_log.replace(tx, question.id, agentos_log.to_plain(after_all))


def _question(tx: Transaction, message_id: str, direction: str) -> BridgeLogEntry | None:
    """The row of the question for an answer in `direction`: the question has the opposite direction."""
    return bridge_log.of_message(tx, FORMAT_WITH_TIMEOUTS, message_id, "out" if direction == "in" else "in")
