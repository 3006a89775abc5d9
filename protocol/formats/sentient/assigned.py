"""Finds the assigned work that a message is about."""

from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.formats import common
from aghbus.protocol.formats.common import error
from aghbus.protocol.formats.model import BridgeContext, BridgedMessage, Finding, MessageHistory
from aghbus.protocol.formats.sentient.message import SentientMessage, parse_message


def find_assigned(
    message: SentientMessage, parent: BridgedMessage | None, context: BridgeContext, history: MessageHistory
) -> WorkView | Finding | None:
    """The work that the message reports on: the caller's, else the parent's, else that of a native request."""
    if context.work_id is not None:
        return common.assigned_work(context, history)
    if parent is not None:
        return parent.work if parent.work is not None and parent.work.target == context.us else None
    if message.metadata.parent_message_id is not None:
        return None
    return _answered_request(message, context, history)


def _answered_request(message: SentientMessage, context: BridgeContext, history: MessageHistory) -> WorkView | None:
    """The work of a native request that the first message of a chain answers: the one with its session and request, else that
    of an earlier message with both, else the only assigned work that was delivered.

    A first agent may create its own session and request (seed, Example 1). An earlier message with both is another branch, or
    asked the question that was answered since.
    """
    session, request = message.metadata.session_id, message.metadata.request_id
    before = history.find(message.message_id, session, "out")
    if before is not None and before.work is not None and before.work.target == context.us:
        return before.work  # submitted before: the work may have ended
    works = history.assigned_works()
    requests = (work for work in works if _has_ids(work, session, request, history))
    reports = (known.work for known in history.reports(session) if _is_report(known, request, context))
    named = next(requests, None) or next(reports, None)
    if named is not None:
        return named
    waiting = [work for work in works if history.find(work.opening_id, work.container, "in") is not None]
    return waiting[0] if len(waiting) == 1 else None


def _has_ids(work: WorkView, session: str, request: str, history: MessageHistory) -> bool:
    """Whether the request that opened a work has this session and request."""
    known = history.find(work.opening_id, session, "in")
    if known is None and work.container != session:
        return False
    asked = parse_message(known.message) if known is not None else None
    return request == (asked.metadata.request_id if asked is not None else work.work_id)


def _is_report(known: BridgedMessage, request: str, context: BridgeContext) -> bool:
    """Whether a message of our agent is about a work assigned to it, and has this request."""
    earlier = parse_message(known.message)
    assigned = known.work is not None and known.work.target == context.us
    return assigned and earlier is not None and earlier.metadata.request_id == request


def check_open(work: WorkView, history: MessageHistory, *, ends: bool) -> tuple[Finding, ...]:
    """The error when a reported work has ended, or when a message `ends` it while branches of it are open."""
    if work.is_terminal:
        return common.closed(work)
    if not ends or any(work.work_id == one.work_id for one in history.assigned_works()):
        return ()
    why = f"work {work.work_id} ends when the next agents have ended theirs; fail or cancel it to end it earlier"
    return (error("/next_agent/name", "branches_open", why),)
