"""Server-sent events, and requests that wait: resuming, disconnects, slow readers, drain."""

import asyncio
import json
from typing import Any

import msgspec
import pytest

from aghbus.daemon.api.http.sse import WRITE_BYTES, frame, writes
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.peers import WhoisResponse
from aghbus.protocol.base.errors import Unavailable
from tests.support.api_harness import DEADLINE, Api
from tests.support.api_simulator import message
from tests.support.natsutil import wait_until


def envelope(seq: int, text: str = "hello") -> Event:
    return Event(seq=seq, type="envelope", message=message(seq, f"msg_{seq}", text))


class SseClient:
    """Reads a stream as the HTML standard says: fields up to an empty line; comments apart."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = b""
        self.status = 0
        self.headers = b""
        self.comments: list[str] = []

    @classmethod
    async def open(cls, api: Api, query: str = "", *headers: str) -> "SseClient":
        lines = [f"GET /v1/events{query} HTTP/1.1", "Host: x", *headers, "", ""]
        client = cls(*await api.raw("\r\n".join(lines).encode()))
        client.headers = await asyncio.wait_for(client._reader.readuntil(b"\r\n\r\n"), DEADLINE)
        client.status = int(client.headers.split()[1])
        return client

    async def _chunk(self) -> bytes:
        size = int(await asyncio.wait_for(self._reader.readuntil(b"\r\n"), DEADLINE), 16)
        data = await asyncio.wait_for(self._reader.readexactly(size + 2), DEADLINE)
        return data[:-2]

    async def block(self) -> str | None:
        """The text up to the next empty line; None at the end."""
        while b"\n\n" not in self._buffer:
            chunk = await self._chunk()
            if not chunk:
                return None
            self._buffer += chunk
        text, _, self._buffer = self._buffer.partition(b"\n\n")
        return text.decode()

    async def event(self) -> dict[str, Any] | None:
        """The next event as `{id, event, data}`; comments on the way are kept aside. None at the end."""
        while (text := await self.block()) is not None:
            if text.startswith(":"):
                self.comments.append(text)
                continue
            fields = dict(line.split(": ", 1) for line in text.split("\n"))
            return {**fields, "data": json.loads(fields["data"])}
        return None

    def close(self) -> None:
        self._writer.close()


async def test_stream_opens_immediately_and_stays_alive(api: Api) -> None:
    client = await SseClient.open(api)
    assert client.status == 200
    assert b"content-type: text/event-stream\r\n" in client.headers
    assert b"cache-control: no-store\r\n" in client.headers
    assert await client.block() == ": stream open"
    assert await client.block() == ": keep-alive"
    assert await client.block() == ": keep-alive"
    client.close()


async def test_events_have_id_type_and_one_line_of_json(api: Api) -> None:
    client = await SseClient.open(api)
    await wait_until(lambda: api.node.open_streams == 1)
    gap = Event(seq=4, type="gap", pruned_from=2)
    await api.node.append(gap, envelope(5, "two\nlines\r\u2028"))
    first = await client.event()
    assert first is not None
    assert first["data"]["seq"] == 4
    assert (first["id"], first["event"], first["data"]["pruned_from"]) == ("1", "gap", 2)
    second = await client.event()
    assert second is not None
    assert (second["id"], second["event"]) == ("5", "envelope")
    assert second["data"]["message"]["envelope"]["body"]["text"] == "two\nlines\r\u2028"
    client.close()


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_line_ends_inside_a_raw_envelope_do_not_break_the_frame(end: bytes) -> None:
    pretty = b'{N  "id": "msg_1",N  "body": {"text": "a\\nb"}N}'.replace(b"N", end)
    stored = msgspec.structs.replace(message(9), envelope=msgspec.Raw(pretty))
    data = frame(Event(seq=9, type="envelope", message=stored))
    assert (data.count(b"\n"), data.count(b"\r")) == (4, 0)
    line = data.split(b"\n")[2].removeprefix(b"data: ")
    assert json.loads(line)["message"]["envelope"] == {"id": "msg_1", "body": {"text": "a\nb"}}


def test_a_frame_does_not_depend_on_the_one_before() -> None:
    before = frame(envelope(1))
    assert len(frame(envelope(2, "x" * 100_000))) > 100_000
    assert frame(envelope(1)) == before


@pytest.mark.parametrize("size", [10, 20_000, 2 * WRITE_BYTES])
def test_events_ready_together_are_written_together_up_to_a_bound(size: int) -> None:
    page = [envelope(seq, "x" * size) for seq in range(1, 12)]
    pieces = list(writes(page))
    assert b"".join(pieces) == b"".join(map(frame, page))
    assert all(piece.endswith(b"\n\n") for piece in pieces)
    assert all(len(piece) <= WRITE_BYTES or piece.count(b"\nevent: ") == 1 for piece in pieces)
    assert len(pieces) == {10: 1, 20_000: 4, 2 * WRITE_BYTES: 11}[size]
    assert list(writes([])) == []


async def test_resume_by_since_and_by_last_event_id(api: Api) -> None:
    await api.node.append(*[envelope(seq) for seq in range(1, 6)])
    client = await SseClient.open(api, "?since=2")
    seen = [await client.event() for _ in range(3)]
    assert [item["id"] for item in seen if item] == ["3", "4", "5"]
    client.close()
    client = await SseClient.open(api, "?since=1", "Last-Event-ID: 4")
    item = await client.event()
    assert item is not None
    assert item["id"] == "5"
    client.close()
    client = await SseClient.open(api)
    await wait_until(lambda: len(api.node.calls) == 3)
    await wait_until(lambda: api.node.open_streams == 1)
    await api.node.append(envelope(6))
    item = await client.event()
    assert item is not None
    assert item["id"] == "6"
    client.close()
    assert [query.since for _, (query,) in api.node.calls] == [2, 4, None]


async def test_filters_reach_the_operation(api: Api) -> None:
    query = "?since=0&kind=trace&kind=receipt&work=w&thread=t&direct=d&peer=p&channel=c&direction=observed&inbox=1"
    client = await SseClient.open(api, query)
    await wait_until(lambda: bool(api.node.calls))
    (wanted,) = api.node.calls[0][1]
    assert wanted.since == 0
    assert wanted.kinds == {"trace", "receipt"}
    assert wanted.directions == {"observed"}
    assert wanted.inbox is True
    assert (wanted.work_id, wanted.thread_id, wanted.direct_id, wanted.peer, wanted.channel) == (
        "w",
        "t",
        "d",
        "p",
        "c",
    )
    client.close()


@pytest.mark.parametrize("header", ["-1", "x", "1.5", "", "9223372036854775808", "9" * 5000])
async def test_bad_last_event_id_is_refused(api: Api, header: str) -> None:
    reply = await api.request("GET", "/v1/events", None, {"Last-Event-ID": header})
    assert reply.status == 400
    assert reply.json["message"].startswith("Last-Event-ID:")


@pytest.mark.parametrize("query", ["?since=-1", "?kind=none", "?limit=5", "?inbox=maybe"])
async def test_bad_stream_query_is_an_ordinary_error(api: Api, query: str) -> None:
    reply = await api.get(f"/v1/events{query}")
    assert (reply.status, reply.json["code"]) == (400, "invalid_request")
    assert api.node.calls == []


async def test_disconnect_releases_the_iterator(api: Api) -> None:
    clients = [await SseClient.open(api) for _ in range(5)]
    await wait_until(lambda: api.node.open_streams == 5)
    for client in clients:
        client.close()
    await wait_until(lambda: api.node.open_streams == 0)
    assert (await api.get("/healthz")).status == 200


async def test_a_slow_reader_blocks_only_its_own_stream(api: Api) -> None:
    """64 MB of events: what was taken from the iterator stays within the socket's and the transport's buffers."""
    taken = 0

    async def watched() -> Any:
        nonlocal taken
        for seq in range(1, 65):
            taken = seq
            yield [envelope(seq, "x" * 1_000_000)]

    api.node.respond["GET /v1/events"] = lambda query: watched()
    client = await SseClient.open(api, "?since=0")
    await wait_until(lambda: taken > 0)
    for _ in range(50):  # another client is served all the while
        assert (await api.get("/v1/status")).status == 200
    assert taken < 8
    seen = 0
    while (item := await client.event()) is not None:
        seen += 1
        assert item["id"] == str(seen)
    assert seen == 64


async def test_drain_ends_streams_with_a_comment(api: Api) -> None:
    client = await SseClient.open(api)
    await wait_until(lambda: api.node.open_streams == 1)
    await api.node.append(envelope(1))
    assert await client.event() is not None
    async with asyncio.timeout(DEADLINE):
        await api.server.stop(10.0)
    assert await client.event() is None
    assert client.comments[-1] == ": the daemon is going away, reconnect with Last-Event-ID"
    assert api.node.open_streams == 0


async def test_drain_does_not_wait_for_a_stalled_reader(api: Api) -> None:
    client = await SseClient.open(api, "?since=0")
    await api.node.append(*[envelope(seq, "x" * 1_000_000) for seq in range(1, 5)])
    await wait_until(lambda: any(connection.stalled for connection in api.server.connections))
    loop = asyncio.get_running_loop()
    started = loop.time()
    await api.server.stop(15.0)
    assert loop.time() - started < 10.0
    await wait_until(lambda: api.node.open_streams == 0)
    client.close()


async def test_end_of_events_ends_the_stream(api: Api) -> None:
    async def three() -> Any:
        for seq in (1, 2, 3):
            yield [envelope(seq)]

    api.node.respond["GET /v1/events"] = lambda query: three()
    client = await SseClient.open(api)
    assert [(await client.event() or {}).get("id") for _ in range(4)] == ["1", "2", "3", None]


async def test_an_error_in_a_stream_is_a_problem_event(api: Api) -> None:
    api.node.stream_failure = Unavailable("store: cannot be read", hint="aghctl doctor")
    client = await SseClient.open(api)
    text = await client.block()
    assert text == ": stream open"
    item = await client.event()
    assert item is not None
    assert item["event"] == "problem"
    assert "id" not in item
    assert item["data"] == {"code": "unavailable", "message": "store: cannot be read", "hint": "aghctl doctor"}
    assert await client.event() is None
    api.node.stream_failure = RuntimeError("inner detail")
    client = await SseClient.open(api)
    item = await client.event()
    assert item is not None
    assert item["data"]["code"] == "internal"
    assert "inner detail" not in json.dumps(item)


async def test_a_waiting_request_ends_when_its_client_disconnects(api: Api) -> None:
    """Else a message would be leased for somebody who is not there any more."""
    body = b'{"wait":60}'
    _, writer = await api.raw(
        b"POST /v1/inbox/next HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    await asyncio.wait_for(api.node.waiting.wait(), DEADLINE)
    writer.close()
    await asyncio.wait_for(api.node.wait_ended.wait(), DEADLINE)
    assert not api.node.release.is_set()


async def test_a_waiting_request_gets_the_message_that_arrives(api: Api) -> None:
    waiting = asyncio.create_task(api.post("/v1/inbox/next", {"wait": 60}))
    await asyncio.wait_for(api.node.waiting.wait(), DEADLINE)
    api.node.release.set()
    assert (await waiting).json["item"]["seq"] == 7


async def test_a_waiting_request_gets_503_when_the_daemon_drains(api: Api) -> None:
    waiting = asyncio.create_task(api.post("/v1/inbox/next", {"wait": 60}))
    await asyncio.wait_for(api.node.waiting.wait(), DEADLINE)
    await api.server.stop(10.0)
    reply = await waiting
    assert (reply.status, reply.json["code"]) == (503, "unavailable")
    assert reply.headers["connection"] == "close"
    assert api.node.wait_ended.is_set()


async def test_an_answer_that_is_a_future_is_written_when_it_is_done(api: Api) -> None:
    answer = api.node.futures["POST /v1/whois"] = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(api.post("/v1/whois", {}))
    await asyncio.wait_for(api.node.waiting.wait(), DEADLINE)
    answer.set_result(WhoisResponse(request_id="msg_q", query="", peers=[], expected=0, elapsed_ms=1.0, ended="quiet"))
    assert (await asking).json["ended"] == "quiet"


@pytest.mark.parametrize("later", [b"", b"{}"])
async def test_response_future_is_cancelled_on_client_disconnect(api: Api, later: bytes) -> None:
    """Also when the body comes after the head was read."""
    answer = api.node.futures["POST /v1/whois"] = asyncio.get_running_loop().create_future()
    head = b"POST /v1/whois HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
    reader, writer = await api.raw(head + (b"Expect: 100-continue\r\n\r\n" if later else b"\r\n{}"))
    if later:
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), DEADLINE)
        writer.write(later)
    await asyncio.wait_for(api.node.waiting.wait(), DEADLINE)
    writer.close()
    await asyncio.wait_for(asyncio.wait({answer}), DEADLINE)
    assert answer.cancelled()


async def test_an_answer_that_is_a_future_is_503_when_the_daemon_drains(api: Api) -> None:
    answer = api.node.futures["POST /v1/whois"] = asyncio.get_running_loop().create_future()
    asking = asyncio.create_task(api.post("/v1/whois", {}))
    await asyncio.wait_for(api.node.waiting.wait(), DEADLINE)
    await api.server.stop(10.0)
    reply = await asking
    assert (reply.status, reply.json["code"]) == (503, "unavailable")
    assert answer.cancelled()
