"""The HTTP application of a gateway: the SDK's routes for each agent, cards, and what operators read."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from a2a.extensions.common import HTTP_EXTENSION_HEADER, get_requested_extensions
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from aghbus.gateways.a2a.base.bus import Agent
from aghbus.gateways.a2a.base.files import Files
from aghbus.gateways.a2a.serve.cards import Cards
from aghbus.gateways.a2a.serve.front import CARD, KEYS, ROOT
from aghbus.gateways.a2a.serve.handler import AGENT, CALLER, BusHandler
from aghbus.gateways.base.metrics import Metrics
from aghbus.protocol.formats.a2a.ids import Principal
from aghbus.protocol.formats.a2a.parts import Json

Respond = Callable[[Request], Awaitable[Response]]
VERSION: Final = "a2a-version"


class ContextBuilder(ServerCallContextBuilder):
    """The context of calls to one agent."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def build(self, request: Request) -> ServerCallContext:
        """The context with agent and caller; the version may also be a parameter of the query."""
        headers = dict(request.headers)
        if not headers.get(VERSION) and (version := request.query_params.get("A2A-Version")):
            headers[VERSION] = version
        state = {"headers": headers, AGENT: self._agent, CALLER: request.scope.get(CALLER, Principal())}
        wanted = get_requested_extensions(request.headers.getlist(HTTP_EXTENSION_HEADER))
        return ServerCallContext(state=state, requested_extensions=wanted)


def application(
    agents: list[Agent],
    handler: BusHandler,
    cards: Cards,
    files: Files,
    metrics: Metrics,
    keys: Json,
) -> ASGIApp:
    """The application behind the front."""
    routes: list[BaseRoute] = []

    async def own_metrics(request: Request) -> Response:
        return Response(metrics.text(), media_type="text/plain; version=0.0.4")

    async def own_keys(request: Request) -> Response:
        return JSONResponse(keys, headers={"Cache-Control": "public, max-age=3600"})

    async def all_cards(request: Request) -> Response:
        return await cards.respond_with_all(request, agents)

    routes += [Route("/metrics", own_metrics), Route(KEYS, own_keys)]
    routes += [Route(ROOT, all_cards), Route(f"{ROOT}/", all_cards)]
    if len(agents) == 1:
        routes.append(Route(CARD, _card_route(cards, agents[0])))
    for agent in agents:
        base = f"{ROOT}/{agent.name}"
        context = ContextBuilder(agent)
        routes.append(Route(f"{base}{CARD}", _card_route(cards, agent)))
        routes.append(Route(f"{base}/tasks/{{id}}/files/{{work}}/{{name}}", _file_route(files, agent)))
        for end in (base, f"{base}/"):  # clients add a slash to the URL of the card, or do not
            routes += create_jsonrpc_routes(handler, end, context_builder=context)
        rest = create_rest_routes(handler, context_builder=context, path_prefix=base)
        routes += [route for route in rest if isinstance(route, Route)]  # a mount for tenants would take all paths
    inner = Starlette(routes=routes)
    inner.router.redirect_slashes = False
    return inner


def _card_route(cards: Cards, agent: Agent) -> Respond:
    async def own_card(request: Request) -> Response:
        return await cards.respond(request, agent)

    return own_card


def _file_route(files: Files, agent: Agent) -> Respond:
    async def own_file(request: Request) -> Response:
        return await files.respond(agent, request.scope.get(CALLER, Principal()), request)

    return own_file
