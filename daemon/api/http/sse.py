"""Server-sent events (HTML standard, section 9.2): the event stream on the wire, and its end.

**Backpressure.** The stream reads the next page of events only after the page before was written to the socket, so that a
slow reader delays its own iterator and nothing accumulates. After some seconds without an event a comment shows
that the connection is alive.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from aghbus.daemon.api.http.errors import request_error_body
from aghbus.daemon.api.http.exchange import EVENT_STREAM, Exchange, common_headers
from aghbus.protocol.api.bridge import BridgeMessage
from aghbus.protocol.api.messages import Event
from aghbus.protocol.base.errors import RequestError

WRITE_BYTES: Final = 65_536
"""Events that are ready together are written in pieces of about this size, the transport's buffer."""

OPENED: Final = b": stream open\n\n"
"""Sent immediately: the client knows that the daemon took its request, before there is any event."""

DRAINED: Final = b": the daemon is going away, reconnect with Last-Event-ID\n\n"
"""The last thing on a stream that the daemon ended."""


def frame(item: Event | BridgeMessage) -> bytes:
    """One event, or one foreign message as an event `message`, on the wire.

    The `id` is the position from which a client resumes. For a gap that is the position before the pruned range, since
    events that were kept in the range still follow. Line ends between JSON tokens (raw envelopes may have them) become
    spaces.
    """
    _encode_into(item, _encoded)
    data = _encoded
    if _LINE_FEED in data or _CARRIAGE_RETURN in data:
        data = data.translate(_ONE_LINE)
    if type(item) is not Event:
        return b"id: %d\nevent: message\ndata: %s\n\n" % (item.seq, data)
    if item.pruned_from is UNSET:
        return b"id: %d\nevent: envelope\ndata: %s\n\n" % (item.seq, data)
    return b"id: %d\nevent: gap\ndata: %s\n\n" % (item.pruned_from - 1, data)


_encode_into: Final = msgspec.json.Encoder().encode_into
_encoded: Final = bytearray()  # reused, so that it grows only for the largest event so far
_LINE_FEED: Final = ord("\n")
_CARRIAGE_RETURN: Final = ord("\r")
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")


def writes(page: Sequence[Event | BridgeMessage]) -> Iterator[bytes]:
    """A page as pieces that end with a whole event; each has WRITE_BYTES at most, or a single event."""
    frames: list[bytes] = []
    size = 0
    for item in page:
        data = frame(item)
        size += len(data)
        if size > WRITE_BYTES and frames:
            yield b"".join(frames)
            frames, size = [], len(data)
        frames.append(data)
    if frames:
        yield b"".join(frames)


class EventStream:
    """One client's stream, from its first comment to its last."""

    def __init__(
        self,
        exchange: Exchange,
        events: AsyncIterator[Sequence[Event | BridgeMessage]],
        report: Callable[[BaseException], bytes],
    ) -> None:
        """`events` yields pages of ready events. `report` logs an unexpected error and returns JSON for the client."""
        self._exchange = exchange
        self._events = events
        self._report = report
        self._last_sent = 0.0

    async def run(self, draining: asyncio.Event, keep_alive: float) -> None:
        """Stream until the events end, the client goes away, or `draining` is set; then release the iterator."""
        self._exchange.start(200, common_headers(EVENT_STREAM))
        await self._write(OPENED)
        pump = asyncio.ensure_future(self._pump())
        gone = asyncio.ensure_future(self._exchange.until_disconnected())
        drained = asyncio.ensure_future(draining.wait())
        try:
            await self._keep_alive(pump, {pump, gone, drained}, keep_alive)
            left = gone.done()
        finally:
            await _cancel(pump, gone, drained)
            await self._release()
        if not left:
            await self._write(self._closing_event(pump))
            self._exchange.end()

    async def _keep_alive(self, pump: "asyncio.Task[None]", until: "set[asyncio.Task[Any]]", seconds: float) -> None:
        """Wait for the first of `until`, with a comment after every `seconds` in which nothing was sent."""
        clock = asyncio.get_running_loop().time
        while True:
            quiet = clock() - self._last_sent
            done, _ = await asyncio.wait(until, timeout=max(0.0, seconds - quiet), return_when=asyncio.FIRST_COMPLETED)
            if done:
                return
            if clock() - self._last_sent >= seconds:
                await self._write(b": keep-alive\n\n")

    async def _pump(self) -> None:
        async for page in self._events:
            for data in writes(page):
                await self._write(data)

    async def _write(self, data: bytes) -> None:
        await self._exchange.write(data)
        self._last_sent = asyncio.get_running_loop().time()

    async def _release(self) -> None:
        closing = getattr(self._events, "aclose", None)
        if closing is not None:
            await closing()

    def _closing_event(self, pump: "asyncio.Task[None]") -> bytes:
        """Why the stream ends: an event `problem` when the daemon could not continue, else a comment."""
        error = None if pump.cancelled() else pump.exception()
        if error is None:
            return DRAINED
        body = request_error_body(error) if isinstance(error, RequestError) else self._report(error)
        return b"event: problem\ndata: %s\n\n" % body


async def _cancel(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel `tasks` and wait until they are over, however they end."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
