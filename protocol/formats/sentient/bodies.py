"""Bodies of the envelopes for a Sentient message, for peers that do not know the format.

adapters.md, sentient. `ext` has the complete message, so text, result and artifacts are truncated to 64 KiB each.
"""

from collections.abc import Iterator
from typing import Any, Final

from aghbus.protocol.base.text import byte_length
from aghbus.protocol.formats.attachments import CUT_BYTES, compact, cut_result, cut_text, say_text
from aghbus.protocol.formats.sentient.message import USER, SentientMessage

_STATES: Final = {"success": "completed", "partial": "completed", "failed": "failed"}
_MAX_INTENT: Final = 256  # characters: an intent is a word


def state_of(message: SentientMessage) -> str:
    """The trace state for a status."""
    if message.status.code == "pending":
        return "needs_input" if message.next_agent.name == USER else "working"
    return _STATES[message.status.code]


def say_body(message: SentientMessage) -> dict[str, Any]:
    """Text and intent from `output`, artifacts from `resources`."""
    body: dict[str, Any] = {"text": say_text(message.output.content, message.status.message)}
    if message.output.content_type:
        body["intent"] = message.output.content_type[:_MAX_INTENT]
    artifacts = _artifacts(message)
    if artifacts:
        body["artifacts"] = artifacts
    return body


def user_say(message: SentientMessage) -> dict[str, Any]:
    """The end of a chain for its user: a failure begins with its message."""
    body = say_body(message)
    if message.status.code == "failed":
        text = "" if message.output.content is None else f"\n{body['text']}"
        body["text"] = cut_text(f"failed: {message.status.message or 'without a message'}{text}")
    return body


def working_body(message: SentientMessage) -> dict[str, Any]:
    """The trace for the assigned work while the next agent continues."""
    return {"state": "working", **_summary(message)}


def report_body(message: SentientMessage) -> dict[str, Any]:
    """The trace that reports the message: state, `status.message`, result and artifact refs."""
    code = message.status.code
    result: dict[str, Any] = {
        "content": message.output.content,
        "content_type": message.output.content_type,
        "status": code,
    }
    if code == "partial":
        result["partial"] = True
    if message.error.has_error:
        fault = message.error
        result["error"] = {
            "error_code": fault.error_code,
            "error_message": fault.error_message,
            "retry_count": fault.retry_count,
            "recoverable": fault.recoverable,
        }
    body = {"state": state_of(message), **_summary(message), "result": cut_result(result)}
    artifacts = _artifacts(message)
    return {**body, "artifact_refs": artifacts} if artifacts else body


def _summary(message: SentientMessage) -> dict[str, str]:
    return {} if message.status.message is None else {"message": cut_text(message.status.message)}


def _artifacts(message: SentientMessage) -> list[dict[str, str]]:
    """The descriptors of the refs, in order, as many as fit CUT_BYTES of JSON."""
    kept: list[dict[str, str]] = []
    room = CUT_BYTES
    for descriptor in _descriptors(message):
        room -= byte_length(compact(descriptor)) + 1
        if room < 0:
            break
        kept.append(descriptor)
    return kept


def _descriptors(message: SentientMessage) -> Iterator[dict[str, str]]:
    resources = message.resources
    for source in resources.source_refs:
        yield _descriptor("source", ref_id=source.ref_id, media_type=source.media_type, uri=source.url)
    for stored in resources.storage_refs:
        yield _descriptor(
            "storage",
            ref_id=stored.ref_id,
            media_type=stored.media_type,
            uri=stored.storage_uri,
            source_ref_id=stored.source_ref_id,
            status=stored.status,
        )
    for made in resources.derived_refs:
        yield _descriptor(
            "derived",
            ref_id=made.ref_id,
            asset_type=made.asset_type,
            uri=made.storage_uri,
            parent_ref_id=made.parent_ref_id,
            status=made.status,
        )


def _descriptor(kind: str, **members: str | None) -> dict[str, str]:
    """`type` and the members of the ref; null members are omitted."""
    return {"type": kind, **{name: value for name, value in members.items() if value is not None}}
