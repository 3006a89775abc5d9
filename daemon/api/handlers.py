"""One function for each route: from the parsed request to a call of the Service, and back with its answer."""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from aghbus.daemon.api import queries as q
from aghbus.daemon.api.service import EventFilter, MessageQuery, Service
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse
from aghbus.protocol.api.base import API_VERSION
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
from aghbus.protocol.errors import NotFound
from aghbus.protocol.limits import PROTOCOL
from aghbus.store.host.version import VERSION

P = TypeVar("P")
Q = TypeVar("Q")
A = TypeVar("A")


class Call(NamedTuple, Generic[P, Q, A]):
    """A parsed request: its path parameters, query and body. `resume_from` is the `Last-Event-ID` of a stream."""

    path: P
    query: Q
    ask: A
    resume_from: int | None = None


async def healthz(service: Service, call: Call[Any, Any, Any]) -> HealthResponse:
    """Alive, whatever the state of broker and store."""
    return HealthResponse(alive=True)


async def readyz(service: Service, call: Call[Any, Any, Any]) -> ReadinessResponse:
    """Ready or not, part by part."""
    return await service.readiness()


async def version(service: Service, call: Call[Any, Any, Any]) -> VersionResponse:
    """Versions of the program, the protocol and this API."""
    return VersionResponse(name="aghbus", version=VERSION, protocol=PROTOCOL, api=API_VERSION)


async def status(service: Service, call: Call[Any, Any, Any]) -> StatusResponse:
    """The whole daemon at a glance."""
    return await service.status()


async def peers(service: Service, call: Call[Any, q.PeersQuery, Any]) -> PeersResponse:
    """Peers that presence knows."""
    query = call.query
    return await service.peers(capability=query.capability, channel=query.channel, include_expired=query.all)


async def whois(service: Service, call: Call[Any, Any, WhoisRequest]) -> WhoisResponse:
    """Asks the channel who is there, and waits for the answers."""
    return await service.whois(call.ask)


async def send(service: Service, call: Call[Any, Any, SendRequest]) -> SendResponse:
    """Commits one envelope that will go out."""
    return await service.send(call.ask)


async def messages(service: Service, call: Call[Any, q.MessagesQuery, Any]) -> MessagesResponse:
    """A page of stored envelopes."""
    query = call.query
    return await service.messages(
        MessageQuery(
            since=query.since,
            limit=query.limit,
            last=query.last,
            kinds=query.kind,
            work_id=query.work,
            thread_id=query.thread,
            direct_id=query.direct,
            peer=query.peer,
            channel=query.channel,
            directions=query.direction,
        )
    )


async def message(service: Service, call: Call[q.ById, Any, Any]) -> Message:
    """One stored envelope."""
    return await service.message(call.path.id)


async def works(service: Service, call: Call[Any, q.WorksQuery, Any]) -> WorksResponse:
    """Works by state, role, peer and channel."""
    query = call.query
    return await service.works(
        states=query.state, role=query.role, peer=query.peer, channel=query.channel, limit=query.limit
    )


async def work_open(service: Service, call: Call[Any, Any, WorkOpenRequest]) -> SendResponse:
    """Opens a work for a peer."""
    return await service.work_open(call.ask)


async def work(service: Service, call: Call[q.ById, q.WorkQuery, Any]) -> WorkResponse:
    """A work with its history."""
    return await service.work(call.path.id, call.query.channel)


async def work_verb(service: Service, call: Call[q.ByVerb, Any, WorkStepRequest]) -> SendResponse:
    """One step of a work."""
    return await service.work_verb(call.path.id, call.path.verb, call.ask)


async def threads(service: Service, call: Call[Any, q.RoomsQuery, Any]) -> ThreadsResponse:
    """Threads with activity."""
    return await service.threads(channel=call.query.channel, limit=call.query.limit)


async def directs(service: Service, call: Call[Any, q.RoomsQuery, Any]) -> DirectsResponse:
    """Our direct rooms."""
    return await service.directs(channel=call.query.channel, limit=call.query.limit)


async def inbox(service: Service, call: Call[Any, q.InboxQuery, Any]) -> InboxResponse:
    """What waits for the agent, without taking it."""
    return await service.inbox(states=call.query.state, limit=call.query.limit)


async def inbox_next(service: Service, call: Call[Any, Any, InboxNextRequest]) -> InboxNextResponse:
    """Leases the oldest ready message."""
    return await service.inbox_next(call.ask)


async def inbox_ack(service: Service, call: Call[q.BySeq, Any, InboxAckRequest]) -> InboxItem:
    """Done with it."""
    return await service.inbox_ack(call.path.seq, call.ask)


async def inbox_nack(service: Service, call: Call[q.BySeq, Any, InboxNackRequest]) -> InboxItem:
    """Not now, or not by us."""
    return await service.inbox_nack(call.path.seq, call.ask)


async def inbox_requeue(service: Service, call: Call[q.BySeq, Any, Any]) -> InboxItem:
    """Once more from the start."""
    return await service.inbox_requeue(call.path.seq)


async def capabilities(service: Service, call: Call[Any, Any, Any]) -> CapabilitiesResponse:
    """Our own catalog."""
    return await service.capabilities()


async def capability(service: Service, call: Call[q.ById, Any, Any]) -> CapabilityRecord:
    """One record of our catalog."""
    for record in (await service.capabilities()).capabilities:
        if record.id == call.path.id:
            return record
    raise NotFound(
        f"capability {call.path.id!r}: is not in the catalog of this daemon", hint="GET /v1/capabilities lists it"
    )


async def quarantine(service: Service, call: Call[Any, q.LimitQuery, Any]) -> QuarantineResponse:
    """Refused envelopes, latest first."""
    return await service.quarantine(limit=call.query.limit)


def events(service: Service, call: Call[Any, q.EventsQuery, Any]) -> AsyncIterator[Sequence[Event]]:
    """The stream. A client that reconnects says where it was in `Last-Event-ID`, which is newer than its `since`."""
    query = call.query
    wanted = EventFilter(
        kinds=query.kind,
        work_id=query.work,
        thread_id=query.thread,
        direct_id=query.direct,
        peer=query.peer,
        channel=query.channel,
        directions=query.direction,
        inbox=query.inbox,
    )
    return service.events(query.since if call.resume_from is None else call.resume_from, wanted)


async def artifacts(service: Service, call: Call[Any, q.ArtifactsQuery, Any]) -> ArtifactsResponse:
    """What is in the bucket."""
    return await service.artifacts(work_id=call.query.work, limit=call.query.limit)


async def artifact_put(service: Service, call: Call[q.ByArtifact, Any, Any], content: AsyncIterator[bytes]) -> Artifact:
    """Stores the body of the request."""
    return await service.artifact_put(call.path.work_id, call.path.name, content)


async def artifact_get(service: Service, call: Call[q.ByArtifact, Any, Any]) -> tuple[Artifact, AsyncIterator[bytes]]:
    """The content, described by headers."""
    return await service.artifact_get(call.path.work_id, call.path.name)
