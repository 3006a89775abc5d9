"""The local API: the daemon's own state."""

from typing import Any

import msgspec

from aghbus.protocol.api.base import ResponseModel


class HealthResponse(ResponseModel):
    """The daemon's event loop runs."""

    alive: bool  # always true


class ReadinessResponse(ResponseModel):
    """Whether the daemon can do its work."""

    ready: bool  # true when the three others are, and the daemon is not shutting down
    broker: bool  # the link to the broker is up
    subscriptions: bool  # the subscriptions are live
    store: bool  # the store is writable


class VersionResponse(ResponseModel):
    """Versions."""

    name: str  # the program, `aghbus`
    version: str  # of the program
    protocol: str  # of the protocol on the bus
    api: str  # of this API


class Stack(ResponseModel):
    """Where a task or a thread is."""

    name: str  # of the task or thread
    frames: list[str]  # `FILE:LINE FUNCTION`, the outermost first; of a task that waits, the innermost alone


class StacksResponse(ResponseModel):
    """What the process does now."""

    tasks: list[Stack]  # of the event loop
    threads: list[Stack]
    queues: dict[str, int]  # messages that wait, by queue


class ProfiledStack(ResponseModel):
    """A stack that was seen while a profile was made."""

    frames: list[str]  # the name of the thread, then as in `Stack`
    samples: int  # how often it was seen


class ProfileResponse(ResponseModel):
    """A profile by samples of all threads; one that waits is seen, too."""

    seconds: float  # for which samples were taken
    samples: int  # of each thread
    stacks: list[ProfiledStack]  # the most frequent first, at most 1,000


class BrokerStatus(ResponseModel):
    """The link to NATS."""

    state: str  # connecting, up, down or closed
    url: str | None  # of the server in use, null without one
    server: str | None  # its name and version, null without one
    embedded: bool  # whether it is the embedded broker
    rtt_ms: float | None  # round-trip time in milliseconds, null while unknown
    max_payload: int | None  # largest message in bytes, null without a server
    reconnects: int  # since the daemon's start
    last_error: str | None  # of the link, null when there was none
    slow_consumer_events: int  # how often the server ended the connection because the daemon read too slowly
    jetstream: dict[str, Any] | None = None  # stream and consumers, null without JetStream durability


class StoreStatus(ResponseModel):
    """The SQLite store."""

    path: str  # the file
    bytes: int  # size of the file
    last_seq: int  # the highest sequence given, 0 in an empty store
    first_seq: int  # the lowest sequence kept, 0 in an empty store
    writable: bool  # false after a commit failed, until one succeeds
    last_error: str | None  # why the last commit failed, null when none did
    synchronous: str  # SQLite's setting, `full` or `normal`


class FormerIdentity(ResponseModel):
    """An earlier peer id of this daemon under which works are finished."""

    peer_id: str  # the id
    since_ms: int  # when it was replaced
    open_works: int  # works under it that have not ended
    unsent: int  # messages under it that are still sent, or sent again
    problem: str | None = None  # why it cannot be used, null when it can


class InboxSender(ResponseModel):
    """What one sender has in the inbox."""

    sender: str  # its peer id
    messages: int  # that are ready or leased
    bytes: int  # of their envelopes


class InboxUse(ResponseModel):
    """How full the inbox is, without questions and ends of own works, which have room of their own."""

    messages: int  # that are ready or leased
    capacity: int  # the most messages
    bytes: int  # of their envelopes
    max_bytes: int  # the most bytes
    unverified_messages: int  # those of senders without a key
    unverified_bytes: int  # of their envelopes
    senders: list[InboxSender]  # the five with the most messages


class RestoredStatus(ResponseModel):
    """The epoch of a store that was restored from a backup."""

    epoch: str  # its random id
    backup_ms: int  # time of the newest commit in the backup
    restored_ms: int  # time of the restore
    until_ms: int  # from then on no message that was sent before the restore can arrive
    held: int  # openings that wait in the inbox, dead, because they may have been carried out before the restore


class StatusResponse(ResponseModel):
    """The state of the whole daemon."""

    name: str  # of the instance
    peer_id: str  # the id that other peers address
    workspace_id: str  # the workspace joined
    channels: list[str]  # the channels joined, the default one first
    version: str  # of the program
    pid: int  # process id
    uptime_s: float  # seconds since the daemon's start
    now_ms: int  # by the daemon's clock
    ready: bool  # as `GET /readyz`
    observe: bool  # whether the daemon only observes
    broker: BrokerStatus  # the link to NATS
    store: StoreStatus  # the SQLite store
    queues: dict[str, int]  # lengths of the internal queues, by name
    inbox: dict[str, int]  # number of messages, by state
    inbox_use: InboxUse  # how full it is, and by whom
    outbox: dict[str, int]  # number of envelopes, by state
    works: dict[str, int]  # number of works, by state
    peers: dict[str, int]  # number of peers, by presence
    quarantined: int  # number of refused envelopes kept
    counters: dict[str, int]  # counted since the daemon's start, by name
    requests: int  # number of peers that wait for admission
    questions: int  # number of works that we opened and that need input
    limits: list[str]  # that messages were over in the last minute, by name (docs/limits.md)
    problems: list[str]  # sentences for a person, empty when all is well
    # earlier peer ids under which something is still to be done
    former: list[FormerIdentity] = msgspec.field(default_factory=list)
    # the epoch of the store, null if it was not restored, or nothing follows from it any more
    restored: RestoredStatus | None = None
