"""The standing of a sender, and how full a resource may be for senders of each standing to use it (docs/limits.md).

Names and keys are free, so a bound by name does not bound what all names do together. Every resource that a received message
can use up therefore refuses an unknown sender when it is half used, a known one when it is used to three quarters, and a
verified one only when it is full. What unknown senders leave free is always there for known and verified ones.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final, Literal

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.presence import KNOWN_AFTER_MS, PresenceTable
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.store.engine.sql import Reader
from aghbus.store.tables import works

Standing = Literal["verified", "known", "unknown"]

SHARES: Final[Mapping[Standing, float]] = {"verified": 1.0, "known": 0.75, "unknown": 0.5}
"""The part of a resource that may be in use when a sender of this standing uses more of it."""

_LISTED_MS: Final = 1_000  # time after which known names are listed again
_ENGAGED: Final = 10_000  # peers that our agent has sent to; the one used longest ago is dropped first


def allowance(bound: int, standing: Standing) -> int:
    """How much of `bound` may be in use when a sender of this standing uses more of it."""
    return int(bound * SHARES[standing])


class Standings:
    """The standing of each sender, by its name and the result of verification.

    A name is known if it greeted KNOWN_AFTER_MS ago or earlier, if a trust rule of the user names it or its key, or if our agent
    has sent it a message or takes part in its work. A known name with a valid signature is verified. A valid signature alone
    makes a new name known and no more, because keys are free.
    """

    def __init__(self, identity: Identity, presence: PresenceTable, trust: LivePolicy, clock: Clock) -> None:
        self._identity = identity
        self._presence = presence
        self._trust = trust
        self._clock = clock
        self._engaged: OrderedDict[str, None] = OrderedDict()
        self._listed: frozenset[str] = frozenset()
        self._listed_ms = -_LISTED_MS

    def of(self, sender: str, trust: Trust | None) -> Standing:
        """The standing of a sender whose envelope was verified with the result `trust`, None before verification."""
        known = self.is_known(sender)
        if trust == "verified":
            return "verified" if known else "known"
        return "known" if known else "unknown"

    def is_known(self, sender: str) -> bool:
        """Whether `sender` is a known name. It may be forged as long as its signature was not verified."""
        if sender in self._engaged:
            return True
        if abs(self._clock.millis() - self._listed_ms) >= _LISTED_MS:
            self._list()
        return sender in self._listed or ("@" in sender and sender.partition("@")[2] in self._listed)

    async def load(self, reader: Reader) -> None:
        """The other participants of open works that the store has."""
        self.engage(await works.engaged(reader))

    def engage(self, peers: Iterable[str]) -> None:
        """Our agent has sent to these peers, or takes part in their works."""
        for peer in peers:
            self._engaged[peer] = None
            self._engaged.move_to_end(peer)
        while len(self._engaged) > _ENGAGED:
            self._engaged.popitem(last=False)

    def _list(self) -> None:
        """List the known names that are not engaged: the question comes with each message of a flood."""
        now_ms, joined = self._clock.millis(), self._identity.joined
        greeted = [
            peer.peer_id
            for peer in self._presence.all()
            if now_ms - peer.first_seen_ms >= KNOWN_AFTER_MS and (peer.workspace_id, peer.channel) in joined
        ]
        self._listed_ms, self._listed = now_ms, frozenset(greeted) | self._trust.names()
