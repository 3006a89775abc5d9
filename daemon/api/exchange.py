"""One request and its answer on a connection: uvicorn's cycle, with an answer that goes out in one write."""

from typing import Any

from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from aghbus.daemon.api.asgi import CLOSE, Header


class Exchange(RequestResponseCycle):
    """As uvicorn's, for an application that is ours: its headers hold nothing but what we put into them, and are not looked at.

    The head waits for the first piece of the body, and both go into the socket together: each write is a system call, and wakes
    the client.
    """

    def __init__(self, **parts: Any) -> None:
        """As uvicorn's."""
        super().__init__(**parts)
        self._head: list[bytes] = []
        self._bodiless = self.scope["method"] == "HEAD"

    async def send(self, message: ASGISendEvent) -> None:
        """Take the head of the answer, or a piece of its body (ASGI 3)."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        event: Any = message
        if not self.response_started:
            self._start(event["status"], event["headers"])
        elif self.response_complete:
            raise RuntimeError("the answer was complete")
        else:
            self._continue(event["body"], more=event["more_body"])

    def _start(self, status: int, headers: list[Header]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        self.chunked_encoding = not self._bodiless
        head = [STATUS_LINE[status]]
        for name, value in headers:
            head += (name, b": ", value, b"\r\n")
            if name == b"content-length":
                self.chunked_encoding = False
            elif name == b"connection":
                self.keep_alive = False
        if not self.keep_alive and CLOSE not in headers:
            head.append(b"connection: close\r\n")
        if self.chunked_encoding:
            head.append(b"transfer-encoding: chunked\r\n")
        head.append(b"\r\n")
        self._head = head

    def _continue(self, body: bytes, *, more: bool) -> None:
        pieces, self._head = self._head, []
        if self.chunked_encoding:
            if body:
                pieces += (b"%x\r\n" % len(body), body, b"\r\n")
            if not more:
                pieces.append(b"0\r\n\r\n")
        elif not self._bodiless:
            pieces.append(body)
        if pieces and not self.transport.is_closing():
            self.transport.write(b"".join(pieces))
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
