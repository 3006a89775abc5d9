"""Generates messages of the Sentient platform for envelopes that carry none (adapters.md, Native envelopes).

Unknown members are null or an empty array.
"""

from typing import Annotated, Any, Final

import msgspec

from aghbus.protocol.agh.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.formats.attachments import compact
from aghbus.protocol.formats.common import warning
from aghbus.protocol.formats.model import BridgeContext, BridgedEnvelope, Finding, MessageHistory
from aghbus.protocol.formats.sentient.message import NAME, USER, parse_message
from aghbus.protocol.formats.strict_json import check_value
from aghbus.protocol.formats.timestamps import utc

_STATUS: Final = {"completed": "success", "failed": "failed", "canceled": "failed", "needs_input": "pending"}


CHAIN: Final = f"{NAME}.chain"
"""In `ext`: `session_id` and `request_id` of the chain that an envelope is about. An opening that has it belongs to a chain
whose end the opening daemon awaits."""


class SentientIds(msgspec.Struct, frozen=True):
    """The ids of a chain, as its agents wrote them."""

    session_id: Annotated[str, msgspec.Meta(min_length=1)]
    request_id: Annotated[str, msgspec.Meta(min_length=1)]


def from_envelope(
    arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory
) -> tuple[dict[str, Any] | None, tuple[Finding, ...]]:
    """The message for a native envelope, and the findings; None for progress and for receipts that do not end the work."""
    message, lost = _convert(arrival, context)
    if message is not None:
        message["metadata"].update(_chain_ids(arrival, history))
    return message, lost


def _chain_ids(arrival: BridgedEnvelope, history: MessageHistory) -> dict[str, str]:
    """Session and request as far as they are known: those that the envelope names, else those of our agent's latest message
    on the work, which this answers, else those of the message that opened the work."""
    named = _named_chain(arrival.envelope)
    if named is not None:
        return msgspec.structs.asdict(named)
    work = arrival.work
    if work is None:
        return {}
    answers = arrival.envelope.id != work.opening_id and arrival.envelope.kind in OPENING_KINDS
    known = (history.reported(work) if answers else None) or history.opening(work)
    before = parse_message(known.message) if known is not None else None
    if before is None:
        return {}
    return {"session_id": before.metadata.session_id, "request_id": before.metadata.request_id}


def _named_chain(envelope: Envelope) -> SentientIds | None:
    try:
        return msgspec.convert(envelope.extensions().get(CHAIN), SentientIds)
    except msgspec.ValidationError:
        return None


def _convert(arrival: BridgedEnvelope, context: BridgeContext) -> tuple[dict[str, Any] | None, tuple[Finding, ...]]:
    match arrival.envelope.body:
        case Say() as said:
            return _with_valid_output(_message(arrival, context, said.text, said.intent))
        case Capability() as offered:
            return _with_valid_output(_message(arrival, context, offered.document, "capability"))
        case Trace() as trace if trace.state in _STATUS:
            return _with_valid_output(_from_trace(arrival, context, trace))
        case Receipt() as receipt if _ends_work(arrival):
            return _with_valid_output(_from_receipt(arrival, context, receipt))
    return None, ()


def new_message(message_id: str, at: int, agent: str, session_id: str, request_id: str) -> dict[str, Any]:
    """A first message of status `success` without input, output and next agent. `at` is in Unix seconds."""
    return {
        "message_id": message_id,
        "timestamp": {"executed_at": utc(at), "timezone": "UTC"},
        "agent": {"name": agent, "type": None},
        "input": {"source": None, "content": None},
        "output": {"content": None, "content_type": None},
        "next_agent": {"name": None, "reason": None},
        "status": {"code": "success", "message": None},
        "error": {
            "has_error": False,
            "error_code": None,
            "error_message": None,
            "retry_count": 0,
            "recoverable": False,
        },
        "metadata": {
            "session_id": session_id,
            "request_id": request_id,
            "sequence_number": 1,
            "parent_message_id": None,
        },
        "resources": {"source_refs": [], "storage_refs": [], "derived_refs": []},
        "audit": {"compliance_notes": None, "governance_files_consulted": [], "reasoning": None},
    }


def _message(
    arrival: BridgedEnvelope, context: BridgeContext, content: Any, content_type: str | None
) -> dict[str, Any]:
    envelope = arrival.envelope
    session, request = envelope.container, envelope.trace_id or envelope.work_id or envelope.id
    name_of = context.agents.name_of
    message = new_message(envelope.id, envelope.ts, name_of(envelope.sender), session or envelope.id, request)
    message["output"] = {"content": content, "content_type": content_type}
    message["next_agent"]["name"] = name_of(context.us)
    return message


def _from_trace(arrival: BridgedEnvelope, context: BridgeContext, trace: Trace) -> dict[str, Any]:
    result = decode_json(trace.result) if trace.result is not None else None
    if isinstance(result, bool | int | float):  # output.content is text, array or object
        result = {"result": result}
    message = _message(arrival, context, result, None)
    code = _STATUS[trace.state]
    if code == "success" and isinstance(result, dict) and result.get("partial") is True:
        code = "partial"
    message["status"] = {"code": code, "message": trace.message}
    # An ended work has no next agent; one that needs input waits for an answer from outside of the chain.
    message["next_agent"] = {"name": USER if code == "pending" else None, "reason": None}
    if code == "failed":
        _fail(message, "PROCESSING_ERROR", trace.message or f"the work is {trace.state}")
    return message


def _from_receipt(arrival: BridgedEnvelope, context: BridgeContext, receipt: Receipt) -> dict[str, Any]:
    why = receipt.detail or f"the work was {receipt.status}" + (
        f": {receipt.reason_code}" if receipt.reason_code else ""
    )
    message = _message(arrival, context, None, None)
    message["status"] = {"code": "failed", "message": why}
    message["next_agent"] = {"name": None, "reason": None}
    _fail(message, "TIMEOUT" if receipt.reason_code == "expired" else "PROCESSING_ERROR", why)
    return message


def _fail(message: dict[str, Any], code: str, why: str) -> None:
    """Set the error; the envelope has neither the number of retries nor whether the error is recoverable."""
    message["error"].update(has_error=True, error_code=code, error_message=why, retry_count=None, recoverable=None)


def _ends_work(arrival: BridgedEnvelope) -> bool:
    """Whether the receipt ended the work; ids are unique per sender, so both are compared."""
    work, envelope = arrival.work, arrival.envelope
    return work is not None and (work.terminal_id, work.terminal_sender) == (envelope.id, envelope.sender)


def _with_valid_output(message: dict[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
    """Replace an output that is not valid strict JSON (depth, large numbers) with its JSON text."""
    if not check_value(message):
        return message, ()
    output = message["output"]
    output["content"] = compact(output["content"])
    why = "is delivered as JSON text: it exceeds the limits of strict JSON"
    return message, (warning("/output/content", "not_carried", why),)
