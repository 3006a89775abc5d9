"""Presence of peers: last greet or whois response, and the state that follows from its age (spec section 7)."""

from typing import Literal

import msgspec

from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.limits import GREET_INTERVAL

Presence = Literal["active", "inactive", "expired", "local"]


class PeerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One peer of one channel: its latest card, and the times of its first and last message in Unix milliseconds.

    `acknowledges`: whether its daemon acknowledges commits, None if that is not known. `summary` is that of its last greet.
    """

    workspace_id: str
    channel: str
    card: PeerCard
    trust: str
    first_seen_ms: int
    last_seen_ms: int
    acknowledges: bool | None = None
    summary: str | None = None

    @property
    def peer_id(self) -> str:
        """The peer id that greeted or answered."""
        return self.card.peer_id


def presence_of(last_seen_ms: int, now_ms: int, interval: float = GREET_INTERVAL) -> Presence:
    """`active` up to one `interval` (seconds) since the last greet or whois response, `inactive` up to two, then `expired`."""
    age = (now_ms - last_seen_ms) / 1000
    if age <= interval:
        return "active"
    return "inactive" if age <= 2 * interval else "expired"
