"""One HTTP request and its response, as the application sees them."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from functools import cache, lru_cache
from http import HTTPStatus
from typing import Any, Final

Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream"

MAX_BUFFERED_BODY: Final = 65_536
"""Bytes of a body that wait for the application before the connection stops reading. The last read comes on top.

A body of at most this many bytes is dropped after an early response; a longer one closes the connection."""

_NO_LENGTH: Final = [b"0"]
_CACHED_HEADS: Final = 256  # most responses differ only in their length


class ClientDisconnected(Exception):
    """The client closed its connection before the end of the response."""


class Exchange:
    """One request and its response.

    `headers` has the values of each header in order, by its lower-case name. `path` and `query` are percent-encoded.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        writable: asyncio.Event,
        on_end: Callable[["Exchange"], None],
        *,
        method: bytes,
        path: bytes,
        query: bytes,
        headers: dict[bytes, list[bytes]],
        keep_alive: bool,
        session: dict[str, str],
    ) -> None:
        """`session` is what the application keeps about the connection.

        `writable` is clear while the transport's buffer is full. `on_end` is called at the response's end.
        """
        self._transport = transport
        self._writable = writable
        self._on_end = on_end
        self.method = method.decode("ascii")
        self.path = path.decode("ascii")
        self.query = query
        self.headers = headers
        self.keep_alive = keep_alive
        self.session = session
        self.body_complete = False
        self.disconnected = False
        self.started = False
        self.ended = False
        self._body = bytearray()
        self._changed: asyncio.Future[None] | None = None
        self.on_disconnect: Callable[[], None] | None = None
        self._continued = False

    @property
    def has_body(self) -> bool:
        """Whether the head announces a body."""
        return b"transfer-encoding" in self.headers or self.content_length > 0

    @property
    def content_length(self) -> int:
        """Bytes of the body as the head says; 0 without that header."""
        return int(self.headers.get(b"content-length", _NO_LENGTH)[0])

    # the request's body

    async def read(self) -> bytes:
        """The next piece of the body; empty at its end. Raises ClientDisconnected."""
        while not (self._body or self.body_complete or self.disconnected):
            self._transport.resume_reading()
            self._continue()
            await self._wait()
        if self.disconnected:
            raise ClientDisconnected
        return self.take()

    def take(self) -> bytes:
        """What has arrived of the body and was not read yet."""
        piece = bytes(self._body)
        self._body.clear()
        return piece

    def _continue(self) -> None:
        if not self._continued and any(value.lower() == b"100-continue" for value in self.headers.get(b"expect", ())):
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._continued = True

    async def until_disconnected(self) -> None:
        """Return when the client is gone."""
        while not self.disconnected:
            await self._wait()

    async def _wait(self) -> None:
        self._changed = asyncio.get_running_loop().create_future()
        await self._changed

    def _wake(self) -> None:
        assert self._changed is not None
        if not self._changed.done():
            self._changed.set_result(None)

    # the response

    def respond(self, status: int, body: bytes, headers: Iterable[Header] = (), *, content_type: bytes = JSON) -> None:
        """Write a whole response: `headers` are added to the common ones.

        Without effect when the client is gone, or after `start`: the connection closes, and the client sees no end.
        """
        if self.disconnected or self.started:
            return
        head = self._start(status, content_type, tuple(headers))
        sent = b"" if self.method == "HEAD" else body
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), sent))
        self.ended = True
        self._on_end(self)

    def start(self, status: int, headers: tuple[Header, ...]) -> None:
        """Begin a response in pieces."""
        if not self.disconnected:
            self._transport.write(self._start(status, None, headers) + b"transfer-encoding: chunked\r\n\r\n")

    async def write(self, data: bytes) -> None:
        """Write a piece of the body once the client has read enough of those before."""
        if not self._writable.is_set():
            await self._writable.wait()
        if data and not self.disconnected:
            self._transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def end(self) -> None:
        """End a response in pieces."""
        if not self.disconnected:
            self._transport.write(b"0\r\n\r\n")
            self.ended = True
            self._on_end(self)

    def _start(self, status: int, content_type: bytes | None, headers: tuple[Header, ...]) -> bytes:
        self.started = True
        self.keep_alive = self.keep_alive and (self.body_complete or self._rest_is_short())
        return response_head(status, content_type, headers, self.keep_alive)

    def _rest_is_short(self) -> bool:
        """Whether the connection can drop the rest of the body and stay open: the client sends it, and it is bounded."""
        return 0 < self.content_length <= MAX_BUFFERED_BODY and b"expect" not in self.headers

    # what the connection reports

    def feed(self, piece: bytes) -> None:
        """Add a piece of the body; pauses reading while much of it waits for the application."""
        self._continued = True
        self._body += piece
        if len(self._body) > MAX_BUFFERED_BODY:
            self._transport.pause_reading()
        if self._changed is not None:
            self._wake()

    def complete_body(self) -> None:
        """The body is complete."""
        self.body_complete = True
        if self._changed is not None:
            self._wake()

    def disconnect(self) -> None:
        """The client is gone, or may no longer be answered."""
        self.disconnected = True
        if self.on_disconnect is not None:
            self.on_disconnect()
        if self._changed is not None:
            self._wake()


Application = Callable[[Exchange], Coroutine[Any, Any, None] | None]
"""Serves a request. It returns what is left to do, when that has to wait for something."""


@cache
def common_headers(content_type: bytes) -> tuple[Header, ...]:
    """Headers of every response: it is never cached, and browsers do not guess its type."""
    return (
        (b"content-type", content_type),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    )


@lru_cache(_CACHED_HEADS)
def response_head(status: int, content_type: bytes | None, headers: tuple[Header, ...], keep_alive: bool) -> bytes:
    """Status line and headers without the empty line at their end; with a content type the common ones come first."""
    if content_type is not None:
        headers = (*common_headers(content_type), *headers)
    fields = headers if keep_alive else (*headers, (b"connection", b"close"))
    line = b"HTTP/1.1 %d %b\r\n" % (status, HTTPStatus(status).phrase.encode())
    return line + b"".join([b"%b: %b\r\n" % field for field in fields])
