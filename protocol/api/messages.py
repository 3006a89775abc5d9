"""The local API: messages, rooms, quarantine and the event stream."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from aghbus.protocol.agh.lifecycle import State
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

Recipient = Literal["present", "inactive", "unknown"]
OutboxState = Literal["queued", "published", "receipted", "refused", "expired", "dead"]


class SendRequest(RequestModel):
    """One envelope by its parts."""

    kind: Literal["say", "capability", "receipt", "trace"]  # of the envelope; discovery is `POST /v1/whois`
    body: dict[str, Any]  # as the protocol defines it for the kind
    # the receiver, null for everybody in the channel; the work's other peer without it; a nickname that only one handle has
    # addresses that handle
    to: PeerName | None = None
    channel: Channel | None = None  # that of the work, else the default channel without it
    thread_id: ThreadId | None = None  # a thread; the work's own, else a new one without it
    direct: bool = False  # use the direct room with `to`
    direct_id: DirectId | None = None  # a direct room by its id
    work_id: WorkId | None = None  # the work that the envelope belongs to
    reply_to: MessageId | None = None  # id of the envelope replied to
    trace_id: MessageId | None = None  # correlation id of the caller
    causation_id: MessageId | None = None  # id of the envelope that caused this one
    expires_in: Lifetime | None = None  # life of the envelope in seconds, as configured without it
    ext: dict[str, Any] | None = None  # extension members of the envelope
    id: MessageId | None = None  # makes the request idempotent: the same id with the same content is sent once
    allow_secrets: bool = False  # send text that looks like a credential all the same
    # towards a Go reference, replace what it refuses as a credential
    replace_secrets: bool = False


class SendResponse(ResponseModel):
    """The envelope is committed and will be sent."""

    id: str  # of the envelope
    seq: int  # of the envelope in the store
    kind: str  # of the envelope
    workspace_id: str  # where it is sent
    channel: str  # where it is sent
    to: str | None  # the receiver, null for everybody
    thread_id: str | None  # its thread, null in a direct room
    direct_id: str | None  # its direct room, null in a thread
    work_id: str | None  # its work, null without one
    work_state: State | None  # of the work after it, null without one
    state: OutboxState  # of the envelope in the outbox
    # what presence knows of the receiver: `present`, `inactive` (not seen for a while) or `unknown`; null for everybody,
    # and for steps of a work
    recipient: Recipient | None = None


class OpenedWork(SendResponse):
    """The opening of a work is committed and will be sent."""

    work_id: str  # of the work


class Message(ResponseModel):
    """One stored envelope."""

    seq: int  # local sequence
    id: str  # of the envelope
    direction: str  # `in`, `out` or `observed`
    kind: str  # of the envelope
    workspace_id: str  # where it was sent
    channel: str  # where it was sent
    sender: str  # who sent it
    to: str | None  # the receiver, null for everybody
    thread_id: str | None  # its thread, null without one
    direct_id: str | None  # its direct room, null without one
    work_id: str | None  # its work, null without one
    trust: str  # `verified` or `unverified`
    received_ms: int  # when it was received, or sent
    outcome: str | None  # the decision of the work's state machine, null without a work
    reason: str | None  # of that decision, null when there is none
    delivery: str | None  # outbox state (`out`) or inbox state (`in`), null where it has none
    delivery_detail: str | None  # of that state, null when there is none
    envelope: RawObject  # the whole envelope as on the wire; empty when it is damaged
    damaged: bool = False  # whether the stored bytes are not those that were stored


class MessageText(ResponseModel):
    """A message as the model of an agent host gets it (docs/mcp.md)."""

    # text of a peer is between two lines with the same random word; what hides or reorders text is shown as its number
    text: str


class MessagesResponse(ResponseModel):
    """A page of messages."""

    messages: list[Message]  # oldest first
    next_since: int  # the `since` of the next page
    # with `last` or `text`: the `before` of the page with earlier ones, null when there are none
    next_before: int | None
    pruned_through: int  # the highest sequence that retention removed, 0 when none


class Thread(ResponseModel):
    """A thread."""

    workspace_id: str  # where it is
    channel: str  # where it is
    thread_id: str  # of the thread
    messages: int  # number of messages
    first_ms: int  # time of the first
    last_ms: int  # time of the last
    last_seq: int  # sequence of the last


class ThreadsResponse(ResponseModel):
    """Threads."""

    threads: list[Thread]  # latest activity first


class Direct(ResponseModel):
    """A direct room of this daemon and another peer. Not encrypted: the broker's operator can read it."""

    workspace_id: str  # where it is
    channel: str  # where it is
    direct_id: str  # of the room
    peer: str  # the other peer
    trust: str  # `verified` or `unverified`
    derived: bool  # whether the id is the one derived from the two peers
    messages: int  # number of messages
    last_ms: int  # time of the last
    last_seq: int  # sequence of the last


class DirectsResponse(ResponseModel):
    """Direct rooms."""

    directs: list[Direct]  # latest activity first


class Quarantined(ResponseModel):
    """One refused envelope."""

    id: int  # number in the quarantine
    received_ms: int  # when it came
    subject: str  # the NATS subject it came on
    message_id: str  # its id as far as it could be read
    sender: str  # its sender as far as it could be read
    reason: str  # reason code of the refusal
    detail: str  # the field and the rule
    size: int  # in bytes
    raw: str  # its bytes as text with control characters escaped, cut at 4 KiB


class QuarantineResponse(ResponseModel):
    """Refused envelopes."""

    quarantined: list[Quarantined]  # latest first


class Event(ResponseModel):
    """One event of the stream: a stored envelope, or a gap where retention removed a part."""

    seq: int  # of the envelope; of a gap the highest sequence removed
    type: Literal["envelope", "gap"]  # `envelope` or `gap`
    message: Message | None = None  # the envelope, null in a gap
    work: WorkChange | None = None  # what it did to its work, null without one
    pruned_from: int | UnsetType = UNSET  # first sequence of a gap; absent otherwise


class PurgeRequest(RequestModel):
    """Remove stored messages with all that is kept of their text; exactly one of peer, work_id and before_ms."""

    peer: str | None = (
        None  # messages from and to this peer id; of a key id or a handle those of every handle of the key
    )
    work_id: str | None = None  # messages of this work, and of those from and to which it was handed over
    # messages that were stored before, in Unix milliseconds, without works that changed since
    before_ms: Annotated[int, Meta(ge=0)] | None = None
    since: Annotated[int, Meta(ge=0)] = 0  # continue after this sequence: `next_since` of the last response
    dry_run: bool = False  # count what would be removed, and remove nothing


class PurgeKept(ResponseModel):
    """What was chosen and is still needed."""

    works: int  # that have not ended, with their messages
    unread: int  # messages that are ready or leased in the inbox
    undelivered: int  # sent messages that were neither answered nor given up
    chain_runs: int  # in progress
    artifacts: int  # that other peers have put for the works, or that the NATS server does not let us remove


class PurgeResponse(ResponseModel):
    """What one request removed, or with dry_run would remove. Add the numbers of all until `next_since` is null."""

    messages: dict[str, int]  # by kind
    works: int
    chain_runs: int  # ended runs of chains
    bridge_log: int  # entries of the logs of foreign formats
    quarantined: int  # refused envelopes
    artifacts: int  # that we had put for the works
    kept: PurgeKept  # what was chosen and stays
    kept_works: list[str]  # ids, the first 100
    kept_artifacts: list[str]  # URIs, the first 100
    next_since: int | None  # null: done
    overwritten: bool  # whether no bytes of what was removed are left in the store's files
    problem: str | None  # why not, null unless the last step failed: repeat the request
    not_reached: list[str]  # where copies may be that this daemon does not reach
