"""Chain messages of the Sentient platform (adapters.md, sentient; seed 000).

A message ends one link of a chain and opens the next: it becomes a trace for the assigned work of its agent, and a say that
opens a work for the next agent. The adapter also does the checks of the platform's orchestration layer.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.agh.bodies import Trace
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats import attachments as carried
from aghbus.protocol.formats import common
from aghbus.protocol.formats import derived_ids as derived
from aghbus.protocol.formats.common import error
from aghbus.protocol.formats.model import (
    NOT_DELIVERED,
    BridgeContext,
    BridgedEnvelope,
    BridgedMessage,
    Delivered,
    Finding,
    MessageHistory,
    SubmitPlan,
)
from aghbus.protocol.formats.sentient.assigned import check_open, find_assigned
from aghbus.protocol.formats.sentient.bodies import report_body, say_body, state_of, working_body
from aghbus.protocol.formats.sentient.join import ORCHESTRATION
from aghbus.protocol.formats.sentient.log import record_of
from aghbus.protocol.formats.sentient.message import NAME, USER, SentientMessage, check_shape, parse_message, quoted
from aghbus.protocol.formats.sentient.native import from_envelope
from aghbus.protocol.formats.sentient.parent import find_parent, report_id
from aghbus.protocol.formats.sentient.refs import check_refs, compare_refs, late_refs, reused_refs
from aghbus.protocol.formats.sentient.rules import (
    check_chain,
    check_parent,
    inherit,
    is_objectives,
    quality_warnings,
)
from aghbus.protocol.formats.strict_json import read_json
from aghbus.protocol.formats.timestamps import read_timestamp, skew

_Findings = tuple[Finding, ...]


class SentientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`user`: the peer of the user, who gets the report of a chain that no other peer requested.

    `memory_agent`: the peer of the memory agent, whose own last message has no receiver.
    """

    user: str | None = None
    memory_agent: str | None = None


class _Route(msgspec.Struct, frozen=True):
    """The receivers of a message: `next_peer` gets a say that opens a work, `notified` one without a work.

    `assigned` is the assigned work, which gets a trace. None of the three: nothing is sent.
    """

    assigned: WorkView | None
    next_peer: str | None = None
    notified: str | None = None


class Sentient:
    """The adapter (model.Adapter). Only says and capabilities are delivered; traces update works."""

    name: Final = NAME
    delivered_kinds: Final = OPENING_KINDS

    def __init__(self, options: SentientOptions | None = None) -> None:
        self.options = options or SentientOptions()

    def submit(self, text: bytes, context: BridgeContext, history: MessageHistory) -> SubmitPlan:
        """The plan for a message of our agent: a report on its assigned work, and a work for the next agent."""
        value, faults = read_json(text)
        if faults:
            return SubmitPlan(message=None, findings=faults)
        parent = find_parent(value, context, history)
        if isinstance(parent, Finding):
            return SubmitPlan(message=value, findings=(parent,))
        value, inherited = inherit(value, parent[1]) if parent is not None else (value, ())
        shape = check_shape(value)
        if shape:
            return SubmitPlan(message=value, findings=(*inherited, *shape))
        message = msgspec.convert(value, SentientMessage)
        session = message.metadata.session_id
        findings = (
            *inherited,
            *_check_message(value, message, context.now),
            *_check_chain_position(message, parent, history),
        )
        findings += _check_sender(value, message, context, history)
        route, lost = self._find_route(message, parent, context, history)
        findings += lost
        plan = SubmitPlan(
            message=value, findings=findings, foreign_id=message.message_id, scope=session, record=record_of(message)
        )
        if route is None or plan.refused:
            return plan
        return _with_drafts(plan, message, route, parent[0] if parent is not None else None, context, history)

    def deliver(self, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory) -> Delivered:
        """The message that an envelope carries, or one generated from it."""
        envelope = arrival.envelope
        value, faults = (None, ()) if envelope.kind == "receipt" else carried.carried_message(NAME, arrival)
        if value is not None:
            faults, warnings = _check_carried(value, envelope, context)
            if not faults:
                metadata = value["metadata"]
                return Delivered(
                    message=value, findings=warnings, foreign_id=value["message_id"], scope=metadata["session_id"]
                )
        native, findings = from_envelope(arrival, context, history)
        if native is None:
            return NOT_DELIVERED
        return Delivered(
            message=native,
            findings=carried.carried_warning(faults) + findings,
            native=True,
            foreign_id=native["message_id"],
            scope=native["metadata"]["session_id"],
        )

    def _find_route(
        self,
        message: SentientMessage,
        parent: tuple[BridgedMessage, SentientMessage] | None,
        context: BridgeContext,
        history: MessageHistory,
    ) -> tuple[_Route | None, _Findings]:
        assigned = find_assigned(message, parent[0] if parent is not None else None, context, history)
        if isinstance(assigned, Finding):
            return None, (assigned,)
        foreign = common.not_ours(assigned, context.us) if assigned is not None else ()
        following = message.next_agent.name
        if message.status.code == "pending":
            if assigned is None:
                return None, (error("/status/code", "no_work", "there is no assigned work that could be pending"),)
            return _Route(assigned), foreign
        if following in (None, USER):
            return self._report(message, assigned, context, foreign)
        peer = context.agents.peer_of(following or "", "/next_agent/name")
        if isinstance(peer, Finding):
            return None, (*foreign, peer)
        return _Route(assigned, next_peer=peer), (*foreign, *_check_other_peer(peer, context))

    def _report(
        self, message: SentientMessage, assigned: WorkView | None, context: BridgeContext, foreign: _Findings
    ) -> tuple[_Route | None, _Findings]:
        """The end of a chain: reported to the peer that requested it, else to the user's peer."""
        if assigned is not None:
            return _Route(assigned), foreign
        if message.next_agent.name is None and context.us == self.options.memory_agent:
            return _Route(None), ()  # adapters.md, Audit log: a chain ended by the memory agent has no receiver
        user = self.options.user or context.agents.names.get(USER) or context.agents.other
        if user is None:
            why = "no peer requested this, and there is no peer for the user: set `sentient.user`"
            return None, (error("/next_agent/name", "no_user_peer", why),)
        return _Route(None, notified=user), _check_other_peer(user, context)


def _check_message(value: Any, message: SentientMessage, now: int) -> _Findings:
    """The findings of a message by itself; `now` is the time of submission in Unix seconds."""
    stamp = read_timestamp(message.timestamp.executed_at)
    late = skew(stamp, now, "/timestamp/executed_at") if stamp is not None else ()
    refs = check_refs(message.resources)
    return (*check_chain(message), *refs, *quality_warnings(message), *late, *common.secrets_in(value))


def _check_chain_position(
    message: SentientMessage, parent: tuple[BridgedMessage, SentientMessage] | None, history: MessageHistory
) -> _Findings:
    before = parent[1] if parent is not None else None
    known = history.last(message.metadata.session_id)
    earlier = parse_message(known.message) if known is not None else None
    sequence = message.metadata.sequence_number
    if sequence == 1:
        return reused_refs(earlier.resources, message.resources) if earlier is not None else ()
    changed = compare_refs(before.resources, message.resources) if before is not None else ()
    if (
        before is not None and before.agent.type is not None and not is_objectives(message)
    ):  # not generated: those have no type
        changed = changed or late_refs(before.resources, message.resources)
    # Where messages may be missing, the parent is required only if an earlier message of the chain is known.
    at_hand = earlier is not None and earlier.metadata.sequence_number < sequence
    return (*check_parent(message, before, history.whole or at_hand), *changed)


def _check_sender(value: Any, message: SentientMessage, context: BridgeContext, history: MessageHistory) -> _Findings:
    """The agent must belong to the submitting peer, and the message id must be new or repeat the same message."""
    path = "/agent/name"
    findings: _Findings = ()
    peer = context.agents.peer_of(message.agent.name, path, own=True)
    if isinstance(peer, Finding):
        findings = (peer,)
    elif peer != context.us:
        why = f"the agent {quoted(message.agent.name)} belongs to {peer}, not to {context.us}"
        findings = (error(path, "agent_map", why),)
    scope = message.metadata.session_id
    within = common.conflict(history, message.message_id, scope, value, "/message_id")
    return findings + (within or common.conflict(history, message.message_id, "", value, "/message_id"))


def _check_other_peer(peer: str, context: BridgeContext) -> _Findings:
    if peer != context.us:
        return ()
    why = f"belongs to the same peer, {peer}: a work needs another one"
    return (error("/next_agent/name", "same_peer", why),)


def _with_drafts(
    plan: SubmitPlan,
    message: SentientMessage,
    route: _Route,
    parent: BridgedMessage | None,
    context: BridgeContext,
    history: MessageHistory,
) -> SubmitPlan:
    """The plan with its drafts. Only one envelope carries the message: the say to the next agent, else the report."""
    ext = carried.extension(NAME, plan.message, plan.findings)
    drafts: tuple[Draft, ...] = ()
    to = route.next_peer or route.notified
    if to is not None:
        drafts = (_say(message, route, to, parent, context, ext),)
    if route.assigned is not None:
        body = working_body(message) if to is not None else report_body(message)
        traced = _trace(message, route.assigned, body, parent, context)
        drafts = (traced, *drafts) if drafts else (msgspec.structs.replace(traced, ext=ext),)
    repeats = bool(drafts) and history.sent(drafts[0].id) is not None
    if route.assigned is not None and not repeats:
        lost = check_open(route.assigned, history, ends=to is None and message.status.code != "pending")
        if lost:
            return msgspec.structs.replace(plan, findings=plan.findings + lost)
    return msgspec.structs.replace(plan, drafts=drafts, repeats=repeats)


def _say(
    message: SentientMessage,
    route: _Route,
    to: str,
    parent: BridgedMessage | None,
    context: BridgeContext,
    ext: dict[str, Any],
) -> Draft:
    answered = parent.envelope_id if parent is not None else _parent_as_id(message)
    said = derived.envelope_id(NAME, "say", context.us, to, answered, message.message_id)
    return common.say(
        context,
        to,
        said,
        derived.thread_id(NAME, message.metadata.session_id),
        say_body(message),
        work_id=derived.work_id(said) if route.next_peer is not None else None,
        trace_id=derived.legal_id(message.metadata.request_id),
        causation_id=answered or (route.assigned.opening_id if route.assigned is not None else None),
        ext=ext,
    )


def _trace(
    message: SentientMessage,
    assigned: WorkView,
    body: dict[str, Any],
    parent: BridgedMessage | None,
    context: BridgeContext,
) -> Draft:
    answered = parent.envelope_id if parent is not None else _parent_as_id(message) or assigned.opening_id
    traced = report_id(context.us, assigned.other(context.us), answered, message.message_id)
    trace_id = derived.legal_id(message.metadata.request_id)
    return common.trace(
        context, assigned, traced, body, trace_id=trace_id, reply_to=assigned.opening_id, causation_id=answered
    )


def _parent_as_id(message: SentientMessage) -> str | None:
    """The parent's message id, where its envelope is unknown (offline)."""
    named = message.metadata.parent_message_id
    return derived.legal_id(named) if named else None


def _check_carried(value: Any, envelope: Envelope, context: BridgeContext) -> tuple[_Findings, _Findings]:
    """The errors and the warnings of a carried message, by itself and against its envelope."""
    shape = check_shape(value)
    if shape:
        return shape, ()
    message = msgspec.convert(value, SentientMessage)
    found = _check_message(value, message, envelope.ts)
    faults = tuple(finding for finding in found if finding.severity == "error")
    peer = context.agents.peer_of(message.agent.name, "/agent/name")
    if message.agent.name == ORCHESTRATION:
        peer = envelope.sender  # made by the sender's daemon, for no agent
    if isinstance(peer, Finding):
        faults += (peer,)
    elif peer != envelope.sender:
        faults += (error("/agent/name", "agent_map", f"the agent belongs to {peer}, not to {envelope.sender}"),)
    if not _agrees(message, envelope):
        faults += (error("/status/code", "disagrees", f"does not fit the {envelope.kind} that carries the message"),)
    return faults, found


def _agrees(message: SentientMessage, envelope: Envelope) -> bool:
    ends = message.next_agent.name in (None, USER)
    if isinstance(envelope.body, Trace):
        return (ends or message.status.code == "pending") and envelope.body.state == state_of(message)
    opens = envelope.work_id is not None
    return envelope.kind == "say" and message.status.code != "pending" and ends != opens
