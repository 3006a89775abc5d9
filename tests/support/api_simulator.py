"""A daemon in memory behind the API: it keeps what it was asked, and answers what a test put into it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from aghbus.daemon.api.service import EventFilter, MessageQuery
from aghbus.protocol.api import bridge as bridge_api
from aghbus.protocol.api import chains as chain_api
from aghbus.protocol.api import trust as trust_api
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse
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
from aghbus.protocol.api.status import BrokerStatus, ReadinessResponse, StatusResponse, StoreStatus
from aghbus.protocol.api.works import WorkOpenRequest, WorkResponse, WorksResponse, WorkStepRequest, WorkVerb
from aghbus.protocol.errors import InvalidRequest, NotFound, Refused

WORKSPACE = "ws_local"


def message(seq: int, message_id: str = "msg_1", text: str = "hello") -> Message:
    """A stored say from peer `ops`."""
    envelope = {"id": message_id, "kind": "say", "body": {"text": text}}
    return Message(
        seq=seq,
        id=message_id,
        direction="in",
        kind="say",
        workspace_id=WORKSPACE,
        channel="default",
        sender="ops",
        to="worker",
        thread_id="thread_abc",
        direct_id=None,
        work_id=None,
        trust="unverified",
        received_ms=1,
        outcome=None,
        reason=None,
        delivery="ready",
        delivery_detail=None,
        envelope=msgspec.Raw(msgspec.json.encode(envelope)),
    )


def artifact(work_id: str, name: str, content: bytes) -> Artifact:
    """What is said about an artifact with this content."""
    return Artifact(
        uri=f"agh://artifacts/{work_id}/{name}",
        work_id=work_id,
        name=name,
        size=len(content),
        digest=f"sha256:{hashlib.sha256(content).hexdigest()}",
        put_by="ops",
    )


def chain_run(run_id: str) -> chain_api.ChainRun:
    """A run that has just begun."""
    return chain_api.ChainRun(
        run_id=run_id,
        name="review",
        state="running",
        version=1,
        channel="default",
        node="first",
        steps=0,
        max_steps=5,
        error=None,
        question=None,
        created_ms=1,
        updated_ms=1,
        input=None,
        response=None,
        history=[],
    )


def inbox_item(seq: int, lease: str | None = None) -> InboxItem:
    """An inbox row, leased when `lease` is given."""
    return InboxItem(
        seq=seq,
        state="leased" if lease else "ready",
        attempts=1,
        lease=lease,
        lease_until_ms=None,
        available_ms=0,
        last_error=None,
        message=message(seq),
    )


class SimulatedNode:
    """The Service of a daemon that has no broker and no disk. Tests edit its attributes while it serves."""

    def __init__(self) -> None:
        self.ready = True
        self.failure: Exception | None = None
        self.calls: list[tuple[str, Any]] = []
        self.stored: dict[str, Message] = {}
        self.log: list[Event] = []
        self.news = asyncio.Condition()
        self.open_streams = 0
        self.waiting = asyncio.Event()
        self.wait_ended = asyncio.Event()
        self.stream_failure: Exception | None = None
        self.release = asyncio.Event()
        self.content: dict[str, list[bytes]] = {}  # artifacts by `work_id/name`, in the pieces that a GET gives
        self.content_failure: Exception | None = None  # raised by a GET after the pieces
        self.max_content = 1_000_000

    def _called(self, name: str, given: Any = None) -> None:
        self.calls.append((name, given))
        if self.failure is not None:
            raise self.failure

    def _sent(self, kind: str, to: str | None, message_id: str | None) -> SendResponse:
        return SendResponse(
            id=message_id or "msg_new",
            seq=len(self.calls),
            kind=kind,
            workspace_id=WORKSPACE,
            channel="default",
            to=to,
            thread_id=None,
            direct_id=None,
            work_id=None,
            work_state=None,
            state="queued",
        )

    async def artifact_put(self, work_id: str, name: str, content: AsyncIterator[bytes]) -> Artifact:
        pieces: list[bytes] = []
        async for piece in content:
            pieces.append(piece)
            if sum(map(len, pieces)) > self.max_content:
                raise InvalidRequest("artifact: is too long", code="too_large")
        self._called("artifact_put", (work_id, name))
        self.content[f"{work_id}/{name}"] = pieces
        return artifact(work_id, name, b"".join(pieces))

    async def artifact_get(self, work_id: str, name: str) -> tuple[Artifact, AsyncIterator[bytes]]:
        self._called("artifact_get", (work_id, name))
        pieces = self.content.get(f"{work_id}/{name}")
        if pieces is None:
            raise NotFound("no such artifact")
        return artifact(work_id, name, b"".join(pieces)), self._pieces(pieces)

    async def _pieces(self, pieces: list[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
        if self.content_failure is not None:
            raise self.content_failure

    async def artifacts(self, *, work_id: str | None, limit: int) -> ArtifactsResponse:
        self._called("artifacts", (work_id, limit))
        found: list[Artifact] = []
        for key, pieces in sorted(self.content.items()):
            work, _, name = key.partition("/")
            found.append(artifact(work, name, b"".join(pieces)))
        return ArtifactsResponse(artifacts=found[:limit], more=len(found) > limit)

    async def append(self, *events: Event) -> None:
        """More events for the streams."""
        async with self.news:
            self.log.extend(events)
            self.news.notify_all()

    async def status(self) -> StatusResponse:
        self._called("status")
        broker = BrokerStatus(
            state="up",
            url=None,
            server=None,
            embedded=True,
            rtt_ms=None,
            max_payload=None,
            reconnects=0,
            last_error=None,
            slow_consumer_events=0,
        )
        store = StoreStatus(
            path="/x", bytes=0, last_seq=0, first_seq=0, writable=True, last_error=None, synchronous="full"
        )
        return StatusResponse(
            name="worker",
            peer_id="worker",
            workspace_id=WORKSPACE,
            channels=["default"],
            version="0",
            pid=1,
            uptime_s=0.5,
            ready=self.ready,
            observe=False,
            broker=broker,
            store=store,
            queues={},
            inbox={},
            outbox={},
            works={},
            peers={},
            quarantined=0,
            counters={},
            problems=[],
        )

    async def readiness(self) -> ReadinessResponse:
        self._called("readiness")
        return ReadinessResponse(ready=self.ready, broker=self.ready, subscriptions=True, store=True)

    async def peers(self, *, capability: str | None, channel: str | None, include_expired: bool) -> PeersResponse:
        self._called("peers", (capability, channel, include_expired))
        return PeersResponse(peers=[])

    async def whois(self, ask: WhoisRequest) -> WhoisResponse:
        self._called("whois", ask)
        return WhoisResponse(request_id="msg_w", query=ask.query, peers=[], expected=0, elapsed_ms=0.0, ended="timeout")

    async def send(self, ask: SendRequest) -> SendResponse:
        self._called("send", ask)
        return self._sent(ask.kind, ask.to, ask.id)

    async def work_open(self, ask: WorkOpenRequest) -> SendResponse:
        self._called("work_open", ask)
        return self._sent("say", ask.to, ask.id)

    async def work_verb(self, work_id: str, verb: WorkVerb, ask: WorkStepRequest) -> SendResponse:
        self._called("work_verb", (work_id, verb, ask))
        return self._sent("trace", None, None)

    async def works(
        self, *, states: frozenset[str], role: str | None, peer: str | None, channel: str | None, limit: int
    ) -> WorksResponse:
        self._called("works", (states, role, peer, channel, limit))
        return WorksResponse(works=[])

    async def work(self, work_id: str, channel: str | None) -> WorkResponse:
        self._called("work", (work_id, channel))
        raise NotFound(f"work {work_id!r}: is not known", hint="aghctl work list")

    async def messages(self, query: MessageQuery) -> MessagesResponse:
        self._called("messages", query)
        found = [row for row in self.stored.values() if row.seq > query.since][: query.limit]
        return MessagesResponse(messages=found, next_since=found[-1].seq if found else query.since, pruned_through=0)

    async def message(self, message_id: str) -> Message:
        self._called("message", message_id)
        if message_id not in self.stored:
            raise NotFound("message: is not in the store")
        return self.stored[message_id]

    async def threads(self, *, channel: str | None, limit: int) -> ThreadsResponse:
        self._called("threads", (channel, limit))
        return ThreadsResponse(threads=[])

    async def directs(self, *, channel: str | None, limit: int) -> DirectsResponse:
        self._called("directs", (channel, limit))
        return DirectsResponse(directs=[])

    async def inbox(self, *, states: frozenset[str], limit: int) -> InboxResponse:
        self._called("inbox", (states, limit))
        return InboxResponse(items=[], counts={})

    async def inbox_next(self, ask: InboxNextRequest) -> InboxNextResponse:
        self._called("inbox_next", ask)
        if ask.wait:
            self.waiting.set()
            try:
                async with asyncio.timeout(ask.wait):
                    await self.release.wait()
            except TimeoutError:
                return InboxNextResponse(item=None)
            finally:
                self.wait_ended.set()
        return InboxNextResponse(item=inbox_item(7, "lease_a"))

    async def inbox_ack(self, seq: int, ask: InboxAckRequest) -> InboxItem:
        self._called("inbox_ack", (seq, ask))
        if ask.lease == "old":
            raise Refused("lease: is not the current one", code="conflict")
        return inbox_item(seq)

    async def inbox_nack(self, seq: int, ask: InboxNackRequest) -> InboxItem:
        self._called("inbox_nack", (seq, ask))
        return inbox_item(seq)

    async def inbox_requeue(self, seq: int) -> InboxItem:
        self._called("inbox_requeue", seq)
        return inbox_item(seq)

    async def capabilities(self) -> CapabilitiesResponse:
        self._called("capabilities")
        record = CapabilityRecord(id="test.run", summary="runs", digest=None, claim=True, document=None)
        return CapabilitiesResponse(source=None, capabilities=[record], problems=[])

    async def bridge_submit(
        self, name: bridge_api.Format, ask: bridge_api.BridgeSubmitRequest
    ) -> bridge_api.BridgeSubmitResponse:
        self._called("bridge_submit", (name, ask))
        return bridge_api.BridgeSubmitResponse(message=ask.message, findings=[], sent=[], repeated=False)

    async def bridge_message(self, name: bridge_api.Format, seq: int) -> bridge_api.BridgeMessage:
        self._called("bridge_message", (name, seq))
        raise NotFound("message: is none of this format")

    async def bridge_ack(
        self, name: bridge_api.Format, ask: bridge_api.BridgeAckRequest
    ) -> bridge_api.BridgeAckResponse:
        self._called("bridge_ack", (name, ask))
        return bridge_api.BridgeAckResponse(format=name, seq=ask.seq)

    async def bridge_log(self, name: bridge_api.Format, *, limit: int) -> bridge_api.BridgeLogResponse:
        self._called("bridge_log", (name, limit))
        return bridge_api.BridgeLogResponse(format=name, rows=[])

    async def bridge_stream(
        self, name: bridge_api.Format, since: int | None
    ) -> AsyncIterator[Sequence[Event | bridge_api.BridgeMessage]]:
        self._called("bridge_stream", (name, since))
        yield [Event(seq=1, type="gap", pruned_from=0)]

    async def chain_start(self, ask: chain_api.ChainStartRequest) -> chain_api.ChainRun:
        self._called("chain_start", ask)
        return chain_run(ask.run_id or "run_1")

    async def chain_runs(self, *, states: frozenset[str], limit: int) -> chain_api.ChainRunsResponse:
        self._called("chain_runs", (states, limit))
        return chain_api.ChainRunsResponse(runs=[])

    async def chain_run(self, run_id: str, *, since: int | None, wait: float) -> chain_api.ChainRun:
        self._called("chain_run", (run_id, since, wait))
        return chain_run(run_id)

    async def chain_answer(self, run_id: str, ask: chain_api.ChainAnswerRequest) -> chain_api.ChainRun:
        self._called("chain_answer", (run_id, ask))
        return chain_run(run_id)

    async def chain_cancel(self, run_id: str) -> chain_api.ChainRun:
        self._called("chain_cancel", run_id)
        return chain_run(run_id)

    async def trust_rules(self) -> trust_api.TrustRulesResponse:
        self._called("trust_rules", None)
        return trust_api.TrustRulesResponse(mode="verify", first_use="off", peer_id="ops", key_id=None, rules=[])

    async def trust_change(
        self, verb: trust_api.TrustVerb, ask: trust_api.TrustChangeRequest
    ) -> trust_api.TrustChangeResponse:
        self._called("trust_change", (verb, ask))
        rule = trust_api.TrustRule(
            rule="deny", subject=None, who=ask.who, origin="operator", since_ms=1, in_force=verb == "deny"
        )
        return trust_api.TrustChangeResponse(rule=rule, changed=True, notes=[])

    async def trust_why(self, message_id: str) -> trust_api.TrustExplainResponse:
        self._called("trust_why", message_id)
        return trust_api.TrustExplainResponse(cases=[])

    async def quarantine(self, *, limit: int) -> QuarantineResponse:
        self._called("quarantine", limit)
        return QuarantineResponse(quarantined=[])

    async def events(self, since: int | None, wanted: EventFilter) -> AsyncIterator[Sequence[Event]]:
        self._called("events", (since, wanted))
        after = (self.log[-1].seq if self.log else 0) if since is None else since
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
