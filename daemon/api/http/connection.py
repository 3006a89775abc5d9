"""One HTTP/1.1 connection: httptools parses, this module bounds what a client can cost.

A client gets its answer, or is refused with a JSON error, or is cut off:

- The head of a request is bounded in bytes, header fields and seconds; the body by the application, which reads it, in
  bytes and seconds; what stands between the pieces of a body, and after it, in bytes and fields.
- One request at a time. What a client sends before the answer to its request is dropped, and the connection closes after
  the answer: pipelining is not offered.
- A client that does not read its answers is not read either, and is cut off after the idle time.
- There are at most `max_connections` on one listener. A new one takes the place of the oldest that is not being served.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Final

import httptools

from aghbus.daemon.api.http.errors import error_body
from aghbus.daemon.api.http.exchange import JSON, Application, Exchange, response_head
from aghbus.daemon.api.http.peer_credentials import is_ours, peer_groups, peer_uid
from aghbus.daemon.api.http.timeouts import TIMEOUTS, HttpTimeouts
from aghbus.daemon.base.logs import EventLimiter

MAX_CONNECTIONS: Final = 256
"""An agent needs a few. Each holds up to a body and a file handle. If all are served, as many again are answered with 503."""

MAX_TARGET_BYTES: Final = 8_192
"""RFC 9110 section 4.1 recommends at least 8000 for a URI; our longest, an encoded id with filters, has under 4000."""

MAX_HEAD_BYTES: Final = 65_536
"""Request line and headers together; real ones are under 1 KiB. Also chunk sizes and trailers without a piece of the body."""

MAX_HEADERS: Final = 100
"""Header and trailer fields of one request."""

LINGER_SECONDS: Final = 2.0
"""Seconds: how long a refused client may keep sending before its connection is cut (RFC 9112 section 9.6)."""

_CACHED_TARGETS: Final = 256  # two MiB of the longest


class _Stop(Exception):
    """Stops the parser from within a callback."""


@dataclass(slots=True, eq=False)
class ListenerState:
    """The shared state of the connections of one listener. `foreign_attempts` logs connections of other users.

    On a Unix socket, members of the group `socket_group` are accepted, too.
    """

    application: Application
    foreign_attempts: EventLimiter
    timeouts: HttpTimeouts = TIMEOUTS
    max_connections: int = MAX_CONNECTIONS
    socket_group: int | None = None
    connections: "dict[ApiConnection, None]" = field(default_factory=dict)  # oldest first
    requests: "set[asyncio.Task[None]]" = field(default_factory=set)

    def accepts(self, sock: socket.socket, uid: int | None) -> bool:
        """Whether the process of user `uid` at the other end may use this listener. On TCP the guard asks for the token."""
        return sock.family != socket.AF_UNIX or is_ours(uid) or self.socket_group in peer_groups(sock)

    def make_room(self) -> None:
        """Cut the oldest connection that is not being served, if there are as many as may be."""
        if len(self.connections) >= self.max_connections:
            unserved = next((connection for connection in self.connections if connection.unserved), None)
            if unserved is not None:
                del self.connections[unserved]
                unserved.abort()

    def connection(self) -> "ApiConnection":
        """A new connection, for `create_server`."""
        return ApiConnection(self)


class ApiConnection(asyncio.Protocol):
    """A connection of the local API."""

    def __init__(self, endpoint: ListenerState) -> None:
        self._endpoint = endpoint
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._writable = asyncio.Event()
        self._writable.set()
        self._exchange: Exchange | None = None  # the request that is not answered yet
        self._unserved: Exchange | None = None  # a request whose head has just been read
        self._url = b""
        self._headers: dict[bytes, list[bytes]] = {}
        self._header_count = 0
        self._session: dict[str, str] = {}
        self._in_head = False
        self._head_bytes = 0
        self._body_arrived = False  # in this read
        self._surplus = False
        self._dropping = False
        self._refusal = (400, "bad_request", "not an HTTP/1.1 request")
        self._due: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def stalled(self) -> bool:
        """Whether the client does not read the written data."""
        return not self._writable.is_set()

    @property
    def unserved(self) -> bool:
        """Whether it is within the bound and has no request: silent, before the end of a head, kept alive, or answered and read."""
        return self._exchange is None and not self._surplus and not self.stalled

    # called by the transport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # the loops pass no other
        """Take the connection. A surplus one is read before it is refused: closing on unread bytes would be a reset."""
        self._transport = transport
        sock = transport.get_extra_info("socket")
        if not self._endpoint.accepts(sock, uid := peer_uid(sock)):
            sentence = "a process of another user was rejected on the API's socket"
            self._endpoint.foreign_attempts.event(logging.WARNING, "api.foreign_user", sentence, uid=uid)
            transport.abort()  # nothing that it sends is read
            return
        self._endpoint.make_room()
        others, most = len(self._endpoint.connections), self._endpoint.max_connections
        self._surplus = others >= most
        if others >= 2 * most:
            transport.abort()
            return
        self._endpoint.connections[self] = None
        self._expire_after(self._endpoint.timeouts.head)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the timer, the waiting writer and the application's request."""
        self._endpoint.connections.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._dropping = True
        self._give_up()
        self._writable.set()

    def eof_received(self) -> None:
        """The client has closed its side, so its wait ends now: `connection_lost` comes later, after an answer that is ready."""
        if self._exchange is not None:
            self._exchange.disconnect()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, then bound an unfinished head, or trailers."""
        if self._dropping:
            return
        self._body_arrived = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # ignored, as RFC 9110 section 7.8 allows; the rest may be of any protocol
            self._drop_rest()
        except httptools.HttpParserError:
            if not self._dropping:
                self._unserved = None
                self._refuse(*self._refusal)
        if self._unserved is not None:
            exchange, self._unserved = self._unserved, None
            if (waiting := self._endpoint.application(exchange)) is not None:
                self._wait(exchange, waiting)
        if self._in_head and not self._head_bytes and not self._dropping:
            self._expire_after(self._endpoint.timeouts.head)
        unfinished = self._in_head or (self._exchange is not None and not self._exchange.body_complete)
        if unfinished and not self._body_arrived and not self._dropping:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, "head_too_large", f"request head or trailers: are longer than {MAX_HEAD_BYTES} bytes")

    def pause_writing(self) -> None:
        """The client does not read: between two requests, do not read from it either."""
        self._writable.clear()
        if self._exchange is None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The client has read on."""
        self._writable.set()
        if self._exchange is None:
            self._transport.resume_reading()

    # called by the parser

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._exchange is not None:
            self._drop_rest()
            raise _Stop
        self._in_head, self._head_bytes = True, 0
        self._url, self._headers, self._header_count = b"", {}, 0

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        self._url += url
        if len(self._url) > MAX_TARGET_BYTES:
            self._stop(414, "target_too_long", f"request target: is longer than {MAX_TARGET_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after the body."""
        self._headers.setdefault(name.lower(), []).append(value)
        self._header_count += 1
        if self._header_count > MAX_HEADERS:
            self._stop(431, "head_too_large", f"request head: has more than {MAX_HEADERS} fields")

    def on_headers_complete(self) -> None:
        """The application is started after this read, which mostly has the body too. From then on its own limits hold."""
        self._in_head, self._due = False, None
        if self._surplus:
            self._stop(503, "unavailable", f"more than {self._endpoint.max_connections} connections")
        parser = self._parser
        path, query = _target(self._url)
        self._exchange = exchange = Exchange(
            self._transport,
            self._writable,
            self._answered,
            method=parser.get_method(),
            path=path,
            query=query,
            headers=self._headers,
            keep_alive=parser.get_http_version() != "1.0" and parser.should_keep_alive(),
            session=self._session,
        )
        self._headers = {}  # trailers go there, and are dropped
        if parser.should_upgrade() and exchange.has_body:  # which the parser would skip
            self._stop(400, "bad_request", "upgrade: is not possible with a body")
        self._unserved = exchange

    def _wait(self, exchange: Exchange, waiting: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(waiting)
        self._endpoint.requests.add(task)
        task.add_done_callback(partial(self._done, exchange))

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._body_arrived, self._head_bytes = True, 0
        if self._exchange is not None:
            self._exchange.feed(body)

    def on_message_complete(self) -> None:
        """The request is complete."""
        if self._exchange is not None:
            self._exchange.complete_body()

    def _stop(self, status: int, code: str, message: str) -> None:
        self._refusal = (status, code, message)
        raise _Stop

    # the end of a request

    def _answered(self, exchange: Exchange) -> None:
        self._exchange = None
        if self._dropping or not (exchange.keep_alive or exchange.body_complete):
            self._linger()
            return
        self._expire_after(self._endpoint.timeouts.idle)
        if not exchange.keep_alive:
            self._transport.close()
        elif self._writable.is_set():
            self._transport.resume_reading()  # a long body may have paused it
        else:
            self._transport.pause_reading()

    def _done(self, exchange: Exchange, task: "asyncio.Task[None]") -> None:
        """The application has returned. A response without its end must not look complete."""
        self._endpoint.requests.discard(task)
        if not exchange.ended and not exchange.disconnected:
            self._expire_after(self._endpoint.timeouts.idle)
            self._transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Respond with an error and close. If another response is under way, only close."""
        if self._exchange is not None and self._exchange.started:
            self._transport.abort()
        elif not self._transport.is_closing():
            body = error_body(code, message)
            head = response_head(status, JSON, (), keep_alive=False)
            self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
            self._linger()

    def _linger(self) -> None:
        """Write no more, and drop what arrives: closing on unread bytes is a reset, which may overtake the response."""
        self._dropping = True
        self._give_up()
        self._transport.resume_reading()
        self._transport.write_eof()
        self._expire_after(LINGER_SECONDS)

    def _drop_rest(self) -> None:
        """Drop what the client sends before its answer. Reading continues, to detect a disconnect."""
        self._dropping = True
        if self._exchange is not None:
            self._exchange.keep_alive = False

    def _give_up(self) -> None:
        if self._exchange is not None:
            self._exchange.disconnect()
            self._exchange = None

    def shutdown(self) -> None:
        """Close an idle connection now, and one with a request after its response."""
        if self._exchange is None:
            self._transport.close()
        else:
            self._exchange.keep_alive = False

    def abort(self) -> None:
        """Close immediately; unwritten data is lost."""
        self._transport.abort()

    # time

    def _expire_after(self, seconds: float) -> None:
        """Expire then, unless a request's head is complete before. One timer serves many requests."""
        self._due = self._loop.time() + seconds
        if self._timer is not None and self._timer.when() > self._due:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(self._due, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self._due is None:
            return
        if self._loop.time() < self._due:
            self._timer = self._loop.call_at(self._due, self._check_time)
        elif self._in_head and not self._dropping:
            seconds = self._endpoint.timeouts.head
            self._refuse(408, "timeout", f"request head: did not arrive in {seconds:g} seconds")
        else:
            self._transport.abort()


@lru_cache(_CACHED_TARGETS)
def _target(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request's target."""
    target = httptools.parse_url(url)
    if not target.path or not target.path.isascii():
        raise _Stop
    return target.path, target.query or b""
