"""Whether a message of ours has arrived, for a call that says so, or waits for it."""

import asyncio
from dataclasses import dataclass
from typing import Final

from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.mcp.fence import is_id
from aghbus.daemon.mcp.rendering import ago
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.api.queries import PeersQuery
from aghbus.protocol.base.spelling import near_peers

_BRIEFLY: Final = 0.2  # seconds: a peer that is there has answered by then
_PAUSES: Final = (0.01, 0.5)  # seconds between two looks, doubled each time: an acknowledgement notifies nobody


@dataclass(frozen=True, slots=True, eq=False)
class Deliveries:
    """The messages of one daemon, and the peers that they are for."""

    messages: MessageService
    peers: PeerService
    notifier: Notifier

    async def after(self, sent: SendResponse, seconds: float) -> str:
        """The delivery state of `sent` once it is settled, or after `seconds`; a peer that is there gets some moments, and for a
        message to everybody nobody answers."""
        if sent.to is None:
            return await self.of(sent.id, 0)
        return await self.of(sent.id, max(seconds, _BRIEFLY if sent.recipient in (None, "present") else 0))

    async def of(self, message_id: str, seconds: float) -> str:
        """The delivery state of a message of ours once it is settled, or after `seconds`."""
        loop = asyncio.get_running_loop()
        end, (pause, longest) = loop.time() + seconds, _PAUSES
        while True:
            state = (await self.messages.get_message(message_id)).delivery or ""
            left = end - loop.time()
            if state not in ("queued", "published") or left <= 0 or self.notifier.closed:
                return state
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, longest)

    async def absent(self, sent: SendResponse) -> str | None:
        """A sentence about a recipient that presence does not know, or has not seen for a while."""
        if sent.to is None or sent.recipient not in ("unknown", "inactive"):
            return None
        known = (await self.peers.list_peers(PeersQuery(all=True))).peers
        who = sent.to if is_id(sent.to) else "that peer"
        if sent.recipient == "inactive":
            seen_ms = max((peer.last_seen_ms for peer in known if peer.peer_id == sent.to), default=0)
            last = ago(self.peers.clock.millis(), seen_ms)
            return f"{who} was last seen {last} ago: it gets this when it is back, until it expires."
        near = near_peers(sent.to, [peer.peer_id for peer in known if peer.presence != "local" and is_id(peer.peer_id)])
        meant = f"did you mean {' or '.join(near)}?" if near else "`peers` lists the known ones."
        return f"No peer called {who} is known: it gets this if it appears before it expires; {meant}"
