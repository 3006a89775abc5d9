"""The recipients of our messages: a nickname that stands for a handle, and what presence knows of a peer."""

from dataclasses import dataclass

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.agh.identifiers import PEER_RULE, is_peer
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.base.errors import InvalidRequest


@dataclass(frozen=True, slots=True, eq=False)
class Recipients:
    """Looks peers up in presence."""

    identity: Identity
    presence: PresenceTable
    clock: Clock

    def resolve(self, to: str, channel: str) -> str:
        """The peer that `to` addresses: the handle, if `to` is a nickname that only one handle has, and no peer is called so.

        Raises InvalidRequest for what cannot be a peer id."""
        if not is_peer(to):
            raise InvalidRequest(f"to: {PEER_RULE}", hint="`aghctl peers` lists the known ones")
        if "@" in to or self.presence.knows(self.identity.workspace, channel, to):
            return to
        handles = self.presence.handles_of(self.identity.workspace, channel, to)
        return handles[0] if len(handles) == 1 else to

    def note(self, sent: SendResponse) -> SendResponse:
        """Add to a response what presence knows of the recipient; null for everybody."""
        if sent.to is not None:
            found = self.presence.presence(self.identity.workspace, sent.channel, sent.to, self.clock.millis())
            sent.recipient = "unknown" if found is None else "present" if found == "active" else "inactive"
        return sent
