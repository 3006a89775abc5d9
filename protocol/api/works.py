"""The local API: works, from opening one to its history."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from aghbus.protocol.agh.errors import REASON_CODES
from aghbus.protocol.agh.lifecycle import Reactions, State
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

Role = Literal["initiator", "target", "observer"]
WorkVerb = Literal["accept", "update", "need-input", "complete", "fail", "reject", "cancel", "say"]
WaitCode = Literal[
    "broker_away",
    "unknown_peer",
    "peer_away",
    "no_subscriber",
    "queued",
    "unanswered",
    "not_delivered",
    "waits_for_admission",
    "not_accepted",
    "working",
    "held_back",
    "asks",
    "asks_chain",
    "asks_further",
    "asked",
    "in_inbox",
    "leased",
    "returned",
    "dead",
    "held",
    "acknowledged",
    "waits_for_works",
    "observed",
]
"""Why a work does not move (docs/why.md)."""
Reason = Annotated[str, Meta(extra_json_schema={"enum": sorted(REASON_CODES)})]


class WorkOpenRequest(RequestModel):
    """Open a work for a peer, or for a capability."""

    # the target; a nickname that only one handle has addresses that handle
    to: PeerName | None = None
    text: NonBlank | None = None  # the task; required unless `capability_id` is given
    intent: str | None = "request"  # of the opening say, null for none
    artifacts: References | None = None  # references to artifacts, any JSON values
    capability_id: str | None = None  # sends that capability of the daemon's catalog instead of a say
    channel: Channel | None = None  # the default channel without it
    thread_id: ThreadId | None = None  # an existing thread; a new one without it
    direct: bool = False  # use the direct room of the two peers
    work_id: NewWorkId | None = None  # an id of the caller's own
    trace_id: MessageId | None = None  # correlation id of the caller
    # id of the envelope that caused this one, such as the end of the work that is tried again
    causation_id: MessageId | None = None
    expires_in: Lifetime | None = None  # life of the envelope in seconds, as configured without it
    # seconds until the work is canceled if it was not accepted, or handed over (0: never, null: as configured)
    accept_within: Delay | None = None
    # seconds without progress until the work is canceled (0: never, null: as configured)
    progress_within: Delay | None = None
    # instead of `to`: a present peer that announces this capability, and the next one if it does not accept (docs/hand-over.md)
    to_capability: NonBlank | None = None
    # of a work for a capability: hand it over, too, when its peer is gone that had accepted it; both may then run
    hedge: bool = False
    # what of it reaches our inbox: questions and the end (`all`), `questions`, or `none`; as configured without it
    reactions: Reactions | None = None
    ext: dict[str, Any] | None = None  # extension members of the envelope
    id: MessageId | None = None  # makes the request idempotent: the same id with the same content is sent once
    allow_secrets: bool = False  # send text that looks like a credential all the same
    # towards a Go reference, replace what it refuses as a credential
    replace_secrets: bool = False


class WorkActionRequest(RequestModel):
    """One action on a work; the daemon fills in container, receiver and correlation.

    accept, reject, and cancel by the initiator send a receipt. update, need-input, complete, fail, and cancel by the target send
    a trace. say is conversation inside the work.
    """

    message: str | None = None  # the text of a say or a trace, the detail of a receipt
    result: dict[str, Any] | None = None  # of a trace
    artifacts: References | None = None  # references to artifacts, any JSON values; of a trace
    reason: Reason | None = None  # reason code of a reject or cancel that sends a receipt
    channel: Channel | None = None  # selects one of several works with this id
    expires_in: Lifetime | None = None  # life of the envelope in seconds, as configured without it
    ext: dict[str, Any] | None = None  # extension members of the envelope
    id: MessageId | None = None  # makes the request idempotent: the same id with the same content is sent once
    allow_secrets: bool = False  # send text that looks like a credential all the same
    # towards a Go reference, replace what it refuses as a credential
    replace_secrets: bool = False


class Work(ResponseModel):
    """One work as this daemon knows it."""

    work_id: str  # of the work
    workspace_id: str  # where it is
    channel: str  # where it is
    surface: str  # `thread` or `direct`
    thread_id: str | None  # its thread, null in a direct room
    direct_id: str | None  # its direct room, null in a thread
    initiator: str  # the peer that opened it
    target: str  # the peer that carries it out
    role: Role  # of this daemon in it
    state: State  # of the work
    trust: str  # of the opening envelope, `verified` or `unverified`
    text: str  # the opening text, its first 200 characters
    opening_id: str  # id of the opening envelope
    opened_ms: int  # when it was opened
    updated_ms: int  # when it last changed
    last_seq: int  # sequence of its last envelope
    message: str | None  # of the last trace, null without one
    result: Any  # of the last trace with a result or artifacts, null without one
    artifacts: list[Any] | None  # references to artifacts of that trace, null without them
    capability: str | None  # for which it was opened, null for a work for one peer
    # of a work that was handed over to this one: the id under which it was opened, which stands for this one, too
    first_id: str | None


class HistoryEntry(ResponseModel):
    """One envelope of a work's history."""

    seq: int  # of the envelope
    id: str  # of the envelope
    kind: str  # of the envelope
    event: str  # of the state machine
    actor: str  # the sender
    outcome: str  # the decision of the state machine
    before: State | None  # state before it, null for the opening
    after: State  # state after it
    at_ms: int  # when it was stored
    causation_id: str | None  # id of the envelope that caused it, null without one
    message: str | None  # of a trace or receipt, else null
    reason: str | None  # reason code of a receipt, else null
    result: Any  # of a trace, else null
    artifacts: list[Any] | None  # references to artifacts of a trace, else null
    damaged: bool  # whether the stored envelope is damaged: its content is not shown


class WorkAttempt(ResponseModel):
    """A work for a capability that was handed over."""

    work_id: str  # of the work at this peer
    peer: str  # that had it
    why: str  # it was handed over


class WorkLimits(ResponseModel):
    """How a work was opened, in seconds (0: without limit, null: as configured)."""

    accept_within: float | None  # until it is accepted; null once a work for one peer was
    progress_within: float | None  # without progress
    hedge: bool  # whether it is handed over, too, when its peer is gone that had accepted it


class WaitReason(ResponseModel):
    """Why a work does not move (docs/why.md)."""

    code: WaitCode  # stable, for programs
    text: str  # one sentence, for people, without words of peers; its times are UTC: `2026-11-24T16:40:00Z`
    said: str | None  # what a peer or an agent said, which belongs at the end of the sentence; null without it
    hint: str  # what to do; may be empty


class WorkResponse(ResponseModel):
    """A work with its history."""

    work: Work  # as it is now
    history: list[HistoryEntry]  # oldest first; of a long one the newest part
    history_omitted: int  # number of earlier steps that are not in this answer
    next_before: int | None  # `before` of the page with the steps before these, null when none were omitted
    # of a work for a capability, those before this one, oldest first: its history begins with theirs
    attempts: list[WorkAttempt]
    limits: WorkLimits  # with which our side opened it, or watches it
    why: WaitReason | None  # why the work does not move; null when it has ended


class WorksResponse(ResponseModel):
    """Works."""

    works: list[Work]  # latest change first
    next_before: int | None  # `before` of the next page, null when there is none


class WorkChange(ResponseModel):
    """The effect of an envelope on a work."""

    work_id: str  # of the work
    event: str  # of the state machine
    outcome: str  # the decision of the state machine
    before: State | None  # state before it, null for the opening
    after: State | None  # state after it, null when there is no such work
    reason: str | None  # why it had no effect, else null
    role: Role | None  # of this daemon in the work, null when there is no such work
    # with `works`, of a work that we opened and that ended or asks with this envelope: the work as it is now, or the one
    # that took its place; absent if its result is in another envelope
    now: Work | UnsetType = UNSET
