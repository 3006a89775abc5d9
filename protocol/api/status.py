"""The local API: the daemon's own state."""

from typing import Any

import msgspec

from aghbus.protocol.api.base import ResponseModel


class HealthResponse(ResponseModel):
    """The daemon's event loop runs.

    alive: always true.
    """

    alive: bool


class ReadinessResponse(ResponseModel):
    """Whether the daemon can do its work.

    ready: true when the three others are, and the daemon is not shutting down.
    broker: the link to the broker is up.
    subscriptions: the subscriptions are live.
    store: the store is writable.
    """

    ready: bool
    broker: bool
    subscriptions: bool
    store: bool


class VersionResponse(ResponseModel):
    """Versions.

    name: the program, `aghbus`.
    version: of the program.
    protocol: of the protocol on the bus.
    api: of this API.
    """

    name: str
    version: str
    protocol: str
    api: str


class BrokerStatus(ResponseModel):
    """The link to NATS.

    state: connecting, up, down or closed.
    url: of the server in use, null without one.
    server: its name and version, null without one.
    embedded: whether it is the embedded broker.
    rtt_ms: round-trip time in milliseconds, null while unknown.
    max_payload: largest message in bytes, null without a server.
    reconnects: since the daemon's start.
    last_error: of the link, null when there was none.
    slow_consumer_events: how often the server ended the connection because the daemon read too slowly.
    jetstream: stream and consumers, null without JetStream durability.
    """

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


class StoreStatus(ResponseModel):
    """The SQLite store.

    path: the file.
    bytes: size of the file.
    last_seq: the highest sequence given, 0 in an empty store.
    first_seq: the lowest sequence kept, 0 in an empty store.
    writable: false after a commit failed, until one succeeds.
    last_error: why the last commit failed, null when none did.
    synchronous: SQLite's setting, `full` or `normal`.
    """

    path: str
    bytes: int
    last_seq: int
    first_seq: int
    writable: bool
    last_error: str | None
    synchronous: str


class FormerIdentity(ResponseModel):
    """An earlier peer id of this daemon under which works are finished.

    peer_id: the id.
    since_ms: when it was replaced.
    open_works: works under it that have not ended.
    unsent: messages under it that are still sent, or sent again.
    problem: why it cannot be used, null when it can.
    """

    peer_id: str
    since_ms: int
    open_works: int
    unsent: int
    problem: str | None = None


class StatusResponse(ResponseModel):
    """The state of the whole daemon.

    name: of the instance.
    peer_id: the id that other peers address.
    workspace_id: the workspace joined.
    channels: the channels joined, the default one first.
    version: of the program.
    pid: process id.
    uptime_s: seconds since the daemon's start.
    ready: as `GET /readyz`.
    observe: whether the daemon only observes.
    broker: the link to NATS.
    store: the SQLite store.
    queues: lengths of the internal queues, by name.
    inbox: number of messages, by state.
    outbox: number of envelopes, by state.
    works: number of works, by state.
    peers: number of peers, by presence.
    quarantined: number of refused envelopes kept.
    counters: counted since the daemon's start, by name.
    problems: sentences for a person, empty when all is well.
    former: earlier peer ids under which something is still to be done.
    """

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
    former: list[FormerIdentity] = msgspec.field(default_factory=list)
