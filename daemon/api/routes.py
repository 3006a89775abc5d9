"""The table of routes: all that the local API offers, once.

An operation is added here and in the class that carries it out; routing, the OpenAPI document, docs/api.md and the simulated
daemon of the tests follow. `make api-docs` writes the two documents.
"""

from typing import Final

from aghbus.daemon.api.route import Route
from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.bridge.bridge import Bridge
from aghbus.daemon.bridge.deliver import MessageDelivery
from aghbus.daemon.bridge.submit import MessageSubmitter
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.discovery.whois import WhoisQuestions
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.inbox_purge import InboxPurge
from aghbus.daemon.services.mcp_sessions import McpSessions
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.status import StatusService
from aghbus.daemon.services.trust_explain import TrustExplainer
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.services.works import WorkService
from aghbus.protocol.api import artifacts, bridge, chains, inbox, mcp, messages, peers, status, trust, works
from aghbus.protocol.api import queries as q
from aghbus.protocol.api.base import EmptyRequest
from aghbus.protocol.formats.attachments import MAX_MESSAGE_BYTES

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
_BRIDGE_BODY: Final = 2 * MAX_MESSAGE_BYTES  # the largest message as a string, whose quotes and line ends are escaped


def _not_ready(readiness: status.ReadinessResponse) -> bool:
    return not readiness.ready


ROUTES: Final = (
    Route("GET", "/healthz", "The daemon's event loop runs", StatusService.health, status.HealthResponse),
    Route(
        "GET",
        "/readyz",
        "200 when ready, else 503",
        StatusService.readiness,
        status.ReadinessResponse,
        unavailable=_not_ready,
    ),
    Route("GET", "/openapi.json", "This API as OpenAPI 3.1", None),
    Route(
        "GET", "/v1/version", "Versions of program, protocol and API", StatusService.versions, status.VersionResponse
    ),
    Route("GET", "/v1/status", "The state of the whole daemon", StatusService.status, status.StatusResponse),
    Route(
        "GET", "/v1/peers", "Peers known to presence", PeerService.list_peers, peers.PeersResponse, query=q.PeersQuery
    ),
    Route(
        "POST",
        "/v1/whois",
        "Ask the peers of a channel for their Peer Cards",
        WhoisQuestions.whois,
        peers.WhoisResponse,
        request=peers.WhoisRequest,
        waits=True,
    ),
    Route(
        "POST",
        "/v1/messages",
        "Send one envelope by its parts",
        MessageService.send,
        messages.SendResponse,
        request=messages.SendRequest,
        status=201,
        errors=_SENDS,
    ),
    Route(
        "GET",
        "/v1/messages",
        "A page of messages",
        MessageService.list_messages,
        messages.MessagesResponse,
        query=q.MessagesQuery,
    ),
    Route(
        "GET",
        "/v1/messages/{id}",
        "One message",
        MessageService.get_message,
        messages.Message,
        parameters=q.IdPath,
        errors=_FOUND,
    ),
    Route(
        "GET",
        "/v1/works",
        "Works, latest change first",
        WorkService.list_works,
        works.WorksResponse,
        query=q.WorksQuery,
    ),
    Route(
        "POST",
        "/v1/works",
        "Open a work for a peer",
        WorkService.open_work,
        messages.SendResponse,
        request=works.WorkOpenRequest,
        status=201,
        errors=_SENDS,
    ),
    Route(
        "GET",
        "/v1/works/{id}",
        "A work with its history",
        WorkService.get_work,
        works.WorkResponse,
        parameters=q.IdPath,
        query=q.WorkQuery,
        errors=("not_found", "conflict"),
    ),
    Route(
        "POST",
        "/v1/works/{id}/{verb}",
        "One step of a work",
        WorkService.step_work,
        messages.SendResponse,
        parameters=q.WorkStepPath,
        request=works.WorkStepRequest,
        status=201,
        errors=_SENDS,
    ),
    Route(
        "GET",
        "/v1/threads",
        "Threads, latest activity first",
        MessageService.list_threads,
        messages.ThreadsResponse,
        query=q.RoomsQuery,
    ),
    Route(
        "GET",
        "/v1/directs",
        "Direct rooms, latest activity first",
        MessageService.list_directs,
        messages.DirectsResponse,
        query=q.RoomsQuery,
    ),
    Route(
        "GET", "/v1/inbox", "The inbox, oldest first", InboxService.list_items, inbox.InboxResponse, query=q.InboxQuery
    ),
    Route(
        "POST",
        "/v1/inbox/next",
        "Lease the oldest ready message",
        InboxService.next,
        inbox.InboxNextResponse,
        request=inbox.InboxNextRequest,
        waits=True,
    ),
    Route(
        "POST",
        "/v1/inbox/purge",
        "Make unread messages of a sender dead",
        InboxPurge.purge,
        inbox.InboxPurgeResponse,
        request=inbox.InboxPurgeRequest,
    ),
    Route(
        "POST",
        "/v1/inbox/{seq}/lease",
        "Lease one message, or renew its lease",
        InboxService.lease,
        inbox.InboxItem,
        parameters=q.SeqPath,
        request=inbox.InboxLeaseRequest,
        errors=_LEASES,
    ),
    Route(
        "POST",
        "/v1/inbox/{seq}/ack",
        "Done with a message",
        InboxService.ack,
        inbox.InboxItem,
        parameters=q.SeqPath,
        request=inbox.InboxAckRequest,
        errors=_LEASES,
    ),
    Route(
        "POST",
        "/v1/inbox/{seq}/nack",
        "Return a message to the queue",
        InboxService.nack,
        inbox.InboxItem,
        parameters=q.SeqPath,
        request=inbox.InboxNackRequest,
        errors=_LEASES,
    ),
    Route(
        "POST",
        "/v1/inbox/{seq}/requeue",
        "Make a dead message ready again",
        InboxService.requeue,
        inbox.InboxItem,
        parameters=q.SeqPath,
        request=EmptyRequest,
        errors=_LEASES,
    ),
    Route(
        "GET", "/v1/capabilities", "The daemon's own catalog", PeerService.list_capabilities, peers.CapabilitiesResponse
    ),
    Route(
        "GET",
        "/v1/capabilities/{id}",
        "One capability of the catalog",
        PeerService.get_capability,
        peers.CapabilityRecord,
        parameters=q.IdPath,
        errors=_FOUND,
    ),
    Route(
        "GET",
        "/v1/quarantine",
        "Refused envelopes, latest first",
        MessageService.list_quarantine,
        messages.QuarantineResponse,
        query=q.LimitQuery,
    ),
    Route("GET", "/v1/trust", "The trust rules", TrustRuleService.list_rules, trust.TrustRulesResponse),
    Route(
        "POST",
        "/v1/trust/{verb}",
        "Change the trust rules",
        TrustRuleService.change,
        trust.TrustChangeResponse,
        parameters=q.TrustVerbPath,
        request=trust.TrustChangeRequest,
        errors=("not_found", "conflict", "refused"),
    ),
    Route(
        "GET",
        "/v1/trust/why/{id}",
        "Why a message was accepted or refused",
        TrustExplainer.explain,
        trust.TrustExplainResponse,
        parameters=q.IdPath,
        errors=_FOUND,
    ),
    Route(
        "GET",
        "/v1/artifacts",
        "Artifacts by URI",
        Artifacts.list_artifacts,
        artifacts.ArtifactsResponse,
        query=q.ArtifactsQuery,
    ),
    Route(
        "PUT",
        "/v1/artifacts/{work_id}/{name}",
        "Store an artifact",
        Artifacts.put,
        artifacts.Artifact,
        parameters=q.ArtifactPath,
        status=201,
        errors=("conflict", "too_large"),
        transfer="upload",
    ),
    Route(
        "GET",
        "/v1/artifacts/{work_id}/{name}",
        "The content of an artifact",
        Artifacts.get,
        parameters=q.ArtifactPath,
        errors=("not_found", "too_large"),
        transfer="download",
    ),
    Route(
        "GET",
        "/v1/events",
        "Server-sent events",
        MessageService.events,
        messages.Event,
        query=q.EventsQuery,
        transfer="events",
    ),
    Route(
        "POST",
        "/v1/bridge/{format}",
        "Submit a foreign message",
        MessageSubmitter.submit,
        bridge.BridgeSubmitResponse,
        parameters=q.FormatPath,
        request=bridge.BridgeSubmitRequest,
        status=201,
        errors=("message_refused", *_REFUSALS),
        max_body=_BRIDGE_BODY,
    ),
    Route(
        "GET",
        "/v1/bridge/{format}/stream",
        "Server-sent foreign messages",
        MessageDelivery.stream,
        bridge.BridgeMessage,
        parameters=q.FormatPath,
        query=q.BridgeStreamQuery,
        transfer="events",
    ),
    Route(
        "GET",
        "/v1/bridge/{format}/messages/{seq}",
        "The foreign form of one envelope",
        MessageDelivery.get,
        bridge.BridgeMessage,
        parameters=q.FormatSeqPath,
        errors=_FOUND,
    ),
    Route(
        "POST",
        "/v1/bridge/{format}/ack",
        "Acknowledge foreign messages up to a sequence",
        MessageDelivery.ack,
        bridge.BridgeAckResponse,
        parameters=q.FormatPath,
        request=bridge.BridgeAckRequest,
    ),
    Route(
        "GET",
        "/v1/bridge/{format}/log",
        "The format's own log, oldest row first",
        Bridge.list_log,
        bridge.BridgeLogResponse,
        parameters=q.FormatPath,
        query=q.LimitQuery,
    ),
    Route(
        "POST",
        "/v1/chains/runs",
        "Start a run of a chain",
        ChainService.start,
        chains.ChainRun,
        request=chains.ChainStartRequest,
        status=201,
        errors=("conflict", "refused"),
    ),
    Route(
        "GET",
        "/v1/chains/runs",
        "Runs of chains, latest change first",
        ChainService.list_runs,
        chains.ChainRunsResponse,
        query=q.ChainRunsQuery,
    ),
    Route(
        "GET",
        "/v1/chains/runs/{id}",
        "A run with its steps",
        ChainService.get_run,
        chains.ChainRun,
        parameters=q.IdPath,
        query=q.ChainRunQuery,
        errors=_FOUND,
        waits=True,
    ),
    Route(
        "POST",
        "/v1/chains/runs/{id}/answer",
        "Answer a run that waits for input",
        ChainService.answer,
        chains.ChainRun,
        parameters=q.IdPath,
        request=chains.ChainAnswerRequest,
        errors=("not_found", "conflict", "refused", "work_closed"),
    ),
    Route(
        "POST",
        "/v1/chains/runs/{id}/cancel",
        "Cancel a run",
        ChainService.cancel,
        chains.ChainRun,
        parameters=q.IdPath,
        request=EmptyRequest,
        errors=("not_found", "conflict"),
    ),
    Route(
        "GET",
        "/v1/mcp/sessions",
        "Sessions of agent hosts, oldest first",
        McpSessions.list_sessions,
        mcp.McpSessionsResponse,
    ),
    Route(
        "PUT",
        "/v1/mcp/sessions/{id}",
        "Report a session of an agent host",
        McpSessions.report,
        mcp.McpSession,
        parameters=q.IdPath,
        request=mcp.McpSessionReport,
    ),
)
"""Every route, in the order of the documentation."""
