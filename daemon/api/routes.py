"""The table of routes: routing and the OpenAPI document come from it, and the table of docs/api.md is compared to it."""

from dataclasses import dataclass, field
from functools import cache
from typing import Final

from aghbus.daemon.api import handlers as h
from aghbus.daemon.api import queries as q
from aghbus.daemon.api.bridge_routes import BRIDGE_ROUTES
from aghbus.daemon.api.chain_routes import CHAIN_ROUTES
from aghbus.daemon.api.http.errors import HttpRefusal
from aghbus.daemon.api.route import Route
from aghbus.daemon.api.trust_routes import TRUST_ROUTES
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse
from aghbus.protocol.api.base import EmptyRequest
from aghbus.protocol.api.inbox import (
    InboxAckRequest,
    InboxItem,
    InboxNackRequest,
    InboxNextRequest,
    InboxNextResponse,
    InboxResponse,
)
from aghbus.protocol.api.messages import (
    DirectsResponse,
    Event,
    Message,
    MessagesResponse,
    QuarantineResponse,
    SendRequest,
    SendResponse,
    ThreadsResponse,
)
from aghbus.protocol.api.peers import CapabilitiesResponse, CapabilityRecord, PeersResponse, WhoisRequest, WhoisResponse
from aghbus.protocol.api.status import HealthResponse, ReadinessResponse, StatusResponse, VersionResponse
from aghbus.protocol.api.works import WorkOpenRequest, WorkResponse, WorksResponse, WorkStepRequest

# Codes beside invalid_request, unavailable and internal, which every route may answer.
_FOUND: Final = ("not_found",)
_SENDS: Final = (
    "conflict",
    "refused",
    "work_closed",
    "work_container_mismatch",
    "actor_not_allowed",
    "invalid_transition",
)
_LEASES: Final = ("not_found", "conflict")


ROUTES: Final = (
    Route("GET", "/healthz", "The daemon's loop turns", HealthResponse, h.healthz),
    Route("GET", "/readyz", "200 when ready, else 503", ReadinessResponse, h.readyz),
    Route("GET", "/openapi.json", "This API as OpenAPI 3.1"),
    Route("GET", "/v1/version", "Versions of program, protocol and API", VersionResponse, h.version),
    Route("GET", "/v1/status", "The whole daemon at a glance", StatusResponse, h.status),
    Route("GET", "/v1/peers", "Peers that presence knows", PeersResponse, h.peers, query=q.PeersQuery),
    Route("POST", "/v1/whois", "Ask who is there", WhoisResponse, h.whois, ask=WhoisRequest, waits=True),
    Route(
        "POST",
        "/v1/messages",
        "Send one envelope by its parts",
        SendResponse,
        h.send,
        ask=SendRequest,
        status=201,
        errors=("not_found", *_SENDS),
    ),
    Route("GET", "/v1/messages", "A page of messages", MessagesResponse, h.messages, query=q.MessagesQuery),
    Route("GET", "/v1/messages/{id}", "One message", Message, h.message, parameters=q.ById, errors=_FOUND),
    Route("GET", "/v1/works", "Works, latest change first", WorksResponse, h.works, query=q.WorksQuery),
    Route(
        "POST",
        "/v1/works",
        "Open a work for a peer",
        SendResponse,
        h.work_open,
        ask=WorkOpenRequest,
        status=201,
        errors=("not_found", *_SENDS),
    ),
    Route(
        "GET",
        "/v1/works/{id}",
        "A work with its history",
        WorkResponse,
        h.work,
        parameters=q.ById,
        query=q.WorkQuery,
        errors=("not_found", "conflict"),
    ),
    Route(
        "POST",
        "/v1/works/{id}/{verb}",
        "One step of a work",
        SendResponse,
        h.work_verb,
        parameters=q.ByVerb,
        ask=WorkStepRequest,
        status=201,
        errors=("not_found", *_SENDS),
    ),
    Route("GET", "/v1/threads", "Threads, latest activity first", ThreadsResponse, h.threads, query=q.RoomsQuery),
    Route("GET", "/v1/directs", "Direct rooms, latest activity first", DirectsResponse, h.directs, query=q.RoomsQuery),
    Route("GET", "/v1/inbox", "The inbox, oldest first", InboxResponse, h.inbox, query=q.InboxQuery),
    Route(
        "POST",
        "/v1/inbox/next",
        "Lease the oldest ready message",
        InboxNextResponse,
        h.inbox_next,
        ask=InboxNextRequest,
        waits=True,
    ),
    Route(
        "POST",
        "/v1/inbox/{seq}/ack",
        "Done with a message",
        InboxItem,
        h.inbox_ack,
        parameters=q.BySeq,
        ask=InboxAckRequest,
        errors=_LEASES,
    ),
    Route(
        "POST",
        "/v1/inbox/{seq}/nack",
        "Return a message to the queue",
        InboxItem,
        h.inbox_nack,
        parameters=q.BySeq,
        ask=InboxNackRequest,
        errors=_LEASES,
    ),
    Route(
        "POST",
        "/v1/inbox/{seq}/requeue",
        "Make a dead message ready again",
        InboxItem,
        h.inbox_requeue,
        parameters=q.BySeq,
        ask=EmptyRequest,
        errors=_LEASES,
    ),
    Route("GET", "/v1/capabilities", "Our own catalog", CapabilitiesResponse, h.capabilities),
    Route(
        "GET",
        "/v1/capabilities/{id}",
        "One capability of our catalog",
        CapabilityRecord,
        h.capability,
        parameters=q.ById,
        errors=_FOUND,
    ),
    Route(
        "GET",
        "/v1/quarantine",
        "Refused envelopes, latest first",
        QuarantineResponse,
        h.quarantine,
        query=q.LimitQuery,
    ),
    *TRUST_ROUTES,
    Route("GET", "/v1/artifacts", "Artifacts by URI", ArtifactsResponse, h.artifacts, query=q.ArtifactsQuery),
    Route(
        "PUT",
        "/v1/artifacts/{work_id}/{name}",
        "Store an artifact",
        Artifact,
        upload=h.artifact_put,
        parameters=q.ByArtifact,
        status=201,
        errors=("conflict", "too_large"),
    ),
    Route(
        "GET",
        "/v1/artifacts/{work_id}/{name}",
        "The content of an artifact",
        download=h.artifact_get,
        parameters=q.ByArtifact,
        errors=("not_found", "too_large"),
    ),
    Route("GET", "/v1/events", "Server-sent events", Event, stream=h.events, query=q.EventsQuery),
    *BRIDGE_ROUTES,
    *CHAIN_ROUTES,
)
"""Every route, in the order of the documentation."""


def split(path: str) -> tuple[str, ...]:
    """The segments of a path behind its first slash."""
    return tuple(path[1:].split("/"))


@cache
def parameter_names(path: str) -> tuple[str, ...]:
    """The names of the parameters of a route's path, in order."""
    return tuple(segment[1:-1] for segment in split(path) if segment.startswith("{"))


@dataclass(slots=True)
class _Node:
    """A place in the tree of path segments; `any` is the branch of a parameter, taken when no word fits."""

    words: dict[str, "_Node"] = field(default_factory=dict)
    any: "_Node | None" = None
    methods: dict[str, Route] = field(default_factory=dict)


class Router:
    """Finds the route of a request: a word of the table goes before a parameter in the same place."""

    def __init__(self, routes: tuple[Route, ...] = ROUTES) -> None:
        self._root = _Node()
        self._plain = {(route.method, route.path): route for route in routes if "{" not in route.path}
        for route in routes:
            self._node_for(route.path).methods[route.method] = route

    def find(self, method: str, path: str) -> tuple[Route, list[str]]:
        """The route and its parameters' raw segments in order. `path` is as on the wire, percent-encoded.

        Raises HttpRefusal: 404 for a path that is not in the table, 405 with `Allow` for another method.
        """
        if (plain := self._plain.get((method, path))) is not None:
            return plain, []
        found = self._walk(self._root, split(path), 0)
        if found is None or not path.startswith("/"):
            raise HttpRefusal(404, "unknown_path", f"{path}: no such path", "GET /openapi.json lists the paths")
        node, values = found
        route = node.methods.get(method)
        if route is None:
            allowed = ", ".join(sorted(node.methods))
            raise HttpRefusal(
                405,
                "method_not_allowed",
                f"{method}: is not a method of {path}",
                f"allowed: {allowed}",
                [(b"allow", allowed.encode())],
            )
        return route, values

    def _node_for(self, path: str) -> _Node:
        node = self._root
        for segment in split(path):
            if segment.startswith("{"):
                node.any = node.any or _Node()
                node = node.any
            else:
                node = node.words.setdefault(segment, _Node())
        return node

    def _walk(self, node: _Node, segments: tuple[str, ...], at: int) -> tuple[_Node, list[str]] | None:
        if at == len(segments):
            return (node, []) if node.methods else None
        word = node.words.get(segments[at])
        if word is not None and (found := self._walk(word, segments, at + 1)) is not None:
            return found
        if node.any is not None and segments[at] and (found := self._walk(node.any, segments, at + 1)) is not None:
            return found[0], [segments[at], *found[1]]
        return None
