"""The local API as plain data: what `aghd` answers and `aghctl` (or an agent) asks, as JSON objects (docs/api.md).

Times ending in `_ms` are Unix milliseconds, others Unix seconds. `seq` is the store's local sequence: it only grows, and
streams resume by it. Text in these values may come from strangers: escape it before a terminal sees it.
"""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from aghbus.protocol.lifecycle import State

API_VERSION = "v1"

OutboxState = Literal["queued", "published", "receipted", "expired", "dead"]
InboxState = Literal["ready", "leased", "acked", "dead"]
Role = Literal["initiator", "target", "observer"]

RawObject = Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]
"""A JSON object as its bytes: passed on as it came, without being read and written again."""


class Answer(msgspec.Struct, kw_only=True, omit_defaults=False):
    """Base of everything the API answers."""


class Ask(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of every request body: a field that the API does not know is an error, not ignored."""


class ErrorAnswer(Answer):
    """Every error: a stable code, a message naming field and rule, a hint what to do (may be empty)."""

    code: str
    message: str
    hint: str = ""


class BrokerStatus(Answer):
    """The link to NATS. `state`: connecting, up, down or closed. `slow_consumer_events`: how often the server has ended the
    connection because we read too slowly. `jetstream`: stream and consumers, in that profile."""

    state: str
    url: str | None
    server: str | None
    embedded: bool
    rtt_ms: float | None
    max_payload: int | None
    reconnects: int
    last_error: str | None
    slow_consumer_events: int
    jetstream: dict[str, Any] | None = None


class StoreStatus(Answer):
    """The SQLite store. `writable` is false after a commit failed, until one succeeds."""

    path: str
    bytes: int
    last_seq: int
    first_seq: int
    writable: bool
    last_error: str | None
    synchronous: str


class FormerIdentity(Answer):
    """A peer id that was ours since `since_ms` and under which works are finished. `unsent` messages of it still go out, or
    out again; `problem` says why it cannot be used."""

    peer_id: str
    since_ms: int
    open_works: int
    unsent: int
    problem: str | None = None


class Status(Answer):
    """What `aghctl status` shows. `counters` count since the daemon's start; `problems` are sentences for a person; `former`
    are the peer ids that we had before and under which something is still to be done."""

    name: str
    peer_id: str
    workspace_id: str
    channels: list[str]
    version: str
    pid: int
    uptime_s: float
    ready: bool
    observe: bool
    broker: BrokerStatus
    store: StoreStatus
    queues: dict[str, int]
    inbox: dict[str, int]
    outbox: dict[str, int]
    works: dict[str, int]
    peers: dict[str, int]
    quarantined: int
    counters: dict[str, int]
    problems: list[str]
    former: list[FormerIdentity] = []


class Readiness(Answer):
    """`ready` when the broker link is up, the subscriptions are live and the store is writable."""

    ready: bool
    broker: bool
    subscriptions: bool
    store: bool


class Peer(Answer):
    """A peer known to presence. `card` is its Peer Card as a JSON object."""

    peer_id: str
    workspace_id: str
    channel: str
    presence: str
    trust: str
    first_seen_ms: int
    last_seen_ms: int
    card: dict[str, Any]


class Peers(Answer):
    """Answer of `GET /v1/peers`."""

    peers: list[Peer]


class WhoisAsk(Ask):
    """Who is out there? Empty `query` asks everybody; `to` asks one peer. `wait` in seconds, at most; `first` returns at
    the first answer; `catalog` asks for full capability records, of `capability_ids` only when given."""

    query: str = ""
    to: str | None = None
    channel: str | None = None
    wait: float = 1.5
    first: bool = False
    catalog: bool = False
    capability_ids: list[str] | None = None


class WhoisFound(Answer):
    """One answer. `capabilities` are full records when they were asked for, else null."""

    peer_id: str
    trust: str
    rtt_ms: float
    card: dict[str, Any]
    capabilities: list[dict[str, Any]] | None


class WhoisAnswer(Answer):
    """Answers in order of arrival. `expected` peers of presence matched; `ended` says why waiting ended: `complete` (all
    expected answered), `first`, `quiet` (no answer for a stall) or `timeout`."""

    request_id: str
    query: str
    peers: list[WhoisFound]
    expected: int
    elapsed_ms: float
    ended: str


class SendAsk(Ask):
    """One envelope by its parts. `kind` say, capability, receipt or trace. The container: `thread_id`, or `direct: true`
    with `to`, or none for the work's own (else a new thread). `expires_in` in seconds overrides the configured life.
    `id` makes the request idempotent: the same id with the same content is sent once. `allow_secrets` sends what looks like a
    credential all the same."""

    kind: str
    body: dict[str, Any]
    to: str | None = None
    channel: str | None = None
    thread_id: str | None = None
    direct: bool = False
    direct_id: str | None = None
    work_id: str | None = None
    reply_to: str | None = None
    trace_id: str | None = None
    causation_id: str | None = None
    expires_in: float | None = None
    ext: dict[str, Any] | None = None
    id: str | None = None
    allow_secrets: bool = False


class Sent(Answer):
    """Yes: the envelope is committed and will go out. `state` is its outbox state at this moment."""

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


class WorkOpenAsk(Ask):
    """Open a work for peer `to`. `direct` uses the pair's room, `thread_id` an existing thread, neither a new thread.
    `capability_id` sends that capability of our catalog instead of a say. `accept_within` and `progress_within` are deadlines
    in seconds (0: none): when one passes, the work is canceled by a receipt that says so."""

    to: str
    text: str | None = None
    intent: str | None = "request"
    artifacts: list[Any] | None = None
    capability_id: str | None = None
    channel: str | None = None
    thread_id: str | None = None
    direct: bool = False
    work_id: str | None = None
    trace_id: str | None = None
    expires_in: float | None = None
    accept_within: float | None = None
    progress_within: float | None = None
    ext: dict[str, Any] | None = None
    id: str | None = None
    allow_secrets: bool = False


WorkVerb = Literal["accept", "update", "need-input", "complete", "fail", "reject", "cancel", "say"]


class WorkVerbAsk(Ask):
    """One step of a work; the daemon fills in container, receiver and correlation.

    accept, reject (`reason`), cancel by the initiator: a receipt. update, need-input, complete, fail, cancel by the target: a
    trace with `message`, `result` (an object), `artifact_refs`. say: conversation inside the work (`message` is its text).
    """

    message: str | None = None
    result: dict[str, Any] | None = None
    artifact_refs: list[Any] | None = None
    reason: str | None = None
    channel: str | None = None
    expires_in: float | None = None
    ext: dict[str, Any] | None = None
    id: str | None = None
    allow_secrets: bool = False


class Work(Answer):
    """One work as this daemon knows it. `role` is our part in it; `text` the opening text (first 200 characters)."""

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


class WorkStep(Answer):
    """One row of a work's history: an applied envelope."""

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
    artifact_refs: list[Any] | None


class WorkDetail(Answer):
    """A work with its history, oldest first."""

    work: Work
    history: list[WorkStep]


class Works(Answer):
    """Answer of `GET /v1/works`, latest change first."""

    works: list[Work]


class Message(Answer):
    """One stored envelope. `direction` in, out or observed; `outcome` and `reason` are the lifecycle's verdict; `delivery`
    is the outbox state (out) or inbox state (in), null where it has none. `envelope` is the whole JSON as on the wire."""

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


class Messages(Answer):
    """A page, oldest first. `next_since` continues after it; `pruned_through` is the highest sequence retention removed."""

    messages: list[Message]
    next_since: int
    pruned_through: int


class Thread(Answer):
    """A thread with activity."""

    workspace_id: str
    channel: str
    thread_id: str
    messages: int
    first_ms: int
    last_ms: int
    last_seq: int


class Threads(Answer):
    """Answer of `GET /v1/threads`, latest activity first."""

    threads: list[Thread]


class Direct(Answer):
    """A direct room of ours and the other peer in it. Not encrypted: the broker's operator can read it."""

    workspace_id: str
    channel: str
    direct_id: str
    peer: str
    trust: str
    derived: bool
    messages: int
    last_ms: int
    last_seq: int


class Directs(Answer):
    """Answer of `GET /v1/directs`, latest activity first."""

    directs: list[Direct]


class InboxItem(Answer):
    """A message for the agent. `attempts` counts leases; `lease` is the token that acks it while leased (null otherwise)."""

    seq: int
    state: InboxState
    attempts: int
    lease: str | None
    lease_until_ms: int | None
    available_ms: int
    last_error: str | None
    message: Message


class InboxList(Answer):
    """Answer of `GET /v1/inbox`, oldest first."""

    items: list[InboxItem]
    counts: dict[str, int]


class InboxNextAsk(Ask):
    """Lease the oldest ready message. `wait` in seconds for one to come, `visibility` in seconds until it returns unless
    acked; `ack` takes it for good at once. `work_id` only a message of that work."""

    wait: float = 0.0
    visibility: float = 300.0
    ack: bool = False
    work_id: str | None = None


class InboxNext(Answer):
    """`item` is null when nothing came."""

    item: InboxItem | None


class InboxAckAsk(Ask):
    """`lease` must be the current one when given; without it the message is acked whoever holds it."""

    lease: str | None = None


class InboxNackAsk(Ask):
    """Return it to the queue after `delay` seconds (null: backoff by attempts); `error` says why."""

    lease: str | None = None
    delay: float | None = None
    error: str | None = None


class CapabilityRecord(Answer):
    """One capability of our catalog: the full record, digest included; `claim` is true for a bare id without a record."""

    id: str
    summary: str | None
    digest: str | None
    claim: bool
    document: dict[str, Any] | None


class Capabilities(Answer):
    """Our own catalog and where it comes from; `problems` of the last reload, when it was refused."""

    source: str | None
    capabilities: list[CapabilityRecord]
    problems: list[str]


class Quarantined(Answer):
    """One refused envelope. `raw` is its bytes as text, with control characters escaped, cut at 4 KiB."""

    id: int
    received_ms: int
    subject: str
    message_id: str
    sender: str
    reason: str
    detail: str
    size: int
    raw: str


class QuarantineList(Answer):
    """Answer of `GET /v1/quarantine`, latest first."""

    quarantined: list[Quarantined]


class WorkChange(Answer):
    """What an envelope did to a work: part of an event."""

    work_id: str
    event: str
    outcome: str
    before: State | None
    after: State | None
    reason: str | None
    role: Role | None


class Event(Answer):
    """One event of the stream: a stored envelope and, when it belongs to a work, the change. `type`: `envelope`, or `gap`
    where retention removed what was asked for (`seq` is then the highest sequence removed, `message` null)."""

    seq: int
    type: Literal["envelope", "gap"]
    message: Message | None = None
    work: WorkChange | None = None
    pruned_from: int | UnsetType = UNSET


class Version(Answer):
    """Answer of `GET /v1/version`."""

    name: str
    version: str
    protocol: str
    api: str


class Artifact(Answer):
    """Content in the object store of the broker. `digest` is `sha256:` and 64 hex digits, `size` in bytes.

    `put_by` is the peer id that the daemon which put it gave; nobody has verified it.
    """

    uri: str
    work_id: str
    name: str
    size: int
    digest: str
    put_by: str | None


class Artifacts(Answer):
    """Artifacts of one work, or of all, sorted by URI. `more` when there are others beyond the limit."""

    artifacts: list[Artifact]
    more: bool
