"""What the local API can ask of the daemon: the seam between HTTP and the node.

Every method takes and returns the plain data of `aghbus.protocol.api.models` and `bridge_api`, and raises RequestError
(`InvalidRequest`, `NotFound`, `Refused`, `Unavailable`) for what cannot be done.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from aghbus.daemon.chains.api import ChainApi
from aghbus.protocol.api import bridge as bridge_api
from aghbus.protocol.api import trust as trust_api
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse
from aghbus.protocol.api.base import RequestModel
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
from aghbus.protocol.api.peers import CapabilitiesResponse, PeersResponse, WhoisRequest, WhoisResponse
from aghbus.protocol.api.status import ReadinessResponse, StatusResponse
from aghbus.protocol.api.works import WorkOpenRequest, WorkResponse, WorksResponse, WorkStepRequest, WorkVerb


class EventFilter(RequestModel):
    """Which events of the stream; empty means all. Several values of one filter are alternatives, filters combine."""

    kinds: frozenset[str] = frozenset()
    work_id: str | None = None
    thread_id: str | None = None
    direct_id: str | None = None
    peer: str | None = None
    channel: str | None = None
    directions: frozenset[str] = frozenset()
    inbox: bool = False  # only what was put into our inbox and is not acked yet


class MessageQuery(RequestModel):
    """One page of messages, in order of the local sequence, after `since`; `last` takes the newest `limit` instead."""

    since: int = 0
    limit: int = 100
    last: bool = False
    kinds: frozenset[str] = frozenset()
    work_id: str | None = None
    thread_id: str | None = None
    direct_id: str | None = None
    peer: str | None = None
    channel: str | None = None
    directions: frozenset[str] = frozenset()


class Service(ChainApi, Protocol):
    """The daemon as its API sees it."""

    async def status(self) -> StatusResponse: ...
    async def readiness(self) -> ReadinessResponse: ...
    async def peers(self, *, capability: str | None, channel: str | None, include_expired: bool) -> PeersResponse: ...
    async def whois(self, ask: WhoisRequest) -> WhoisResponse: ...
    async def send(self, ask: SendRequest) -> SendResponse: ...
    async def work_open(self, ask: WorkOpenRequest) -> SendResponse: ...
    async def work_verb(self, work_id: str, verb: WorkVerb, ask: WorkStepRequest) -> SendResponse: ...
    async def works(
        self, *, states: frozenset[str], role: str | None, peer: str | None, channel: str | None, limit: int
    ) -> WorksResponse: ...
    async def work(self, work_id: str, channel: str | None) -> WorkResponse: ...
    async def messages(self, query: MessageQuery) -> MessagesResponse: ...
    async def message(self, message_id: str) -> Message: ...
    async def threads(self, *, channel: str | None, limit: int) -> ThreadsResponse: ...
    async def directs(self, *, channel: str | None, limit: int) -> DirectsResponse: ...
    async def inbox(self, *, states: frozenset[str], limit: int) -> InboxResponse: ...
    async def inbox_next(self, ask: InboxNextRequest) -> InboxNextResponse: ...
    async def inbox_ack(self, seq: int, ask: InboxAckRequest) -> InboxItem: ...
    async def inbox_nack(self, seq: int, ask: InboxNackRequest) -> InboxItem: ...
    async def inbox_requeue(self, seq: int) -> InboxItem: ...
    async def capabilities(self) -> CapabilitiesResponse: ...
    async def trust_rules(self) -> trust_api.TrustRulesResponse: ...
    async def trust_change(
        self, verb: trust_api.TrustVerb, ask: trust_api.TrustChangeRequest
    ) -> trust_api.TrustChangeResponse: ...
    async def trust_why(self, message_id: str) -> trust_api.TrustExplainResponse: ...
    async def quarantine(self, *, limit: int) -> QuarantineResponse: ...
    async def artifact_put(self, work_id: str, name: str, content: AsyncIterator[bytes]) -> Artifact: ...
    async def artifact_get(self, work_id: str, name: str) -> tuple[Artifact, AsyncIterator[bytes]]: ...
    async def artifacts(self, *, work_id: str | None, limit: int) -> ArtifactsResponse: ...
    async def bridge_hand_over(
        self, name: bridge_api.Format, ask: bridge_api.BridgeSubmitRequest
    ) -> bridge_api.BridgeSubmitResponse: ...
    async def bridge_message(self, name: bridge_api.Format, seq: int) -> bridge_api.BridgeMessage: ...
    async def bridge_ack(
        self, name: bridge_api.Format, ask: bridge_api.BridgeAckRequest
    ) -> bridge_api.BridgeAckResponse: ...
    async def bridge_log(self, name: bridge_api.Format, *, limit: int) -> bridge_api.BridgeLogResponse: ...
    def bridge_stream(
        self, name: bridge_api.Format, since: int | None
    ) -> AsyncIterator[Sequence[Event | bridge_api.BridgeMessage]]:
        """Messages for our agent after `since` (None: after what it acknowledged), otherwise as `events`."""
        ...

    def events(self, since: int | None, wanted: EventFilter) -> AsyncIterator[Sequence[Event]]:
        """Events after `since` (None: from now on), for ever; a `gap` event first where retention removed some of them.

        They come in pages of what was ready together. Ends when the daemon drains. Closing the iterator releases what it holds.
        """
        ...
