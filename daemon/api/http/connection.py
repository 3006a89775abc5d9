"""One HTTP connection: uvicorn's own, with bounds on what it holds and how long it waits before a request is whole.

uvicorn and the parser below it take a head of any size at any speed. Here a connection that sends no whole head in
time, or too large a one, is answered and closed, and there are never more connections than `MAX_CONNECTIONS`.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import lru_cache
from http import HTTPStatus
from typing import Any, Final

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from aghbus.daemon.api.http.asgi import JSON, WHOLE_BODY, Scope, common_headers
from aghbus.daemon.api.http.errors import error_body
from aghbus.daemon.api.http.exchange import Exchange
from aghbus.daemon.api.http.peer_credentials import is_ours, peer_uid
from aghbus.daemon.base.logs import EventLimiter

MAX_CONNECTIONS: Final = 256
"""Ours: an agent needs a few. Each holds up to a body and a file handle. So many again are answered with 503."""

MAX_TARGET_BYTES: Final = 8_192
"""RFC 9110 section 4.1 recommends at least 8000 for a URI; our longest, an encoded id with filters, has under 4000."""

MAX_HEAD_BYTES: Final = 65_536
"""Ours: request line and headers together; real ones are under 1 KiB."""

MAX_HEADERS: Final = 100
"""Ours: header and trailer fields of one request."""

HEAD_SECONDS: Final = 10.0
"""Seconds, ours: from the first byte of a request to the end of its headers."""

IDLE_SECONDS: Final = 75
"""Seconds, ours: a connection kept alive without a request."""


MAX_AHEAD: Final = 16
"""Ours: requests that a connection takes while one of its is being answered. Only who goes on reading hears a client hang up."""

MAX_AHEAD_BYTES: Final = 65_536
"""Ours: bytes of such requests, heads and bodies together. What was read with the last of them comes on top."""

_TARGETS: Final = 256  # that are remembered, ours: two MiB of the longest

LINGER_SECONDS: Final = 1.0
"""Seconds, ours: how long a refused client may go on sending before its connection is cut (RFC 9112 section 9.6)."""


class _Refused(Exception):
    """Stops the parser: why is in the connection."""


class _Flow(FlowControl):
    """As uvicorn's, but reading does not go on before the connection has room for what it would read."""

    def __init__(self, transport: asyncio.Transport, has_room: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._has_room = has_room

    def resume_reading(self) -> None:
        """Unless there is no room."""
        if self.read_paused and self._has_room():
            super().resume_reading()


@lru_cache(_TARGETS)
def _target(url: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request's target."""
    target = httptools.parse_url(url)
    if not target.path or not target.path.isascii():
        raise _Refused
    return target.path, target.query or b""


class ApiConnection(HttpToolsProtocol):
    """A connection of the local API."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        loop: asyncio.AbstractEventLoop,
        *,
        strangers: EventLimiter,
        head_seconds: float = HEAD_SECONDS,
    ) -> None:
        """As uvicorn's, with the seconds that a request's head may take; `strangers` logs other users' attempts."""
        super().__init__(config, server_state, app_state, loop)
        self._strangers = strangers
        self.head_seconds = head_seconds
        self._head_bytes = 0
        self._in_head = False
        self._served: RequestResponseCycle | None = (
            None  # the last that was begun; those of the pipeline wait for its end
        )
        self._ahead_bytes = 0
        self._surplus = False
        self._lingering = False
        self._deadline: asyncio.TimerHandle | None = None
        self._resting_since: float | None = None  # since when it waits for a further request
        self._rest: asyncio.TimerHandle | None = None
        self._reads = 0
        self._head_came_with = 0  # which of the reads
        self._why: tuple[int, str, str] = (400, "bad_request", "not an HTTP/1.1 request")

    @property
    def stalled(self) -> bool:
        """Whether the client does not read what we have written."""
        return self.flow is not None and self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn narrows it
        """Take the connection. One too many is heard before it is refused: closing on unread bytes would be a reset."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self._has_room)
        if self._is_of_a_stranger():
            transport.abort()  # nothing that it sends is read
            return
        self._surplus = len(self.connections) > MAX_CONNECTIONS
        if len(self.connections) > 2 * MAX_CONNECTIONS:
            transport.abort()
        else:
            self._arm()

    def _is_of_a_stranger(self) -> bool:
        sock = self.transport.get_extra_info("socket")
        if sock is None or sock.family != socket.AF_UNIX:
            return False  # on TCP the guard asks for the token
        uid = peer_uid(sock)
        if is_ours(uid):
            return False
        self.connections.discard(self)  # it takes no place of ours
        sentence = "a process of another user was turned away from the API's socket"
        self._strangers.event(logging.WARNING, "api.stranger", sentence, uid=uid)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Release timers with the rest, and tell the application, which uvicorn does for the newest request alone."""
        self._disarm()
        if self._rest is not None:
            self._rest.cancel()
        self._give_up()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, then look at how much of an unfinished head there is."""
        if self._lingering:
            return
        self._reads += 1
        super().data_received(data)
        if self.transport.is_closing() or self._lingering:
            return
        if self.pipeline:
            self._ahead_bytes += len(data)
            if not self._has_room():
                self.flow.pause_reading()
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._refuse(431, "head_too_large", f"request head: is longer than {MAX_HEAD_BYTES} bytes")
                return
        if self._in_head or self.cycle is None or self.cycle.response_complete:
            self._arm()

    def on_message_begin(self) -> None:
        """A request begins. Of what ASGI has in a scope, ours has what our application asks for."""
        self._in_head, self._head_bytes = True, 0
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        scope: Any = {"type": "http", "headers": self.headers}
        self.scope = scope

    def on_url(self, url: bytes) -> None:
        """A piece of the request's target."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._stop(414, "target_too_long", f"request target: is longer than {MAX_TARGET_BYTES} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer after the body."""
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))
        if len(self.headers) > MAX_HEADERS:
            self._stop(431, "head_too_large", f"request head: has more than {MAX_HEADERS} fields")

    def on_headers_complete(self) -> None:
        """The head is whole: from here on the application's own limits hold."""
        self._in_head = False
        self._disarm()
        if self._surplus:
            self._stop(503, "unavailable", f"more than {MAX_CONNECTIONS} connections")
        self._head_came_with = self._reads
        scope = self._complete_scope()
        before = self.cycle
        self.cycle = Exchange(
            scope,
            self.transport,
            self.flow,
            self.logger,
            self.on_response_complete,
            keep_alive=scope["http_version"] != "1.0" and self.parser.should_keep_alive(),
            expect_100_continue=self.expect_100_continue,
        )
        if before is None or before.response_complete:
            self._serve(self.cycle)
        else:  # it came before the answer to the one before
            self.pipeline.appendleft((self.cycle, self.app))

    def _serve(self, cycle: RequestResponseCycle) -> None:
        self._served = cycle
        self._start_asgi_task(cycle, self.app)

    def _has_room(self) -> bool:
        return len(self.pipeline) < MAX_AHEAD and self._ahead_bytes <= MAX_AHEAD_BYTES

    def _complete_scope(self) -> Scope:
        path, query = _target(self.url)
        scope: Any = self.scope  # as uvicorn narrows it
        scope["method"] = self.parser.get_method().decode("ascii")
        scope["http_version"] = self.parser.get_http_version()
        scope["raw_path"] = path
        scope["query_string"] = query
        told: Scope = scope
        return told

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        """The request is whole. One that came in one read, as nearly all do, has its body ready before the application begins."""
        cycle = self.cycle
        if cycle.response_complete:
            return
        cycle.more_body = False
        cycle.message_event.set()
        if self._head_came_with == self._reads:
            scope: Any = self.scope  # with an entry that ASGI does not know
            scope[WHOLE_BODY] = bytes(cycle.body)

    def on_response_complete(self) -> None:
        """On to the next request, or to a rest: with one timer for many rests, since under load each lasts a moment."""
        if self.transport.is_closing():
            return
        following = self.pipeline.pop()[0] if self.pipeline else None
        if not self.pipeline:
            self._ahead_bytes = 0
        self.flow.resume_reading()
        if following is not None:
            self._serve(following)
            return
        self._resting_since = self.loop.time()
        if self._rest is None:
            self._rest = self.loop.call_later(self.timeout_keep_alive, self._look_at_rest)

    def _look_at_rest(self) -> None:
        self._rest = None
        if self._resting_since is None:
            return  # the next rest sets a timer
        left = self._resting_since + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self._rest = self.loop.call_later(left, self._look_at_rest)
        else:
            self.transport.close()

    def _unset_keepalive_if_required(self) -> None:
        """Something came (uvicorn's name for it)."""
        self._resting_since = None

    def send_400_response(self, msg: str) -> None:
        """Answer what the parser could not take (uvicorn's name for it, and its text, are not ours)."""
        self._refuse(*self._why)

    def _unsupported_upgrade_warning(self) -> None:
        """Offers to upgrade (`h2c`, websockets) are passed over without a word, as RFC 9110 section 7.8 allows."""

    def _stop(self, status: int, code: str, message: str) -> None:
        self._why = (status, code, message)
        raise _Refused

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.head_seconds, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self._in_head:
            self._refuse(408, "timeout", f"request head: did not arrive in {self.head_seconds:g} seconds")
        else:
            self.transport.close()

    def _refuse(self, status: int, code: str, message: str) -> None:
        """Answer and close. When another answer is under way on this connection, only close."""
        self._disarm()
        if self.transport.is_closing() or self._answering():
            self.transport.close()
            return
        body = error_body(code, message)
        head = [b"HTTP/1.1 %d %s\r\n" % (status, HTTPStatus(status).phrase.encode())]
        head += [b"%s: %s\r\n" % pair for pair in common_headers(JSON)]
        head.append(b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body))
        self.transport.write(b"".join([*head, body]))
        self._linger()

    def _linger(self) -> None:
        """Write no more, and drop what still comes: closing on unread bytes is a reset, which may overtake the answer."""
        self._lingering = True
        self._give_up()
        self.flow.resume_reading()
        self.transport.write_eof()
        self._deadline = self.loop.call_later(LINGER_SECONDS, self.transport.abort)

    def _give_up(self) -> None:
        """To the application the client is gone, and what waits for an answer is never begun."""
        self.pipeline.clear()
        self._ahead_bytes = 0
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True
            self._served.message_event.set()

    def _answering(self) -> bool:
        served = self._served
        return served is not None and served.response_started and not served.response_complete
