"""Connections that are slow, idle or many do not hold the gateway up."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send

from aghbus.gateways.a2a.base.options import Options
from aghbus.gateways.a2a.callers.auth import Authentication
from aghbus.gateways.a2a.callers.limits import Limits
from aghbus.gateways.a2a.serve import front, http
from aghbus.gateways.a2a.serve.server import METRICS
from aghbus.gateways.base.metrics import Metrics


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(1.0)  # longer than an idle connection may be
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def front_of(app: ASGIApp) -> front.Front:
    everybody = Authentication([], certificates=False, denied=lambda _: None)
    limits = Limits(64, 600, lambda *_: None)
    return front.Front(app, everybody, limits, Metrics("aghbus_a2a", METRICS), 1000, None, [])


@contextlib.asynccontextmanager
async def served(app: ASGIApp) -> AsyncIterator[int]:
    """The port at which the server of the gateway serves an application."""
    listener = http.listen("127.0.0.1", 0)
    server = http.Server(http.config_of(app, Options("127.0.0.1", 0, (), "")))
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


async def answer(port: int, sent: bytes) -> bytes:
    """What the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    found = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return found


async def test_connections_without_a_request_are_closed_and_slow_bodies_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.2)
    monkeypatch.setattr(front, "BODY_SECONDS", 0.2)
    async with served(front_of(hello)) as port:
        host = b"Host: x\r\nConnection: close\r\n"
        nothing, half, slow, whole = await asyncio.gather(
            answer(port, b""),
            answer(port, b"GET / HTTP/1.1\r\nHost: x\r\n"),
            answer(
                port, b"POST / HTTP/1.1\r\nContent-Length: 9\r\nContent-Type: application/json\r\n" + host + b"\r\n{"
            ),
            answer(port, b"GET / HTTP/1.1\r\n" + host + b"\r\n"),
        )
    assert (nothing, half) == (b"", b"")
    assert slow.startswith(b"HTTP/1.1 408")
    assert whole.startswith(b"HTTP/1.1 200")
    assert whole.endswith(b"hello")


async def test_idle_connections_make_place_and_bodies_for_nobody_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS", 5)
    async with served(front_of(hello)) as port:
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(5)]
        head = b"GET /a2a/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 900\r\n\r\n"
        found = await answer(port, head)
        closed = await asyncio.wait_for(idle[0][0].read(), 20)
        for _, writer in idle:
            writer.close()
    assert found.startswith(b"HTTP/1.1 200")
    assert closed == b""


async def test_a_client_that_reads_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "HEAD_SECONDS", 0.2)
    ended = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
        finally:
            ended.set()

    async with served(front_of(endless)) as port:
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.wait_for(ended.wait(), 20)


def test_small_answers_are_not_held_back() -> None:
    """asyncio switches Nagle's algorithm off only for sockets whose protocol is named."""
    with http.listen("127.0.0.1", 0) as listener:
        assert listener.proto == socket.IPPROTO_TCP
