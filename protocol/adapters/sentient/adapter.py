"""The Sentient platform's chain messages on the bus (adapters.md, sentient; seed 000).

A message closes one link of a chain and opens the next: a trace for the work that its agent had in hand, a say that
opens work for the next agent. The duties of the platform's orchestration layer are done on the way.
"""

from typing import Any, Final

import msgspec

from aghbus.protocol.adapters import attachments as carried
from aghbus.protocol.adapters import common
from aghbus.protocol.adapters import derived_ids as derived
from aghbus.protocol.adapters.common import error
from aghbus.protocol.adapters.model import (
    NOT_DELIVERED,
    BridgeContext,
    BridgedEnvelope,
    BridgedMessage,
    Delivered,
    Finding,
    MessageHistory,
    SubmitPlan,
)
from aghbus.protocol.adapters.sentient.bodies import report_body, say_body, state_of, working_body
from aghbus.protocol.adapters.sentient.log import record_of
from aghbus.protocol.adapters.sentient.message import NAME, USER, SentientMessage, check_shape, parse_message, quoted
from aghbus.protocol.adapters.sentient.native import from_envelope
from aghbus.protocol.adapters.sentient.parent import find_parent, report_id
from aghbus.protocol.adapters.sentient.refs import check_refs, compare_refs, reused_refs
from aghbus.protocol.adapters.sentient.rules import check_chain, check_parent, inherit, quality
from aghbus.protocol.adapters.strict_json import read_json
from aghbus.protocol.adapters.timestamps import read_timestamp, skew
from aghbus.protocol.bodies import Trace
from aghbus.protocol.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.send import Draft

_Findings = tuple[Finding, ...]


class SentientOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`user`: the peer that stands for the user, who gets the report of a chain that nobody on the bus asked for.

    `memory_agent`: the peer of the memory agent, whose own last message calls nobody.
    """

    user: str | None = None
    memory_agent: str | None = None


class _Route(msgspec.Struct, frozen=True):
    """Where a message goes: `next_peer` gets a say that opens work, `told` one without; `hand` is the work in hand.

    None of them: nobody is called.
    """

    hand: WorkView | None
    next_peer: str | None = None
    told: str | None = None


class Sentient:
    """The adapter of the format `sentient`. Agents of this format are handed says and capabilities; traces update works."""

    delivered_kinds: Final = OPENING_KINDS

    def __init__(self, options: SentientOptions | None = None) -> None:
        self.options = options or SentientOptions()

    @property
    def name(self) -> str:
        """`sentient`."""
        return NAME

    def submit(self, text: bytes, context: BridgeContext, history: MessageHistory) -> SubmitPlan:
        """A message of our agent: the report on its work in hand, and work for the next agent."""
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
        findings = (*inherited, *_judge(value, message, context.now), *_judge_in_chain(message, parent, history))
        findings += _judge_own(value, message, context, history)
        way, lost = self._way(message, parent, context, history)
        findings += lost
        plan = SubmitPlan(
            message=value, findings=findings, foreign_id=message.message_id, scope=session, record=record_of(message)
        )
        if way is None or plan.refused:
            return plan
        return _routed(plan, message, way, parent[0] if parent is not None else None, context, history)

    def deliver(self, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory) -> Delivered:
        """The message that an envelope carries, or one made from what the envelope says."""
        envelope = arrival.envelope
        value, faults = (None, ()) if envelope.kind == "receipt" else carried.carried_message(NAME, arrival)
        if value is not None:
            faults, warnings = _carried_faults(value, envelope, context)
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
            findings=carried.not_believed(faults) + findings,
            native=True,
            foreign_id=native["message_id"],
            scope=native["metadata"]["session_id"],
        )

    def _way(
        self,
        message: SentientMessage,
        parent: tuple[BridgedMessage, SentientMessage] | None,
        context: BridgeContext,
        history: MessageHistory,
    ) -> tuple[_Route | None, _Findings]:
        hand = _work_in_hand(message, parent[0] if parent is not None else None, context, history)
        if isinstance(hand, Finding):
            return None, (hand,)
        foreign = common.not_ours(hand, context.us) if hand is not None else ()
        following = message.next_agent.name
        if message.status.code == "pending":
            if hand is None:
                return None, (error("/status/code", "no_work", "there is no work in hand that could be pending"),)
            return _Route(hand), foreign
        if following in (None, USER):
            return self._report(message, hand, context, foreign)
        peer = context.agents.peer_of(following or "", "/next_agent/name")
        if isinstance(peer, Finding):
            return None, (*foreign, peer)
        return _Route(hand, next_peer=peer), (*foreign, *_to_ourselves(peer, context))

    def _report(
        self, message: SentientMessage, hand: WorkView | None, context: BridgeContext, foreign: _Findings
    ) -> tuple[_Route | None, _Findings]:
        """The end of a chain: told to whoever asked over the bus, else to the user's peer."""
        if hand is not None:
            return _Route(hand), foreign
        if message.next_agent.name is None and context.us == self.options.memory_agent:
            return _Route(None), ()  # adapters.md, Audit log: a chain ended by the memory agent calls nobody
        user = self.options.user or context.agents.names.get(USER) or context.agents.other
        if user is None:
            why = "nobody on the bus asked for this, and no peer stands for the user: set `sentient.user`"
            return None, (error("/next_agent/name", "no_user_peer", why),)
        return _Route(None, told=user), _to_ourselves(user, context)


def _judge(value: Any, message: SentientMessage, now: int) -> _Findings:
    """What one message says about itself; `now` is the moment of hand-over in Unix seconds."""
    stamp = read_timestamp(message.timestamp.executed_at)
    late = skew(stamp, now, "/timestamp/executed_at") if stamp is not None else ()
    refs = check_refs(message.resources)
    return (*check_chain(message), *refs, *quality(message), *late, *common.secrets_in(value))


def _judge_in_chain(
    message: SentientMessage, parent: tuple[BridgedMessage, SentientMessage] | None, history: MessageHistory
) -> _Findings:
    before = parent[1] if parent is not None else None
    known = history.last(message.metadata.session_id)
    earlier = parse_message(known.message) if known is not None else None
    sequence = message.metadata.sequence_number
    if sequence == 1:
        return reused_refs(earlier.resources, message.resources) if earlier is not None else ()
    changed = compare_refs(before.resources, message.resources) if before is not None else ()
    # Where messages may be missing, an earlier part of the chain that is at hand must hold the parent.
    at_hand = earlier is not None and earlier.metadata.sequence_number < sequence
    return (*check_parent(message, before, history.whole or at_hand), *changed)


def _judge_own(value: Any, message: SentientMessage, context: BridgeContext, history: MessageHistory) -> _Findings:
    """The agent belongs to the peer that hands the message over, and its id is new or stands for the same message."""
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


def _to_ourselves(peer: str, context: BridgeContext) -> _Findings:
    if peer != context.us:
        return ()
    why = f"is behind the same peer, {peer}: a work needs another one"
    return (error("/next_agent/name", "same_peer", why),)


def _work_in_hand(
    message: SentientMessage, parent: BridgedMessage | None, context: BridgeContext, history: MessageHistory
) -> WorkView | Finding | None:
    """The work that the message reports on: the one named by the caller, else the parent's, else the native request's."""
    if context.work_id is not None:
        return common.work_in_hand(context, history)
    if parent is not None:
        return parent.work if parent.work is not None and parent.work.target == context.us else None
    if message.metadata.parent_message_id is not None:
        return None
    return _requested(message, context, history)


def _requested(message: SentientMessage, context: BridgeContext, history: MessageHistory) -> WorkView | None:
    """The work of a native request that the first message of a chain answers: the one whose session and request it took
    over, else, since a first agent may mint its own (seed, Example 1), the only one that our agent was handed and has not
    passed on."""
    session, request = message.metadata.session_id, message.metadata.request_id
    before = history.find(message.message_id, session, "out")
    if before is not None and before.work is not None and before.work.target == context.us:
        return before.work  # handed over before: the work may have ended with it
    for work in history.assigned_works():
        if work.container != session:
            continue
        known = history.find(work.opening_id, session, "in")
        asked = parse_message(known.message) if known is not None else None
        if request == (asked.metadata.request_id if asked is not None else work.work_id):
            return work
    waiting = [
        work for work in history.assigned_works() if history.find(work.opening_id, work.container, "in") is not None
    ]
    return waiting[0] if len(waiting) == 1 else None


def _routed(
    plan: SubmitPlan,
    message: SentientMessage,
    way: _Route,
    parent: BridgedMessage | None,
    context: BridgeContext,
    history: MessageHistory,
) -> SubmitPlan:
    """The plan with its drafts; only the envelope that goes on in the chain carries the message."""
    ext = carried.extension(NAME, plan.message, plan.findings)
    drafts: tuple[Draft, ...] = ()
    follows = None
    to = way.next_peer or way.told
    if to is not None:
        said = _say(message, way, to, parent, context, ext)
        drafts = (said,)
        if way.hand is not None and said.work_id is not None:
            follows = (way.hand.work_id, said.work_id)
    if way.hand is not None:
        body = working_body(message) if to is not None else report_body(message)
        traced = _trace(message, way.hand, body, parent, context)
        drafts = (traced, *drafts) if drafts else (msgspec.structs.replace(traced, ext=ext),)
    repeats = bool(drafts) and history.sent(drafts[-1].id) is not None
    if way.hand is not None and not repeats:
        ended = common.closed(way.hand)
        if ended:
            return msgspec.structs.replace(plan, findings=plan.findings + ended)
    return msgspec.structs.replace(plan, drafts=drafts, follows=follows, repeats=repeats)


def _say(
    message: SentientMessage,
    way: _Route,
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
        work_id=derived.work_id(said) if way.next_peer is not None else None,
        trace_id=derived.legal_id(message.metadata.request_id),
        causation_id=answered or (way.hand.opening_id if way.hand is not None else None),
        ext=ext,
    )


def _trace(
    message: SentientMessage,
    hand: WorkView,
    body: dict[str, Any],
    parent: BridgedMessage | None,
    context: BridgeContext,
) -> Draft:
    answered = parent.envelope_id if parent is not None else _parent_as_id(message) or hand.opening_id
    traced = report_id(context.us, hand.other(context.us), answered, message.message_id)
    trace_id = derived.legal_id(message.metadata.request_id)
    return common.trace(context, hand, traced, body, trace_id=trace_id, reply_to=hand.opening_id, causation_id=answered)


def _parent_as_id(message: SentientMessage) -> str | None:
    """The parent's own id, where the envelope that carried it is not known (offline)."""
    named = message.metadata.parent_message_id
    return derived.legal_id(named) if named else None


def _carried_faults(value: Any, envelope: Envelope, context: BridgeContext) -> tuple[_Findings, _Findings]:
    """Why a carried message cannot be taken, and its warnings: judged by itself, and against its envelope."""
    shape = check_shape(value)
    if shape:
        return shape, ()
    message = msgspec.convert(value, SentientMessage)
    found = _judge(value, message, envelope.ts)
    faults = tuple(finding for finding in found if finding.severity == "error")
    peer = context.agents.peer_of(message.agent.name, "/agent/name")
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
