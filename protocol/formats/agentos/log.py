"""The message log of AgentOS: one row for each submitted or delivered message."""

from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.agh.limits import MAX_LIFETIME
from aghbus.protocol.formats.agentos.message import AgentOsMessage
from aghbus.protocol.formats.model import BridgedMessage

LogDirection = Literal["sent", "received"]

_MS: Final = 1000  # milliseconds in a second


class MessageLog(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A row with the ten fields of the schema's MessageLog.

    `timestamp` is the message's own; agents are agentIds; `latency_ms` is the time from a question to this answer (0 for other
    messages); `evidence_count` is the number of sources.
    """

    message_id: str
    timestamp: str
    direction: LogDirection
    from_agent: str
    to_agent: str
    type: str
    status: Literal["success", "error", "timeout"]
    latency_ms: int
    evidence_count: int
    confidence_score: int | float


class LogRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The log record of one message.

    `answers` is the id of the message that this one answers, or None. `waits` is the timeout of a question in seconds; None
    for other messages, and for those made from native envelopes.
    """

    row: MessageLog
    answers: str | None = None
    waits: int | None = None


def lifetime_of(ttl: float) -> int:
    """The lifetime of an envelope for a ttl, in whole seconds: rounded up, at least 1, at most MAX_LIFETIME."""
    return MAX_LIFETIME if ttl >= MAX_LIFETIME else max(1, int(ttl) + (ttl > int(ttl)))


def record(
    message: AgentOsMessage, direction: LogDirection, now: int, question: BridgedMessage | None, *, waits: bool = True
) -> LogRecord:
    """The record of a message at Unix second `now`; `question` is the message that it answers, if known. `waits`: its ttl ends
    the work that it opens.

    Its latency has a resolution of seconds; `answering` is exact if the question's row exists.
    """
    replies = message.answers or message.type == "error"
    waits = waits and message.opens and message.ttl is not None
    evidence = message.evidence
    row = MessageLog(
        message_id=message.id,
        timestamp=message.timestamp,
        direction=direction,
        from_agent=message.sender.agent_id,
        to_agent=message.to.agent_id,
        type=message.type,
        status="error" if message.type == "error" else "success",
        latency_ms=max(0, now - question.at) * _MS if replies and question is not None else 0,
        evidence_count=len(evidence.sources) if evidence is not None else 0,
        confidence_score=(evidence.confidence or 0) if evidence is not None else 0,
    )
    return LogRecord(
        row=row,
        answers=message.reply_to if replies else None,
        waits=lifetime_of(message.ttl) if waits and message.ttl is not None else None,
    )


def answering(kept: LogRecord, asked_ms: int, at_ms: int) -> LogRecord:
    """The record of an answer at `at_ms` to a question at `asked_ms` (Unix milliseconds)."""
    return msgspec.structs.replace(kept, row=msgspec.structs.replace(kept.row, latency_ms=max(0, at_ms - asked_ms)))


def timed_out(kept: LogRecord) -> LogRecord:
    """The record of a question without an answer in time; its latency is the timeout."""
    row = msgspec.structs.replace(kept.row, status="timeout", latency_ms=(kept.waits or 0) * _MS)
    return LogRecord(row=row, answers=kept.answers)


def in_time(kept: LogRecord, asked_ms: int, at_ms: int) -> LogRecord | None:
    """The corrected record of a timed-out question whose answer was received in time but processed later.

    The question was sent at `asked_ms`, the answer received at `at_ms` (Unix milliseconds). None: no correction.
    """
    if kept.row.status != "timeout" or at_ms - asked_ms >= kept.row.latency_ms:
        return None
    return LogRecord(row=msgspec.structs.replace(kept.row, status="success", latency_ms=0), answers=kept.answers)


def to_plain(kept: LogRecord) -> dict[str, Any]:
    """A record as JSON: `row` with the ten field names of the schema, `answers`, `waits`."""
    plain: dict[str, Any] = msgspec.to_builtins(kept)
    return plain


def from_plain(plain: Any) -> LogRecord:
    """The inverse of `to_plain`. Raises msgspec.ValidationError."""
    return msgspec.convert(plain, LogRecord)
