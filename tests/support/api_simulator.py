"""A daemon in memory behind the API: it records the calls of its operations, and responds as a test says.

Every operation of the table has a handler here: one of this module, or one that returns the response of its example.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from aghbus.daemon.api.handlers import Handler, openapi
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse
from aghbus.protocol.api.examples import values
from aghbus.protocol.api.examples.table import EXAMPLES
from aghbus.protocol.api.inbox import InboxAckRequest, InboxItem, InboxNextRequest, InboxNextResponse
from aghbus.protocol.api.messages import Event, Message, MessagesResponse, SendRequest, SendResponse
from aghbus.protocol.api.operation import AnyOperation
from aghbus.protocol.api.operations import OPERATIONS, Operations
from aghbus.protocol.api.peers import CapabilityRecord, WhoisRequest, WhoisResponse
from aghbus.protocol.api.queries import ArtifactsQuery, EventsQuery, MessagesQuery, WorkQuery
from aghbus.protocol.api.status import HealthResponse, ReadinessResponse
from aghbus.protocol.api.works import WorkResponse
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused


def message(seq: int, message_id: str = "msg_1", text: str = "hello") -> Message:
    """A stored say from peer `ops`."""
    envelope = {"id": message_id, "kind": "say", "body": {"text": text}}
    return msgspec.structs.replace(
        values.MESSAGE,
        seq=seq,
        id=message_id,
        envelope=msgspec.Raw(msgspec.json.encode(envelope)),
    )


def artifact(work_id: str, name: str, content: bytes) -> Artifact:
    """The description of an artifact with this content."""
    return Artifact(
        uri=f"agh://artifacts/{work_id}/{name}",
        work_id=work_id,
        name=name,
        size=len(content),
        digest=f"sha256:{hashlib.sha256(content).hexdigest()}",
        put_by="ops",
    )


def inbox_item(seq: int, lease: str | None = None) -> InboxItem:
    """An inbox row, leased when `lease` is given."""
    state = "leased" if lease else "ready"
    return msgspec.structs.replace(values.ITEM, seq=seq, state=state, attempts=1, lease=lease, message=message(seq))


class SimulatedDaemon:
    """The handlers of a daemon that has no broker and no disk. Tests edit its attributes while it serves.

    `calls` has `METHOD path` and the arguments of each operation called. `respond` replaces handlers by that name, and `futures`
    the answers of handlers.
    """

    def __init__(self) -> None:
        self.ready = True
        self.failure: Exception | None = None
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.stored: dict[str, Message] = {}
        self.log: list[Event] = []
        self.news = asyncio.Condition()
        self.open_streams = 0
        self.waiting = asyncio.Event()
        self.wait_ended = asyncio.Event()
        self.stream_failure: Exception | None = None
        self.release = asyncio.Event()
        self.futures: dict[str, asyncio.Future[Any]] = {}
        self.content: dict[str, list[bytes]] = {}  # artifacts by `work_id/name`, in the pieces that a GET gives
        self.content_failure: Exception | None = None  # raised by a GET after the pieces
        self.max_content = 1_000_000
        self.respond: dict[str, Handler] = {
            "GET /healthz": self._health,
            "GET /readyz": self._readiness,
            "POST /v1/whois": self._whois,
            "GET /v1/messages": self._messages,
            "GET /v1/messages/{id}": self._message,
            "POST /v1/messages": self._send,
            "GET /v1/works/{id}": self._work,
            "POST /v1/inbox/next": self._inbox_next,
            "POST /v1/inbox/{seq}/ack": self._inbox_ack,
            "GET /v1/capabilities/{id}": self._capability,
            "GET /v1/artifacts": self._artifacts,
            "PUT /v1/artifacts/{work_id}/{name}": self.put_artifact,
            "GET /v1/artifacts/{work_id}/{name}": self._get_artifact,
            "GET /v1/events": self._events,
            "GET /v1/bridge/{format}/stream": self._bridge_stream,
        }

    def handlers(self) -> dict[AnyOperation, Handler]:
        """A handler for every operation; that of the OpenAPI document is the daemon's."""
        return {operation: self._recorded(operation) for operation in OPERATIONS} | {Operations.get_openapi: openapi}

    def names(self) -> list[str]:
        """The operations called, in order."""
        return [name for name, _ in self.calls]

    def _recorded(self, operation: AnyOperation) -> Handler:
        name = operation.route

        def handler(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            if name in self.futures:
                self.waiting.set()
                return self.futures[name]
            if operation.transfer == "json":
                return self._responding(self.respond.get(name, self._example_of(operation)), arguments)
            return self.respond[name](*arguments)

        return handler

    async def _responding(self, handler: Handler, arguments: tuple[Any, ...]) -> Any:
        if self.failure is not None:
            raise self.failure
        return await handler(*arguments)

    def _example_of(self, operation: AnyOperation) -> Handler:
        async def handler(*_: Any) -> Any:
            return EXAMPLES[operation].response

        return handler

    async def append(self, *events: Event) -> None:
        """More events for the streams."""
        async with self.news:
            self.log.extend(events)
            self.news.notify_all()

    async def put_artifact(self, work_id: str, name: str, content: AsyncIterator[bytes]) -> Artifact:
        """Keep the content, up to `max_content` bytes."""
        pieces: list[bytes] = []
        async for piece in content:
            pieces.append(piece)
            if sum(map(len, pieces)) > self.max_content:
                raise InvalidRequest("artifact: is too long", code="too_large")
        if self.failure is not None:
            raise self.failure
        self.content[f"{work_id}/{name}"] = pieces
        return artifact(work_id, name, b"".join(pieces))

    async def _get_artifact(self, work_id: str, name: str) -> tuple[Artifact, AsyncIterator[bytes]]:
        if self.failure is not None:
            raise self.failure
        pieces = self.content.get(f"{work_id}/{name}")
        if pieces is None:
            raise NotFound("no such artifact")
        return artifact(work_id, name, b"".join(pieces)), self._pieces(pieces)

    async def _pieces(self, pieces: list[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if self.content_failure is not None:
            raise self.content_failure

    async def _artifacts(self, query: ArtifactsQuery) -> ArtifactsResponse:
        found = []
        for key, pieces in sorted(self.content.items()):
            work_id, _, name = key.partition("/")
            found.append(artifact(work_id, name, b"".join(pieces)))
        return ArtifactsResponse(artifacts=found[: query.limit], more=len(found) > query.limit)

    async def _readiness(self) -> ReadinessResponse:
        return ReadinessResponse(ready=self.ready, broker=self.ready, subscriptions=True, store=True)

    async def _health(self) -> HealthResponse:
        return HealthResponse(alive=True)

    async def _whois(self, request: WhoisRequest) -> WhoisResponse:
        answer: WhoisResponse = EXAMPLES[Operations.find_peers].response
        return msgspec.structs.replace(answer, query=request.query)

    async def _send(self, request: SendRequest) -> SendResponse:
        return msgspec.structs.replace(values.SENT, kind=request.kind, to=request.to)

    async def _work(self, work_id: str, query: WorkQuery) -> WorkResponse:
        raise NotFound(f"work {work_id!r}: is not known", hint="aghctl work list")

    async def _messages(self, query: MessagesQuery) -> MessagesResponse:
        found = [row for row in self.stored.values() if row.seq > query.since][: query.limit]
        return MessagesResponse(
            messages=found, next_since=found[-1].seq if found else query.since, next_before=None, pruned_through=0
        )

    async def _message(self, message_id: str) -> Message:
        if message_id not in self.stored:
            raise NotFound("message: is not in the store")
        return self.stored[message_id]

    async def _inbox_next(self, request: InboxNextRequest) -> InboxNextResponse:
        if request.wait:
            self.waiting.set()
            try:
                async with asyncio.timeout(request.wait):
                    await self.release.wait()
            except TimeoutError:
                return InboxNextResponse(item=None)
            finally:
                self.wait_ended.set()
        return InboxNextResponse(item=inbox_item(7, lease="lease_a"))

    async def _inbox_ack(self, seq: int, request: InboxAckRequest) -> InboxItem:
        if request.lease == "old":
            raise Refused("lease: is not the current one", code="conflict")
        return inbox_item(seq)

    async def _capability(self, capability_id: str) -> CapabilityRecord:
        if capability_id != "test.run":
            raise NotFound("capability: is not in the catalog")
        return CapabilityRecord(id="test.run", summary="runs", digest=None, claim=True, document=None)

    async def _bridge_stream(self, name: str, query: object) -> AsyncIterator[Sequence[Event]]:
        yield [Event(seq=1, type="gap", pruned_from=0)]

    async def _events(self, query: EventsQuery) -> AsyncIterator[Sequence[Event]]:
        after = (self.log[-1].seq if self.log else 0) if query.since is None else query.since
        self.open_streams += 1
        try:
            while True:
                found = [item for item in self.log if item.seq > after]
                if found:
                    yield found
                    after = found[-1].seq
                if self.stream_failure is not None:
                    raise self.stream_failure
                if not found:
                    async with self.news:
                        while not self.log or self.log[-1].seq <= after:
                            await self.news.wait()
        finally:
            self.open_streams -= 1
