"""The local API: messages, rooms, quarantine and the event stream."""

from typing import Any, Literal

from msgspec import UNSET, UnsetType

from aghbus.protocol.api.base import (
    Channel,
    DirectId,
    Lifetime,
    MessageId,
    PeerName,
    RawObject,
    RequestModel,
    ResponseModel,
    ThreadId,
    WorkId,
)
from aghbus.protocol.api.works import WorkChange
from aghbus.protocol.lifecycle import State

OutboxState = Literal["queued", "published", "receipted", "expired", "dead"]


class SendRequest(RequestModel):
    """One envelope by its parts.

    kind: of the envelope; discovery is `POST /v1/whois`.
    body: as the protocol defines it for the kind.
    to: the receiver, null for everybody in the channel; the work's other peer without it.
    channel: that of the work, else the default channel without it.
    thread_id: a thread; the work's own, else a new one without it.
    direct: use the direct room with `to`.
    direct_id: a direct room by its id.
    work_id: the work that the envelope belongs to.
    reply_to: id of the envelope replied to.
    trace_id: correlation id of the caller.
    causation_id: id of the envelope that caused this one.
    expires_in: life of the envelope in seconds, as configured without it.
    ext: extension members of the envelope.
    id: makes the request idempotent: the same id with the same content is sent once.
    allow_secrets: send text that looks like a credential all the same.
    """

    kind: Literal["say", "capability", "receipt", "trace"]
    body: dict[str, Any]
    to: PeerName | None = None
    channel: Channel | None = None
    thread_id: ThreadId | None = None
    direct: bool = False
    direct_id: DirectId | None = None
    work_id: WorkId | None = None
    reply_to: MessageId | None = None
    trace_id: MessageId | None = None
    causation_id: MessageId | None = None
    expires_in: Lifetime | None = None
    ext: dict[str, Any] | None = None
    id: MessageId | None = None
    allow_secrets: bool = False


class SendResponse(ResponseModel):
    """The envelope is committed and will be sent.

    id: of the envelope.
    seq: of the envelope in the store.
    kind: of the envelope.
    workspace_id: where it is sent.
    channel: where it is sent.
    to: the receiver, null for everybody.
    thread_id: its thread, null in a direct room.
    direct_id: its direct room, null in a thread.
    work_id: its work, null without one.
    work_state: of the work after it, null without one.
    state: of the envelope in the outbox.
    """

    id: str
    seq: int
    kind: str
    workspace_id: str
    channel: str
    to: str | None
    thread_id: str | None
    direct_id: str | None
    work_id: str | None
    work_state: State | None
    state: OutboxState


class Message(ResponseModel):
    """One stored envelope.

    seq: local sequence.
    id: of the envelope.
    direction: `in`, `out` or `observed`.
    kind: of the envelope.
    workspace_id: where it was sent.
    channel: where it was sent.
    sender: who sent it.
    to: the receiver, null for everybody.
    thread_id: its thread, null without one.
    direct_id: its direct room, null without one.
    work_id: its work, null without one.
    trust: `verified` or `unverified`.
    received_ms: when it was received, or sent.
    outcome: the decision of the work's state machine, null without a work.
    reason: of that decision, null when there is none.
    delivery: outbox state (`out`) or inbox state (`in`), null where it has none.
    delivery_detail: of that state, null when there is none.
    envelope: the whole envelope as on the wire.
    """

    seq: int
    id: str
    direction: str
    kind: str
    workspace_id: str
    channel: str
    sender: str
    to: str | None
    thread_id: str | None
    direct_id: str | None
    work_id: str | None
    trust: str
    received_ms: int
    outcome: str | None
    reason: str | None
    delivery: str | None
    delivery_detail: str | None
    envelope: RawObject


class MessagesResponse(ResponseModel):
    """A page of messages.

    messages: oldest first.
    next_since: the `since` of the next page.
    pruned_through: the highest sequence that retention removed, 0 when none.
    """

    messages: list[Message]
    next_since: int
    pruned_through: int


class Thread(ResponseModel):
    """A thread.

    workspace_id: where it is.
    channel: where it is.
    thread_id: of the thread.
    messages: number of messages.
    first_ms: time of the first.
    last_ms: time of the last.
    last_seq: sequence of the last.
    """

    workspace_id: str
    channel: str
    thread_id: str
    messages: int
    first_ms: int
    last_ms: int
    last_seq: int


class ThreadsResponse(ResponseModel):
    """Threads.

    threads: latest activity first.
    """

    threads: list[Thread]


class Direct(ResponseModel):
    """A direct room of this daemon and another peer. Not encrypted: the broker's operator can read it.

    workspace_id: where it is.
    channel: where it is.
    direct_id: of the room.
    peer: the other peer.
    trust: `verified` or `unverified`.
    derived: whether the id is the one derived from the two peers.
    messages: number of messages.
    last_ms: time of the last.
    last_seq: sequence of the last.
    """

    workspace_id: str
    channel: str
    direct_id: str
    peer: str
    trust: str
    derived: bool
    messages: int
    last_ms: int
    last_seq: int


class DirectsResponse(ResponseModel):
    """Direct rooms.

    directs: latest activity first.
    """

    directs: list[Direct]


class Quarantined(ResponseModel):
    """One refused envelope.

    id: number in the quarantine.
    received_ms: when it came.
    subject: the NATS subject it came on.
    message_id: its id as far as it could be read.
    sender: its sender as far as it could be read.
    reason: reason code of the refusal.
    detail: the field and the rule.
    size: in bytes.
    raw: its bytes as text with control characters escaped, cut at 4 KiB.
    """

    id: int
    received_ms: int
    subject: str
    message_id: str
    sender: str
    reason: str
    detail: str
    size: int
    raw: str


class QuarantineResponse(ResponseModel):
    """Refused envelopes.

    quarantined: latest first.
    """

    quarantined: list[Quarantined]


class Event(ResponseModel):
    """One event of the stream: a stored envelope, or a gap where retention removed part of what was asked for.

    seq: of the envelope; of a gap the highest sequence removed.
    type: `envelope` or `gap`.
    message: the envelope, null in a gap.
    work: what it did to its work, null without one.
    pruned_from: first sequence of a gap; absent otherwise.
    """

    seq: int
    type: Literal["envelope", "gap"]
    message: Message | None = None
    work: WorkChange | None = None
    pruned_from: int | UnsetType = UNSET
