"""Who we are: the peer id of now, and former ones under which works are still open (spec section 8).

A first key, or another one, makes us another peer. What was begun under the earlier id goes on under it until it is over.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from aghbus.protocol.envelope import Envelope
from aghbus.protocol.identifiers import direct_id, route_token
from aghbus.protocol.lifecycle import WorkView

if TYPE_CHECKING:
    from aghbus.daemon.state.keys import FormerKey
    from aghbus.protocol.trust.proof import EnvelopeSigner


class Identities:
    """Our peer ids and their signers. `us` is the one under which we greet and begin things, `former` those to be finished."""

    def __init__(self, us: str, signer: "EnvelopeSigner | None", former: Iterable["FormerKey"] = ()) -> None:
        """`signer` is that of `us`, None for a plain peer. A former id whose key is not to be had is none that we can act as."""
        known = {one.peer_id: one for one in former}
        self.us = us
        self.unusable = {peer_id: one.error for peer_id, one in known.items() if one.error is not None}
        self.keys = {peer_id: one for peer_id, one in known.items() if one.error is None}
        self._signer = signer

    @property
    def former(self) -> tuple[str, ...]:
        """The earlier ids that are still in use, oldest first."""
        return tuple(self.keys)

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Those of the former ids that are reached by another subject than we are now, one for each: a daemon that was renamed
        and kept its key has the same route token."""
        first = {route_token(peer_id): peer_id for peer_id in reversed((self.us, *self.keys))}
        return tuple(peer_id for peer_id in self.keys if first[route_token(peer_id)] == peer_id)

    def shares_subject(self, peer_id: str) -> bool:
        """Whether one of our ids is reached by the subject of `peer_id`."""
        return route_token(peer_id) in {route_token(ours) for ours in (self.us, *self.keys)}

    def __contains__(self, peer_id: object) -> bool:
        return peer_id == self.us or peer_id in self.keys

    def signer_of(self, peer_id: str) -> "EnvelopeSigner | None":
        """What signs for one of our ids; None for a plain one."""
        return self.keys[peer_id].signer if peer_id in self.keys else self._signer

    def part_in(self, work: WorkView) -> str | None:
        """Under which of our ids we take part in a work; None when it is others'."""
        return next((peer_id for peer_id in (self.us, *self.keys) if work.other(peer_id) is not None), None)

    def receiving(self, envelope: Envelope) -> str:
        """Which of our ids an envelope concerns: its sender, its receiver, or a member of its room; else the one of now."""
        if not self.keys:
            return self.us
        if envelope.sender in self.keys:
            return envelope.sender  # what the broker sends back to us is ours, not a stranger's
        if envelope.to in self.keys:
            return envelope.to
        if envelope.to is None and envelope.surface == "direct":
            return next((peer_id for peer_id in self.keys if _is_room_of(envelope, peer_id)), self.us)
        return self.us

    def forget(self, peer_id: str) -> "FormerKey | None":
        """A former id has retired; its key, when we had it."""
        self.unusable.pop(peer_id, None)
        return self.keys.pop(peer_id, None)


def _is_room_of(envelope: Envelope, us: str) -> bool:
    return envelope.container == direct_id(envelope.workspace_id, envelope.channel, envelope.sender, us)
