"""Finds the parent of a message in its chain, also when several peers use the same message ids."""

from typing import Any

from aghbus.protocol.formats import derived_ids as derived
from aghbus.protocol.formats.common import error
from aghbus.protocol.formats.model import BridgeContext, BridgedMessage, Finding, MessageHistory
from aghbus.protocol.formats.sentient.message import NAME, SentientMessage, parse_message, quoted
from aghbus.protocol.formats.sentient.rules import parent_id


def find_parent(
    value: Any, context: BridgeContext, history: MessageHistory
) -> tuple[BridgedMessage, SentientMessage] | Finding | None:
    """The parent message: in the session that the message names, else in another one, else the opening of an assigned work.

    The session may be wrong, since it is overwritten from the parent (seed, Metadata Continuity Checks). The error when
    messages of several peers match.
    """
    wanted = parent_id(value)
    if wanted is None:
        return None
    known = _of_several(wanted, value, context, history)
    if isinstance(known, Finding):
        return known
    session = value["metadata"].get("session_id")
    if known is None and isinstance(session, str) and session:
        known = history.find(wanted, session)
    known = known or history.find(wanted) or _opening(wanted, history)
    message = parse_message(known.message) if known is not None else None
    return (known, message) if known is not None and message is not None else None


def report_id(us: str, other: str | None, answered: str | None, message_id: str) -> str:
    """The id of the trace that reports a message to the peer `other`; `answered` is the envelope of its parent."""
    return derived.envelope_id(NAME, "trace", us, other, answered, message_id)


def _of_several(
    wanted: str, value: Any, context: BridgeContext, history: MessageHistory
) -> BridgedMessage | Finding | None:
    """The parent when several peers sent a message with this id; None when at most one did.

    In order of preference: of the caller's work, answered by this message before, of the peer of `input.source`, of the
    session, of an open work. The error when open works of several peers remain.
    """
    found = history.arrived(wanted)
    if len({known.sender for known in found}) <= 1:
        return None
    source, session, message_id = (
        _source_peer(value, context),
        value["metadata"].get("session_id"),
        value.get("message_id"),
    )
    named = [known for known in found if known.work is not None and known.work.work_id == context.work_id]
    found = named or found
    found = [
        known for known in found if isinstance(message_id, str) and _answered(known, message_id, context, history)
    ] or found
    found = [known for known in found if known.sender == source] or found
    found = [known for known in found if _session(known) == session] or found
    waiting = [known for known in found if _is_open(known, context)]
    if len({known.sender for known in waiting}) > 1:
        senders = ", ".join(sorted({known.sender for known in waiting}))
        why = f"{quoted(wanted)} was sent by several peers ({senders}): name the work with --work, or with --meta and work_id"
        return error("/metadata/parent_message_id", "parent_ambiguous", why)
    return (waiting or found)[0]


def _source_peer(value: Any, context: BridgeContext) -> str | None:
    """The peer of the agent in a message's `input.source`."""
    given = value.get("input")
    source = given.get("source") if isinstance(given, dict) else None
    peer = context.agents.peer_of(source, "/input/source") if isinstance(source, str) else None
    return peer if isinstance(peer, str) else None


def _answered(known: BridgedMessage, message_id: str, context: BridgeContext, history: MessageHistory) -> bool:
    """Whether the message with this id was submitted before as the successor of `known`."""
    return history.sent(report_id(context.us, known.sender, known.envelope_id, message_id)) is not None


def _session(known: BridgedMessage) -> str | None:
    message = parse_message(known.message)
    return None if message is None else message.metadata.session_id


def _is_open(known: BridgedMessage, context: BridgeContext) -> bool:
    return known.work is not None and known.work.target == context.us and not known.work.is_terminal


def _opening(wanted: str, history: MessageHistory) -> BridgedMessage | None:
    for work in history.assigned_works():
        known = history.opening(work)
        if known is not None and isinstance(known.message, dict) and known.message.get("message_id") == wanted:
            return known
    return None
