"""Presence: the peers seen on the joined channels, kept in memory and written to the store asynchronously."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from aghbus.daemon.base.notifier import Notifier
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.discovery import is_reference_card, matches
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.handover import Candidate, Load
from aghbus.protocol.agh.presence import PeerSeen, presence_of

MAX_PEERS = 10_000  # peers kept; the ones seen longest ago are dropped first, contacts last
MAX_BYTES = 64 * 1024 * 1024  # of their cards as JSON: an unknown sender may greet under many names with large cards

REFRESH_MS: Final = 600_000
"""Age of a stored last sighting from which a new one is stored although nothing else has changed.

A start asks all peers anew, and retention counts in days: ten minutes are exact enough for both.
"""

PeerKey = tuple[str, str, str]  # workspace, channel, peer id


class PresenceChanges(NamedTuple):
    """What the store has to take over: `peers` to write, and the keys of `dropped` peers to delete.

    `before` are the entries of these peers that the store had until then.
    """

    peers: list[PeerSeen]
    dropped: list[PeerKey]
    before: dict[PeerKey, PeerSeen]


class PresenceTable:
    """Peers by (workspace, channel, peer id), each with its latest card.

    `interval` is the greeting interval in seconds, the unit of presence. `changed` notifies when a peer appears or changes its
    capabilities, not on every greet. `complete`: it was never full since the start.
    """

    def __init__(self, interval: float, acknowledging: dict[str, bool], is_contact: Callable[[str], bool]) -> None:
        """`acknowledging` is the store's record of which peers acknowledge commits, which this table keeps."""
        self._interval = interval
        self.is_contact = is_contact
        self.complete = True
        self._peers: dict[PeerKey, PeerSeen] = {}
        self._sizes: dict[PeerKey, int] = {}
        self._bytes = 0
        self._others: dict[PeerKey, None] = {}  # peers that were no contacts at their last sighting, in its order
        self._stored: dict[PeerKey, PeerSeen] = {}  # as the store has them, or will have them with the open transaction
        self._dropped: set[PeerKey] = set()
        self.of_this_project = acknowledging  # by peer id; none before its first greet. Read only
        self._versions: dict[
            str, str
        ] = {}  # of peers of this project that greeted since the start; "" is older than 0.1.0
        self._loads: dict[str, Load] = {}  # by peer id, as its last greet tells
        self._runs: dict[
            str, tuple[str, str]
        ] = {}  # by peer id, the run of its daemon that greeted last, and the one before
        self._left: dict[PeerKey, bool] = {}  # peers that said that they stop, whether signed, and were not seen since
        self._hears_since = float("inf")  # the monotonic second since which greets arrive
        self.changed = Notifier()

    def load(self, known: Iterable[PeerSeen]) -> None:
        """Take over the peers that an earlier run has stored."""
        for peer in sorted(known, key=lambda one: one.last_seen_ms):
            self._stored[_key(peer)] = peer
            self._put(_key(peer), peer)
            if peer.acknowledges is not None:
                self.of_this_project[peer.peer_id] = peer.acknowledges

    def observe(
        self,
        workspace_id: str,
        channel: str,
        card: PeerCard,
        trust: str,
        now_ms: int,
        summary: str | UnsetType | None = UNSET,
    ) -> PeerSeen:
        """Record a greet or a whois response; returns the peer's entry. `summary` UNSET: as before."""
        key = (workspace_id, channel, card.peer_id)
        before = self._peers.get(key)
        peer = PeerSeen(
            workspace_id=workspace_id,
            channel=channel,
            card=card,
            trust=trust,
            first_seen_ms=before.first_seen_ms if before else now_ms,
            last_seen_ms=max(now_ms, before.last_seen_ms) if before else now_ms,
            acknowledges=self.of_this_project.get(card.peer_id),
            summary=(before.summary if before else None) if isinstance(summary, UnsetType) else summary,
        )
        here = before is not None and self.of(before, now_ms) == "active"
        self._left.pop(key, None)
        self._put(key, peer)
        if before is None or not here or before.card.capabilities != card.capabilities:
            self.changed.notify()
        return peer

    def touch(self, workspace_id: str, channel: str, peer_id: str, now_ms: int) -> None:
        """Record a sighting of a peer without its full card: a known peer keeps its card, an unknown one is not added."""
        before = self._peers.get((workspace_id, channel, peer_id))
        if before is not None:
            self.observe(workspace_id, channel, before.card, before.trust, now_ms)

    def take_changes(self, *, exact: bool = False) -> PresenceChanges:
        """What the store has to take over now, once: it counts as stored until `put_back`.

        A newer last sighting alone is a change after REFRESH_MS only, or at once with `exact`.
        """
        changed = {
            key: peer
            for key, peer in self._peers.items()
            if (exact and self._stored.get(key) is not peer) or self._is_due(key, peer)
        }
        before = {key: self._stored[key] for key in changed if key in self._stored}
        dropped, self._dropped = self._dropped, set()
        self._stored |= changed
        return PresenceChanges(list(changed.values()), sorted(dropped), before)

    def put_back(self, changes: PresenceChanges) -> None:
        """The store has not taken over these changes: they are changes again."""
        for peer in changes.peers:
            key = _key(peer)
            if key in changes.before:
                self._stored[key] = changes.before[key]
            else:
                self._stored.pop(key, None)
        self._dropped.update(key for key in changes.dropped if key not in self._peers)

    def _is_due(self, key: PeerKey, peer: PeerSeen) -> bool:
        stored = self._stored.get(key)
        if stored is None:
            return True
        seen, known = ((one.card, one.trust, one.acknowledges, one.summary) for one in (peer, stored))
        return seen != known or abs(peer.last_seen_ms - stored.last_seen_ms) >= REFRESH_MS

    def _put(self, key: PeerKey, peer: PeerSeen) -> None:
        """Insert at the end (the order is by last sighting), and drop from the front."""
        before = self._peers.pop(key, None)
        self._dropped.discard(key)
        self._peers[key] = peer
        if before is None or before.card is not peer.card or before.summary != peer.summary:
            self._bytes -= self._sizes.get(key, 0)
            self._sizes[key] = len(msgspec.json.encode(peer.card)) + len(peer.summary or "")
            self._bytes += self._sizes[key]
        self._others.pop(key, None)
        if not self.is_contact(peer.peer_id):
            self._others[key] = None
        self.complete &= len(self._peers) < MAX_PEERS and self._bytes <= MAX_BYTES
        while len(self._peers) > MAX_PEERS or self._bytes > MAX_BYTES:
            oldest = self._least_needed()
            del self._peers[oldest]
            self._bytes -= self._sizes.pop(oldest)
            if self._stored.pop(oldest, None) is not None:
                self._dropped.add(oldest)
            self.of_this_project.pop(oldest[2], None)
            self._versions.pop(oldest[2], None)
            self._loads.pop(oldest[2], None)
            self._runs.pop(oldest[2], None)
            self._left.pop(oldest, None)

    def _least_needed(self) -> PeerKey:
        """The peer seen longest ago: of those that are no contacts, if there are any."""
        while self._others:
            key = next(iter(self._others))
            del self._others[key]
            if not self.is_contact(key[2]):
                return key
        return next(iter(self._peers))

    def shift(self, step_ms: int, now_ms: int) -> None:
        """The clock was set by `step_ms` to `now_ms`: shift every sighting, to `now_ms` at the latest.

        Sightings after `now_ms` come from the time between a step and its detection, or from an earlier run with a fast clock.
        """
        for key, peer in self._peers.items():
            seen_ms = max(0, min(peer.last_seen_ms + step_ms, now_ms))
            self._peers[key] = msgspec.structs.replace(peer, last_seen_ms=seen_ms)

    def note_acknowledging(self, peer_id: str, able: bool, version: str | None = None) -> None:
        """Record whether the peer's daemon acknowledges commits (protocol/agh/delivery/acks.py), and its version, as its greets
        say."""
        self.of_this_project[peer_id] = able
        self._versions.pop(peer_id, None)
        if able and version is not None:
            self._versions[peer_id] = version

    def note_run(self, peer_id: str, run: str) -> bool:
        """Record which run of its daemon greets; whether it is one that another run seemed to have replaced: both run."""
        latest, before = self._runs.get(peer_id, ("", ""))
        if run != latest:
            self._runs[peer_id] = run, latest
        return run == before != latest

    def note_load(self, peer_id: str, load: Load | None) -> None:
        """Record what a greet of the peer tells of its load."""
        self._loads.pop(peer_id, None)
        if load is not None:
            self._loads[peer_id] = load

    def load_of(self, peer_id: str) -> Load | None:
        """The load of a peer, as its last greet tells."""
        return self._loads.get(peer_id)

    def leave(self, workspace_id: str, channel: str, peer_id: str, trust: str) -> None:
        """The peer said that it stops, by a greet of this trust: it counts as expired until it is seen again."""
        key = (workspace_id, channel, peer_id)
        if key in self._peers:
            self._left[key] = self._left.get(key, False) or trust == "verified"
            self.changed.notify()

    def has_left(self, workspace_id: str, channel: str, peer_id: str) -> bool:
        """Whether the peer itself has said that it stops: anybody can say so of a peer that signs nothing."""
        return self._left.get((workspace_id, channel, peer_id), False)

    def hears_since(self, second: float) -> None:
        """The link is up since this monotonic second; infinite: it is down."""
        self._hears_since = second

    def is_silent(self, workspace_id: str, channel: str, peer_id: str, now_ms: int, second: float) -> bool:
        """Whether, at this monotonic second, the peer was silent for too long while the link was up."""
        peer = self._peers.get((workspace_id, channel, peer_id))
        expired = self.complete
        if peer is not None:
            expired = presence_of(peer.last_seen_ms, now_ms, self._interval) == "expired"
        return expired and second - self._hears_since > 2 * self._interval

    def candidates(self, workspace_id: str, channel: str, capability: str, now_ms: int) -> list[Candidate]:
        """The active peers that announce a capability."""
        return [
            Candidate(
                peer_id=peer.peer_id,
                is_contact=self.is_contact(peer.peer_id),
                trust=peer.trust,
                load=self._loads.get(peer.peer_id),
                ours=0,
                last_seen_ms=peer.last_seen_ms,
            )
            for peer in self._peers.values()
            if (peer.workspace_id, peer.channel) == (workspace_id, channel)
            and capability in peer.card.capabilities
            and self.of(peer, now_ms) == "active"
        ]

    def version_of(self, peer_id: str) -> str | None:
        """The version of the peer's daemon; "" before 0.1.0, None if it has not greeted since our start, or is another program."""
        return self._versions.get(peer_id)

    def older_contacts(self, now_ms: int) -> list[str]:
        """Active contacts whose daemon is of a version before 0.1.0."""
        older = [peer for peer in self._peers.values() if self._versions.get(peer.peer_id) == ""]
        return sorted(
            {one.peer_id for one in older if self.of(one, now_ms) == "active" and self.is_contact(one.peer_id)}
        )

    def acknowledges(self, peer_id: str) -> bool | None:
        """Whether the peer acknowledges commits, by its last greet; None before the first one."""
        return self.of_this_project.get(peer_id)

    def is_reference(self, workspace_id: str, channel: str, peer_id: str) -> bool:
        """Whether the peer on that channel is the Go reference, by its last greet; a daemon of this project is not."""
        peer = self._peers.get((workspace_id, channel, peer_id))
        return peer is not None and peer.acknowledges is False and is_reference_card(peer.card)

    def of(self, peer: PeerSeen, now_ms: int) -> str:
        """The presence of a peer: `active`, `inactive` or `expired`."""
        if self._left and _key(peer) in self._left:
            return "expired"
        return presence_of(peer.last_seen_ms, now_ms, self._interval)

    def is_active(self, envelope: Envelope, now_ms: int) -> bool:
        """Whether the sender was active on that channel before this envelope."""
        peer = self._peers.get((envelope.workspace_id, envelope.channel, envelope.sender))
        return peer is not None and self.of(peer, now_ms) == "active"

    def summary_of(self, workspace_id: str, channel: str, peer_id: str) -> str | None:
        """The summary of a peer's last greet; None when it had none or is not known."""
        peer = self._peers.get((workspace_id, channel, peer_id))
        return None if peer is None else peer.summary

    def knows(self, workspace_id: str, channel: str, peer_id: str) -> bool:
        """Whether `peer_id` is in the table for this channel, even if its presence has expired."""
        return (workspace_id, channel, peer_id) in self._peers

    def seen(self, workspace_id: str, channel: str, peer_id: str) -> PeerSeen | None:
        """The entry of `peer_id` on this channel, even if its presence has expired; None when it is not in the table."""
        return self._peers.get((workspace_id, channel, peer_id))

    def latest(self, workspace_id: str, channel: str, limit: int) -> list[str]:
        """The ids on that channel among the `limit` entries seen last."""
        return [key[2] for key in islice(reversed(self._peers), limit) if key[:2] == (workspace_id, channel)]

    def handles_of(self, workspace_id: str, channel: str, nickname: str) -> list[str]:
        """The handles on that channel that begin with `nickname@`."""
        begins = f"{nickname}@"
        return [key[2] for key in self._peers if key[:2] == (workspace_id, channel) and key[2].startswith(begins)]

    def presence(self, workspace_id: str, channel: str, peer_id: str, now_ms: int) -> str | None:
        """The presence of a peer on that channel: `active`, `inactive` or `expired`; None when it is not in the table."""
        peer = self._peers.get((workspace_id, channel, peer_id))
        return None if peer is None else self.of(peer, now_ms)

    def all(self) -> Iterator[PeerSeen]:
        """Every peer in the table, in the order of their last sighting."""
        return iter(tuple(self._peers.values()))

    def expected(self, workspace_id: str, channel: str, query: str, now_ms: int) -> frozenset[str]:
        """Ids of the peers that should answer a broadcast whois: active, and matching the query."""
        return frozenset(
            peer.peer_id
            for peer in self._peers.values()
            if (peer.workspace_id, peer.channel) == (workspace_id, channel)
            and self.of(peer, now_ms) == "active"
            and matches(query, peer.card)
        )

    def counts(self, now_ms: int) -> dict[str, int]:
        """The number of active and of inactive peers."""
        counts = {"active": 0, "inactive": 0}
        for peer in self._peers.values():
            presence = self.of(peer, now_ms)
            if presence in counts:
                counts[presence] += 1
        return counts


def card_object(card: PeerCard) -> dict[str, object]:
    """A card as the API shows it."""
    return dict(msgspec.to_builtins(card.to_wire()))


def _key(peer: PeerSeen) -> PeerKey:
    return peer.workspace_id, peer.channel, peer.peer_id
