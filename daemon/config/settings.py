"""The settings of `aghd`: every key with type, default, rule and help, declared once, here.

A key is declared in one line: flag, environment variable, `config show`, error messages and the table in docs/configuration.md
follow from it. Paths are absolute texts, durations seconds, sizes bytes.
"""

import re
from typing import Annotated, Final, Literal

import msgspec

from aghbus.daemon.config.bridge_settings import (
    AgentOsSettings,
    BridgeSettings,
    HumanInLoopSettings,
    SacpSettings,
    SentientSettings,
)
from aghbus.daemon.config.layers import ConfigKey, Key, declared_keys
from aghbus.daemon.config.trust_settings import TrustSettings
from aghbus.daemon.config.value_types import (
    CAPABILITY_ID,
    CARD_TEXT,
    LISTEN_ADDRESS,
    LOOPBACK_ADDRESS,
    Count,
    Duration,
    FilePath,
    SecretText,
    ServerUrl,
    Size,
    Switch,
    Text,
    Texts,
    choice,
    hide_userinfo,
)
from aghbus.host.locations import is_legal_name
from aghbus.protocol.agh.identifiers import PEER_ID, is_channel, is_workspace_id
from aghbus.protocol.agh.lifecycle import Reactions
from aghbus.protocol.agh.limits import (
    BROADCAST_TTL,
    DIRECTED_TTL,
    GREET_INTERVAL,
    MAX_ENVELOPE_BYTES,
    MAX_LIFETIME,
    PROTOCOL,
)
from aghbus.protocol.agh.nats.jetstream import (
    ACK_WAIT,
    BUCKET_AGE,
    BUCKET_BYTES,
    MAX_IN_FLIGHT,
    STREAM_AGE,
    STREAM_BYTES,
)
from aghbus.protocol.agh.nats.names import BUCKET

_PEER_GRAMMAR: Final = "1 to 128 characters of a-z, 0-9, '.', '_' and '-', the first a letter or digit"
_NAME: Final = Text(_PEER_GRAMMAR, is_legal_name)
_PEER: Final = Text(_PEER_GRAMMAR, lambda text: PEER_ID.fullmatch(text) is not None)
_WORKSPACE: Final = Text("a text without '.', space, '*', '>' and control characters", is_workspace_id)
_CHANNEL: Final = Text("1 to 64 characters of a-z, 0-9, '_' and '-', the first a letter or digit", is_channel)
_GROUP: Final = Text(
    "the name or number of a group", lambda text: re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", text) is not None
)
_BUCKET: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FILE: Final = FilePath()
_SECRET_FILE: Final = FilePath(holds_secret=True)
INBOX_BYTES_MIN: Final = 4 << 20
"""The least value of inbox.max_bytes: a quarter of it holds the largest envelope."""
_LIFETIME: Final = Duration(1, MAX_LIFETIME, whole=True)


class NatsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """NATS servers and authentication as configured; the named files are not read yet."""

    servers: Annotated[
        tuple[str, ...],
        Key(Texts(ServerUrl()), "NATS servers; none named: the embedded broker", flag="--nats", env=("NATS_URL",)),
    ] = ()
    context: Annotated[
        str | None,
        Key(CARD_TEXT, "context of the `nats` command line tool, for servers and credentials", env=("NATS_CONTEXT",)),
    ] = None
    creds: Annotated[str | None, Key(_SECRET_FILE, "credentials file (JWT and nkey seed)")] = None
    nkey: Annotated[str | None, Key(_SECRET_FILE, "file with an nkey seed")] = None
    token: Annotated[str | None, Key(SecretText(), "token; prefer token_file", flag="", secret=True)] = None
    token_file: Annotated[str | None, Key(_SECRET_FILE, "file with the token")] = None
    user: Annotated[str | None, Key(CARD_TEXT, "user name")] = None
    password: Annotated[str | None, Key(SecretText(), "password; prefer password_file", flag="", secret=True)] = None
    password_file: Annotated[str | None, Key(_SECRET_FILE, "file with the password")] = None
    tls_ca: Annotated[str | None, Key(_FILE, "certificate authority of the servers (PEM)")] = None
    tls_cert: Annotated[str | None, Key(_FILE, "our client certificate (PEM)")] = None
    tls_key: Annotated[str | None, Key(_SECRET_FILE, "key of our client certificate (PEM)")] = None

    def __repr__(self) -> str:
        servers = tuple(map(hide_userinfo, self.servers))
        return f"NatsSettings(servers={servers!r}, context={self.context!r}, ...)"


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The embedded broker, used when no NATS server is named."""

    binary: Annotated[
        str | None, Key(_FILE, "nats-server to run; unset: the newer of the installed one and that on PATH")
    ] = None
    directory: Annotated[str | None, Key(_FILE, "its folder; daemons with the same folder share the broker")] = None
    embedded: Annotated[
        str, Key(choice("auto", "never"), "auto: run one when no server is named; never: a server must be named")
    ] = "auto"


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The SQLite store."""

    path: Annotated[str | None, Key(_FILE, "database file; unset: store.db in the instance's state folder")] = None
    synchronous: Annotated[
        Literal["full", "normal"],
        Key(choice("full", "normal"), "full survives a loss of power, normal only a crash of the daemon"),
    ] = "full"
    retention_age: Annotated[
        int, Key(Duration(3600, whole=True), "how long finished messages and works are kept", reload=True)
    ] = 7 * 86_400
    retention_size: Annotated[
        int,
        Key(
            Size(16 << 20),
            "size above which the oldest finished messages are deleted; if that is not enough, messages are rejected",
            reload=True,
        ),
    ] = 1 << 30


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The local API."""

    socket: Annotated[str | None, Key(_FILE, "Unix socket (mode 0600); unset: NAME.sock in the runtime folder")] = None
    socket_group: Annotated[
        str | None,
        Key(_GROUP, "group whose members may use api.socket, too (mode 0660); Linux only, and needs api.socket"),
    ] = None
    tcp: Annotated[
        str | None, Key(LOOPBACK_ADDRESS, "also listen on this loopback address; needs the bearer token")
    ] = None
    token_file: Annotated[
        str | None, Key(_SECRET_FILE, "bearer token for api.tcp; unset: api.token in the instance's state folder")
    ] = None


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The listener of probes and metrics (docs/operations.md)."""

    listen: Annotated[
        str | None,
        Key(LISTEN_ADDRESS, "address for /livez, /readyz, /startupz and /metrics, without a token; unset: none"),
    ] = None


class InboxSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Messages for the agent."""

    capacity: Annotated[
        int, Key(Count(), "messages for the agent; more are rejected, and retried by their senders", reload=True)
    ] = 10_000
    max_bytes: Annotated[
        int,
        Key(
            Size(INBOX_BYTES_MIN), "their bytes, and at most half of store.retention_size; as for capacity", reload=True
        ),
    ] = 256 << 20


class ReceiveSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Between the broker and the store."""

    queue: Annotated[
        int, Key(Count(), "envelopes queued for the store; more are rejected, and retried by their senders")
    ] = 4096
    # 90 to 165 bytes of memory for each: 0.8 GB, for which the units in deploy/ have room.
    remembered: Annotated[
        int,
        Key(
            Count(1000),
            "message ids kept against duplicates; beyond half, messages of long life are rejected",
            reload=True,
        ),
    ] = 5_000_000


class QuarantineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Refused envelopes, kept for inspection; the oldest are deleted first."""

    max_rows: Annotated[int, Key(Count(), "refused envelopes kept")] = 10_000
    # One envelope of the largest size must fit, or the quarantine could hold nothing.
    max_bytes: Annotated[int, Key(Size(MAX_ENVELOPE_BYTES), "bytes of refused envelopes kept")] = 64 << 20


class AuditSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The audit log (docs/audit.md)."""

    max_rows: Annotated[
        int, Key(Count(1000), "commits kept in the audit log; the oldest are deleted first", reload=True)
    ] = 250_000
    max_age: Annotated[int, Key(Duration(3600, whole=True), "how long they are kept", reload=True)] = 90 * 86_400


class DiscoverySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Presence and whois."""

    interval: Annotated[float, Key(Duration(0.1, 3600), "time between two greets")] = float(GREET_INTERVAL)


class DefaultsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The life of an envelope whose sender gives none (specification, section 7)."""

    directed_ttl: Annotated[int, Key(_LIFETIME, "life of a directed message", reload=True)] = DIRECTED_TTL
    broadcast_ttl: Annotated[int, Key(_LIFETIME, "life of broadcast conversation", reload=True)] = BROADCAST_TTL


class RetrySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Unacknowledged directed messages are sent again, the same bytes, until an acknowledgement or their expiry."""

    first: Annotated[float, Key(Duration(0.1, 3600), "time until the second try; doubled each time", reload=True)] = 1.0
    ceiling: Annotated[float, Key(Duration(0.1, 86_400), "longest time between two tries", reload=True)] = 300.0
    limit: Annotated[int, Key(Count(), "tries since its peer answered, before a message is dead", reload=True)] = 300


class WorkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines of works that have none of their own (0 is no deadline), and what their initiator gets in the inbox."""

    accept_within: Annotated[
        float, Key(Duration(0, MAX_LIFETIME), "longest time until the target accepts", reload=True)
    ] = 0.0
    progress_within: Annotated[
        float, Key(Duration(0, MAX_LIFETIME), "longest time between two traces of the target", reload=True)
    ] = 0.0
    reactions: Annotated[
        Reactions,
        Key(
            choice("all", "questions", "none"),
            "what of a work that our agent opens reaches its inbox: questions and the end, questions, or nothing",
            reload=True,
        ),
    ] = "all"


class JetStreamSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The stream of durability "jetstream". Its own limits hold only for the daemon that creates it (docs/jetstream.md)."""

    replicas: Annotated[int, Key(Count(1, 5), "servers of a cluster that keep a copy, when we create the stream")] = 1
    max_age: Annotated[
        int, Key(Duration(3600, whole=True), "how long the stream keeps an envelope, when we create it")
    ] = STREAM_AGE
    # Below it not even the largest envelopes of a few peers would fit.
    max_bytes: Annotated[int, Key(Size(16 << 20), "size of the stream on disk, when we create it")] = STREAM_BYTES
    discard: Annotated[
        str,
        Key(
            choice("new", "old"),
            "a full stream: new: refuses messages, which stay in their senders' outboxes; old: drops the oldest",
        ),
    ] = "new"
    max_in_flight: Annotated[
        int, Key(Count(1, 65_536), "messages of one channel delivered by the broker and not yet settled")
    ] = MAX_IN_FLIGHT
    ack_wait: Annotated[float, Key(Duration(1, 3600), "time until an unsettled message is redelivered")] = ACK_WAIT
    publish_window: Annotated[int, Key(Count(1, 65_536), "messages published and not yet confirmed by the stream")] = (
        256
    )


class ArtifactSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Content that does not fit an envelope, in a JetStream object store. Works in both durabilities."""

    bucket: Annotated[
        str,
        Key(
            Text("1 to 64 characters of a-z, A-Z, 0-9, '_' and '-'", lambda text: _BUCKET.fullmatch(text) is not None),
            "object store that all peers of a network share",
        ),
    ] = BUCKET
    max_bytes: Annotated[int, Key(Size(1 << 10), "largest artifact to put or get", reload=True)] = 64 << 20
    max_age: Annotated[
        int, Key(Duration(3600, whole=True), "how long the bucket keeps an artifact, when we create it")
    ] = BUCKET_AGE
    bucket_bytes: Annotated[int, Key(Size(1 << 20), "size of the bucket on disk, when we create it")] = BUCKET_BYTES
    replicas: Annotated[int, Key(Count(1, 5), "servers of a cluster that keep a copy, when we create it")] = 1


class SecretsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Credentials in messages of our agent."""

    guard: Annotated[
        str,
        Key(
            choice("refuse", "warn", "off"),
            "messages of our agent that seem to contain credentials: refuse them, or send them and warn",
            reload=True,
        ),
    ] = "refuse"


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Logs, always to standard error."""

    level: Annotated[
        str, Key(choice("debug", "info", "warning", "error"), "least severe level that is written", reload=True)
    ] = "warning"
    format: Annotated[str, Key(choice("text", "json"), "text: key=value; json: one object a line")] = "text"


class ShutdownSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Shutdown."""

    deadline: Annotated[float, Key(Duration(0.1, 3600), "longest time from SIGTERM to the exit")] = 10.0


class LimitsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Rate limits for each peer, and for all together (docs/limits.md)."""

    receipts_per_minute: Annotated[int, Key(Count(), "automatic receipts to one sender in a minute", reload=True)] = 600
    all_receipts_per_minute: Annotated[
        int, Key(Count(), "automatic receipts to all senders together in a minute", reload=True)
    ] = 6_000
    answers_per_minute: Annotated[int, Key(Count(), "answers to whois of one peer in a minute", reload=True)] = 600
    # Below it an answer with the largest catalog would never be affordable.
    answer_bytes_per_minute: Annotated[
        int,
        Key(Size(MAX_ENVELOPE_BYTES), "size of all answers to whois in a minute, to all peers together", reload=True),
    ] = 64 << 20
    processor_percent: Annotated[
        int,
        Key(
            Count(),
            "processor time for the messages of all peers together, in percent of one core, by estimate; more are rejected",
            reload=True,
        ),
    ] = 50
    messages_per_minute: Annotated[
        int,
        Key(
            Count(),
            "messages accepted from one sender in a minute; the rest is rejected and retried by the sender",
            reload=True,
        ),
    ] = 600_000


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting of one daemon, checked. `name` and `peer_id` are always filled in by `load_settings`."""

    name: Annotated[str, Key(_NAME, "name of the instance: its socket and its state; unset: from the host's name")] = ""
    peer_id: Annotated[str, Key(_PEER, "our id on the bus; unset: the name")] = ""
    take_over: Annotated[
        bool, Key(Switch(), "keep our peer id against a daemon with a copy of our store that was started earlier")
    ] = False
    display_name: Annotated[str | None, Key(CARD_TEXT, "name for people in our Peer Card", reload=True)] = None
    summary: Annotated[
        str | None, Key(CARD_TEXT, "one line about us in our greets: why we are here, what we do", reload=True)
    ] = None
    workspace: Annotated[str, Key(_WORKSPACE, "our workspace")] = "ws_local"
    channels: Annotated[tuple[str, ...], Key(Texts(_CHANNEL, at_least=1), "channels to join", flag="--channel")] = (
        "default",
    )
    capabilities: Annotated[
        tuple[str, ...],
        Key(Texts(CAPABILITY_ID), "ids of capabilities to claim without a record", flag="--capability", reload=True),
    ] = ()
    catalog: Annotated[
        str | None,
        Key(
            _FILE,
            "capability catalog: a .toml, a .json or a folder; unset: capabilities.* beside aghbus.toml",
            reload=True,
        ),
    ] = None
    profiles: Annotated[
        tuple[str, ...], Key(Texts(CARD_TEXT, at_least=1), "profiles in our Peer Card", flag="--profile")
    ] = (PROTOCOL,)
    artifacts_supported: Annotated[
        tuple[str, ...], Key(Texts(CARD_TEXT), "artifact types in our Peer Card", flag="--artifact-type")
    ] = ("capability",)
    durability: Annotated[
        str,
        Key(
            choice("core", "jetstream"), "core: the sender retries; jetstream: a stream keeps messages for absent peers"
        ),
    ] = "core"
    observe: Annotated[bool, Key(Switch(), "also receive messages between other peers, for operators")] = False
    nats: NatsSettings = NatsSettings()
    broker: BrokerSettings = BrokerSettings()
    store: StoreSettings = StoreSettings()
    api: ApiSettings = ApiSettings()
    health: HealthSettings = HealthSettings()
    inbox: InboxSettings = InboxSettings()
    receive: ReceiveSettings = ReceiveSettings()
    quarantine: QuarantineSettings = QuarantineSettings()
    audit: AuditSettings = AuditSettings()
    discovery: DiscoverySettings = DiscoverySettings()
    defaults: DefaultsSettings = DefaultsSettings()
    retry: RetrySettings = RetrySettings()
    work: WorkSettings = WorkSettings()
    jetstream: JetStreamSettings = JetStreamSettings()
    artifacts: ArtifactSettings = ArtifactSettings()
    log: LogSettings = LogSettings()
    shutdown: ShutdownSettings = ShutdownSettings()
    limits: LimitsSettings = LimitsSettings()
    bridge: BridgeSettings = BridgeSettings()
    sentient: SentientSettings = SentientSettings()
    humaninloop: HumanInLoopSettings = HumanInLoopSettings()
    agentos: AgentOsSettings = AgentOsSettings()
    sacp: SacpSettings = SacpSettings()
    secrets: SecretsSettings = SecretsSettings()
    trust: TrustSettings = TrustSettings()


KEYS: Final[tuple[ConfigKey, ...]] = tuple(declared_keys(Settings))
"""Every key, in order of declaration."""


def value_of(settings: Settings, name: str) -> object:
    """The typed value of a key by its dotted name."""
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part)
    return value


class SettingChanges(msgspec.Struct, frozen=True):
    """Names of the keys that differ between two settings: those that take effect now, and those that need a restart."""

    now: tuple[str, ...]
    restart: tuple[str, ...]


def reloadable_changes(old: Settings, new: Settings) -> SettingChanges:
    """The changes from `old` to `new`, as a reload of a running daemon applies them."""
    changed = [key for key in KEYS if value_of(old, key.name) != value_of(new, key.name)]
    return SettingChanges(
        now=tuple(key.name for key in changed if key.spec.reload),
        restart=tuple(key.name for key in changed if not key.spec.reload),
    )
