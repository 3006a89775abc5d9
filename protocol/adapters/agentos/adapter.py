"""AgentOS: typed messages with evidence, priority, ttl and a message log (seed "AgentOS Runtime Message Schema", adapters.md).

A query, command, validation request or correction opens work; a response or validation result completes it; an error fails
it; events, gaps and evidence are told.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.adapters import common
from aghbus.protocol.adapters.agentos.agents import peer_of
from aghbus.protocol.adapters.agentos.log import life, record, to_plain
from aghbus.protocol.adapters.agentos.message import NAME, AgentOsMessage, typed
from aghbus.protocol.adapters.agentos.native import native_message
from aghbus.protocol.adapters.agentos.rules import RECOVERABLE, check
from aghbus.protocol.adapters.agentos.works import AnsweredWork, answered_work, disagreement
from aghbus.protocol.adapters.attachments import (
    carried_message,
    cut_result,
    cut_text,
    extension,
    not_believed,
    say_text,
)
from aghbus.protocol.adapters.derived_ids import envelope_id, legal_id, thread_id, work_id
from aghbus.protocol.adapters.model import (
    NOT_DELIVERED,
    BridgeContext,
    BridgedEnvelope,
    Delivered,
    Finding,
    MessageHistory,
    SubmitPlan,
    has_errors,
)
from aghbus.protocol.adapters.strict_json import read_json
from aghbus.protocol.envelope import CONVERSATION_KINDS, DISCOVERY_KINDS
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.limits import MAX_LIFETIME
from aghbus.protocol.send import Draft


class AgentOsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`strict` demands UUIDs of version 4. `manifest` is the set of agent ids that may take part; None lets all."""

    strict: bool = False
    manifest: frozenset[str] | None = None


class AgentOs:
    """The adapter of the format (model.Adapter). The message travels as it is: nothing in it is changed."""

    name: Final = NAME
    delivered_kinds: Final = CONVERSATION_KINDS

    def __init__(self, options: AgentOsOptions | None = None) -> None:
        self._options = options or AgentOsOptions()

    def submit(self, text: bytes, context: BridgeContext, history: MessageHistory) -> SubmitPlan:
        """A message of our agent, as one draft: a say or a trace."""
        value, findings = read_json(text)
        if findings:
            return SubmitPlan(message=None, findings=findings)
        findings = self._check(value, context.now)
        if has_errors(findings):
            return _refused(value, findings)
        message = typed(value)
        to = peer_of(message.to, context.agents, "/to")
        findings += (*_ends(message, to, context), *common.conflict(history, message.id, "", value, "/id"))
        if has_errors(findings) or isinstance(to, Finding):
            return _refused(value, findings)
        about = _about(message, to, context, history)
        if isinstance(about, Finding):
            return _refused(value, (*findings, about))
        if about is None or about.work.initiator == context.us:
            findings += _cut_life(message)
        draft = _draft(message, to, about, context, history)
        draft = msgspec.structs.replace(draft, ext=extension(NAME, value, findings))
        return _planned(value, message, findings, draft, about, context, history)

    def deliver(self, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory) -> Delivered:
        """The message that an envelope carries, else one made from it; nothing for progress and for other receipts.

        What the lifecycle refused changed nothing, and is not handed out either.
        """
        if arrival.envelope.kind in DISCOVERY_KINDS:
            return NOT_DELIVERED
        if history.whole and arrival.outcome in ("ignored", "rejected"):
            return NOT_DELIVERED
        value, faults = carried_message(NAME, arrival)
        if value is not None:
            findings = self._check(value, context.now)
            faults = tuple(finding for finding in findings if finding.severity == "error")
            faults = faults or disagreement(typed(value), arrival, context, history)
            if not faults:
                return _handed(value, findings, context, history, native=False)
        made = native_message(arrival, context, history)
        if made is None:
            return Delivered(message=None, findings=not_believed(faults))
        native, assumed = made
        lacks = (_softened(finding) for finding in self._check(native, arrival.envelope.ts))
        return _handed(native, (*not_believed(faults), *assumed, *lacks), context, history, native=True)

    def _check(self, value: Any, now: int) -> tuple[Finding, ...]:
        rules = check(value, now, strict=self._options.strict, manifest=self._options.manifest)
        return (*rules, *common.secrets_in(value))


def _softened(finding: Finding) -> Finding:
    """A native peer need not be in the manifest, and its answer has no evidence: that is told, and refuses nothing."""
    return msgspec.structs.replace(finding, severity="warning")


def _refused(value: Any, findings: tuple[Finding, ...]) -> SubmitPlan:
    identifier = value.get("id") if isinstance(value, dict) else None
    return SubmitPlan(message=value, findings=findings, foreign_id=identifier if isinstance(identifier, str) else None)


def _ends(message: AgentOsMessage, to: str | Finding, context: BridgeContext) -> tuple[Finding, ...]:
    """`from` must be the peer that hands it over (adapters.md, Agent map), `to` another one."""
    findings: list[Finding] = []
    sender = peer_of(message.sender, context.agents, "/from", own=True)
    if isinstance(sender, Finding):
        findings.append(sender)
    elif sender != context.us:
        findings.append(common.error("/from", "agent_map", f"is the agent of {sender}, but {context.us} hands it over"))
    if isinstance(to, Finding):
        findings.append(to)
    elif to == context.us:
        findings.append(common.error("/to", "to_self", f"is {to}, which hands it over"))
    return tuple(findings)


def _about(
    message: AgentOsMessage, to: str, context: BridgeContext, history: MessageHistory
) -> AnsweredWork | Finding | None:
    """The work that an answer or an error is about; None for what is said, and for an error without a work."""
    if not message.answers and message.type != "error":
        return None
    found = answered_work(message, to, context, history)
    if found is None and message.answers:
        return common.error("/replyTo", "no_work", "there is no known work that this answers")
    return found


def _cut_life(message: AgentOsMessage) -> tuple[Finding, ...]:
    """Spec section 5: nothing is fresh for longer than MAX_LIFETIME. Only says take their life from the ttl."""
    if message.ttl is None or message.ttl <= MAX_LIFETIME:
        return ()
    return (common.warning("/ttl", "ttl_cut", f"the envelope lives {MAX_LIFETIME} s, the longest life on the bus"),)


def _draft(
    message: AgentOsMessage, to: str, about: AnsweredWork | None, context: BridgeContext, history: MessageHistory
) -> Draft:
    if about is None:
        return _said(message, to, context, history)
    if message.answers and about.work.initiator == context.us:
        return _answer_to_question(message, about, context)
    return _reported(message, about, context)


def _said(message: AgentOsMessage, to: str, context: BridgeContext, history: MessageHistory) -> Draft:
    """What is told or asked; a type that asks opens work."""
    identifier = envelope_id(NAME, "say", context.us, to, message.reply_to, message.id)
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


def _answer_to_question(message: AgentOsMessage, about: AnsweredWork, context: BridgeContext) -> Draft:
    """The other side asked back (needs_input) on a work of ours: the answer is said within the work."""
    work = about.work
    return common.say(
        context,
        work.target,
        envelope_id(NAME, "say", context.us, work.target, about.envelope_id, message.id),
        work.container,
        _say_body(message),
        workspace_id=work.workspace_id,
        channel=work.channel,
        surface=work.surface,
        work_id=work.work_id,
        reply_to=about.envelope_id,
        causation_id=about.envelope_id,
        trace_id=_trace_id(message),
        expires_at=_expires_at(message, context),
    )


def _reported(message: AgentOsMessage, about: AnsweredWork, context: BridgeContext) -> Draft:
    """The end of a work."""
    to = about.work.other(context.us)
    return common.trace(
        context,
        about.work,
        envelope_id(NAME, "trace", context.us, to, about.envelope_id, message.id),
        _failure(message) if message.type == "error" else _outcome(message),
        reply_to=about.envelope_id,
        causation_id=about.envelope_id,
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


def _failure(message: AgentOsMessage) -> dict[str, Any]:
    """`result.error`: the code, its details and whether trying again helps, by the error table where the message is silent."""
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
    """`conversationId`, else `sessionId`; a message without either has a thread of its own."""
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
    return context.now + (context.ttl if message.ttl is None else life(message.ttl))


def _planned(
    value: Any,
    message: AgentOsMessage,
    findings: tuple[Finding, ...],
    draft: Draft,
    about: AnsweredWork | None,
    context: BridgeContext,
    history: MessageHistory,
) -> SubmitPlan:
    """The plan, unless the work has ended; the same message again is noticed before that."""
    plan = SubmitPlan(message=value, findings=findings, drafts=(draft,), foreign_id=message.id)
    if history.sent(draft.id) is not None:
        return msgspec.structs.replace(plan, repeats=True)
    work: WorkView | None = about.work if about is not None else None
    if work is not None and work.is_terminal:
        ended = common.closed(work, "/replyTo" if message.reply_to is not None else "")
        return _refused(value, findings + ended)
    question = history.find(message.reply_to, "", "in") if message.reply_to is not None else None
    return msgspec.structs.replace(plan, record=to_plain(record(message, "sent", context.now, question)))


def _handed(
    value: Any, findings: tuple[Finding, ...], context: BridgeContext, history: MessageHistory, *, native: bool
) -> Delivered:
    message = typed(value)
    question = history.find(message.reply_to, "", "out") if message.reply_to is not None else None
    return Delivered(
        message=value,
        findings=findings,
        native=native,
        foreign_id=message.id,
        record=to_plain(record(message, "received", context.now, question)),
    )
