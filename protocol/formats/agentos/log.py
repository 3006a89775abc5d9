"""The message log of AgentOS: one row for each submitted or delivered message."""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import msgspec

from aghbus.protocol.agh.limits import MAX_LIFETIME
from aghbus.protocol.formats.agentos.message import AgentOsMessage
from aghbus.protocol.formats.model import Delivered, MessageHistory, SubmitPlan

_MS: Final = 1000  # milliseconds in a second
_Result = TypeVar("_Result", SubmitPlan, Delivered)


def lifetime_of(ttl: float) -> int:
    """The lifetime of an envelope for a ttl, in whole seconds: rounded up, at least 1, at most MAX_LIFETIME."""
    return MAX_LIFETIME if ttl >= MAX_LIFETIME else max(1, int(ttl) + (ttl > int(ttl)))


def with_row(result: _Result, message: AgentOsMessage, now: int, history: MessageHistory, *, waits: bool) -> _Result:
    """`result` with the row of the message at Unix second `now`; `waits`: its ttl ends the work that it opens.

    The row has the ten fields of the schema's MessageLog. `timestamp` is the message's own, agents are agentIds, `latencyMs` is
    the time from a question to this answer (0 for other messages, in whole seconds here), `evidenceCount` the number of sources.
    """
    sent = isinstance(result, SubmitPlan)
    answers = message.reply_to if message.answers or message.type == "error" else None
    question = None if answers is None else history.find(answers, "", "in" if sent else "out")
    evidence = message.evidence
    row = {
        "messageId": message.id,
        "timestamp": message.timestamp,
        "direction": "sent" if sent else "received",
        "fromAgent": message.sender.agent_id,
        "toAgent": message.to.agent_id,
        "type": message.type,
        "status": "error" if message.type == "error" else "success",
        "latencyMs": max(0, now - question.at) * _MS if question is not None else 0,
        "evidenceCount": len(evidence.sources) if evidence is not None else 0,
        "confidenceScore": (evidence.confidence or 0) if evidence is not None else 0,
    }
    waits = waits and message.opens
    return msgspec.structs.replace(
        result,
        record=row,
        answers=answers,
        waits=lifetime_of(message.ttl) if waits and message.ttl is not None else None,
    )


def answered(row: Mapping[str, Any], latency_ms: int) -> dict[str, Any]:
    """The row of an answer that came `latency_ms` after its question; 0 if the clock was set back in between."""
    return {**row, "latencyMs": max(0, latency_ms)}


def timed_out(row: Mapping[str, Any], waits: int) -> dict[str, Any]:
    """The row of a question without an answer within `waits` seconds."""
    return {**row, "status": "timeout", "latencyMs": waits * _MS}


def in_time(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a question that timed out, although its answer had been received: it was processed later."""
    return {**row, "status": "success", "latencyMs": 0}
