"""Finds the work of an AgentOS answer or error, and checks a carried message against its envelope (adapters.md, agentos)."""

from typing import Final

import msgspec

from aghbus.protocol.agh.bodies import Trace
from aghbus.protocol.agh.envelope import OPENING_KINDS
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.formats.agentos.agents import peer_of
from aghbus.protocol.formats.agentos.message import AgentOsMessage
from aghbus.protocol.formats.agentos.native import question_of
from aghbus.protocol.formats.common import assigned_work, error, not_ours
from aghbus.protocol.formats.model import BridgeContext, BridgedEnvelope, Finding, MessageHistory

_TRACE_STATES: Final = {"error": "failed", "query": "needs_input"}
"""The state of the trace that carries a message of this type."""


class AnsweredWork(msgspec.Struct, frozen=True):
    """A work, and the id of its envelope that a message answers."""

    work: WorkView
    envelope_id: str


def answered_work(
    message: AgentOsMessage, to: str, context: BridgeContext, history: MessageHistory
) -> AnsweredWork | Finding | None:
    """The work of an answer or error; None when there is none, a finding when the message contradicts it.

    `replyTo` identifies it, else the caller's work id, else it is the only open one of the receiver. Where earlier messages may be
    missing, the assigned work is used.
    """
    found: AnsweredWork | Finding | None = None
    if message.reply_to is not None:
        found = _by_reply(message.reply_to, to, history)
    if found is None:
        found = _named_work(message, to, context, history)
    if isinstance(found, Finding):
        return found
    if found is None:
        earlier = history.find(message.id, "", "out")
        if earlier is None or earlier.work is None:
            return None
        found = AnsweredWork(earlier.work, earlier.work.opening_id)  # submitted before; that work has ended
    return _check_work(found, to, context, history)


def questioned_work(
    message: AgentOsMessage, to: str, context: BridgeContext, history: MessageHistory
) -> AnsweredWork | None:
    """The assigned work in which a query asks its initiator: `replyTo` names a message of the initiator in it.

    None for other queries: they open a work of their own. A work that has ended counts only for the same query again.
    """
    found = _by_reply(message.reply_to, to, history) if message.reply_to is not None else None
    if found is None or found.work.target != context.us:
        return None
    if not found.work.is_terminal:
        return found
    earlier = history.find(message.id, "", "out")
    same = earlier is not None and earlier.work is not None and earlier.work.work_id == found.work.work_id
    return found if same else None


def check_carried(
    message: AgentOsMessage, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory
) -> tuple[Finding, ...]:
    """The error when a carried message contradicts its envelope: sender, kind, state or question."""
    envelope = arrival.envelope
    sender = peer_of(message.sender, context.agents, "/from")
    if sender != envelope.sender:
        return (error("/from", "carried_message", f"is not the agent of {envelope.sender}"),)
    if not _kind_fits(message, arrival):
        return (error("/type", "carried_message", f"a {message.type} does not belong in this {envelope.kind}"),)
    asked = history.find(message.reply_to, "", "out") if message.answers and message.reply_to is not None else None
    if asked is not None and asked.work is not None and asked.work.work_id != envelope.work_id:
        return (error("/replyTo", "carried_message", "answers a question of another work"),)
    return ()


def _by_reply(reply_to: str, to: str, history: MessageHistory) -> AnsweredWork | None:
    """The work of the message with this id from `to`, or of a native opening whose generated message has this id."""
    known = history.find(reply_to, "", "in")
    if known is not None and known.work is not None and known.sender == to:
        return AnsweredWork(known.work, known.envelope_id)
    asked = (
        work for work in history.assigned_works() if work.initiator == to and question_of(work, history) == reply_to
    )
    return next((AnsweredWork(work, work.opening_id) for work in asked), None)


def _only_open(message: AgentOsMessage, to: str, history: MessageHistory) -> AnsweredWork | None:
    """The only assigned work of `to`: a response without `replyTo` answers it, unless it was submitted before."""
    if history.find(message.id, "", "out") is not None:
        return None
    open_works = [work for work in history.assigned_works() if work.initiator == to]
    return AnsweredWork(open_works[0], open_works[0].opening_id) if len(open_works) == 1 else None


def _named_work(
    message: AgentOsMessage, to: str, context: BridgeContext, history: MessageHistory
) -> AnsweredWork | Finding | None:
    if history.whole and context.work_id is None:
        return _only_open(message, to, history) if message.answers and message.reply_to is None else None
    if history.whole and message.answers and message.reply_to is not None:
        return None
    if context.work_id is None and message.reply_to is None and not message.answers:
        return None
    work = assigned_work(context, history)
    if isinstance(work, Finding):
        return work if context.work_id is not None else None
    return AnsweredWork(work, work.opening_id)


def _check_work(
    found: AnsweredWork, to: str, context: BridgeContext, history: MessageHistory
) -> AnsweredWork | Finding:
    work = found.work
    if not history.whole and {work.initiator, work.target} != {to, context.us}:
        work = msgspec.structs.replace(work, initiator=to, target=context.us)  # the message names its own endpoints
        return AnsweredWork(work, found.envelope_id)
    if context.work_id not in (None, work.work_id) and history.whole:
        return error("/replyTo", "work_mismatch", f"belongs to work {work.work_id}, not to {context.work_id}")
    if work.other(context.us) is None:
        return not_ours(work, context.us, "/replyTo")[0]
    if work.other(context.us) != to:
        return error("/to", "reply_target", f"is {to}, but the work is for {work.other(context.us)}")
    return found


def _kind_fits(message: AgentOsMessage, arrival: BridgedEnvelope) -> bool:
    """Whether the envelope's kind and state fit the type (adapters.md, agentos). A say carries an answer only within a work
    (needs_input); a type that neither opens nor answers has no work."""
    envelope = arrival.envelope
    if isinstance(envelope.body, Trace):
        return envelope.body.state == ("completed" if message.answers else _TRACE_STATES.get(message.type, ""))
    if envelope.kind not in OPENING_KINDS:
        return False
    if message.answers:
        work = arrival.work
        opened = work is not None and (work.opening_id, work.initiator) == (envelope.id, envelope.sender)
        return envelope.work_id is not None and not opened
    return (envelope.work_id is not None) == message.opens
