"""The body of a request, whole or in pieces, within bounds of bytes and time."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Final

from aghbus.daemon.api.http.errors import HttpRefusal, too_large
from aghbus.daemon.api.http.exchange import JSON, Exchange

_USUAL: Final = [JSON]


async def read_body(exchange: Exchange, *, limit: int, seconds: float) -> bytes:
    """The body of a JSON request, at most `limit` bytes within `seconds`.

    Raises HttpRefusal 408, 413 or 415, or ClientDisconnected.
    """
    if exchange.body_complete:  # it came in one read with the head, as most do
        return whole_body(exchange, limit=limit)
    _check_content_type(exchange)
    body = b""
    declared = exchange.content_length
    if declared <= limit:
        body = await _read_all(exchange, limit, time.monotonic() + seconds)
    if max(declared, len(body)) > limit:
        exchange.keep_alive = False
        raise too_large(limit)
    return body


def whole_body(exchange: Exchange, *, limit: int) -> bytes:
    """The body of a JSON request that is complete. Raises HttpRefusal 413 or 415."""
    if exchange.headers.get(b"content-type") != _USUAL:
        _check_content_type(exchange)
    body = exchange.take()
    if len(body) > limit:
        exchange.keep_alive = False
        raise too_large(limit)
    return body


class Content:
    """The body as it arrives: an asynchronous iterator of non-empty pieces, each within `seconds` of the one before.

    Raises HttpRefusal 408, or ClientDisconnected.
    """

    def __init__(self, exchange: Exchange, *, seconds: float) -> None:
        self._exchange = exchange
        self._seconds = seconds

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if piece := await _read(self._exchange, time.monotonic() + self._seconds):
            return piece
        raise StopAsyncIteration


async def _read_all(exchange: Exchange, limit: int, deadline: float) -> bytes:
    """The whole body, or its first pieces when they are more than `limit` bytes."""
    pieces = bytearray()
    while len(pieces) <= limit and (piece := await _read(exchange, deadline)):
        pieces += piece
    return bytes(pieces)


async def _read(exchange: Exchange, deadline: float) -> bytes:
    try:
        async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
            return await exchange.read()
    except TimeoutError:
        exchange.keep_alive = False
        raise HttpRefusal(408, "timeout", "body: did not arrive in time") from None


def _check_content_type(exchange: Exchange) -> None:
    for value in exchange.headers.get(b"content-type", ()):
        if value != JSON and value.partition(b";")[0].strip().lower() != JSON:
            raise HttpRefusal(
                415,
                "unsupported_media_type",
                f"content-type: must be application/json, got {value.decode('latin-1')}",
                "with curl: -H 'content-type: application/json'",
            )
