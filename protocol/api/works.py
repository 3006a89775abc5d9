"""The local API: works, from opening one to its history."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from aghbus.protocol.api.base import (
    Channel,
    Delay,
    Lifetime,
    MessageId,
    NewWorkId,
    NonBlank,
    PeerName,
    References,
    RequestModel,
    ResponseModel,
    ThreadId,
)
from aghbus.protocol.errors import REASON_CODES
from aghbus.protocol.lifecycle import State

Role = Literal["initiator", "target", "observer"]
WorkVerb = Literal["accept", "update", "need-input", "complete", "fail", "reject", "cancel", "say"]
Reason = Annotated[str, Meta(extra_json_schema={"enum": sorted(REASON_CODES)})]


class WorkOpenRequest(RequestModel):
    """Open a work for a peer.

    to: the target.
    text: what is to be done; required unless `capability_id` is given.
    intent: of the opening say, null for none.
    artifacts: references to artifacts, any JSON values.
    capability_id: sends that capability of the daemon's catalog instead of a say.
    channel: the default channel without it.
    thread_id: an existing thread; a new one without it.
    direct: use the direct room of the two peers.
    work_id: an id of the caller's own.
    trace_id: correlation id of the caller.
    expires_in: life of the envelope in seconds, as configured without it.
    accept_within: seconds until the work is canceled if it was not accepted (0: never, null: as configured).
    progress_within: seconds without progress until the work is canceled (0: never, null: as configured).
    ext: extension members of the envelope.
    id: makes the request idempotent: the same id with the same content is sent once.
    allow_secrets: send text that looks like a credential all the same.
    """

    to: PeerName
    text: NonBlank | None = None
    intent: str | None = "request"
    artifacts: References | None = None
    capability_id: str | None = None
    channel: Channel | None = None
    thread_id: ThreadId | None = None
    direct: bool = False
    work_id: NewWorkId | None = None
    trace_id: MessageId | None = None
    expires_in: Lifetime | None = None
    accept_within: Delay | None = None
    progress_within: Delay | None = None
    ext: dict[str, Any] | None = None
    id: MessageId | None = None
    allow_secrets: bool = False


class WorkStepRequest(RequestModel):
    """One step of a work; the daemon fills in container, receiver and correlation.

    accept, reject, and cancel by the initiator send a receipt. update, need-input, complete, fail, and cancel by the target send
    a trace. say is conversation inside the work.

    message: the text of a say or a trace, the detail of a receipt.
    result: of a trace.
    artifacts: references to artifacts, any JSON values; of a trace.
    reason: reason code of a reject or cancel that sends a receipt.
    channel: tells apart works of one id in several channels.
    expires_in: life of the envelope in seconds, as configured without it.
    ext: extension members of the envelope.
    id: makes the request idempotent: the same id with the same content is sent once.
    allow_secrets: send text that looks like a credential all the same.
    """

    message: str | None = None
    result: dict[str, Any] | None = None
    artifacts: References | None = None
    reason: Reason | None = None
    channel: Channel | None = None
    expires_in: Lifetime | None = None
    ext: dict[str, Any] | None = None
    id: MessageId | None = None
    allow_secrets: bool = False


class Work(ResponseModel):
    """One work as this daemon knows it.

    work_id: of the work.
    workspace_id: where it is.
    channel: where it is.
    surface: `thread` or `direct`.
    thread_id: its thread, null in a direct room.
    direct_id: its direct room, null in a thread.
    initiator: the peer that opened it.
    target: the peer that carries it out.
    role: of this daemon in it.
    state: of the work.
    trust: of the opening envelope, `verified` or `unverified`.
    text: the opening text, its first 200 characters.
    opening_id: id of the opening envelope.
    opened_ms: when it was opened.
    updated_ms: when it last changed.
    last_seq: sequence of its last envelope.
    message: of the last trace, null without one.
    result: of the last trace, null without one.
    """

    work_id: str
    workspace_id: str
    channel: str
    surface: str
    thread_id: str | None
    direct_id: str | None
    initiator: str
    target: str
    role: Role
    state: State
    trust: str
    text: str
    opening_id: str
    opened_ms: int
    updated_ms: int
    last_seq: int
    message: str | None
    result: Any


class WorkStep(ResponseModel):
    """One envelope of a work's history.

    seq: of the envelope.
    id: of the envelope.
    kind: of the envelope.
    event: of the state machine.
    actor: the sender.
    outcome: the decision of the state machine.
    before: state before it, null for the opening.
    after: state after it.
    at_ms: when it was stored.
    message: of a trace or receipt, else null.
    reason: reason code of a receipt, else null.
    result: of a trace, else null.
    artifacts: references to artifacts of a trace, else null.
    """

    seq: int
    id: str
    kind: str
    event: str
    actor: str
    outcome: str
    before: State | None
    after: State
    at_ms: int
    message: str | None
    reason: str | None
    result: Any
    artifacts: list[Any] | None


class WorkResponse(ResponseModel):
    """A work with its history.

    work: as it is now.
    history: oldest first.
    """

    work: Work
    history: list[WorkStep]


class WorksResponse(ResponseModel):
    """Works.

    works: latest change first.
    """

    works: list[Work]


class WorkChange(ResponseModel):
    """What an envelope did to a work.

    work_id: of the work.
    event: of the state machine.
    outcome: the decision of the state machine.
    before: state before it, null for the opening.
    after: state after it, null when there is no such work.
    reason: why it had no effect, else null.
    role: of this daemon in the work, null when there is no such work.
    """

    work_id: str
    event: str
    outcome: str
    before: State | None
    after: State | None
    reason: str | None
    role: Role | None
