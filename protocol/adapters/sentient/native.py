"""Generates messages of the Sentient platform for envelopes that carry none (adapters.md, Native envelopes).

Unknown members are null or an empty array.
"""

from typing import Any, Final

from aghbus.protocol.adapters.attachments import compact
from aghbus.protocol.adapters.common import warning
from aghbus.protocol.adapters.model import BridgeContext, BridgedEnvelope, Finding, MessageHistory
from aghbus.protocol.adapters.sentient.message import USER, parse_message
from aghbus.protocol.adapters.strict_json import check_value
from aghbus.protocol.adapters.timestamps import utc
from aghbus.protocol.base.decoding import decode_json
from aghbus.protocol.bodies import Capability, Receipt, Say, Trace

_STATUS: Final = {"completed": "success", "failed": "failed", "canceled": "failed", "needs_input": "pending"}


def from_envelope(
    arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory
) -> tuple[dict[str, Any] | None, tuple[Finding, ...]]:
    """The message for a native envelope, and the findings; None for progress and for receipts that do not end the work.

    On a work that a message of the format opened, it has that message's session and request.
    """
    message, lost = _convert(arrival, context)
    known = history.opening(arrival.work) if message is not None and arrival.work is not None else None
    opening = parse_message(known.message) if known is not None else None
    if message is not None and opening is not None:
        metadata = opening.metadata
        message["metadata"].update(session_id=metadata.session_id, request_id=metadata.request_id)
    return message, lost


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


def _message(
    arrival: BridgedEnvelope, context: BridgeContext, content: Any, content_type: str | None
) -> dict[str, Any]:
    envelope = arrival.envelope
    return {
        "message_id": envelope.id,
        "timestamp": {"executed_at": utc(envelope.ts), "timezone": "UTC"},
        "agent": {"name": context.agents.name_of(envelope.sender), "type": None},
        "input": {"source": None, "content": None},
        "output": {"content": content, "content_type": content_type},
        "next_agent": {"name": context.agents.name_of(context.us), "reason": None},
        "status": {"code": "success", "message": None},
        "error": {
            "has_error": False,
            "error_code": None,
            "error_message": None,
            "retry_count": 0,
            "recoverable": False,
        },
        "metadata": {
            "session_id": envelope.container,
            "request_id": envelope.trace_id or envelope.work_id or envelope.id,
            "sequence_number": 1,
            "parent_message_id": None,
        },
        "resources": {"source_refs": [], "storage_refs": [], "derived_refs": []},
        "audit": {"compliance_notes": None, "governance_files_consulted": [], "reasoning": None},
    }


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
