"""The path of the Model Context Protocol. What serves it is loaded with the first request: 0.4 MB that most daemons never need."""

from collections.abc import Coroutine
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from aghbus.daemon.api.app import Mounted
from aghbus.daemon.api.http.cancellation import Draining
from aghbus.daemon.api.http.exchange import Exchange
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.discovery.whois import WhoisQuestions
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.session_leases import SessionLeases
from aghbus.daemon.services.works import WorkService
from aghbus.protocol.api.messages import Message

if TYPE_CHECKING:
    from aghbus.daemon.mcp.endpoint import McpEndpoint

PATH: Final = "/mcp"


def shown(message: Message) -> str:
    """What a model gets of a message."""
    from aghbus.daemon.mcp.message_rendering import text

    return text(message)


def endpoint(
    max_body: int,
    peer_id: str,
    questions: WhoisQuestions,
    peers: PeerService,
    messages: MessageService,
    works: WorkService,
    inbox: InboxService,
    leases: SessionLeases,
    notifier: Notifier,
) -> Mounted:
    """The application for PATH. `max_body` in bytes."""

    @cache
    def loaded() -> "McpEndpoint":
        from aghbus.daemon.mcp.bus import bus_offer
        from aghbus.daemon.mcp.deliveries import Deliveries
        from aghbus.daemon.mcp.endpoint import McpEndpoint
        from aghbus.daemon.mcp.resources import BusResources
        from aghbus.daemon.mcp.server import McpServer
        from aghbus.daemon.mcp.tools import BusTools
        from aghbus.daemon.mcp.work_waiter import WorkWaiter

        waiter, deliveries = WorkWaiter(works, notifier, inbox.clock), Deliveries(messages, peers, notifier)
        tools = BusTools(questions, peers, messages, works, inbox, leases, waiter, deliveries).all()
        offer = bus_offer(peer_id, tools, BusResources(peers, messages, works, inbox), waiter)
        return McpEndpoint(McpServer(offer), max_body=max_body)

    def serve(exchange: Exchange, draining: Draining) -> Coroutine[Any, Any, None]:
        return loaded()(exchange, draining)

    return serve
