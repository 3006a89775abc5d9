"""The table of operations: every route of the API that takes and returns JSON, once, for both clients.

A test compares it with docs/openapi.json.
"""

from __future__ import annotations

from typing import Final

from aghbus.client.core.core import Core
from aghbus.client.core.method import Method, Stream
from aghbus.client.core.operation import Part, operation, stream
from aghbus.protocol.api import queries as q
from aghbus.protocol.api.artifacts import ArtifactsResponse
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
    Message,
    MessagesResponse,
    QuarantineResponse,
    SendRequest,
    SendResponse,
    ThreadsResponse,
)
from aghbus.protocol.api.peers import CapabilitiesResponse, CapabilityRecord, PeersResponse, WhoisRequest, WhoisResponse
from aghbus.protocol.api.status import HealthResponse, ReadinessResponse, StatusResponse, VersionResponse
from aghbus.protocol.api.trust import (
    TrustChangeRequest,
    TrustChangeResponse,
    TrustExplainResponse,
    TrustRulesResponse,
    TrustVerb,
)
from aghbus.protocol.api.works import WorkOpenRequest, WorkResponse, WorksResponse, WorkStepRequest, WorkVerb
from aghbus.protocol.chains.chain import Format

TEXT: Final = Part[str]()
SEQ: Final = Part[int]()
VERB: Final = Part[WorkVerb]()
RULE: Final = Part[TrustVerb]()
FORMAT: Final = Part[Format]()


class Operations:
    """One method for each route. A field of a request that is an id is made before the first send, unless it is given."""

    health = operation("GET /healthz", "The daemon's event loop runs", q.NoParameters, HealthResponse)
    readiness = operation("GET /readyz", "200 when ready, else 503", q.NoParameters, ReadinessResponse, not_ready=True)
    openapi = operation("GET /openapi.json", "This API as OpenAPI 3.1", q.NoParameters, dict)
    version = operation("GET /v1/version", "Versions of program, protocol and API", q.NoParameters, VersionResponse)
    status = operation("GET /v1/status", "The state of the whole daemon", q.NoParameters, StatusResponse)
    peers = operation("GET /v1/peers", "Peers known to presence", q.PeersQuery, PeersResponse)
    whois = operation("POST /v1/whois", "Ask the peers of a channel for their Peer Cards", WhoisRequest, WhoisResponse)
    send = operation("POST /v1/messages", "Send one envelope by its parts", SendRequest, SendResponse)
    messages = operation("GET /v1/messages", "A page of messages", q.MessagesQuery, MessagesResponse)
    message = operation("GET /v1/messages/{id}", "One message", q.NoParameters, Message, TEXT)
    works = operation("GET /v1/works", "Works, latest change first", q.WorksQuery, WorksResponse)
    open_work = operation("POST /v1/works", "Open a work for a peer", WorkOpenRequest, SendResponse)
    work = operation("GET /v1/works/{id}", "A work with its history", q.WorkQuery, WorkResponse, TEXT)
    step_work = operation("POST /v1/works/{id}/{verb}", "One step of a work", WorkStepRequest, SendResponse, TEXT, VERB)
    threads = operation("GET /v1/threads", "Threads, latest activity first", q.RoomsQuery, ThreadsResponse)
    directs = operation("GET /v1/directs", "Direct rooms, latest activity first", q.RoomsQuery, DirectsResponse)
    inbox = operation("GET /v1/inbox", "The inbox, oldest first", q.InboxQuery, InboxResponse)
    next_message = operation(
        "POST /v1/inbox/next", "Lease the oldest ready message", InboxNextRequest, InboxNextResponse, idempotent=False
    )
    purge_inbox = operation(
        "POST /v1/inbox/purge",
        "Make unread messages of a sender dead",
        InboxPurgeRequest,
        InboxPurgeResponse,
        idempotent=False,
    )
    lease = operation(
        "POST /v1/inbox/{seq}/lease", "Lease one message, or renew its lease", InboxLeaseRequest, InboxItem, SEQ
    )
    ack = operation("POST /v1/inbox/{seq}/ack", "Done with a message", InboxAckRequest, InboxItem, SEQ)
    nack = operation(
        "POST /v1/inbox/{seq}/nack", "Return a message to the queue", InboxNackRequest, InboxItem, SEQ, idempotent=False
    )
    requeue = operation("POST /v1/inbox/{seq}/requeue", "Make a dead message ready again", EmptyRequest, InboxItem, SEQ)
    capabilities = operation("GET /v1/capabilities", "The daemon's own catalog", q.NoParameters, CapabilitiesResponse)
    capability = operation(
        "GET /v1/capabilities/{id}", "One capability of the catalog", q.NoParameters, CapabilityRecord, TEXT
    )
    quarantine = operation("GET /v1/quarantine", "Refused envelopes, latest first", q.LimitQuery, QuarantineResponse)
    trust_rules = operation("GET /v1/trust", "The trust rules", q.NoParameters, TrustRulesResponse)
    change_trust = operation(
        "POST /v1/trust/{verb}", "Change the trust rules", TrustChangeRequest, TrustChangeResponse, RULE
    )
    explain_trust = operation(
        "GET /v1/trust/why/{id}", "Why a message was accepted or refused", q.NoParameters, TrustExplainResponse, TEXT
    )
    artifacts = operation("GET /v1/artifacts", "Artifacts by URI", q.ArtifactsQuery, ArtifactsResponse)
    submit_foreign = operation(
        "POST /v1/bridge/{format}", "Submit a foreign message", BridgeSubmitRequest, BridgeSubmitResponse, FORMAT
    )
    foreign_message = operation(
        "GET /v1/bridge/{format}/messages/{seq}",
        "The foreign form of one envelope",
        q.NoParameters,
        BridgeMessage,
        FORMAT,
        SEQ,
    )
    ack_foreign = operation(
        "POST /v1/bridge/{format}/ack",
        "Acknowledge foreign messages up to a sequence",
        BridgeAckRequest,
        BridgeAckResponse,
        FORMAT,
    )
    foreign_log = operation(
        "GET /v1/bridge/{format}/log", "The format's own log, oldest row first", q.LimitQuery, BridgeLogResponse, FORMAT
    )
    start_chain = operation("POST /v1/chains/runs", "Start a run of a chain", ChainStartRequest, ChainRun)
    chain_runs = operation(
        "GET /v1/chains/runs", "Runs of chains, latest change first", q.ChainRunsQuery, ChainRunsResponse
    )
    chain_run = operation("GET /v1/chains/runs/{id}", "A run with its steps", q.ChainRunQuery, ChainRun, TEXT)
    answer_chain = operation(
        "POST /v1/chains/runs/{id}/answer",
        "Answer a run that waits for input",
        ChainAnswerRequest,
        ChainRun,
        TEXT,
        idempotent=False,
    )
    cancel_chain = operation(
        "POST /v1/chains/runs/{id}/cancel", "Cancel a run", EmptyRequest, ChainRun, TEXT, idempotent=False
    )
    mcp_sessions = operation(
        "GET /v1/mcp/sessions", "Sessions of agent hosts, oldest first", q.NoParameters, McpSessionsResponse
    )
    report_mcp_session = operation(
        "PUT /v1/mcp/sessions/{id}", "Report a session of an agent host", McpSessionReport, McpSession, TEXT
    )
    put_artifact = Method(Core.put_artifact, "PUT /v1/artifacts/{work_id}/{name}")
    get_artifact = Stream(Core.get_artifact, "GET /v1/artifacts/{work_id}/{name}")
    events = stream("GET /v1/events", q.EventsQuery, Core.events)
    foreign_messages = Stream(Core.foreign_messages, "GET /v1/bridge/{format}/stream")
    wait = Method(Core.wait)
    run = Method(Core.run)
