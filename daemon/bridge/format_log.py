"""Rows of the formats' own logs. An answer settles the row of its question, which else times out."""

from typing import Final

import msgspec

from aghbus.protocol.formats import common
from aghbus.protocol.formats.agentos import log as agentos_log
from aghbus.protocol.formats.model import BridgeDirection, Conversion, SubmitPlan
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.bridge import log as bridge_log
from aghbus.store.tables.bridge.log import BridgeLogEntry

FORMAT_WITH_TIMEOUTS: Final = "agentos"
"""The format whose log has the messages that arrive before an agent reads them, and whose messages await answers."""

GRACE_MS: Final = 5_000
"""Time in which the asker's daemon may end its unanswered work before the daemon of the target does."""

FORMATS_LOGGING_REFUSED: Final = frozenset({"sacp"})
"""Formats that also log refused messages (adapters.md, sacp: every response is a row)."""


def keep_record(
    tx: Transaction,
    name: str,
    direction: BridgeDirection,
    result: Conversion,
    *,
    at_ms: int,
    seq: int = 0,
    unwritten: bool = False,
    settles: bool = True,
) -> None:
    """Add the row of a submitted or delivered message, if it has one, unless its envelope has one already.

    `unwritten`: the row is also to be written to a file. `settles`: the message may settle the question that it answers.
    """
    record = result.record
    if record is None or bridge_log.has(tx, name, seq):
        return
    asked = "out" if direction == "in" else "in"
    question = None if result.answers is None else bridge_log.of_message(tx, name, result.answers, asked)
    if question is not None:
        record = agentos_log.answered(record, at_ms - question.at_ms)
        if settles:
            _settle(tx, question, at_ms)
    bridge_log.add(
        tx,
        name,
        direction,
        record,
        at_ms=at_ms,
        seq=seq,
        message_id=result.foreign_id,
        waits=result.waits,
        due_ms=due_at(direction, result.waits, at_ms),
        unwritten=unwritten,
    )


def due_at(direction: str, waits: int | None, at_ms: int) -> int | None:
    """When an unanswered message that crossed at `at_ms` has to end, in Unix milliseconds; None when it does not wait."""
    return None if waits is None else at_ms + waits * 1000 + (GRACE_MS if direction == "in" else 0)


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
    bridge_log.replace(tx, entry.id, agentos_log.timed_out(entry.record, entry.waits or 0))


def _settle(tx: Transaction, question: BridgeLogEntry, at_ms: int) -> None:
    """Settle a question whose answer was received at `at_ms`, also when the answer is processed after the timeout."""
    if question.record["status"] == "timeout" and at_ms - question.at_ms < (question.waits or 0) * 1000:
        bridge_log.replace(tx, question.id, agentos_log.in_time(question.record))
    else:
        bridge_log.set_due(tx, question.id, None)
