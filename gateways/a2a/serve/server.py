"""The process of a gateway: its parts, its listeners and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Final
from urllib.parse import urlsplit

from aghbus.client import AsyncClient
from aghbus.gateways.a2a.base.bus import Bus
from aghbus.gateways.a2a.base.catalog import Catalog
from aghbus.gateways.a2a.base.files import Files
from aghbus.gateways.a2a.base.options import Options
from aghbus.gateways.a2a.base.signing import Signing
from aghbus.gateways.a2a.callers.auth import Authentication, BearerCheck
from aghbus.gateways.a2a.callers.limits import Limits
from aghbus.gateways.a2a.callers.tokens import Tokens
from aghbus.gateways.a2a.push.delivery import Push
from aghbus.gateways.a2a.push.store import PushStore
from aghbus.gateways.a2a.push.webhook import AllowList
from aghbus.gateways.a2a.serve.app import application
from aghbus.gateways.a2a.serve.cards import Cards
from aghbus.gateways.a2a.serve.front import KEYS, Front
from aghbus.gateways.a2a.serve.handler import BusHandler
from aghbus.gateways.a2a.serve.http import DRAIN_SECONDS, Server, config_of, listen
from aghbus.gateways.a2a.serve.sending import Sending
from aghbus.gateways.base.metrics import Metrics
from aghbus.protocol.formats.a2a.cards import INPUT_MODES, Listener
from aghbus.protocol.formats.a2a.ids import Principal
from aghbus.protocol.formats.a2a.parts import Json

LOG_SECONDS: Final = 1.0
"""Between two log lines about requests that are refused for the same reason."""
METRICS: Final = {
    "requests_total": ("requests by method and status", "method", "code"),
    "denied_total": ("requests without valid credentials", "reason"),
    "limited_total": ("requests of callers that had all that they may have", "limit"),
    "tasks_total": ("messages that open a task: opened, or repeated", "outcome"),
    "pushes_total": ("push notifications by result", "result"),
    "streams": ("streams that are open",),
    "webhooks": ("push notification configs whose task has not ended, or has more to be delivered",),
}

Tell = Callable[[Json], None]


def run(options: Options, client: AsyncClient, tell: Tell) -> int:
    """Serve until a signal: its number. Raises UsageError and ClientError."""
    listener = listen(options.host, options.port)
    with contextlib.closing(listener):
        return asyncio.run(_serve(options, client, tell, listener))


async def _serve(options: Options, client: AsyncClient, tell: Tell, listener: socket.socket) -> int:
    for name in ("a2a", "uvicorn", "uvicorn.error", "sse_starlette"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    agents, bus, metrics = (
        [*options.agents],
        Bus(client, (await client.status()).store.last_seq),
        Metrics("aghbus_a2a", METRICS),
    )
    authentication, limits = _authentication(options, metrics, tell), _limits(options, metrics, tell)
    scheme = "https" if options.tls_cert else "http"
    base = options.url or f"{scheme}://{_shown(*listener.getsockname()[:2])}"
    signing = Signing(options.state, f"{base}{KEYS}")
    shown = Listener(
        bindings=tuple(_bindings(options, base)),
        schemes=authentication.schemes,
        has_push=bool(options.push_allow),
        input_modes=(*INPUT_MODES, *options.input_modes),
    )
    catalog, files, push = Catalog(bus), Files(bus, base), None
    cards = Cards(catalog, shown, signing.card)
    if options.push_allow:
        store, allowed = PushStore(options.state), AllowList(options.push_allow)
        push = Push(bus, files, agents, store, allowed, signing, metrics, base, tell)
    sending = Sending(bus, catalog, shown.input_modes, metrics, tell)
    handler = BusHandler(bus, sending, cards, files, push, metrics)
    names = None if authentication.schemes or options.open_to_all else frozenset([urlsplit(base).hostname or ""])
    app = application(agents, handler, cards, files, metrics, signing.public)
    front = Front(app, authentication, limits, metrics, options.max_body, names, agents)
    server = Server(config_of(front, options))
    async with _running(push), _grpc(options, handler, authentication, limits, metrics):
        tell({"event": "listening", "url": base, "agents": [f"{base}/a2a/{agent.name}" for agent in agents]})
        await server.serve(sockets=[listener])
    tell({"event": "stopped"})
    return server.stopped_by


@contextlib.asynccontextmanager
async def _running(push: Push | None) -> AsyncIterator[None]:
    """Send notifications as long as the context lasts."""
    if push is None:
        yield
        return
    push.start()
    try:
        yield
    finally:
        await push.stop()


@contextlib.asynccontextmanager
async def _grpc(
    options: Options, handler: BusHandler, authentication: Authentication, limits: Limits, metrics: Metrics
) -> AsyncIterator[None]:
    """Serve gRPC, if that is asked for, as long as the context lasts."""
    if options.grpc is None:
        yield
        return
    from aghbus.gateways.a2a.serve.rpc import server_of  # an extra of its own

    server = server_of(options, handler, authentication, limits, metrics)
    await server.start()
    try:
        yield
    finally:
        await server.stop(DRAIN_SECONDS)


def _authentication(options: Options, metrics: Metrics, tell: Tell) -> Authentication:
    bearers: list[BearerCheck] = []
    if options.callers:
        bearers.append(Tokens(options.callers))
    if options.oidc:
        from aghbus.gateways.a2a.callers.oidc import Oidc

        bearers.append(Oidc(*options.oidc))
    told = _seldom(tell)

    def denied(reason: str) -> None:
        metrics.count("denied_total", reason)
        told(reason, {"event": "denied", "reason": reason})

    return Authentication(bearers, certificates=options.client_ca is not None, denied=denied)


def _limits(options: Options, metrics: Metrics, tell: Tell) -> Limits:
    told = _seldom(tell)

    def refused(caller: Principal, limit: str) -> None:
        metrics.count("limited_total", limit)
        told(limit, {"event": "limited", "limit": limit, "caller": caller.name})

    return Limits(options.caller_requests, options.caller_tasks, refused)


def _seldom(tell: Tell) -> Callable[[str, Json], None]:
    """`tell` for what may happen often: at most once in LOG_SECONDS for the same reason."""
    told = dict[str, float]()

    def say(reason: str, event: Json) -> None:
        now = time.monotonic()
        if now >= told.get(reason, -LOG_SECONDS) + LOG_SECONDS:
            told[reason] = now
            tell(event)

    return say


def _bindings(options: Options, base: str) -> Iterator[tuple[str, str]]:
    yield "JSONRPC", f"{base}/a2a/{{agent}}"
    yield "HTTP+JSON", f"{base}/a2a/{{agent}}"
    if options.grpc:
        yield "GRPC", options.grpc_url or _shown(*options.grpc)


def _shown(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
