"""Presence: the peers seen on the joined channels, kept in memory and written to the store asynchronously."""

from collections.abc import Iterable, Iterator

import msgspec

from aghbus.daemon.base.notifier import Notifier
from aghbus.protocol.bodies import PeerCard
from aghbus.protocol.discovery import matches
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.presence import PeerSeen, presence_of

MAX_PEERS = 10_000  # peers kept; the ones seen longest ago are dropped first
MAX_BYTES = 64 * 1024 * 1024  # of their cards as JSON: an unknown sender may greet under many names with large cards


class PresenceTable:
    """Peers by (workspace, channel, peer id), each with its latest card.

    `interval` is the greeting interval in seconds, the unit of presence. `changed` notifies when a peer appears or changes its
    capabilities, not on every greet.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._peers: dict[tuple[str, str, str], PeerSeen] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._bytes = 0
        self._unsaved: set[tuple[str, str, str]] = set()
        self._dropped: set[tuple[str, str, str]] = set()
        self._acknowledging: dict[str, bool] = {}
        self.changed = Notifier()

    def load(self, known: Iterable[PeerSeen]) -> None:
        """Take over the peers that an earlier run has stored."""
        for peer in sorted(known, key=lambda one: one.last_seen_ms):
            self._put((peer.workspace_id, peer.channel, peer.peer_id), peer)
            if peer.acknowledges is not None:
                self._acknowledging[peer.peer_id] = peer.acknowledges

    def observe(self, workspace_id: str, channel: str, card: PeerCard, trust: str, now_ms: int) -> PeerSeen:
        """Record a greet or a whois response; returns the peer's entry."""
        key = (workspace_id, channel, card.peer_id)
        before = self._peers.get(key)
        peer = PeerSeen(
            workspace_id=workspace_id,
            channel=channel,
            card=card,
            trust=trust,
            first_seen_ms=before.first_seen_ms if before else now_ms,
            last_seen_ms=max(now_ms, before.last_seen_ms) if before else now_ms,
            acknowledges=self._acknowledging.get(card.peer_id),
        )
        self._put(key, peer)
        here = before is not None and self.of(before, now_ms) == "active"
        if before is None or not here or before.card.capabilities != card.capabilities:
            self.changed.notify()
        self._unsaved.add(key)
        return peer

    def unsaved(self, workspace_id: str, channel: str, peer_id: str) -> PeerSeen | None:
        """The current entry, once for each change; None when it was already taken, or dropped."""
        key = (workspace_id, channel, peer_id)
        if key not in self._unsaved:
            return None
        self._unsaved.discard(key)
        return self._peers.get(key)

    def take_dropped(self) -> list[tuple[str, str, str]]:
        """The keys dropped for lack of room since the last call: the store drops them too."""
        dropped, self._dropped = self._dropped, set()
        return sorted(dropped)

    def _put(self, key: tuple[str, str, str], peer: PeerSeen) -> None:
        """Insert at the end (the order is by last sighting), and drop from the front."""
        self._forget(key)
        self._dropped.discard(key)
        self._peers[key] = peer
        self._sizes[key] = len(msgspec.json.encode(peer.card))
        self._bytes += self._sizes[key]
        while len(self._peers) > MAX_PEERS or self._bytes > MAX_BYTES:
            oldest = next(iter(self._peers))
            self._forget(oldest)
            self._unsaved.discard(oldest)
            self._dropped.add(oldest)
            self._acknowledging.pop(oldest[2], None)

    def _forget(self, key: tuple[str, str, str]) -> None:
        if self._peers.pop(key, None) is not None:
            self._bytes -= self._sizes.pop(key)

    def shift(self, step_ms: int, now_ms: int) -> None:
        """The clock was set by `step_ms` to `now_ms`: shift every sighting, to `now_ms` at the latest.

        Sightings after `now_ms` come from the time between a step and its detection, or from an earlier run with a fast clock.
        """
        for key, peer in self._peers.items():
            seen_ms = max(0, min(peer.last_seen_ms + step_ms, now_ms))
            self._peers[key] = msgspec.structs.replace(peer, last_seen_ms=seen_ms)

    def note_acknowledging(self, peer_id: str, able: bool) -> None:
        """Record whether the peer's daemon acknowledges commits (protocol/delivery/acks.py), as its greets say."""
        self._acknowledging[peer_id] = able

    def acknowledges(self, peer_id: str) -> bool | None:
        """Whether the peer acknowledges commits, by its last greet; None before the first one."""
        return self._acknowledging.get(peer_id)

    def of(self, peer: PeerSeen, now_ms: int) -> str:
        """The presence of a peer: `active`, `inactive` or `expired`."""
        return presence_of(peer.last_seen_ms, now_ms, self._interval)

    def is_active(self, envelope: Envelope, now_ms: int) -> bool:
        """Whether the sender was active on that channel before this envelope."""
        peer = self._peers.get((envelope.workspace_id, envelope.channel, envelope.sender))
        return peer is not None and self.of(peer, now_ms) == "active"

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
