"""SACP: the response object of a language model's agent, as a trace on the work that it was given.

Seed "Standard Agent Communication Protocol"; mapping of adapters.md, sacp. An agent of this format gets plain text (the
text of a say) and answers with text that should hold a response. It names no work, no peer and no id: the caller does,
or the work in hand is the only open one.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.adapters import common
from aghbus.protocol.adapters.attachments import cut_result, cut_text, extension, say_text
from aghbus.protocol.adapters.derived_ids import canonical, digest, envelope_id, thread_id, work_id
from aghbus.protocol.adapters.model import (
    BridgeContext,
    BridgedEnvelope,
    Delivered,
    Finding,
    MessageHistory,
    SubmitPlan,
)
from aghbus.protocol.adapters.sacp.guardrails import Guardrail, GuardrailSet
from aghbus.protocol.adapters.sacp.reply import handed_response, handed_text
from aghbus.protocol.adapters.sacp.schema import STATE_OF, fallback
from aghbus.protocol.adapters.sacp.text import Extracted, extract
from aghbus.protocol.envelope import CONVERSATION_KINDS
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.send import Draft

NAME: Final = "sacp"


class SacpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How this peer speaks SACP: `wire_thought` False keeps thoughts off the bus, `guardrails` are watched for (section 9.1)."""

    wire_thought: bool = True
    guardrails: tuple[Guardrail, ...] = ()


class Sacp:
    """The adapter (model.Adapter). Raises InvalidRequest when a guardrail's pattern cannot be taken."""

    name: Final = NAME
    delivered_kinds: Final = CONVERSATION_KINDS

    def __init__(self, options: SacpOptions | None = None) -> None:
        self._options = options or SacpOptions()
        self._guards = GuardrailSet(self._options.guardrails)

    def submit(self, text: bytes, context: BridgeContext, history: MessageHistory) -> SubmitPlan:
        """What our agent wrote, as UTF-8 text of any shape.

        On a work that our agent was given: its response. With a target and no work named, or on a work that our agent
        opened: words for the other side, as a say.
        """
        words, findings = _decoded(text)
        if context.work_id is None and context.target is not None:
            return _opening(words, findings, context.target, context, history)
        work = _work_of(words, context, history)
        if isinstance(work, WorkView) and work.initiator == context.us:
            return _continuing(words, findings, work, context, history)
        return self._response(words, findings, work, context, history)

    def deliver(self, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory) -> Delivered:
        """The words of a say or capability as a string; the end or question of a work as a response object."""
        if arrival.outcome in ("ignored", "rejected"):
            return Delivered(message=None)
        if arrival.envelope.kind in ("say", "capability"):
            return handed_text(arrival)
        return handed_response(arrival, context)

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
        guarded, hits = self._guards.apply(original)
        sent, withheld = self._on_the_wire(guarded)
        findings += (*_sanitized(extracted), *hits, *withheld, *common.secrets_in(sent))
        if isinstance(work, Finding):
            findings += (work,)
        else:
            findings += common.not_ours(work, context.us)
        plan = SubmitPlan(message=sent, findings=findings, foreign_id=_content_id(original))
        if isinstance(work, WorkView) and not plan.refused:
            message_id = common.next_id(NAME, "trace", context, work, history, canonical(original))
            plan = _answered(plan, common.trace(context, work, message_id, _trace_body(sent)), work, context, history)
        where = work.work_id if isinstance(work, WorkView) else context.work_id
        return msgspec.structs.replace(plan, record=_audit_row(words, extracted, original, plan, context, where))

    def _on_the_wire(self, response: dict[str, Any]) -> tuple[dict[str, Any], tuple[Finding, ...]]:
        if self._options.wire_thought or not response["thought"]:
            return response, ()
        kept = common.warning("/thought", "thought_withheld", "is kept in the audit table and sent empty")
        return {**response, "thought": ""}, (kept,)


def _audit_row(
    words: str,
    extracted: Extracted,
    original: dict[str, Any],
    plan: SubmitPlan,
    context: BridgeContext,
    work: str | None,
) -> dict[str, Any]:
    """The row of the audit table (section 9.2): what was written, what was understood, what travels. `at` is in Unix seconds."""
    return {
        "at": context.now,
        "peer": context.us,
        "work_id": work,
        "envelope_id": plan.drafts[0].id if plan.drafts else None,
        "status": plan.message["status"],
        "thought": original["thought"],
        "stage": extracted.stage,
        "raw": words,
        "original": original,
        "sent": plan.message,
        "findings": [msgspec.to_builtins(finding) for finding in plan.findings],
    }


def _decoded(text: bytes) -> tuple[str, tuple[Finding, ...]]:
    try:
        return text.decode(), ()
    except UnicodeDecodeError as fault:
        replaced = common.warning("", "not_utf8", f"is not UTF-8 at byte {fault.start}: what is not was replaced")
        return text.decode(errors="replace"), (replaced,)


def _response_of(extracted: Extracted, words: str) -> dict[str, Any]:
    return fallback(words) if extracted.response is None else extracted.response


def _sanitized(extracted: Extracted) -> tuple[Finding, ...]:
    """What sections 3.1 and 7 say of text that is not the bare response; parse and schema faults are warnings here."""
    if extracted.stage == "whole":
        return ()
    if extracted.stage != "fallback":
        where = "a fenced block" if extracted.stage == "fence" else "braces in other text"
        return (common.warning("", "surrounding_text", f"the response was found in {where}"),)
    faults = (msgspec.structs.replace(fault, severity="warning") for fault in extracted.faults)
    return (*faults, common.warning("", "fallback", "no response was found: the text is wrapped as a failure"))


def _work_of(words: str, context: BridgeContext, history: MessageHistory) -> WorkView | Finding:
    """The work in hand. Where none is open any more, the one that the very same response went to: it is then a repetition."""
    work = common.work_in_hand(context, history)
    if isinstance(work, Finding) and work.rule == "no_work":
        before = history.find(_content_id(_response_of(extract(words), words)), "", "out")
        if before is not None and before.work is not None:
            return before.work
        return msgspec.structs.replace(work, message=f"{work.message}; words that open work need --target")
    return work


def _content_id(message: Any) -> str:
    """What a message without an id is found by."""
    return "sha256_" + digest(NAME, canonical(message))


def _trace_body(response: dict[str, Any]) -> dict[str, Any]:
    return {
        "state": STATE_OF[response["status"]],
        "message": cut_text(response["message"]),
        "result": cut_result(response["data"]),
    }


def _answered(
    plan: SubmitPlan, draft: Draft, work: WorkView, context: BridgeContext, history: MessageHistory
) -> SubmitPlan:
    """`plan` with a draft on a work that exists: a repetition when it was sent before, refused when the work has ended."""
    answered = history.answered(work)
    ext = extension(NAME, plan.message, plan.findings)
    draft = msgspec.structs.replace(draft, ext=ext, reply_to=answered, causation_id=answered)
    if history.sent(draft.id) is not None:
        return msgspec.structs.replace(plan, drafts=(draft,), repeats=True)
    ended = common.closed(work)
    if ended:
        return msgspec.structs.replace(plan, findings=plan.findings + ended)
    return msgspec.structs.replace(plan, drafts=(draft,))


def _continuing(
    words: str, findings: tuple[Finding, ...], work: WorkView, context: BridgeContext, history: MessageHistory
) -> SubmitPlan:
    """Words on a work that our agent opened, such as the answer to `clarification_needed`."""
    plan = SubmitPlan(message=words, findings=findings + common.secrets_in(words), foreign_id=_content_id(words))
    message_id = common.next_id(NAME, "say", context, work, history, words.encode())
    draft = common.say(
        context,
        work.target,
        message_id,
        work.container,
        {"text": say_text(words, None)},
        workspace_id=work.workspace_id,
        channel=work.channel,
        surface=work.surface,
        work_id=work.work_id,
    )
    return _answered(plan, draft, work, context, history)


def _opening(
    words: str, findings: tuple[Finding, ...], target: str, context: BridgeContext, history: MessageHistory
) -> SubmitPlan:
    """Words for a peer: a say that opens work in a thread of its own.

    The same words, without a key, are the same message only while their work is open (adapters.md, Idempotent).
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
    return SubmitPlan(
        message=words,
        findings=findings,
        drafts=(draft,),
        repeats=earlier is not None,
        foreign_id=_content_id(words),
    )
