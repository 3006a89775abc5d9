"""Who is on the channel: presence in memory, written behind to the store."""

from collections.abc import Iterable, Iterator

import msgspec

from aghbus.daemon.base.notifier import Announcer
from aghbus.protocol.bodies import PeerCard
from aghbus.protocol.discovery import matches
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.presence import PeerSeen, presence_of

MAX_PEERS = 10_000  # peers remembered at once; the longest silent go first
MAX_BYTES = (
    64 * 1024 * 1024
)  # of their cards, as JSON: a stranger may greet under many names, each with a card of a megabyte


class Roster:
    """Peers by (workspace, channel, peer id), each with its latest card.

    `interval` is the greeting interval in seconds that presence is measured in. `bell` rings when somebody has appeared or
    claims other capabilities, not for each greet.
    """

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._peers: dict[tuple[str, str, str], PeerSeen] = {}
        self._sizes: dict[tuple[str, str, str], int] = {}
        self._bytes = 0
        self._unsaved: set[tuple[str, str, str]] = set()
        self._gone: set[tuple[str, str, str]] = set()
        self._acknowledging: dict[str, bool] = {}
        self.bell = Announcer(0)

    def load(self, known: Iterable[PeerSeen]) -> None:
        """What an earlier run remembered."""
        for peer in sorted(known, key=lambda one: one.last_seen_ms):
            self._put((peer.workspace_id, peer.channel, peer.peer_id), peer)

    def heard(self, workspace_id: str, channel: str, card: PeerCard, trust: str, now_ms: int) -> PeerSeen:
        """A greet or whois response came: the entry as it is now."""
        key = (workspace_id, channel, card.peer_id)
        before = self._peers.get(key)
        peer = PeerSeen(
            workspace_id=workspace_id,
            channel=channel,
            card=card,
            trust=trust,
            first_seen_ms=before.first_seen_ms if before else now_ms,
            last_seen_ms=max(now_ms, before.last_seen_ms) if before else now_ms,
        )
        self._put(key, peer)
        here = before is not None and self.presence(before, now_ms) == "active"
        if before is None or not here or before.card.capabilities != card.capabilities:
            self.bell.ring()
        self._unsaved.add(key)
        return peer

    def unsaved(self, workspace_id: str, channel: str, peer_id: str) -> PeerSeen | None:
        """The entry as it is now, once for each time that it changed; None when it was asked for since, or is forgotten."""
        key = (workspace_id, channel, peer_id)
        if key not in self._unsaved:
            return None
        self._unsaved.discard(key)
        return self._peers.get(key)

    def take_gone(self) -> list[tuple[str, str, str]]:
        """The keys forgotten since the last call for want of room: the store need not keep them either."""
        gone, self._gone = self._gone, set()
        return sorted(gone)

    def _put(self, key: tuple[str, str, str], peer: PeerSeen) -> None:
        """Insert at the end, since the order is by last heard, and forget from the front."""
        self._forget(key)
        self._gone.discard(key)
        self._peers[key] = peer
        self._sizes[key] = len(msgspec.json.encode(peer.card))
        self._bytes += self._sizes[key]
        while len(self._peers) > MAX_PEERS or self._bytes > MAX_BYTES:
            oldest = next(iter(self._peers))
            self._forget(oldest)
            self._unsaved.discard(oldest)
            self._gone.add(oldest)
            self._acknowledging.pop(oldest[2], None)

    def _forget(self, key: tuple[str, str, str]) -> None:
        if self._peers.pop(key, None) is not None:
            self._bytes -= self._sizes.pop(key)

    def shift(self, step_ms: int, now_ms: int) -> None:
        """The clock was set by `step_ms` to `now_ms`: everybody was heard as long ago as before, and nobody in the future.

        That would be who was heard after the step and before it was noticed, or by an earlier run with a clock ahead.
        """
        for key, peer in self._peers.items():
            heard_ms = max(0, min(peer.last_seen_ms + step_ms, now_ms))
            self._peers[key] = msgspec.structs.replace(peer, last_seen_ms=heard_ms)

    def note_acknowledging(self, peer_id: str, able: bool) -> None:
        """Whether the daemon of a peer acknowledges commits (protocol/acks.py), as its greets say."""
        self._acknowledging[peer_id] = able

    def acknowledges(self, peer_id: str) -> bool | None:
        """True or False as last heard in this run; None when the peer has not been heard yet."""
        return self._acknowledging.get(peer_id)

    def presence(self, peer: PeerSeen, now_ms: int) -> str:
        """`active`, `inactive` or `expired`."""
        return presence_of(peer.last_seen_ms, now_ms, self._interval)

    def is_active(self, envelope: Envelope, now_ms: int) -> bool:
        """Whether the sender was active on that channel before this envelope."""
        peer = self._peers.get((envelope.workspace_id, envelope.channel, envelope.sender))
        return peer is not None and self.presence(peer, now_ms) == "active"

    def all(self) -> Iterator[PeerSeen]:
        """Every remembered peer, the longest silent first."""
        return iter(tuple(self._peers.values()))

    def expected(self, workspace_id: str, channel: str, query: str, now_ms: int) -> frozenset[str]:
        """Ids of the peers that should answer a broadcast whois: active, and matching the query."""
        return frozenset(
            peer.peer_id
            for peer in self._peers.values()
            if (peer.workspace_id, peer.channel) == (workspace_id, channel)
            and self.presence(peer, now_ms) == "active"
            and matches(query, peer.card)
        )

    def counts(self, now_ms: int) -> dict[str, int]:
        """How many are active and inactive; the expired are gone."""
        counts = {"active": 0, "inactive": 0}
        for peer in self._peers.values():
            presence = self.presence(peer, now_ms)
            if presence in counts:
                counts[presence] += 1
        return counts


def card_object(card: PeerCard) -> dict[str, object]:
    """A card as the API shows it."""
    return dict(msgspec.to_builtins(card.to_wire()))
