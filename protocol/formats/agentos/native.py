"""Generates a valid message of AgentOS for an envelope that carries none.

Envelopes have no evidence, confidence, locale, time zone or language. So evidence is empty and confidence 0. On a work that a
message of AgentOS opened, context and language are those of that message; else the locale is `und` (undetermined, BCP 47) and the
time zone that of the timestamp. The schema has no unknown language: it is `en` then. The language has a finding.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.agh.bodies import Capability, Receipt, Say, Trace
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.formats.agentos.agents import identity_of, reads_back
from aghbus.protocol.formats.agentos.message import LANGUAGES, AgentIdentifier
from aghbus.protocol.formats.agentos.rules import RECOVERABLE
from aghbus.protocol.formats.attachments import compact, cut_text
from aghbus.protocol.formats.common import warning
from aghbus.protocol.formats.derived_ids import digest
from aghbus.protocol.formats.model import BridgeContext, BridgedEnvelope, Finding, MessageHistory
from aghbus.protocol.formats.strict_json import check_value
from aghbus.protocol.formats.timestamps import utc

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
"""Error code of the schema for a reason code; SOURCE_ERROR for others."""

_CONTEXT: Final = ("sessionId", "userId", "requestId", "conversationId", "locale", "timezone")  # MessageContext
_DEFAULT_CODE: Final = "SOURCE_ERROR"  # the only code that blames neither message nor sender


def native_id(sender: str, envelope_id: str) -> str:
    """The message id for a native envelope: `msg-` and a UUID in the form of version 4, derived from sender and id."""
    drawn = digest("agentos", "native", sender, envelope_id)
    variant = "89ab"[int(drawn[16], 16) & 3]
    return f"msg-{drawn[:8]}-{drawn[8:12]}-4{drawn[13:16]}-{variant}{drawn[17:20]}-{drawn[20:]}"


def native_message(
    arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory
) -> tuple[dict[str, Any], tuple[Finding, ...]] | None:
    """The message for an envelope and the findings about assumed values; None when it has no equivalent."""
    converted = _convert(arrival, context.us)
    if converted is None:
        return None
    type, content, assumed = converted
    envelope, agents = arrival.envelope, context.agents
    sender, us = identity_of(envelope.sender, agents), identity_of(context.us, agents)
    content, as_text = _representable(content)
    message = _message(type, content, envelope, sender, us)
    question = _question(arrival, history)
    if question is not None:
        message["replyTo"] = question
    if arrival.work is not None:
        message["context"] |= _opening_members(arrival.work, history, "context", _CONTEXT)
        language = _opening_members(arrival.work, history, "payload", ("language",))
        message["payload"] |= language if language.get("language") in LANGUAGES else {}
    findings = (
        warning("/payload/language", "assumed", "envelopes do not have a language"),
        *assumed,
        *as_text,
        *reads_back(sender, envelope.sender, agents, "/from"),
        *reads_back(us, context.us, agents, "/to"),
    )
    return message, findings


def question_of(work: WorkView, history: MessageHistory) -> str:
    """The id of the message that opened a work, as delivered to our agent."""
    opening = history.opening(work)
    if opening is not None and isinstance(opening.message, dict) and isinstance(opening.message.get("id"), str):
        return str(opening.message["id"])
    return native_id(work.initiator, work.opening_id)


def _opening_members(work: WorkView, history: MessageHistory, part: str, names: tuple[str, ...]) -> dict[str, str]:
    """These members of a part of the message that opened the work; those that it has, none without a message."""
    opening = history.opening(work)
    found = opening.message.get(part) if opening is not None and isinstance(opening.message, dict) else None
    return {name: found[name] for name in names if isinstance(found.get(name), str)} if isinstance(found, dict) else {}


def _message(
    type: str, content: Any, envelope: Envelope, sender: AgentIdentifier, us: AgentIdentifier
) -> dict[str, Any]:
    return {
        "id": native_id(envelope.sender, envelope.id),
        "timestamp": utc(envelope.ts),
        "version": "1.0.0",
        "from": _to_plain(sender),
        "to": _to_plain(us),
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


def _convert(arrival: BridgedEnvelope, us: str) -> tuple[str, Any, tuple[Finding, ...]] | None:
    """Type and content of the message, and the findings about them."""
    envelope, work = arrival.envelope, arrival.work
    match envelope.body:
        case Say() | Capability() as body:
            content = _say_content(body)
            return ("query" if _opens(envelope, work) else "event"), content, ()
        case Trace(state="completed") as body:
            return "response", _trace_content(body), ()
        case Trace(state="needs_input") as body:
            return "query", _trace_content(body), ()
        case Trace(state="failed" | "canceled") as body:
            return _failed(body)
        case Receipt() as body if _ends_work(body, work):
            return "error", _refused(body, own=envelope.sender == us), ()
    return None


def _opens(envelope: Envelope, work: WorkView | None) -> bool:
    """Whether an answer is expected: the envelope opened its work, or its work is unknown here."""
    if envelope.work_id is None or envelope.to is None:
        return False
    return work is None or (work.opening_id == envelope.id and work.initiator == envelope.sender)


def _ends_work(receipt: Receipt, work: WorkView | None) -> bool:
    """Whether a receipt means that no answer will come.

    `expired` and `unsupported` do not end a work themselves. When they answer the opening of a work that has not advanced,
    our daemon closes the work on them (spec section 6).
    """
    if receipt.status in ("rejected", "canceled"):
        return True
    lost = receipt.status in ("expired", "unsupported")
    return lost and work is not None and receipt.for_id == work.opening_id and not work.advanced


def _say_content(body: Say | Capability) -> Any:
    if isinstance(body, Capability):
        return {"capability": body.document}
    if not body.artifacts:
        return body.text
    return {"text": body.text, "artifacts": [decode_json(artifact) for artifact in body.artifacts]}


def _trace_content(body: Trace) -> Any:
    """Message, result and artifact references of a trace; a single message or result is not wrapped."""
    parts: dict[str, Any] = {}
    if body.message is not None:
        parts["message"] = body.message
    if body.result is not None:
        parts["result"] = decode_json(body.result)
    if body.artifact_refs:
        parts["artifactRefs"] = [decode_json(ref) for ref in body.artifact_refs]
    if len(parts) == 1 and "artifactRefs" not in parts:
        return next(iter(parts.values()))
    return parts or None


def _failed(body: Trace) -> tuple[str, Any, tuple[Finding, ...]]:
    """A failure in the form of the schema's error example; the code is the result's own if the table has it."""
    result = decode_json(body.result) if body.result is not None else None
    fault = result.get("error") if isinstance(result, dict) else None
    code = fault.get("code") if isinstance(fault, dict) else None
    named = isinstance(code, str) and code in RECOVERABLE
    used = str(code) if named else _DEFAULT_CODE
    content = {
        "code": used,
        "message": body.message or ("the work has failed" if body.state == "failed" else "canceled"),
        "details": {"state": body.state, "result": result},
        "recoverable": RECOVERABLE[used],
    }
    why = f"the failure has no error code of the schema: {_DEFAULT_CODE} is used"
    assumed = () if named else (warning("/payload/content/code", "assumed", why),)
    return "error", content, assumed


def _refused(body: Receipt, *, own: bool) -> dict[str, Any]:
    """A receipt that ends a work, as an error. `own`: our daemon ended it, since no answer came or no peer is present."""
    reason = body.reason_code or body.status
    silence = own and body.reason_code in (None, "not_found")
    code = "TIMEOUT" if silence else _CODE_OF_REASON.get(reason, _DEFAULT_CODE)
    return {
        "code": code,
        "message": body.detail or f"the request was answered with {body.status}: {reason}",
        "details": {"status": body.status, "reasonCode": body.reason_code},
        "recoverable": RECOVERABLE[code],
    }


def _question(arrival: BridgedEnvelope, history: MessageHistory) -> str | None:
    """`replyTo`: the message that opened the work; None for the opening itself."""
    envelope, work = arrival.envelope, arrival.work
    if work is not None:
        return None if work.opening_id == envelope.id else question_of(work, history)
    return envelope.reply_to if envelope.kind != "say" else None


def _representable(content: Any) -> tuple[Any, tuple[Finding, ...]]:
    """The content, or its JSON text if it is not valid strict JSON (depth, large numbers)."""
    if not check_value(content):
        return content, ()
    return cut_text(compact(content)), (
        warning("/payload/content", "as_text", "is sent as JSON text: it exceeds the limits of strict JSON"),
    )


def _to_plain(identity: AgentIdentifier) -> dict[str, str]:
    plain: dict[str, str] = msgspec.to_builtins(identity)
    return plain
