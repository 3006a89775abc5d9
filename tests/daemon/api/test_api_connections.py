"""HTTP itself: what a connection may send, how slowly, and how it ends."""

import asyncio
import logging
import socket
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aghbus.daemon.api.http.connection import MAX_CONNECTIONS, MAX_HEAD_BYTES
from aghbus.daemon.api.http.timeouts import HttpTimeouts
from aghbus.protocol.api.examples import values
from tests.support.api_harness import BODY_LIMIT, DEADLINE, Api, serving
from tests.support.natsutil import wait_until
from tests.support.tools import require_tool


async def talk(api: Api, data: bytes) -> bytes:
    """Everything that comes back for `data`, until the server closes."""
    reader, writer = await api.raw(data)
    answer = await asyncio.wait_for(reader.read(), DEADLINE)
    writer.close()
    return answer


async def response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body of the next response with a content-length."""
    async with asyncio.timeout(DEADLINE):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        return head, await reader.readexactly(length)


async def test_a_connection_is_kept_alive_until_a_request_closes_it(api: Api) -> None:
    reader, writer = await api.raw(ALIVE)
    for request in (ALIVE, ALIVE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")):
        head, body = await response(reader)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"alive" in body
        writer.write(request)
    head, _ = await response(reader)
    assert b"connection: close\r\n" in head
    assert await asyncio.wait_for(reader.read(), DEADLINE) == b""


async def test_an_http_1_0_request_closes_its_connection(api: Api) -> None:
    answer = await talk(api, b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and b"connection: close\r\n" in answer


async def test_bodies_come_with_their_heads_or_after_them(api: Api) -> None:
    body = b'{"kind":"say","to":"ops","body":{"text":"hello"}}'
    head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    reader, writer = await api.raw(head + body)
    for pieces in ([head, body], [head + body[:10], body[10:]], []):
        start, content = await response(reader)
        assert start.startswith(b"HTTP/1.1 201 Created\r\n") and b'"id"' in content
        for piece in pieces:
            writer.write(piece)
            await wait_until(lambda: bool(api.server.requests))  # which its head has begun


async def test_a_long_body_does_not_hold_up_the_next_request(api: Api) -> None:
    body = b'{"kind":"say","to":"ops","body":{"text":"%b"}}' % (b"x" * (BODY_LIMIT - 100))
    request = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    reader, writer = await api.raw(request)
    for _ in range(3):
        start, _ = await response(reader)
        assert start.startswith(b"HTTP/1.1 201 Created\r\n")
        writer.write(request)
    writer.close()


NEXT = b'{"wait":60}'
WAITING = b"POST /v1/inbox/next HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(NEXT), NEXT)
STREAM = b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n"
ALIVE = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize("more", [0, 1, 3])
@pytest.mark.parametrize("first", [WAITING, STREAM], ids=["waiting", "stream"])
async def test_a_client_that_pipelined_and_disconnected_is_noticed(
    api: Api, first: bytes, more: int, apart: bool
) -> None:
    _, writer = await api.raw(first if apart else first + more * ALIVE)
    await wait_until(lambda: api.node.waiting.is_set() or api.node.open_streams == 1)
    for _ in range(more if apart else 0):
        writer.write(ALIVE)
        await writer.drain()
    writer.close()
    await wait_until(lambda: api.node.wait_ended.is_set() or api.node.open_streams == 0)
    await wait_until(lambda: not api.server.requests)
    assert api.node.names() in (["POST /v1/inbox/next"], ["GET /v1/events"]), "no further request is begun"


@pytest.mark.parametrize("apart", [False, True])
async def test_a_pipelined_request_is_not_served_and_closes_the_connection(api: Api, apart: bool) -> None:
    say = b'{"kind":"say","to":"ops","body":{"text":"hello"}}'
    second = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(say), say)
    reader, writer = await api.raw(WAITING if apart else WAITING + second)
    await wait_until(api.node.waiting.is_set)
    if apart:
        writer.write(second)
        await writer.drain()
    writer.write(ALIVE)
    await writer.drain()
    assert (await api.get("/healthz")).status == 200  # the server has turned to its sockets meanwhile
    api.node.release.set()
    answer = await asyncio.wait_for(reader.read(), DEADLINE)
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200]
    assert b"connection: close\r\n" in answer
    assert api.node.names() == ["POST /v1/inbox/next", "GET /healthz"], "the second is that of the other connection"


async def test_endless_pipelining_is_not_buffered_and_is_answered(api: Api) -> None:
    reader, writer = await api.raw(WAITING)
    await wait_until(api.node.waiting.is_set)
    for _ in range(200):
        writer.write(500 * ALIVE)
        await writer.drain()
    api.node.release.set()
    answer = await asyncio.wait_for(reader.read(), DEADLINE)
    assert answer.startswith(b"HTTP/1.1 200 ") and answer.count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("sent", [ALIVE, b"nonsense\r\n\r\n"])
async def test_bytes_sent_into_a_stream_get_no_response(api: Api, sent: bytes) -> None:
    reader, writer = await api.raw(STREAM)
    await asyncio.wait_for(reader.readuntil(b": stream open\n\n"), DEADLINE)
    writer.write(sent)
    writer.write_eof()
    rest = await asyncio.wait_for(reader.read(), DEADLINE)
    assert b"HTTP/1.1" not in rest
    await wait_until(lambda: api.node.open_streams == 0)


async def test_a_client_that_does_not_read_its_responses_is_read_no_further(socket_path: Path) -> None:
    async with serving(socket_path, HttpTimeouts(idle=0.5)) as api:
        _, writer = await api.raw(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            async with asyncio.timeout(DEADLINE):
                while True:
                    writer.write(b"GET /v1/openapi.json HTTP/1.1\r\nHost: x\r\n\r\n")
                    await writer.drain()
        await wait_until(lambda: not api.server.connections)


async def test_a_response_to_head_has_no_body(api: Api) -> None:
    answer = await talk(api, b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405 Method Not Allowed\r\n")
    assert answer.endswith(b"\r\n\r\n")


async def test_an_idle_connection_is_closed_without_a_response(socket_path: Path) -> None:
    answer = b""
    async with serving(socket_path, HttpTimeouts(idle=0.2)) as api, asyncio.timeout(DEADLINE):
        while not answer:  # a machine that stands still lets the time pass before the request is read
            reader, _ = await api.raw(ALIVE)
            answer = await reader.read()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.count(b"HTTP/1.1") == 1


async def test_invalid_http_is_a_json_400(api: Api) -> None:
    for data in (
        b"\x16\x03\x01\x02\x00\x01\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\xff HTTP/1.1\r\n\r\n",
    ):
        answer = await talk(api, data)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert b'"code":"bad_request"' in answer
        assert b"x-content-type-options: nosniff\r\n" in answer


async def test_a_refused_client_that_continues_to_send_gets_the_error(api: Api) -> None:
    reader, writer = await api.raw(b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\n")
    answer = asyncio.create_task(reader.read())
    for _ in range(200):
        writer.write(b"X-A: " + b"a" * 5000 + b"\r\n")
        await writer.drain()
    assert (await asyncio.wait_for(answer, DEADLINE)).startswith(b"HTTP/1.1 414 ")


async def test_a_refused_client_that_sends_without_end_is_disconnected(api: Api) -> None:
    _, writer = await api.raw(b"nonsense\r\n\r\n")

    async def pour() -> None:
        while True:
            writer.write(b"x" * 5000)
            await writer.drain()

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        await asyncio.wait_for(pour(), DEADLINE)
    await wait_until(lambda: not api.server.connections)


async def test_ambiguous_framing_is_refused(api: Api) -> None:
    head = b"POST /v1/whois HTTP/1.1\r\nHost: x\r\n"
    for framing in (
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 2\r\nContent-Length: 3\r\n",
        b"Content-Length: +2\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked, identity\r\n",
    ):
        answer = await talk(api, head + framing + b"\r\n0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 "), framing
    assert api.node.calls == []


async def test_chunked_body(api: Api) -> None:
    head = b"POST /v1/whois HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert (await talk(api, head + b"1\r\n{\r\n1\r\n}\r\n0\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    piece = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    answer = await talk(api, head + piece * (BODY_LIMIT // 0x8000 + 1) + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_endless_chunks_end(impatient_api: Api) -> None:
    """A client that never stops sending is cut off by the body's time, at the latest."""
    head = b"POST /v1/whois HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    _, writer = await impatient_api.raw(head)
    piece = b"1000\r\n" + b" " * 0x1000 + b"\r\n"

    async def pour() -> None:
        while True:
            writer.write(piece)
            await writer.drain()

    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        await asyncio.wait_for(pour(), DEADLINE)
    assert (await impatient_api.get("/healthz")).status == 200


async def test_an_endless_trailer_is_refused(api: Api) -> None:
    head = b"POST /v1/whois HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    reader, writer = await api.raw(head + b"2\r\n{}\r\n0\r\n")
    writer.write(b"x: " + b"y" * 10 * MAX_HEAD_BYTES)  # more than one read
    assert (await asyncio.wait_for(reader.readline(), DEADLINE)).startswith(b"HTTP/1.1 431 ")
    writer.close()


async def test_a_too_large_declared_length_is_refused_before_the_body(api: Api) -> None:
    head = b"POST /v1/whois HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    answer = await talk(api, head % (BODY_LIMIT + 1))
    assert answer.startswith(b"HTTP/1.1 413 ")
    reader, writer = await api.raw(head % 2)
    assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE) == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"{}")
    assert (await asyncio.wait_for(reader.readline(), DEADLINE)).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_slow_head_is_408(impatient_api: Api) -> None:
    answer = await talk(impatient_api, b"GET /healthz HTTP/1.1\r\nHost:")
    assert answer.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b'"code":"timeout"' in answer


async def test_a_head_in_small_pieces_does_not_extend_its_deadline(impatient_api: Api) -> None:
    reader, writer = await impatient_api.raw(b"GET /healthz HTTP/1.1\r\n")
    answer = asyncio.create_task(reader.read())
    while not answer.done():
        writer.write(b"X-A: 1\r\n")
        await asyncio.wait({answer}, timeout=0.05)
    assert (await answer).startswith(b"HTTP/1.1 408 ")
    writer.close()


async def test_a_connection_without_a_request_is_closed_without_a_response(impatient_api: Api) -> None:
    assert await talk(impatient_api, b"") == b""
    assert await talk(impatient_api, b"\r\n\r\n") == b""


async def test_a_short_body_that_arrives_after_an_early_response_is_dropped(api: Api) -> None:
    head = b"POST /v1/whois HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n"
    reader, writer = await api.raw(head)
    start, _ = await response(reader)
    assert start.startswith(b"HTTP/1.1 415 ") and b"connection: close" not in start
    writer.write(b"{}" + ALIVE)
    start, _ = await response(reader)
    assert start.startswith(b"HTTP/1.1 200 ")


async def test_early_response_to_expect_continue_closes_connection(api: Api) -> None:
    head = b"POST /v1/whois HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\nExpect: 100-continue\r\n"
    answer = await talk(api, head + b"Content-Length: 2\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 415 ") and b"connection: close\r\n" in answer


async def test_slow_body_is_408(impatient_api: Api) -> None:
    answer = await talk(impatient_api, b"POST /v1/whois HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"body: did not arrive in time" in answer
    assert impatient_api.node.calls == []


async def test_large_heads_are_refused(api: Api) -> None:
    long_target = b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"
    assert (await talk(api, long_target)).startswith(b"HTTP/1.1 414 ")
    many = b"GET /healthz HTTP/1.1\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(101)) + b"\r\n"
    assert (await talk(api, many)).startswith(b"HTTP/1.1 431 ")
    endless = b"GET /healthz HTTP/1.1\r\nX-A: " + b"a" * (MAX_HEAD_BYTES + 1)
    assert (await talk(api, endless)).startswith(b"HTTP/1.1 431 ")
    trailers = b"0\r\n" + b"".join(b"X-%d: 1\r\n" % number for number in range(101)) + b"\r\n"
    chunked = b"POST /v1/whois HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + trailers
    assert (await talk(api, chunked)).startswith(b"HTTP/1.1 431 ")


async def test_a_client_that_disconnects_during_its_request_leaves_nothing(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    for data in (
        b"GET /hea",
        b"POST /v1/whois HTTP/1.1\r\nContent-Length: 10\r\n\r\n{",
        b"GET /v1/status HTTP/1.1\r\n\r\n",
    ):
        _, writer = await api.raw(data)
        await writer.drain()
        writer.close()
    await wait_until(lambda: not api.server.connections and not api.server.requests)
    assert (await api.get("/healthz")).status == 200
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_upgrade_offers_are_ignored(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    offers = (b"Upgrade: h2c\r\nConnection: Upgrade, close", b"Upgrade: websocket\r\nConnection: Upgrade, close")
    for offer in offers:
        answer = await talk(api, b"GET /healthz HTTP/1.1\r\nHost: x\r\n" + offer + b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 ")
    assert caplog.records == []


async def test_upgrade_request_with_a_body_is_rejected(api: Api) -> None:
    head = b"POST /v1/inbox/next HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n"
    answer = await talk(api, head + b"Content-Length: 11\r\n\r\n" + NEXT)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert api.node.calls == []


async def test_too_many_connections_are_refused(api: Api) -> None:
    held = [await api.raw(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(MAX_CONNECTIONS)]
    await wait_until(lambda: api.node.open_streams == MAX_CONNECTIONS)
    assert (await talk(api, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")).startswith(b"HTTP/1.1 503 ")
    held.pop()[1].close()
    await wait_until(lambda: api.node.open_streams == MAX_CONNECTIONS - 1)
    await wait_until(lambda: len(api.server.connections) < MAX_CONNECTIONS)
    assert (await api.get("/healthz")).status == 200
    for _, writer in held:
        writer.close()


async def test_stop_finishes_messages_in_flight(api: Api) -> None:
    gate = asyncio.Event()
    entered = asyncio.Event()

    async def slow_status() -> object:
        entered.set()
        await gate.wait()
        return values.STATUS

    api.node.respond["GET /v1/status"] = slow_status
    request = asyncio.create_task(api.get("/v1/status"))
    await asyncio.wait_for(entered.wait(), DEADLINE)
    stopping = asyncio.create_task(api.server.stop(DEADLINE))
    await wait_until(lambda: not api.path.exists())
    gate.set()
    reply = await request
    assert reply.status == 200
    assert reply.headers["connection"] == "close"
    await stopping
    assert not api.server.connections


async def test_stop_cuts_off_at_the_deadline(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    entered = asyncio.Event()
    ended = asyncio.Event()

    async def stuck() -> object:
        entered.set()
        try:
            return await asyncio.Event().wait()
        finally:
            ended.set()

    api.node.respond["GET /v1/status"] = stuck
    _, writer = await api.raw(b"GET /v1/status HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(entered.wait(), DEADLINE)
    await asyncio.wait_for(api.server.stop(0.1), DEADLINE)
    assert ended.is_set()
    assert not api.server.requests
    assert [record.getMessage() for record in caplog.records] == ["requests cut off at the deadline"]
    writer.close()


async def test_idle_connections_do_not_hold_up_a_stop(api: Api) -> None:
    reader, writer = await api.raw(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"}"), DEADLINE)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await api.server.stop(DEADLINE)
    assert loop.time() - started < DEADLINE / 2
    assert await reader.read() == b""
    writer.close()
    await api.server.stop(DEADLINE)  # once more does nothing


async def test_curl(api: Api) -> None:
    command = [
        require_tool("curl"),
        "-sS",
        "--fail",
        "--unix-socket",
        str(api.path),
        "--json",
        '{"query":"x"}',
        "http://d/v1/whois",
    ]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=DEADLINE, check=True)
    assert b'"query":"x"' in done.stdout


ANY_CASE = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
TARGETS = st.sampled_from(
    ["/v1/messages", "/v1/works", "/v1/whois", "/v1/inbox/next", "/v1/inbox/3/nack", "/v1/works/w/fail"]
)


@ANY_CASE
@given(
    target=TARGETS,
    body=st.binary(max_size=200) | st.text(max_size=100).map(lambda text: b'{"to":"%s"}' % text.encode()),
)
async def test_no_body_causes_an_internal_error(api: Api, target: str, body: bytes) -> None:
    reply = await api.request("POST", target, body, {"content-type": "application/json"})
    assert reply.status in (200, 201, 400)
    assert isinstance(reply.json, dict)


@ANY_CASE
@given(
    query=st.text(
        st.characters(codec="ascii", min_codepoint=33, max_codepoint=126, exclude_characters="#"), max_size=60
    )
)
async def test_no_query_causes_an_internal_error(api: Api, query: str) -> None:
    for path in ("/v1/messages", "/v1/works", "/v1/messages/"):
        separator = "" if path.endswith("/") else "?"
        reply = await api.get(f"{path}{separator}{query}")
        assert reply.status in (200, 400, 404, 405)


@ANY_CASE
@given(data=st.binary(max_size=300))
async def test_no_bytes_cause_an_internal_error(api: Api, data: bytes) -> None:
    for start in (b"", b"GET /v1/peers?", b"POST /v1/whois HTTP/1.1\r\n"):
        reader, writer = await api.raw(start + data + b"\r\n\r\n")
        writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), DEADLINE)
        writer.close()
        assert not answer.startswith(b"HTTP/1.1 5")
    assert (await api.get("/healthz")).status == 200


async def test_two_hundred_clients_that_connect_at_once_are_all_served(api: Api) -> None:
    sockets = [socket.socket(socket.AF_UNIX) for _ in range(200)]
    for client in sockets:
        client.setblocking(False)  # a full backlog refuses at once
        client.connect(str(api.path))  # the server's loop does not run meanwhile
    for client in sockets:
        reader, writer = await asyncio.open_connection(sock=client)
        writer.write(ALIVE)
        head, _ = await response(reader)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()
