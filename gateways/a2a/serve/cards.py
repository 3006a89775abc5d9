"""The Agent Cards of a gateway: made of what the catalog knows, and signed by the gateway's key."""

from __future__ import annotations

from collections.abc import Callable
from email.utils import formatdate
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from aghbus.client import ClientError
from aghbus.gateways.a2a.base.bus import Agent
from aghbus.gateways.a2a.base.catalog import Catalog
from aghbus.gateways.a2a.base.errors import TRY_AGAIN
from aghbus.protocol.formats.a2a.cards import Listener, card_of, etag
from aghbus.protocol.formats.a2a.parts import Json

CACHE: Final = "public, max-age=60"
Sign = Callable[[Json], Json]


class Cards:
    """The cards of all agents. `sign` returns a card with its signature."""

    def __init__(self, catalog: Catalog, listener: Listener, sign: Sign) -> None:
        self._catalog = catalog
        self._listener = listener
        self._sign = sign
        self._since: dict[str, tuple[str, str]] = {}  # by agent: the tag of its card, and since when it has it

    @property
    def has_extended(self) -> bool:
        """Whether there are cards for callers that were authenticated."""
        return bool(self._listener.schemes)

    async def card(self, agent: Agent, *, extended: bool = False) -> Json:
        """The card of an agent. Raises ClientError."""
        about = await self._catalog.about(agent)
        return self._sign(card_of(agent.name, self._listener, about.card, about.records, extended=extended))

    async def respond(self, request: Request, agent: Agent) -> Response:
        """The response to a GET of a card, with its headers for caches."""
        try:
            card = await self.card(agent)
        except ClientError:
            return unavailable()
        tag, now = etag(card), formatdate(usegmt=True)
        if self._since.get(agent.name, ("", ""))[0] != tag:
            self._since[agent.name] = tag, now
        return cached(request, card, tag, {"Last-Modified": self._since[agent.name][1]})

    async def respond_with_all(self, request: Request, agents: list[Agent]) -> Response:
        """The same for the list of all cards."""
        try:
            found = [await self.card(agent) for agent in agents]
        except ClientError:
            return unavailable()
        return cached(request, found, etag({"cards": [{**card, "signatures": None} for card in found]}))


def cached(request: Request, content: object, tag: str, more: dict[str, str] | None = None) -> Response:
    """A JSON response, or 304 if the client has it."""
    headers = {"ETag": tag, "Cache-Control": CACHE, **(more or {})}
    known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
    if tag.removeprefix("W/") in known or known == ["*"]:
        return Response(status_code=304, headers=headers)
    return JSONResponse(content, headers=headers)


def unavailable() -> Response:
    """The response while the daemon is away."""
    return JSONResponse(
        {"error": {"code": 503, "status": "UNAVAILABLE", "message": TRY_AGAIN}}, 503, {"Retry-After": "5"}
    )
