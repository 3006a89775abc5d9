"""SACP: the response object of a language model's agent, as a trace on its assigned work.

Seed "Standard Agent Communication Protocol"; mapping of adapters.md, sacp. An agent of this format gets plain text (the text
of a say) and answers with text that should contain a response object. Its messages name no work, peer or id: the caller
does, or the only open work is used.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.agh.envelope import CONVERSATION_KINDS
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats import common
from aghbus.protocol.formats.attachments import cut_result, cut_text, extension, say_text
from aghbus.protocol.formats.derived_ids import canonical, digest, envelope_id, thread_id, work_id
from aghbus.protocol.formats.model import (
    NOT_DELIVERED,
    BridgeContext,
    BridgedEnvelope,
    Delivered,
    Finding,
    MessageHistory,
    SubmitPlan,
)
from aghbus.protocol.formats.sacp.audit import with_row
from aghbus.protocol.formats.sacp.guardrails import Guardrail, GuardrailSet
from aghbus.protocol.formats.sacp.reply import deliver_text, extraction_findings, read_response
from aghbus.protocol.formats.sacp.schema import STATE_OF, fallback
from aghbus.protocol.formats.sacp.text import Extracted, extract

NAME: Final = "sacp"


class SacpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`wire_thought` False removes thoughts before sending; `guardrails` are checked in responses (section 9.1)."""

    wire_thought: bool = True
    guardrails: tuple[Guardrail, ...] = ()


class Sacp:
    """The adapter (model.Adapter). Raises InvalidRequest for an invalid guardrail pattern."""

    name: Final = NAME
    delivered_kinds: Final = CONVERSATION_KINDS

    def __init__(self, options: SacpOptions | None = None) -> None:
        self._options = options or SacpOptions()
        self._guardrails = GuardrailSet(self._options.guardrails)

    def submit(self, text: bytes, context: BridgeContext, history: MessageHistory) -> SubmitPlan:
        """The plan for any text of our agent (UTF-8).

        On an assigned work the text contains its response. With a target and no work, or on a work that our agent opened,
        it is the text of a say.
        """
        words, findings = _decoded(text)
        if context.work_id is None and context.target is not None:
            return _open(words, findings, context.target, context, history)
        work = _find_work(words, context, history)
        if isinstance(work, WorkView) and work.initiator == context.us:
            return _continue(words, findings, work, context, history)
        return self._response(words, findings, work, context, history)

    def deliver(self, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory) -> Delivered:
        """The text of a say or capability as a string; a final trace or question as a response object, after guardrails."""
        if arrival.outcome in ("ignored", "rejected"):
            return NOT_DELIVERED
        envelope = arrival.envelope
        if envelope.kind in ("say", "capability"):
            text = deliver_text(arrival)
            return with_row(text, context, envelope.work_id, raw=text.message, arrived=envelope)
        found = read_response(arrival, context)
        if found is None:
            return NOT_DELIVERED
        guarded, hits = self._guardrails.apply(found.response)
        delivered = Delivered(message=guarded, findings=found.findings + hits, native=found.native)
        raw, stage, original = found.raw, found.stage, found.response
        return with_row(delivered, context, envelope.work_id, raw=raw, arrived=envelope, stage=stage, original=original)

    def _response(
        self,
        words: str,
        findings: tuple[Finding, ...],
        work: WorkView | Finding,
        context: BridgeContext,
        history: MessageHistory,
    ) -> SubmitPlan:
        extracted = extract(words)
        original = _response_of(extracted, words)
        guarded, hits = self._guardrails.apply(original)
        sent, withheld = self._without_thought(guarded)
        findings += (*extraction_findings(extracted), *hits, *withheld, *common.secrets_in(sent))
        if isinstance(work, Finding):
            findings += (work,)
        else:
            findings += common.not_ours(work, context.us)
        plan = SubmitPlan(message=sent, findings=findings, foreign_id=_content_id(original))
        if isinstance(work, WorkView) and not plan.refused:
            message_id = common.next_id(NAME, "trace", context, work, history, canonical(original))
            plan = _on_work(plan, common.trace(context, work, message_id, _trace_body(sent)), work, context, history)
        where = work.work_id if isinstance(work, WorkView) else context.work_id
        return with_row(plan, context, where, raw=words, stage=extracted.stage, original=original)

    def _without_thought(self, response: dict[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
        if self._options.wire_thought or not response["thought"]:
            return response, ()
        kept = common.warning("/thought", "thought_withheld", "is in the audit table, and empty in the message")
        return {**response, "thought": ""}, (kept,)


def _decoded(text: bytes) -> tuple[str, tuple[Finding, ...]]:
    try:
        return text.decode(), ()
    except UnicodeDecodeError as fault:
        replaced = common.warning("", "not_utf8", f"is not UTF-8 at byte {fault.start}: invalid bytes were replaced")
        return text.decode(errors="replace"), (replaced,)


def _response_of(extracted: Extracted, words: str) -> dict[str, Any]:
    return fallback(words) if extracted.response is None else extracted.response


def _find_work(words: str, context: BridgeContext, history: MessageHistory) -> WorkView | Finding:
    """The assigned work. Without an open one, the work that the same response was sent to (a repetition)."""
    work = common.assigned_work(context, history)
    if isinstance(work, Finding) and work.rule == "no_work":
        before = history.find(_content_id(_response_of(extract(words), words)), "", "out")
        if before is not None and before.work is not None:
            return before.work
        return msgspec.structs.replace(work, message=f"{work.message}; a text that opens a work needs --target")
    return work


def _content_id(message: Any) -> str:
    """The foreign id of a message: a hash of its content."""
    return "sha256_" + digest(NAME, canonical(message))


def _trace_body(response: dict[str, Any]) -> dict[str, Any]:
    return {
        "state": STATE_OF[response["status"]],
        "message": cut_text(response["message"]),
        "result": cut_result(response["data"]),
    }


def _on_work(
    plan: SubmitPlan, draft: Draft, work: WorkView, context: BridgeContext, history: MessageHistory
) -> SubmitPlan:
    """`plan` with a draft on an existing work: a repetition when it was sent before, refused when the work has ended."""
    answered = history.answered(work)
    ext = extension(NAME, plan.message, plan.findings)
    draft = msgspec.structs.replace(draft, ext=ext, reply_to=answered, causation_id=answered)
    if history.sent(draft.id) is not None:
        return msgspec.structs.replace(plan, drafts=(draft,), repeats=True)
    ended = common.closed(work)
    if ended:
        return msgspec.structs.replace(plan, findings=plan.findings + ended)
    return msgspec.structs.replace(plan, drafts=(draft,))


def _continue(
    words: str, findings: tuple[Finding, ...], work: WorkView, context: BridgeContext, history: MessageHistory
) -> SubmitPlan:
    """A text on a work that our agent opened, such as the answer to `clarification_needed`."""
    plan = SubmitPlan(message=words, findings=findings + common.secrets_in(words), foreign_id=_content_id(words))
    message_id = common.next_id(NAME, "say", context, work, history, words.encode())
    draft = common.say_in_work(context, work, message_id, {"text": say_text(words, None)})
    plan = _on_work(plan, draft, work, context, history)
    return with_row(plan, context, work.work_id, raw=words)


def _open(
    words: str, findings: tuple[Finding, ...], target: str, context: BridgeContext, history: MessageHistory
) -> SubmitPlan:
    """A say that opens a work in its own thread.

    Without a key, the same text is the same message only while its work is open (adapters.md, Idempotent).
    """
    findings += common.secrets_in(words)
    message_id = envelope_id(NAME, "say", context.us, target, None, words.encode(), context.key)
    while isinstance(earlier := history.sent(message_id), WorkView) and earlier.is_terminal:
        message_id = envelope_id(NAME, "say", context.us, target, message_id, words.encode(), context.key)
    draft = common.say(
        context,
        target,
        message_id,
        thread_id(NAME, message_id),
        {"text": say_text(words, None)},
        work_id=work_id(message_id),
        ext=extension(NAME, words, findings),
    )
    plan = SubmitPlan(
        message=words, findings=findings, drafts=(draft,), repeats=earlier is not None, foreign_id=_content_id(words)
    )
    return with_row(plan, context, draft.work_id, raw=words)
