"""The daemon's side of the local API: every request answered from the store, or carried out through the sender."""

import os
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Final

from aghbus.daemon.api.service import EventFilter, MessageQuery
from aghbus.daemon.bridge.bridge import Bridge, BridgeService
from aghbus.daemon.chains.runner import ChainRunner
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.send.drafts import Drafts
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.services.artifacts import ArtifactService
from aghbus.daemon.services.event_stream import envelope_filter, follow
from aghbus.daemon.services.inbox import Mailbox
from aghbus.daemon.services.status import readiness, status
from aghbus.daemon.services.trust import TrustService
from aghbus.daemon.state.presence import card_object
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
from aghbus.protocol.api.peers import (
    CapabilitiesResponse,
    CapabilityRecord,
    Peer,
    PeersResponse,
    WhoisRequest,
    WhoisResponse,
)
from aghbus.protocol.api.status import ReadinessResponse, StatusResponse
from aghbus.protocol.api.works import WorkOpenRequest, WorkResponse, WorksResponse, WorkStepRequest, WorkVerb
from aghbus.protocol.errors import InvalidRequest, NotFound
from aghbus.protocol.limits import MAX_LIFETIME
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import envelopes, quarantine, rooms, works

if TYPE_CHECKING:
    from aghbus.daemon.node import Node

_CORRELATION: Final = ("work_id", "thread_id", "direct_id", "reply_to", "trace_id", "causation_id")


class NodeService(ArtifactService, BridgeService, ChainService, TrustService):
    """`aghbus.daemon.api.service.Service` over a running node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._core = node.core
        self._drafts = Drafts(node.core)
        self._mailbox = Mailbox(node.core)
        self._started = node.core.clock.monotonic()

    @property
    def _bridge(self) -> Bridge:
        return self._node.bridge

    @property
    def _chains(self) -> ChainRunner:
        return self._node.chains

    async def status(self) -> StatusResponse:
        """How everything is."""
        return await status(self._node, uptime=self._core.clock.monotonic() - self._started, pid=os.getpid())

    async def readiness(self) -> ReadinessResponse:
        """Ready: broker link up, subscriptions live, store writable."""
        return readiness(self._node)

    # discovery

    async def peers(self, *, capability: str | None, channel: str | None, include_expired: bool) -> PeersResponse:
        """Who presence knows, and ourselves."""
        core = self._core
        now_ms = core.clock.millis()
        found = [self._local(channel_id) for channel_id in core.settings.channels]
        for peer in core.roster.all():
            presence = core.roster.presence(peer, now_ms)
            if presence == "expired" and not include_expired:
                continue
            found.append(
                Peer(
                    peer_id=peer.peer_id,
                    workspace_id=peer.workspace_id,
                    channel=peer.channel,
                    presence=presence,
                    trust=peer.trust,
                    first_seen_ms=peer.first_seen_ms,
                    last_seen_ms=peer.last_seen_ms,
                    card=card_object(peer.card),
                )
            )
        return PeersResponse(
            peers=[
                peer
                for peer in found
                if (channel is None or peer.channel == channel)
                and (capability is None or capability in peer.card["capabilities"])
            ]
        )

    def _local(self, channel: str) -> Peer:
        core = self._core
        return Peer(
            peer_id=core.us,
            workspace_id=core.workspace,
            channel=channel,
            presence="local",
            trust="unverified" if core.signer is None else "verified",
            first_seen_ms=core.clock.millis(),
            last_seen_ms=core.clock.millis(),
            card=card_object(core.card()),
        )

    async def whois(self, ask: WhoisRequest) -> WhoisResponse:
        """Ask the channel."""
        return await self._node.discovery.whois(ask)

    async def capabilities(self) -> CapabilitiesResponse:
        """Our own catalog and claims."""
        catalog = self._core.catalog
        records = [
            CapabilityRecord(
                id=record.id, summary=record.summary, digest=record.digest, claim=False, document=record.document
            )
            for record in catalog.records
        ]
        known = {record.id for record in catalog.records}
        claims = [
            CapabilityRecord(id=name, summary=None, digest=None, claim=True, document=None)
            for name in catalog.claims
            if name not in known
        ]
        return CapabilitiesResponse(
            source=catalog.path, capabilities=records + claims, problems=list(self._core.catalog_problems)
        )

    # sending

    async def send(self, ask: SendRequest) -> SendResponse:
        """One envelope by its parts."""

        def job(tx: Transaction, batch: Batch) -> SendResponse:
            known = works.find(tx, ask.work_id, ask.channel) if ask.work_id else None
            draft = self._drafts.of_send(ask, known.work if known else None)
            return batch.send(draft, repeats=_chosen(ask), allow_secrets=ask.allow_secrets)

        return await self._node.sender.send_all(job)

    async def work_open(self, ask: WorkOpenRequest) -> SendResponse:
        """Open a work for a peer."""
        for name, limit in (("accept_within", ask.accept_within), ("progress_within", ask.progress_within)):
            if limit is not None and not 0 <= limit <= MAX_LIFETIME:
                raise InvalidRequest(f"{name}: must be 0 to {MAX_LIFETIME} seconds")
        return await self._node.sender.send(
            self._drafts.of_open(ask),
            repeats=_chosen(ask),
            allow_secrets=ask.allow_secrets,
            accept_within=ask.accept_within,
            progress_within=ask.progress_within,
        )

    async def work_verb(self, work_id: str, verb: WorkVerb, ask: WorkStepRequest) -> SendResponse:
        """One step of a work of ours."""

        def job(tx: Transaction, batch: Batch) -> SendResponse:
            known = works.find(tx, work_id, ask.channel)
            if known is None:
                raise _unknown(work_id)
            draft = self._drafts.of_verb(known.work, verb, ask, known.trace_id)
            repeats = None if ask.id is None else frozenset({"work_id"})
            return batch.send(draft, repeats=repeats, allow_secrets=ask.allow_secrets)

        return await self._node.sender.send_all(job)

    # reading

    async def works(
        self, *, states: frozenset[str], role: str | None, peer: str | None, channel: str | None, limit: int
    ) -> WorksResponse:
        """Works, latest change first."""
        reader = self._core.store.reader
        return WorksResponse(
            works=await works.works(reader, states=states, role=role, peer=peer, channel=channel, limit=limit)
        )

    async def work(self, work_id: str, channel: str | None) -> WorkResponse:
        """One work with its history; the latest of that id when no channel is named."""
        found = await works.work(self._core.store.reader, work_id, channel)
        if found is None:
            raise _unknown(work_id)
        return found

    async def messages(self, query: MessageQuery) -> MessagesResponse:
        """One page of stored envelopes."""
        return await envelopes.messages(
            self._core.store.reader, envelope_filter(query), since=query.since, limit=query.limit, last=query.last
        )

    async def message(self, message_id: str) -> Message:
        """One stored envelope by its id."""
        found = await envelopes.message(self._core.store.reader, message_id)
        if found is None:
            raise NotFound(f"no message {message_id} is stored here", hint="`aghctl messages list` shows what is")
        return found

    async def threads(self, *, channel: str | None, limit: int) -> ThreadsResponse:
        """Threads, latest activity first."""
        return ThreadsResponse(threads=await rooms.threads(self._core.store.reader, channel=channel, limit=limit))

    async def directs(self, *, channel: str | None, limit: int) -> DirectsResponse:
        """Our direct rooms."""
        found = await rooms.directs(self._core.store.reader, us=self._core.us, channel=channel, limit=limit)
        return DirectsResponse(directs=found)

    async def quarantine(self, *, limit: int) -> QuarantineResponse:
        """What was refused, latest first."""
        return QuarantineResponse(quarantined=await quarantine.quarantined(self._core.store.reader, limit=limit))

    # inbox

    async def inbox(self, *, states: frozenset[str], limit: int) -> InboxResponse:
        """What waits for the agent."""
        return await self._mailbox.list(states, limit)

    async def inbox_next(self, ask: InboxNextRequest) -> InboxNextResponse:
        """Lease the oldest ready message, waiting for one if asked to."""
        return InboxNextResponse(item=await self._mailbox.next(ask))

    async def inbox_ack(self, seq: int, ask: InboxAckRequest) -> InboxItem:
        """Done with it."""
        return await self._mailbox.ack(seq, ask.lease)

    async def inbox_nack(self, seq: int, ask: InboxNackRequest) -> InboxItem:
        """Give it back."""
        return await self._mailbox.nack(seq, ask)

    async def inbox_requeue(self, seq: int) -> InboxItem:
        """Make a dead or acked message ready again."""
        return await self._mailbox.requeue(seq)

    # streams

    def events(self, since: int | None, wanted: EventFilter) -> AsyncIterator[Sequence[Event]]:
        """The event stream."""
        return follow(self._core.store, self._core.announcer, since, wanted)


def _chosen(ask: SendRequest | WorkOpenRequest) -> frozenset[str] | None:
    """The fields of the envelope that the caller named; None when it did not choose the id, so that nothing is repeated."""
    if ask.id is None:
        return None
    named = {field for field in _CORRELATION if getattr(ask, field, None) is not None}
    return frozenset(named | {"direct_id"} if ask.direct else named)


def _unknown(work_id: str) -> NotFound:
    return NotFound(f"no work {work_id} is known here", hint="`aghctl work list` shows the works")
