"""The table of operations: all that the local API offers, once.

The daemon's routes (`daemon/api/handlers.py`), the client's methods (`client/core/operations.py`), the OpenAPI document and the
table in docs/api.md follow. `make api-docs` writes the last two.
"""

from typing import Final

from aghbus.protocol.api import queries as q
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse
from aghbus.protocol.api.base import EmptyRequest
from aghbus.protocol.api.bridge import (
    BridgeAckRequest,
    BridgeAckResponse,
    BridgeLogResponse,
    BridgeMessage,
    BridgeSubmitRequest,
    BridgeSubmitResponse,
)
from aghbus.protocol.api.chains import ChainAnswerRequest, ChainRun, ChainRunsResponse, ChainStartRequest
from aghbus.protocol.api.console import ConsoleRequest, ConsoleResponse
from aghbus.protocol.api.inbox import (
    InboxAckRequest,
    InboxItem,
    InboxLeaseRequest,
    InboxNackRequest,
    InboxNextRequest,
    InboxNextResponse,
    InboxPurgeRequest,
    InboxPurgeResponse,
    InboxResponse,
)
from aghbus.protocol.api.mcp import McpSession, McpSessionReport, McpSessionsResponse
from aghbus.protocol.api.messages import (
    DirectsResponse,
    Event,
    Message,
    MessagesResponse,
    MessageText,
    OpenedWork,
    PurgeRequest,
    PurgeResponse,
    QuarantineResponse,
    SendRequest,
    SendResponse,
    ThreadsResponse,
)
from aghbus.protocol.api.operation import AnyOperation, Operation, takes
from aghbus.protocol.api.peers import (
    CapabilitiesResponse,
    CapabilityAnnouncement,
    CapabilityRecord,
    PeersResponse,
    WhoisRequest,
    WhoisResponse,
)
from aghbus.protocol.api.status import (
    HealthResponse,
    ProfileResponse,
    ReadinessResponse,
    StacksResponse,
    StatusResponse,
    VersionResponse,
)
from aghbus.protocol.api.trust import (
    AdmissionRequestsResponse,
    TrustChangeRequest,
    TrustChangeResponse,
    TrustExplainResponse,
    TrustRulesResponse,
)
from aghbus.protocol.api.works import WorkActionRequest, WorkOpenRequest, WorkResponse, WorksResponse

_FOUND: Final = ("not_found",)
_LEASES: Final = ("not_found", "conflict", "lease_lost")
_REFUSALS: Final = (
    "conflict",
    "refused",
    "work_closed",
    "work_container_mismatch",
    "actor_not_allowed",
    "invalid_transition",
)
_SENDS: Final = ("not_found", *_REFUSALS)


class Operations:
    """Every operation, in the order of the documentation."""

    get_health = Operation("GET /healthz", "The daemon's event loop runs", takes(q.NoParameters), HealthResponse)
    get_readiness = Operation(
        "GET /readyz", "200 when ready, else 503", takes(q.NoParameters), ReadinessResponse, may_be_unready=True
    )
    get_openapi = Operation("GET /openapi.json", "This API as OpenAPI 3.1", takes(q.NoParameters), dict)
    get_version = Operation(
        "GET /v1/version", "Versions of program, protocol and API", takes(q.NoParameters), VersionResponse
    )
    get_status = Operation("GET /v1/status", "The state of the whole daemon", takes(q.NoParameters), StatusResponse)
    get_stacks = Operation(
        "GET /v1/debug/stacks", "Where each task and thread of the daemon is", takes(q.NoParameters), StacksResponse
    )
    get_profile = Operation(
        "GET /v1/debug/profile",
        "Sample the stacks of all threads for some seconds",
        takes(q.ProfileQuery),
        ProfileResponse,
        waits=True,
    )
    list_peers = Operation("GET /v1/peers", "Peers known to presence", takes(q.PeersQuery), PeersResponse)
    find_peers = Operation(
        "POST /v1/whois",
        "Ask the peers of a channel for their Peer Cards",
        takes(WhoisRequest),
        WhoisResponse,
        waits=True,
    )
    send_message = Operation(
        "POST /v1/messages",
        "Send one envelope by its parts",
        takes(SendRequest),
        SendResponse,
        status=201,
        errors=_SENDS,
    )
    list_messages = Operation("GET /v1/messages", "A page of messages", takes(q.MessagesQuery), MessagesResponse)
    get_message = Operation(
        "GET /v1/messages/{id}",
        "One message",
        takes(q.NoParameters, q.IdPath),
        Message,
        errors=("not_found", "conflict"),
    )
    purge_messages = Operation(
        "POST /v1/messages/purge",
        "Remove stored messages of a peer, a work or a time",
        takes(PurgeRequest),
        PurgeResponse,
        idempotent=False,
    )
    get_message_text = Operation(
        "GET /v1/messages/{id}/text",
        "One message as a model gets it",
        takes(q.NoParameters, q.IdPath),
        MessageText,
        errors=("not_found", "conflict"),
    )
    list_works = Operation("GET /v1/works", "Works, latest change first", takes(q.WorksQuery), WorksResponse)
    open_work = Operation(
        "POST /v1/works", "Open a work for a peer", takes(WorkOpenRequest), OpenedWork, status=201, errors=_SENDS
    )
    get_work = Operation(
        "GET /v1/works/{id}",
        "A work with its history",
        takes(q.WorkQuery, q.IdPath),
        WorkResponse,
        errors=("not_found", "conflict"),
    )
    act_on_work = Operation(
        "POST /v1/works/{id}/{verb}",
        "One action on a work",
        takes(WorkActionRequest, q.WorkActionPath),
        SendResponse,
        status=201,
        errors=_SENDS,
    )
    list_threads = Operation("GET /v1/threads", "Threads, latest activity first", takes(q.RoomsQuery), ThreadsResponse)
    list_directs = Operation(
        "GET /v1/directs", "Direct rooms, latest activity first", takes(q.RoomsQuery), DirectsResponse
    )
    list_inbox = Operation("GET /v1/inbox", "The inbox, oldest first", takes(q.InboxQuery), InboxResponse)
    lease_next_message = Operation(
        "POST /v1/inbox/next",
        "Lease the oldest ready message",
        takes(InboxNextRequest),
        InboxNextResponse,
        waits=True,
        idempotent=False,
    )
    purge_inbox = Operation(
        "POST /v1/inbox/purge",
        "Make unread messages of a sender dead",
        takes(InboxPurgeRequest),
        InboxPurgeResponse,
        idempotent=False,
    )
    lease_message = Operation(
        "POST /v1/inbox/{seq}/lease",
        "Lease one message, or renew its lease",
        takes(InboxLeaseRequest, q.SeqPath),
        InboxItem,
        errors=_LEASES,
    )
    ack_message = Operation(
        "POST /v1/inbox/{seq}/ack", "Done with a message", takes(InboxAckRequest, q.SeqPath), InboxItem, errors=_LEASES
    )
    nack_message = Operation(
        "POST /v1/inbox/{seq}/nack",
        "Return a message to the queue",
        takes(InboxNackRequest, q.SeqPath),
        InboxItem,
        errors=_LEASES,
        idempotent=False,
    )
    requeue_message = Operation(
        "POST /v1/inbox/{seq}/requeue",
        "Make a dead message ready again",
        takes(EmptyRequest, q.SeqPath),
        InboxItem,
        errors=_LEASES,
    )
    list_capabilities = Operation(
        "GET /v1/capabilities", "The daemon's own catalog", takes(q.NoParameters), CapabilitiesResponse
    )
    get_capability = Operation(
        "GET /v1/capabilities/{id}",
        "One capability of the catalog",
        takes(q.NoParameters, q.IdPath),
        CapabilityRecord,
        errors=_FOUND,
    )
    announce_capability = Operation(
        "PUT /v1/capabilities/{id}",
        "Announce a capability for a while, or withdraw it",
        takes(CapabilityAnnouncement, q.IdPath),
        CapabilityRecord,
        errors=("conflict",),
    )
    list_quarantine = Operation(
        "GET /v1/quarantine", "Refused envelopes, latest first", takes(q.LimitQuery), QuarantineResponse
    )
    list_admission_requests = Operation(
        "GET /v1/requests",
        "Peers that wait for admission, the oldest first",
        takes(q.LimitQuery),
        AdmissionRequestsResponse,
    )
    list_trust_rules = Operation("GET /v1/trust", "The trust rules", takes(q.NoParameters), TrustRulesResponse)
    change_trust = Operation(
        "POST /v1/trust/{verb}",
        "Change the trust rules",
        takes(TrustChangeRequest, q.TrustVerbPath),
        TrustChangeResponse,
        errors=("not_found", "conflict", "refused"),
    )
    explain_trust = Operation(
        "GET /v1/trust/why/{id}",
        "Why a message was accepted or refused",
        takes(q.NoParameters, q.IdPath),
        TrustExplainResponse,
        errors=_FOUND,
    )
    list_artifacts = Operation("GET /v1/artifacts", "Artifacts by URI", takes(q.ArtifactsQuery), ArtifactsResponse)
    put_artifact = Operation(
        "PUT /v1/artifacts/{work_id}/{name}",
        "Store an artifact",
        takes(q.NoParameters, q.ArtifactPath),
        Artifact,
        status=201,
        errors=("conflict", "too_large"),
        transfer="upload",
    )
    get_artifact = Operation(
        "GET /v1/artifacts/{work_id}/{name}",
        "The content of an artifact",
        takes(q.NoParameters, q.ArtifactPath),
        bytes,
        errors=("not_found", "too_large"),
        transfer="download",
    )
    stream_events = Operation("GET /v1/events", "Server-sent events", takes(q.EventsQuery), Event, transfer="events")
    submit_foreign_message = Operation(
        "POST /v1/bridge/{format}",
        "Submit a foreign message",
        takes(BridgeSubmitRequest, q.FormatPath),
        BridgeSubmitResponse,
        status=201,
        errors=("message_refused", *_REFUSALS),
    )
    stream_foreign_messages = Operation(
        "GET /v1/bridge/{format}/stream",
        "Server-sent foreign messages",
        takes(q.BridgeStreamQuery, q.FormatPath),
        BridgeMessage,
        transfer="events",
    )
    get_foreign_message = Operation(
        "GET /v1/bridge/{format}/messages/{seq}",
        "The foreign form of one envelope",
        takes(q.NoParameters, q.FormatSeqPath),
        BridgeMessage,
        errors=_FOUND,
    )
    ack_foreign_messages = Operation(
        "POST /v1/bridge/{format}/ack",
        "Acknowledge foreign messages up to a sequence",
        takes(BridgeAckRequest, q.FormatPath),
        BridgeAckResponse,
    )
    get_foreign_log = Operation(
        "GET /v1/bridge/{format}/log",
        "The format's own log, oldest row first",
        takes(q.LimitQuery, q.FormatPath),
        BridgeLogResponse,
    )
    start_chain_run = Operation(
        "POST /v1/chains/runs",
        "Start a run of a chain",
        takes(ChainStartRequest),
        ChainRun,
        status=201,
        errors=("conflict", "refused"),
    )
    list_chain_runs = Operation(
        "GET /v1/chains/runs", "Runs of chains, latest change first", takes(q.ChainRunsQuery), ChainRunsResponse
    )
    get_chain_run = Operation(
        "GET /v1/chains/runs/{id}",
        "A run with its steps",
        takes(q.ChainRunQuery, q.IdPath),
        ChainRun,
        errors=_FOUND,
        waits=True,
    )
    answer_chain_run = Operation(
        "POST /v1/chains/runs/{id}/answer",
        "Answer a run that waits for input",
        takes(ChainAnswerRequest, q.IdPath),
        ChainRun,
        errors=("not_found", "conflict", "refused", "work_closed"),
        idempotent=False,
    )
    cancel_chain_run = Operation(
        "POST /v1/chains/runs/{id}/cancel",
        "Cancel a run",
        takes(EmptyRequest, q.IdPath),
        ChainRun,
        errors=("not_found", "conflict"),
        idempotent=False,
    )
    list_mcp_sessions = Operation(
        "GET /v1/mcp/sessions", "Sessions of agent hosts, oldest first", takes(q.NoParameters), McpSessionsResponse
    )
    report_mcp_session = Operation(
        "PUT /v1/mcp/sessions/{id}", "Report a session of an agent host", takes(McpSessionReport, q.IdPath), McpSession
    )
    open_console = Operation(
        "POST /v1/console",
        "Open the console for a browser",
        takes(ConsoleRequest),
        ConsoleResponse,
        status=201,
        errors=("conflict",),
    )


OPERATIONS: Final[tuple[AnyOperation, ...]] = tuple(
    one for one in vars(Operations).values() if isinstance(one, Operation)
)
"""The same as a tuple."""
