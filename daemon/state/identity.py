"""Who this daemon is on the bus: its peer id, its channels, and former peer ids with open works (specification, section 8).

A first key, or another one, gives the daemon another peer id. Works opened under the earlier id continue under it until they end.
"""

from collections.abc import Iterable

from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.keys import FormerKey
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import direct_id, route_token
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.trust.proof import EnvelopeSigner


class Identity:
    """Our peer ids with their signers, and the channels joined.

    `self_id` is the present peer id, under which we greet and begin works; `signer` is its signer, None without a key.
    `signers` has the signers of all our ids, None for an id without a key. `channels` are the `(workspace_id, channel)` joined,
    in order, and `joined` is the same as a set. `former` are earlier peer ids that act until their works end; `unusable` are
    those whose key cannot be read, each with the reason.
    """

    def __init__(
        self, settings: Settings, signer: EnvelopeSigner | None = None, former: Iterable[FormerKey] = ()
    ) -> None:
        known = {one.peer_id: one for one in former}
        self.signer = signer
        self.self_id = settings.peer_id if signer is None else signer.handle
        self.workspace = settings.workspace
        self.channels = tuple((settings.workspace, channel) for channel in settings.channels)
        self.joined = frozenset(self.channels)
        self.signers: dict[str, EnvelopeSigner | None] = {self.self_id: signer}
        self.unusable = {peer_id: one.error for peer_id, one in known.items() if one.error is not None}
        self.keys = {peer_id: one for peer_id, one in known.items() if one.error is None}
        self.signers |= {peer_id: one.signer for peer_id, one in self.keys.items()}

    @property
    def former(self) -> tuple[str, ...]:
        """The earlier ids that are still in use, oldest first."""
        return tuple(self.keys)

    @property
    def own_ids(self) -> tuple[str, ...]:
        """The present id, then the former ones."""
        return (self.self_id, *self.keys)

    @property
    def former_on_other_subjects(self) -> tuple[str, ...]:
        """One former id for each subject that is not the present id's: a renamed daemon with the same key keeps its subject."""
        first = {route_token(peer_id): peer_id for peer_id in reversed(self.own_ids)}
        return tuple(peer_id for peer_id in self.keys if first[route_token(peer_id)] == peer_id)

    def shares_subject(self, peer_id: str) -> bool:
        """Whether one of our ids is reached on the subject of `peer_id`."""
        return route_token(peer_id) in {route_token(own_id) for own_id in self.own_ids}

    def __contains__(self, peer_id: object) -> bool:
        return peer_id in self.signers

    def signer_of(self, own_id: str) -> EnvelopeSigner | None:
        """The signer of one of our ids; None for an id without a key."""
        return self.signers.get(own_id, self.signer)

    def participant_in(self, work: WorkView) -> str | None:
        """Our peer id (the current or a former one) that takes part in `work`; None if the work belongs to other peers."""
        for own_id in (self.self_id, *self.keys):
            if own_id in (work.initiator, work.target):
                return own_id
        return None

    def receiver_of(self, envelope: Envelope) -> str:
        """Our peer id of an envelope: its sender, its receiver or a member of its direct room; else `self_id`."""
        if not self.keys:
            return self.self_id
        if envelope.sender in self.keys:
            return envelope.sender  # our own message, echoed by the broker
        if envelope.to in self.keys:
            return envelope.to
        if envelope.to is None and envelope.surface == "direct":
            return next((own_id for own_id in self.keys if _is_room_of(envelope, own_id)), self.self_id)
        return self.self_id

    def forget(self, peer_id: str) -> FormerKey | None:
        """Drop a former id that has retired; returns its key, if we had it."""
        self.unusable.pop(peer_id, None)
        if peer_id != self.self_id:
            self.signers.pop(peer_id, None)
        return self.keys.pop(peer_id, None)


def _is_room_of(envelope: Envelope, own_id: str) -> bool:
    return envelope.container == direct_id(envelope.workspace_id, envelope.channel, envelope.sender, own_id)
