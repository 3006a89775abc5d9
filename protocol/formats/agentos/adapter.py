"""AgentOS: typed messages with evidence, priority, ttl and a message log (seed "AgentOS Runtime Message Schema", adapters.md).

A query, command, validation request or correction opens a work; a response or validation result completes it; an error fails
it; a query back to the initiator asks a question in it; events, gaps and evidence are says without a work.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.agh.envelope import CONVERSATION_KINDS, DISCOVERY_KINDS
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.limits import MAX_LIFETIME
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats import common
from aghbus.protocol.formats.agentos.agents import peer_of
from aghbus.protocol.formats.agentos.log import lifetime_of, with_row
from aghbus.protocol.formats.agentos.message import NAME, AgentOsMessage, is_retry, typed
from aghbus.protocol.formats.agentos.native import native_message
from aghbus.protocol.formats.agentos.rules import RECOVERABLE, check
from aghbus.protocol.formats.agentos.works import AnsweredWork, answered_work, check_carried, questioned_work
from aghbus.protocol.formats.attachments import (
    carried_message,
    carried_warning,
    cut_result,
    cut_text,
    extension,
    say_text,
)
from aghbus.protocol.formats.derived_ids import envelope_id, legal_id, thread_id, work_id
from aghbus.protocol.formats.model import (
    NOT_DELIVERED,
    BridgeContext,
    BridgedEnvelope,
    BridgedMessage,
    Delivered,
    Finding,
    MessageHistory,
    SubmitPlan,
    has_errors,
)
from aghbus.protocol.formats.strict_json import read_json


class AgentOsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`strict` requires UUIDs of version 4. `manifest` is the set of allowed agent ids; None allows all."""

    strict: bool = False
    manifest: frozenset[str] | None = None


class AgentOs:
    """The adapter (model.Adapter). Messages are sent unchanged."""

    name: Final = NAME
    delivered_kinds: Final = CONVERSATION_KINDS

    def __init__(self, options: AgentOsOptions | None = None) -> None:
        self._options = options or AgentOsOptions()

    def submit(self, text: bytes, context: BridgeContext, history: MessageHistory) -> SubmitPlan:
        """One draft for a message of our agent: a say or a trace."""
        value, findings = read_json(text)
        if findings:
            return SubmitPlan(message=None, findings=findings)
        findings = self._check(value, context.now)
        if has_errors(findings):
            return _refused(value, findings)
        message = typed(value)
        to = peer_of(message.to, context.agents, "/to")
        findings += (*_check_endpoints(message, to, context), *_check_id(value, message, history))
        if has_errors(findings) or isinstance(to, Finding):
            return _refused(value, findings)
        answered = _find_work(message, to, context, history)
        if isinstance(answered, Finding):
            return _refused(value, (*findings, answered))
        if answered is None or answered.work.initiator == context.us:
            findings += _check_ttl(message)
        draft = _draft(message, to, answered, context, history)
        draft = msgspec.structs.replace(draft, ext=extension(NAME, value, findings))
        return _finish_plan(value, message, findings, draft, answered, context, history)

    def deliver(self, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory) -> Delivered:
        """The message that an envelope carries, else one generated from it; nothing for progress and other receipts.

        Envelopes that the lifecycle refused are not delivered.
        """
        if arrival.envelope.kind in DISCOVERY_KINDS:
            return NOT_DELIVERED
        if history.whole and arrival.outcome in ("ignored", "rejected"):
            return NOT_DELIVERED
        value, faults = carried_message(NAME, arrival)
        if value is not None:
            findings = self._check(value, context.now)
            faults = tuple(finding for finding in findings if finding.severity == "error")
            faults = faults or check_carried(typed(value), arrival, context, history)
            if not faults:
                waits = arrival.envelope.kind != "trace"
                return _handed(value, findings, context, history, native=False, waits=waits)
        made = native_message(arrival, context, history)
        if made is None:
            return Delivered(message=None, findings=carried_warning(faults))
        native, assumed = made
        lacks = (_as_warning(finding) for finding in self._check(native, arrival.envelope.ts))
        return _handed(native, (*carried_warning(faults), *assumed, *lacks), context, history, native=True, waits=False)

    def _check(self, value: Any, now: int) -> tuple[Finding, ...]:
        rules = check(value, now, strict=self._options.strict, manifest=self._options.manifest)
        return (*rules, *common.secrets_in(value))


def _as_warning(finding: Finding) -> Finding:
    """The finding as a warning: a native peer need not be in the manifest, and its answer has no evidence."""
    return msgspec.structs.replace(finding, severity="warning")


def _refused(value: Any, findings: tuple[Finding, ...]) -> SubmitPlan:
    identifier = value.get("id") if isinstance(value, dict) else None
    return SubmitPlan(message=value, findings=findings, foreign_id=identifier if isinstance(identifier, str) else None)


def _check_endpoints(message: AgentOsMessage, to: str | Finding, context: BridgeContext) -> tuple[Finding, ...]:
    """`from` must be the submitting peer (adapters.md, Agent map), `to` another one."""
    findings: list[Finding] = []
    sender = peer_of(message.sender, context.agents, "/from", own=True)
    if isinstance(sender, Finding):
        findings.append(sender)
    elif sender != context.us:
        findings.append(
            common.error("/from", "agent_map", f"is the agent of {sender}, but {context.us} submits the message")
        )
    if isinstance(to, Finding):
        findings.append(to)
    elif to == context.us:
        findings.append(common.error("/to", "to_self", f"is {to}, the submitting peer itself"))
    return tuple(findings)


def _check_id(value: Any, message: AgentOsMessage, history: MessageHistory) -> tuple[Finding, ...]:
    """The error when another message had this id. The same message with another `retryCount` is a retry."""
    earlier = history.find(message.id, "", "out")
    if earlier is not None and is_retry(value, earlier.message):
        return ()
    return common.conflict(history, message.id, "", value, "/id")


def _find_work(
    message: AgentOsMessage, to: str, context: BridgeContext, history: MessageHistory
) -> AnsweredWork | Finding | None:
    """The work that an answer, an error or a question is about; None for other types, and for an error without a work."""
    if message.type == "query":
        return questioned_work(message, to, context, history)
    if not message.answers and message.type != "error":
        return None
    found = answered_work(message, to, context, history)
    if found is None and message.answers:
        return common.error("/replyTo", "no_work", "the work that this answers is not known")
    return found


def _check_ttl(message: AgentOsMessage) -> tuple[Finding, ...]:
    """A warning when the ttl exceeds MAX_LIFETIME (spec section 5). Only says take their lifetime from the ttl."""
    if message.ttl is None or message.ttl <= MAX_LIFETIME:
        return ()
    return (common.warning("/ttl", "ttl_cut", f"the envelope's lifetime is limited to {MAX_LIFETIME} s"),)


def _draft(
    message: AgentOsMessage, to: str, answered: AnsweredWork | None, context: BridgeContext, history: MessageHistory
) -> Draft:
    if answered is None:
        return _say_draft(message, to, context, history)
    if message.answers and answered.work.initiator == context.us:
        return _answer_to_question(message, answered, context)
    return _trace_draft(message, answered, context)


def _say_draft(message: AgentOsMessage, to: str, context: BridgeContext, history: MessageHistory) -> Draft:
    """A say; a type that asks for work opens one. A retry is an envelope of its own."""
    retry = str(message.retry) if message.retry else None
    identifier = envelope_id(NAME, "say", context.us, to, message.reply_to, message.id, retry)
    reply_to = None
    if message.reply_to is not None:
        known = history.find(message.reply_to)
        reply_to = known.envelope_id if known is not None else legal_id(message.reply_to)
    return common.say(
        context,
        to,
        identifier,
        _thread(message),
        _say_body(message),
        work_id=work_id(identifier) if message.opens else None,
        reply_to=reply_to,
        causation_id=reply_to if message.type == "correction" else None,
        trace_id=_trace_id(message),
        expires_at=_expires_at(message, context),
    )


def _answer_to_question(message: AgentOsMessage, answered: AnsweredWork, context: BridgeContext) -> Draft:
    """The answer to a question (needs_input) on a work that we opened: a say within the work."""
    work = answered.work
    return common.say_in_work(
        context,
        work,
        envelope_id(NAME, "say", context.us, work.target, answered.envelope_id, message.id),
        _say_body(message),
        reply_to=answered.envelope_id,
        causation_id=answered.envelope_id,
        trace_id=_trace_id(message),
        expires_at=_expires_at(message, context),
    )


def _trace_draft(message: AgentOsMessage, answered: AnsweredWork, context: BridgeContext) -> Draft:
    """The trace that ends a work, or asks a question in it."""
    bodies = {"error": _failure, "query": _question}
    to = answered.work.other(context.us)
    return common.trace(
        context,
        answered.work,
        envelope_id(NAME, "trace", context.us, to, answered.envelope_id, message.id),
        bodies.get(message.type, _outcome)(message),
        reply_to=answered.envelope_id,
        causation_id=answered.envelope_id,
        trace_id=_trace_id(message),
    )


def _say_body(message: AgentOsMessage) -> dict[str, Any]:
    return {"text": say_text(message.payload.content, None), "intent": message.type}


def _outcome(message: AgentOsMessage) -> dict[str, Any]:
    content = message.payload.content
    evidence = msgspec.to_builtins(message.evidence) if message.evidence is not None else None
    body: dict[str, Any] = {"state": "completed", "result": cut_result({"content": content, "evidence": evidence})}
    if isinstance(content, str):
        body["message"] = cut_text(content)
    return body


def _question(message: AgentOsMessage) -> dict[str, Any]:
    body = {**_outcome(message), "state": "needs_input"}
    return {"message": say_text(message.payload.content, None), **body}


def _failure(message: AgentOsMessage) -> dict[str, Any]:
    """The body of a failure, with code, details and recoverable (by default from the error table) in `result.error`."""
    content = message.payload.content
    fields = content if isinstance(content, dict) else {"message": content}
    code, flag = fields.get("code"), fields.get("recoverable")
    known = code if isinstance(code, str) else None
    if not isinstance(flag, bool):
        flag = RECOVERABLE.get(known or "")
    fault = {"code": code, "details": fields.get("details"), "recoverable": flag}
    return {
        "state": "failed",
        "message": say_text(fields.get("message"), known),
        "result": cut_result({"error": fault}),
    }


def _thread(message: AgentOsMessage) -> str:
    """The thread of `conversationId`, else of `sessionId`, else of the message."""
    context = message.context
    if context.conversation_id:
        return thread_id(NAME, "conversation", context.conversation_id)
    if context.session_id:
        return thread_id(NAME, "session", context.session_id)
    return thread_id(NAME, "message", message.id)


def _trace_id(message: AgentOsMessage) -> str | None:
    request = message.context.request_id
    return legal_id(request) if request else None


def _expires_at(message: AgentOsMessage, context: BridgeContext) -> int:
    return context.now + (context.ttl if message.ttl is None else lifetime_of(message.ttl))


def _finish_plan(
    value: Any,
    message: AgentOsMessage,
    findings: tuple[Finding, ...],
    draft: Draft,
    answered: AnsweredWork | None,
    context: BridgeContext,
    history: MessageHistory,
) -> SubmitPlan:
    """The plan: a repetition, a refusal when the work has ended, or the draft with its log record."""
    plan = SubmitPlan(message=value, findings=findings, drafts=(draft,), foreign_id=message.id)
    if history.sent(draft.id) is not None:
        return msgspec.structs.replace(plan, repeats=True)
    earlier = history.find(message.id, "", "out") if answered is None else None
    if earlier is not None and _is_needless_retry(message, earlier):
        draft = msgspec.structs.replace(draft, id=earlier.envelope_id)
        return msgspec.structs.replace(plan, drafts=(draft,), repeats=True)
    work: WorkView | None = answered.work if answered is not None else None
    if work is not None and work.is_terminal:
        ended = common.closed(work, "/replyTo" if message.reply_to is not None else "")
        return _refused(value, findings + ended)
    return with_row(plan, message, context.now, history, waits=answered is None)


def _is_needless_retry(message: AgentOsMessage, earlier: BridgedMessage) -> bool:
    """Whether the work of an earlier submission is still open, or a later retry was submitted before."""
    is_open = earlier.work is not None and not earlier.work.is_terminal
    return is_open or message.retry < typed(earlier.message).retry


def _handed(
    value: Any,
    findings: tuple[Finding, ...],
    context: BridgeContext,
    history: MessageHistory,
    *,
    native: bool,
    waits: bool,
) -> Delivered:
    message = typed(value)
    delivered = Delivered(message=value, findings=findings, native=native, foreign_id=message.id)
    return with_row(delivered, message, context.now, history, waits=waits)
