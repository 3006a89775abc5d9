"""The local API: peers, discovery, and the daemon's own capabilities."""

from typing import Annotated, Any, Final

from aghbus.protocol.api.base import Channel, NonBlank, PeerName, RequestModel, ResponseModel, seconds

MAX_WHOIS_WAIT: Final = 60.0
WHOIS_SECONDS: Final = 1.5
"""How long a question is open at most that is asked once."""
"""Seconds: a response that takes longer than two greet intervals is no longer discovery."""


MAX_ANNOUNCED_SECONDS: Final = 3600.0
"""Seconds: a process that ended without a word is no longer believed after that, at the latest."""


class Peer(ResponseModel):
    """A peer known to presence."""

    peer_id: str  # its id
    workspace_id: str  # where it was seen
    channel: str  # where it was seen
    presence: str  # `local` for this daemon, else `active`, `inactive` or `expired`
    trust: str  # `verified` when a signature shows who it is, else `unverified`
    first_seen_ms: int  # when it was first seen; of this daemon, when it started
    last_seen_ms: int  # when it was last seen
    card: dict[str, Any]  # its Peer Card
    # whether its daemon is an aghbus; false for another implementation (docs/interop.md), null while it is not known
    aghbus: bool | None
    # of its aghbus, as it says; null for another implementation or an aghbus before 0.1.0, and while it is not known
    version: str | None
    summary: str | None  # of its last greet, null without one
    # how many works are open at it, and how many its workers carry out at a time, as its last greet tells; null without that
    open_works: int | None
    takes: int | None


class PeersResponse(ResponseModel):
    """Peers."""

    peers: list[Peer]  # this daemon first, once a channel


class WhoisRequest(RequestModel):
    """Ask the peers of a channel for their Peer Cards."""

    query: str = ""  # a capability or a word of a card; empty asks everybody
    to: PeerName | None = None  # asks one peer
    channel: Channel | None = None  # the default channel without it
    # seconds for which the question is repeated until a peer answers; without it, it is asked once, for 1.5 s at most
    wait: Annotated[float, seconds(0, MAX_WHOIS_WAIT)] | None = None
    first: bool = False  # return at the first answer
    catalog: bool = False  # ask for full capability records
    capability_ids: list[str] | None = None  # of these capabilities only, with `catalog`


class WhoisMatch(ResponseModel):
    """One answer to a whois."""

    peer_id: str  # who answered
    trust: str  # `verified` or `unverified`
    rtt_ms: float  # milliseconds until the answer
    card: dict[str, Any]  # its Peer Card
    summary: str | None  # of its greets, null without one
    capabilities: list[dict[str, Any]] | None  # full records when they were asked for, else null


class WhoisResponse(ResponseModel):
    """The answers to a whois."""

    request_id: str  # id of the whois envelope
    query: str  # as asked
    peers: list[WhoisMatch]  # in order of arrival
    expected: int  # number of known peers that match
    elapsed_ms: float  # milliseconds spent
    # why waiting ended: `complete` (every expected peer answered), `first`, `quiet` (no answer for a while), `timeout`, or
    # `limited` (the same, and a peer that did not answer has said that it limits how often it does)
    ended: str


class CapabilityAnnouncement(RequestModel):
    """A capability that a process of ours serves for now: the fields of its record, and how long they hold."""

    summary: NonBlank  # one line
    outcome: NonBlank  # what the initiator gets
    # seconds until it is withdrawn unless it is announced again; 0 withdraws it immediately
    expires_in: Annotated[float, seconds(0, MAX_ANNOUNCED_SECONDS)]
    version: str | None = None  # of the capability
    context_needed: list[str] | None = None  # what the initiator must give
    artifacts_expected: list[str] | None = None  # what the end of the work has
    execution_outline: list[str] | None = None  # its steps
    constraints: list[str] | None = None  # what it does not do
    examples: list[str] | None = None  # texts of works
    requirements: list[str] | None = None  # ids of what the initiator must have


class CapabilityRecord(ResponseModel):
    """One capability of the daemon's own catalog."""

    id: str  # of the capability
    summary: str | None  # one line, null for a claim
    digest: str | None  # of the record, null for a claim
    claim: bool  # true for a bare id without a record
    document: dict[str, Any] | None  # the full record, null for a claim
    until_ms: int | None = None  # until when a process announces it; null for one of the operator's


class CapabilitiesResponse(ResponseModel):
    """The daemon's own catalog."""

    source: str | None  # the file it comes from, null without one
    capabilities: list[CapabilityRecord]  # records, then claims
    problems: list[str]  # why the last reload was refused, empty when it was not
