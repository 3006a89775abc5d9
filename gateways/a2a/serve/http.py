"""The HTTP server under the gateway: uvicorn with h11, bounded for untrusted clients."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Iterator
from typing import Any, Final

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from aghbus.client import UsageError
from aghbus.gateways.a2a.base.options import Options

MAX_HEAD: Final = 65_536
"""Bytes of the head of a request."""
CONNECTIONS: Final = 1_000
"""Connections at a time; a request over more of them is answered with 503."""
DRAIN_SECONDS: Final = 3
"""Seconds for requests in progress when the gateway stops."""

HEAD_SECONDS: Final = 10.0
"""A connection on which no request has begun for so long, twice that at most, is closed; so is one whose client reads nothing."""


class Protocol(H11Protocol):
    """HTTP/1.1 over connections that tell the application about their client certificate."""

    _is_idle = False
    _waiting = 0
    _since = 0.0
    _watching: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Remember the certificate of a new connection. At the limit it takes the place of the one that was longest without a
        request."""
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) >= CONNECTIONS:
            idle = (
                each for each in self.connections if isinstance(each, Protocol) and each is not self and each.is_free()
            )
            if (longest := min(idle, key=lambda each: each._since, default=None)) is not None:
                longest.transport.close()
        secured = transport.get_extra_info("ssl_object")
        self.app_state = {**self.app_state, "certificate": secured.getpeercert() if secured else None}
        self._watching = self.loop.call_later(HEAD_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look at the connection no more."""
        super().connection_lost(exc)
        if self._watching is not None:
            self._watching.cancel()

    def is_free(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _look(self) -> None:
        """Close a connection that was without a request the last time, too, or whose client has read nothing since then."""
        waiting = self.transport.get_write_buffer_size() if self.flow.write_paused else 0
        if waiting and waiting == self._waiting:
            self.transport.abort()
            return
        self._waiting, idle = waiting, self.is_free()
        if idle and self._is_idle:
            self.transport.close()
            return
        self._is_idle = idle
        self._watching = self.loop.call_later(HEAD_SECONDS, self._look)


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


def config_of(app: Any, options: Options) -> uvicorn.Config:
    config = uvicorn.Config(
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
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
        ssl_ca_certs=options.client_ca,
        ssl_cert_reqs=_asks_for_certificate(options),
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"--tls-cert, --tls-key, --client-ca: cannot be used: {why}") from None
    return config


def _asks_for_certificate(options: Options) -> int:
    if options.client_ca is None:
        return ssl.CERT_NONE
    return ssl.CERT_OPTIONAL if options.callers or options.oidc else ssl.CERT_REQUIRED


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises UsageError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)  # only then asyncio sets TCP_NODELAY
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
