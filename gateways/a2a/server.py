"""The process of a gateway: its parts, its listeners and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aghbus.client import AsyncClient, UsageError
from aghbus.gateways.a2a.app import application
from aghbus.gateways.a2a.auth import Authentication
from aghbus.gateways.a2a.bus import Bus
from aghbus.gateways.a2a.cards import Cards
from aghbus.gateways.a2a.catalog import Catalog
from aghbus.gateways.a2a.handler import BusHandler
from aghbus.gateways.a2a.metrics import Metrics
from aghbus.gateways.a2a.options import Options
from aghbus.gateways.a2a.sending import Sending
from aghbus.protocol.formats.a2a.cards import INPUT_MODES, Listener
from aghbus.protocol.formats.a2a.parts import Json

MAX_HEAD: Final = 65_536
"""Bytes of the head of a request."""
CONNECTIONS: Final = 1_000
"""Connections at a time; a request over more of them is answered with 503."""
DRAIN_SECONDS: Final = 3
"""Seconds for requests in progress when the gateway stops."""

Tell = Callable[[Json], None]


class Protocol(H11Protocol):
    """HTTP/1.1 over connections that tell the application about their client certificate."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember the certificate of a new connection."""
        super().connection_made(transport)
        secured = transport.get_extra_info("ssl_object")
        self.app_state = {**self.app_state, "certificate": secured.getpeercert() if secured else None}


class Server(uvicorn.Server):
    """A server that returns after a signal, with the number of the signal."""

    stopped_by: int = 0

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals end the server, and nothing else."""
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            self.stopped_by = (self._captured_signals or [0])[0]
            for number, handler in before.items():
                signal.signal(number, handler)


def run(options: Options, client: AsyncClient, tell: Tell) -> int:
    """Serve until a signal: its number. Raises UsageError and ClientError."""
    listener = _listen(options.host, options.port)
    with contextlib.closing(listener):
        return asyncio.run(_serve(options, client, tell, listener))


async def _serve(options: Options, client: AsyncClient, tell: Tell, listener: socket.socket) -> int:
    for name in ("a2a", "uvicorn", "uvicorn.error", "sse_starlette"):
        logging.getLogger(name).addHandler(logging.NullHandler())
        logging.getLogger(name).propagate = False
    bus, metrics = Bus(client), Metrics()
    authentication = Authentication([], certificates=False)
    base = options.url or _url_of(listener)
    shown = Listener(
        bindings=(("JSONRPC", f"{base}/a2a/{{agent}}"), ("HTTP+JSON", f"{base}/a2a/{{agent}}")),
        schemes=authentication.schemes,
        input_modes=(*INPUT_MODES, *options.input_modes),
    )
    catalog = Catalog(bus)
    cards = Cards(catalog, shown, lambda card: card)
    handler = BusHandler(bus, Sending(bus, catalog, shown.input_modes), cards)
    app = application([*options.agents], handler, cards, authentication, metrics, {"keys": []}, options.max_body)
    server = Server(_config(app, options))
    tell({"event": "listening", "url": base, "agents": [f"{base}/a2a/{agent.name}" for agent in options.agents]})
    await server.serve(sockets=[listener])
    tell({"event": "stopped"})
    return server.stopped_by


def _config(app: Any, options: Options) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEAD,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=DRAIN_SECONDS,
    )


def _listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UsageError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"--listen: {host} cannot be used: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(1024)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"--listen: {host}:{port} cannot be used: {error.strerror or error}", "choose another port"
        ) from None
    return listener


def _url_of(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
