"""One request and its answer on a connection: uvicorn's cycle, with an answer that goes out in one write."""

import asyncio
from collections.abc import Callable
from functools import lru_cache
from logging import Logger
from typing import Any, Final

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from aghbus.daemon.api.http.asgi import CLOSE, Header, Scope

_REMEMBERED: Final = 256  # heads, ours: most answers differ in their length alone


class Exchange(RequestResponseCycle):
    """As uvicorn's, for an application that is ours: its headers hold nothing but what we put into them, and are not looked at.

    The head waits for the first piece of the body, and both go into the socket together: each write is a system call, and wakes
    the client.
    """

    def __init__(
        self,
        scope: Scope,
        transport: asyncio.Transport,
        flow: FlowControl,
        logger: Logger,
        on_response: Callable[[], None],
        *,
        keep_alive: bool,
        expect_100_continue: bool,
    ) -> None:
        """As uvicorn's, without its log of accesses and its own headers."""
        told: Any = scope  # uvicorn has a type for each kind of scope
        event = asyncio.Event()
        super().__init__(
            told, transport, flow, logger, logger, False, [], event, expect_100_continue, keep_alive, on_response
        )
        self._head = b""
        self._bodiless = scope["method"] == "HEAD"

    async def send(self, message: ASGISendEvent) -> None:
        """Take the head of the answer, or a piece of its body (ASGI 3)."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        event: Any = message
        if not self.response_started:
            self._start(event["status"], tuple(event["headers"]))
        elif self.response_complete:
            raise RuntimeError("the answer was complete")
        else:
            self._continue(event["body"], more=event["more_body"])

    def _start(self, status: int, headers: tuple[Header, ...]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        self.keep_alive = self.keep_alive and CLOSE not in headers
        self._head, self.chunked_encoding = _head(status, headers, self.keep_alive, self._bodiless)

    def _continue(self, body: bytes, *, more: bool) -> None:
        piece, self._head = self._head, b""
        if self.chunked_encoding:
            if body:
                piece += b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                piece += b"0\r\n\r\n"
        elif not self._bodiless:
            piece += body
        if piece and not self.transport.is_closing():
            self.transport.write(piece)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()


@lru_cache(_REMEMBERED)
def _head(status: int, headers: tuple[Header, ...], keep_alive: bool, bodiless: bool) -> tuple[bytes, bool]:
    """The head of an answer, and whether its body is chunked: where it has one, and its length is not said."""
    fields = [*headers]
    if not keep_alive and CLOSE not in headers:
        fields.append(CLOSE)
    chunked = not bodiless and all(name != b"content-length" for name, _ in headers)
    if chunked:
        fields.append((b"transfer-encoding", b"chunked"))
    return b"%b%b\r\n" % (STATUS_LINE[status], b"".join([b"%b: %b\r\n" % field for field in fields])), chunked
