"""Which work an AgentOS answer or error is about, and whether what an envelope carries fits the envelope (adapters.md, agentos)."""

import msgspec

from aghbus.protocol.adapters.agentos.agents import peer_of
from aghbus.protocol.adapters.agentos.message import Message
from aghbus.protocol.adapters.agentos.native import question_of
from aghbus.protocol.adapters.common import error, not_ours, work_in_hand
from aghbus.protocol.adapters.model import Arrival, Finding, Memory, Place
from aghbus.protocol.bodies import Trace
from aghbus.protocol.envelope import OPENING_KINDS
from aghbus.protocol.lifecycle import WorkView


class Answered(msgspec.Struct, frozen=True):
    """A work, and the id of the envelope on it that a message answers."""

    work: WorkView
    envelope_id: str


def answered_work(message: Message, to: str, place: Place, memory: Memory) -> Answered | Finding | None:
    """The work that an answer or error reports on; None when there is none, a finding when the message contradicts it.

    `replyTo` tells it, else the work that the caller named. Where lines before may be missing, the work in hand stands in.
    """
    found: Answered | Finding | None = None
    if message.reply_to is not None:
        found = _by_reply(message.reply_to, to, memory)
    if found is None:
        found = _named(message, place, memory)
    if isinstance(found, Finding):
        return found
    if found is None:
        earlier = memory.find(message.id, "", "out")
        if earlier is None or earlier.work is None:
            return None
        found = Answered(earlier.work, earlier.work.opening_id)  # handed over before: that work has ended meanwhile
    return _judged(found, to, place, memory)


def disagreement(message: Message, arrival: Arrival, place: Place, memory: Memory) -> tuple[Finding, ...]:
    """Why a carried message is not what its envelope says it is: another sender, kind or state, or another question."""
    envelope = arrival.envelope
    sender = peer_of(message.sender, place.agents, "/from")
    if sender != envelope.sender:
        return (error("/from", "carried_message", f"is not the agent of {envelope.sender}"),)
    if not _fits(message, arrival):
        return (error("/type", "carried_message", f"a {message.type} does not travel as this {envelope.kind}"),)
    asked = memory.find(message.reply_to, "", "out") if message.answers and message.reply_to is not None else None
    if asked is not None and asked.work is not None and asked.work.work_id != envelope.work_id:
        return (error("/replyTo", "carried_message", "answers a question that was asked on another work"),)
    return ()


def _by_reply(reply_to: str, to: str, memory: Memory) -> Answered | None:
    """The work of the message with this id that came from `to`; a question without an envelope of the format counts too."""
    known = memory.find(reply_to, "", "in")
    if known is not None and known.work is not None and known.sender == to:
        return Answered(known.work, known.envelope_id)
    asked = (work for work in memory.in_hand() if work.initiator == to and question_of(work, memory) == reply_to)
    return next((Answered(work, work.opening_id) for work in asked), None)


def _named(message: Message, place: Place, memory: Memory) -> Answered | Finding | None:
    if memory.whole and (place.work_id is None or (message.answers and message.reply_to is not None)):
        return None
    if place.work_id is None and message.reply_to is None and not message.answers:
        return None
    work = work_in_hand(place, memory)
    if isinstance(work, Finding):
        return work if place.work_id is not None else None
    return Answered(work, work.opening_id)


def _judged(found: Answered, to: str, place: Place, memory: Memory) -> Answered | Finding:
    work = found.work
    if not memory.whole and {work.initiator, work.target} != {to, place.us}:
        work = msgspec.structs.replace(work, initiator=to, target=place.us)  # a stand-in: the message knows its ends
        return Answered(work, found.envelope_id)
    if place.work_id not in (None, work.work_id) and memory.whole:
        return error("/replyTo", "work_mismatch", f"belongs to work {work.work_id}, not to {place.work_id}")
    if work.other(place.us) is None:
        return not_ours(work, place.us, "/replyTo")[0]
    if work.other(place.us) != to:
        return error("/to", "reply_target", f"is {to}, but the work is for {work.other(place.us)}")
    return found


def _fits(message: Message, arrival: Arrival) -> bool:
    """The bus form of the type (adapters.md, agentos). An answer rides on a say only within a work, where it answers
    needs_input; what neither asks nor answers belongs to none."""
    envelope = arrival.envelope
    if isinstance(envelope.body, Trace):
        return envelope.body.state == ("completed" if message.answers else "failed" if message.type == "error" else "")
    if envelope.kind not in OPENING_KINDS:
        return False
    if message.answers:
        work = arrival.work
        opened = work is not None and (work.opening_id, work.initiator) == (envelope.id, envelope.sender)
        return envelope.work_id is not None and not opened
    return (envelope.work_id is not None) == message.opens
