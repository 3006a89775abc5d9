"""Peers known to presence, and the daemon's own capabilities."""

from dataclasses import dataclass

import msgspec

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.discovery.greeter import Greeter
from aghbus.daemon.state.catalog import CatalogError, record_of
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.own_load import OwnLoad
from aghbus.daemon.state.presence import PresenceTable, card_object
from aghbus.host.version import VERSION
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.api.peers import (
    CapabilitiesResponse,
    CapabilityAnnouncement,
    CapabilityRecord,
    Peer,
    PeersResponse,
)
from aghbus.protocol.api.queries import PeersQuery
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused


@dataclass(frozen=True, slots=True, eq=False)
class PeerService:
    """The peers of one daemon, itself included, since `started_ms`."""

    settings: LiveSettings
    identity: Identity
    presence: PresenceTable
    clock: Clock
    own_card: OwnCard
    own_load: OwnLoad
    greeter: Greeter
    started_ms: int

    async def list_peers(self, query: PeersQuery) -> PeersResponse:
        """The peers known to presence, after the daemon itself."""
        now_ms = self.clock.millis()
        found = [self._own(channel, now_ms) for channel in self.settings.current.channels]
        for peer in self.presence.all():
            presence, load = self.presence.of(peer, now_ms), self.presence.load_of(peer.peer_id)
            if presence == "expired" and not query.all:
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
                    aghbus=peer.acknowledges,
                    version=self.presence.version_of(peer.peer_id) or None,
                    summary=peer.summary,
                    open_works=None if load is None else load.open,
                    takes=None if load is None else load.takes,
                )
            )
        return PeersResponse(
            peers=[
                peer
                for peer in found
                if (query.channel is None or peer.channel == query.channel)
                and (query.capability is None or query.capability in peer.card["capabilities"])
            ]
        )

    def _own(self, channel: str, now_ms: int) -> Peer:
        load = self.own_load.load
        return Peer(
            peer_id=self.identity.self_id,
            workspace_id=self.identity.workspace,
            channel=channel,
            presence="local",
            trust="unverified" if self.identity.signer is None else "verified",
            first_seen_ms=min(self.started_ms, now_ms),
            last_seen_ms=now_ms,
            card=card_object(self.own_card.card()),
            aghbus=True,
            version=VERSION,
            summary=self.settings.current.summary,
            open_works=load.open,
            takes=load.takes,
        )

    async def list_capabilities(self) -> CapabilitiesResponse:
        """The records of the daemon's own catalog, then the claims without a record."""
        catalog = self.own_card.catalog
        records = [
            CapabilityRecord(
                id=record.id,
                summary=record.summary,
                digest=record.digest,
                claim=False,
                document=record.document,
                until_ms=self._until_ms(record.id),
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
            source=catalog.path, capabilities=records + claims, problems=list(self.own_card.problems)
        )

    async def get_capability(self, capability_id: str) -> CapabilityRecord:
        """One capability of the catalog."""
        for record in (await self.list_capabilities()).capabilities:
            if record.id == capability_id:
                return record
        raise NotFound(
            f"capability {capability_id!r}: is not in the catalog of this daemon",
            hint="GET /v1/capabilities lists the catalog",
        )

    async def announce_capability(self, capability_id: str, announcement: CapabilityAnnouncement) -> CapabilityRecord:
        """Announce a capability of a process of ours, such as a gateway's, beside the operator's catalog."""
        fields = msgspec.to_builtins(announcement)
        expires_in = fields.pop("expires_in")
        try:
            record = record_of({"id": capability_id, **fields})
        except ProtocolError as error:
            raise InvalidRequest(f"{error.field.removeprefix('capability.')}: {error.rule}") from None
        try:
            changed = self.own_card.announce(record, expires_in)
        except CatalogError as error:
            message = f"capability {capability_id!r}: the catalog {error.problems[0].rule}"
            raise Refused(message, code="conflict", hint="GET /v1/capabilities lists the catalog") from None
        if changed:
            self.greeter.announce()
        return CapabilityRecord(
            id=record.id,
            summary=record.summary,
            digest=record.digest,
            claim=False,
            document=record.document,
            until_ms=self._until_ms(record.id),
        )

    def _until_ms(self, capability_id: str) -> int | None:
        left = self.own_card.announced_for(capability_id)
        return None if left is None else self.clock.millis() + round(left * 1000)
