"""Resources of the daemon by URI: the inbox, works and peers, as JSON. Reading the inbox leases nothing."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote

import msgspec

from aghbus.daemon.mcp import message_rendering, rendering
from aghbus.daemon.mcp.client import Wake
from aghbus.daemon.mcp.models import ToolResult
from aghbus.daemon.mcp.rpc import Object
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.works import WorkService
from aghbus.protocol.api.queries import EventsQuery, InboxQuery, PeersQuery, WorkQuery
from aghbus.protocol.base.errors import NotFound

INBOX: Final = "aghbus://inbox"
_WORK: Final = "aghbus://works/"
_PEER: Final = "aghbus://peers/"
_JSON: Final = "application/json"
_SHOWN: Final = 100  # messages of the inbox


@dataclass(frozen=True, slots=True, eq=False)
class BusResources:
    """The resources over the operations of the local API."""

    peers: PeerService
    messages: MessageService
    works: WorkService
    inbox: InboxService

    listed: Sequence[Object] = (
        {"uri": INBOX, "name": "inbox", "description": "Messages that wait", "mimeType": _JSON},
    )
    templates: Sequence[Object] = (
        {"uriTemplate": _WORK + "{id}", "name": "work", "description": "A work with its history", "mimeType": _JSON},
        {"uriTemplate": _PEER + "{id}", "name": "peer", "description": "A peer's card", "mimeType": _JSON},
    )

    async def read(self, uri: str, wake: Wake) -> Sequence[Object] | None:
        """The contents of one resource; of the inbox the messages of contacts, unless everybody may `wake` the session."""
        found = await self._output(uri, others=wake == "all")
        if found is None:
            return None
        return [{"uri": uri, "mimeType": _JSON, "text": msgspec.json.encode(found).decode()}]

    async def _output(self, uri: str, *, others: bool) -> ToolResult | None:
        now_ms = self.inbox.clock.millis()
        if uri == INBOX:
            query = InboxQuery(states=frozenset({"ready", "leased"}), limit=_SHOWN, contacts=not others)
            return message_rendering.inbox(await self.inbox.list_items(query), now_ms, others=others)
        if uri.startswith(_WORK):
            try:
                found = await self.works.get_work(unquote(uri.removeprefix(_WORK)), WorkQuery())
            except NotFound:
                return None
            return rendering.work(found, now_ms)
        if uri.startswith(_PEER):
            peer_id = unquote(uri.removeprefix(_PEER))
            peers = [
                each for each in (await self.peers.list_peers(PeersQuery(all=True))).peers if each.peer_id == peer_id
            ]
            return rendering.peers(peers, now_ms) if peers else None
        return None

    def can_watch(self, uri: str) -> bool:
        """The inbox and works."""
        return uri == INBOX or uri.startswith(_WORK)

    async def changes(self, uris: frozenset[str], wake: Wake) -> AsyncIterator[str]:
        """The URIs as new messages of those that may `wake` the session come to the inbox, and envelopes to the works."""
        works = {unquote(uri.removeprefix(_WORK)): uri for uri in uris if uri.startswith(_WORK)}
        async for page in self.messages.events(EventsQuery()):
            changed: set[str] = set()
            for event in page:
                message = event.message
                if message is None:
                    continue
                arrived = INBOX in uris and message.direction == "in" and message.delivery is not None
                if arrived and (wake == "all" or (wake == "contacts" and not self.inbox.is_other(message.sender))):
                    changed.add(INBOX)
                if message.work_id in works:
                    changed.add(works[message.work_id])
            for uri in sorted(changed):
                yield uri
