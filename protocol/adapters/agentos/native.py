"""What an AgentOS agent gets for an envelope that carries no message of its format: a valid message with honest defaults.

The bus has no evidence, confidence, locale, time zone or language. Evidence is empty, confidence 0, the locale `und` (the
undetermined language of BCP 47), the time zone that of the timestamp. The schema's languages hold no unknown: `en` stands,
with a finding.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.adapters.agentos.agents import identity_of, reads_back
from aghbus.protocol.adapters.agentos.message import AgentIdentifier
from aghbus.protocol.adapters.agentos.rules import RECOVERABLE
from aghbus.protocol.adapters.attachments import compact, cut_text
from aghbus.protocol.adapters.common import warning
from aghbus.protocol.adapters.derived_ids import digest
from aghbus.protocol.adapters.model import BridgeContext, BridgedEnvelope, Finding, MessageHistory
from aghbus.protocol.adapters.strict_json import check_value
from aghbus.protocol.adapters.timestamps import utc
from aghbus.protocol.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.lifecycle import WorkView

_CODE_OF_REASON: Final = {
    "expired": "TIMEOUT",
    "verification_failed": "UNAUTHORIZED",
    "unsupported_profile": "UNAUTHORIZED",
    "malformed": "VALIDATION_FAILED",
    "unsupported_kind": "VALIDATION_FAILED",
    "invalid_surface": "VALIDATION_FAILED",
    "legacy_field_rejected": "VALIDATION_FAILED",
    "work_container_mismatch": "VALIDATION_FAILED",
}
"""Reason codes of the bus in the schema's error table; what is not here is SOURCE_ERROR."""

_UNNAMED: Final = "SOURCE_ERROR"  # the only code of the table that blames neither message nor sender
_LAST_SECOND: Final = 253_402_300_799  # 9999-12-31T23:59:59Z: the last moment with a year of four digits


def native_id(sender: str, envelope_id: str) -> str:
    """The message id of a native envelope: `msg-` and a UUID with the bits of version 4, derived from sender and id."""
    drawn = digest("agentos", "native", sender, envelope_id)
    variant = "89ab"[int(drawn[16], 16) & 3]
    return f"msg-{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


def native_message(
    arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory
) -> tuple[dict[str, Any], tuple[Finding, ...]] | None:
    """The message that stands for an envelope, and what had to be assumed; None when it says nothing to an agent."""
    told = _told(arrival, context.us)
    if told is None:
        return None
    type, content, assumed = told
    envelope, agents = arrival.envelope, context.agents
    sender, us = identity_of(envelope.sender, agents), identity_of(context.us, agents)
    content, as_text = _legible(content)
    message = _message(type, content, envelope, sender, us)
    question = _question(arrival, history)
    if question is not None:
        message["replyTo"] = question
    findings = (
        warning("/payload/language", "assumed", "the bus does not tell the language"),
        *assumed,
        *as_text,
        *reads_back(sender, envelope.sender, agents, "/from"),
        *reads_back(us, context.us, agents, "/to"),
    )
    return message, findings


def question_of(work: WorkView, history: MessageHistory) -> str:
    """The id of the message that opened a work, as our agent knows it."""
    opening = history.opening(work)
    if opening is not None and isinstance(opening.message, dict) and isinstance(opening.message.get("id"), str):
        return str(opening.message["id"])
    return native_id(work.initiator, work.opening_id)


def _message(
    type: str, content: Any, envelope: Envelope, sender: AgentIdentifier, us: AgentIdentifier
) -> dict[str, Any]:
    return {
        "id": native_id(envelope.sender, envelope.id),
        "timestamp": utc(min(envelope.ts, _LAST_SECOND)),
        "version": "1.0.0",
        "from": _plain(sender),
        "to": _plain(us),
        "type": type,
        "payload": {
            "content": content,
            "format": "text" if isinstance(content, str) else "json",
            "language": "en",
            "encoding": "utf-8",
        },
        "context": {
            "sessionId": envelope.container or envelope.channel,
            "requestId": envelope.trace_id or envelope.work_id or envelope.id,
            "locale": "und",
            "timezone": "UTC",
        },
        "evidence": {"sources": [], "confidence": 0, "citations": [], "provenance": []},
        "priority": "normal",
        "ttl": max(1, envelope.fresh_until - envelope.ts),
        "retryCount": 0,
    }


def _told(arrival: BridgedEnvelope, us: str) -> tuple[str, Any, tuple[Finding, ...]] | None:
    """Type and content, and the findings about them."""
    envelope, work = arrival.envelope, arrival.work
    match envelope.body:
        case Say() | Capability() as body:
            content = _said(body)
            return ("query" if _opens(envelope, work) else "event"), content, ()
        case Trace(state="completed") as body:
            return "response", _reported(body), ()
        case Trace(state="needs_input") as body:
            return "query", _reported(body), ()
        case Trace(state="failed" | "canceled") as body:
            return _failed(body)
        case Receipt() as body if _ends(body, work):
            return "error", _refused(body, own=envelope.sender == us), ()
    return None


def _opens(envelope: Envelope, work: WorkView | None) -> bool:
    """Whether an answer is awaited: the envelope opened its work, or names one that nothing here is known of."""
    if envelope.work_id is None or envelope.to is None:
        return False
    return work is None or (work.opening_id == envelope.id and work.initiator == envelope.sender)


def _ends(receipt: Receipt, work: WorkView | None) -> bool:
    """Whether a receipt means that no answer will come.

    `expired` and `unsupported` end nothing by themselves, but when they answer the opening and nothing advanced since,
    our own daemon closes the work on them (spec section 6).
    """
    if receipt.status in ("rejected", "canceled"):
        return True
    lost = receipt.status in ("expired", "unsupported")
    return lost and work is not None and receipt.for_id == work.opening_id and not work.advanced


def _said(body: Say | Capability) -> Any:
    if isinstance(body, Capability):
        return {"capability": body.document}
    if not body.artifacts:
        return body.text
    return {"text": body.text, "artifacts": [msgspec.json.decode(artifact) for artifact in body.artifacts]}


def _reported(body: Trace) -> Any:
    """Message, result and artifact references of a trace; one that stands alone as it is."""
    parts: dict[str, Any] = {}
    if body.message is not None:
        parts["message"] = body.message
    if body.result is not None:
        parts["result"] = msgspec.json.decode(body.result)
    if body.artifact_refs:
        parts["artifactRefs"] = [msgspec.json.decode(ref) for ref in body.artifact_refs]
    if len(parts) == 1 and "artifactRefs" not in parts:
        return next(iter(parts.values()))
    return parts or None


def _failed(body: Trace) -> tuple[str, Any, tuple[Finding, ...]]:
    """A failure in the shape of the schema's error example; the code is the result's own where the table has it."""
    result = msgspec.json.decode(body.result) if body.result is not None else None
    fault = result.get("error") if isinstance(result, dict) else None
    code = fault.get("code") if isinstance(fault, dict) else None
    named = isinstance(code, str) and code in RECOVERABLE
    used = str(code) if named else _UNNAMED
    content = {
        "code": used,
        "message": body.message or f"the work has {body.state}"
        if body.state == "failed"
        else body.message or "canceled",
        "details": {"state": body.state, "result": result},
        "recoverable": RECOVERABLE[used],
    }
    assumed = (
        () if named else (warning("/payload/content/code", "assumed", f"the failure names no code: {_UNNAMED} stands"),)
    )
    return "error", content, assumed


def _refused(body: Receipt, *, own: bool) -> dict[str, Any]:
    """A receipt that ends a work, as an error. `own` when our daemon ended it: nobody answered in time, or nobody is there."""
    reason = body.reason_code or body.status
    silence = own and body.reason_code in (None, "not_found")
    code = "TIMEOUT" if silence else _CODE_OF_REASON.get(reason, _UNNAMED)
    return {
        "code": code,
        "message": body.detail or f"the request was answered with {body.status}: {reason}",
        "details": {"status": body.status, "reasonCode": body.reason_code},
        "recoverable": RECOVERABLE[code],
    }


def _question(arrival: BridgedEnvelope, history: MessageHistory) -> str | None:
    """`replyTo`: everything on a work answers the message that opened it; the opening itself answers nothing."""
    envelope, work = arrival.envelope, arrival.work
    if work is not None:
        return None if work.opening_id == envelope.id else question_of(work, history)
    return envelope.reply_to if envelope.kind != "say" else None


def _legible(content: Any) -> tuple[Any, tuple[Finding, ...]]:
    """The content, or its text where it holds what readers of the format would not agree on (depth, huge numbers)."""
    if not check_value(content):
        return content, ()
    return cut_text(compact(content)), (
        warning("/payload/content", "as_text", "holds values that only text can carry"),
    )


def _plain(identity: AgentIdentifier) -> dict[str, str]:
    plain: dict[str, str] = msgspec.to_builtins(identity)
    return plain
