"""The local API: peers, discovery, and the daemon's own capabilities."""

from typing import Annotated, Any, Final

from msgspec import Meta

from aghbus.protocol.api.base import Channel, PeerName, RequestModel, ResponseModel

MAX_WHOIS_WAIT: Final = 60.0
"""Seconds, ours: a response that takes longer than two greet intervals is no longer discovery."""


class Peer(ResponseModel):
    """A peer known to presence.

    peer_id: its id.
    workspace_id: where it was seen.
    channel: where it was seen.
    presence: `local` for this daemon, else `active`, `inactive` or `expired`.
    trust: `verified` when a signature shows who it is, else `unverified`.
    first_seen_ms: when it was first seen.
    last_seen_ms: when it was last seen.
    card: its Peer Card.
    """

    peer_id: str
    workspace_id: str
    channel: str
    presence: str
    trust: str
    first_seen_ms: int
    last_seen_ms: int
    card: dict[str, Any]


class PeersResponse(ResponseModel):
    """Peers.

    peers: this daemon first, once a channel.
    """

    peers: list[Peer]


class WhoisRequest(RequestModel):
    """Ask the peers of a channel who is there.

    query: a capability or a word of a card; empty asks everybody.
    to: asks one peer.
    channel: the default channel without it.
    wait: longest time to wait for answers, in seconds.
    first: return at the first answer.
    catalog: ask for full capability records.
    capability_ids: of these capabilities only, with `catalog`.
    """

    query: str = ""
    to: PeerName | None = None
    channel: Channel | None = None
    wait: Annotated[float, Meta(ge=0, le=MAX_WHOIS_WAIT)] = 1.5
    first: bool = False
    catalog: bool = False
    capability_ids: list[str] | None = None


class WhoisMatch(ResponseModel):
    """One answer to a whois.

    peer_id: who answered.
    trust: `verified` or `unverified`.
    rtt_ms: milliseconds until the answer.
    card: its Peer Card.
    capabilities: full records when they were asked for, else null.
    """

    peer_id: str
    trust: str
    rtt_ms: float
    card: dict[str, Any]
    capabilities: list[dict[str, Any]] | None


class WhoisResponse(ResponseModel):
    """The answers to a whois.

    request_id: id of the whois envelope.
    query: as asked.
    peers: in order of arrival.
    expected: number of known peers that match.
    elapsed_ms: milliseconds spent.
    ended: why waiting ended: `complete` (every expected peer answered), `first`, `quiet` (no answer for a while) or `timeout`.
    """

    request_id: str
    query: str
    peers: list[WhoisMatch]
    expected: int
    elapsed_ms: float
    ended: str


class CapabilityRecord(ResponseModel):
    """One capability of the daemon's own catalog.

    id: of the capability.
    summary: one line, null for a claim.
    digest: of the record, null for a claim.
    claim: true for a bare id without a record.
    document: the full record, null for a claim.
    """

    id: str
    summary: str | None
    digest: str | None
    claim: bool
    document: dict[str, Any] | None


class CapabilitiesResponse(ResponseModel):
    """The daemon's own catalog.

    source: the file it comes from, null without one.
    capabilities: records, then claims.
    problems: why the last reload was refused, empty when it was not.
    """

    source: str | None
    capabilities: list[CapabilityRecord]
    problems: list[str]
