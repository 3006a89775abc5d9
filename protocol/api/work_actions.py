"""The message that an action on a work sends: its kind and its body."""

from typing import Any, Final

from aghbus.protocol.agh.bodies import receipt_body
from aghbus.protocol.agh.errors import REASON_CODES
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.api.works import WorkActionRequest, WorkVerb
from aghbus.protocol.base.errors import InvalidRequest, Refused

_TRACE_STATES: Final = {
    "update": "working",
    "need-input": "needs_input",
    "complete": "completed",
    "fail": "failed",
    "cancel": "canceled",
}


def message_of(work: WorkView, own_id: str, verb: WorkVerb, ask: WorkActionRequest) -> tuple[str, dict[str, Any]]:
    """Kind and body of what the participant `own_id` sends by an action. Raises InvalidRequest, and Refused for what only the
    target may do."""
    ours = work.target == own_id
    if verb == "say":
        if not ask.message:
            raise InvalidRequest("message: is required")
        return "say", {"text": ask.message}
    if verb in ("accept", "reject") or (verb == "cancel" and not ours):
        return "receipt", _receipt(work, verb, ask)
    if not ours:
        raise Refused(
            f"only the target of work {work.work_id}, {work.target}, reports on it",
            code="actor_not_allowed",
            hint="the initiator can `say` something in it, or `cancel` it",
        )
    body: dict[str, Any] = {"state": _TRACE_STATES[verb]}
    if ask.message is not None:
        body["message"] = ask.message
    if ask.result is not None:
        body["result"] = ask.result
    if ask.artifacts:
        body["artifact_refs"] = ask.artifacts
    return "trace", body


def _receipt(work: WorkView, verb: WorkVerb, ask: WorkActionRequest) -> dict[str, Any]:
    if ask.result is not None or ask.artifacts:
        raise InvalidRequest(f"result: a {verb} is a receipt and carries no result or artifacts")
    status = {"accept": "accepted", "reject": "rejected", "cancel": "canceled"}[verb]
    reason = ask.reason or ("busy" if verb == "reject" else None)
    if reason is not None and (verb == "accept" or reason not in REASON_CODES):
        raise InvalidRequest(f"reason: must be one of {', '.join(sorted(REASON_CODES))}, and none on accept")
    return receipt_body(work.opening_id, status, reason, ask.message)
