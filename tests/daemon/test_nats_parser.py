"""Our parser beside the library's: the same calls and the same errors, however the bytes are cut."""

import asyncio
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.client import Client
from nats.protocol.parser import Parser

from aghbus.daemon.nats import parser as nats_parser
from aghbus.daemon.nats.events import InboundMessage, LinkEvent
from aghbus.daemon.nats.parser import MessageParser, MessageSink
from aghbus.daemon.nats.subscription import Subscription

DIRECT = (1, 2, 30)
"""Numbers of subscriptions with a receiver; 4 is the library's own, 5 is unknown."""

Calls = list[tuple[Any, ...]]


class Recorder:
    """Replaces the library's client, and records the calls of the parser."""

    def __init__(self) -> None:
        self.calls: Calls = []

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        assert type(data) is bytes
        read = await as_read(headers) if sid in DIRECT else headers
        self.calls.append(("message", sid, subject, reply, data, read))

    async def _process_ping(self) -> None:
        self.calls.append(("ping",))

    async def _process_pong(self) -> None:
        self.pong()

    def pong(self) -> None:
        self.calls.append(("pong",))

    async def _process_err(self, text: str) -> None:
        self.calls.append(("error", text))

    async def _process_info(self, info: Any) -> None:
        self.calls.append(("info", info))

    def receiver(self, sid: int) -> Subscription:
        def receive(message: InboundMessage) -> None:
            assert type(message.data) is bytes
            subject, reply, headers = message.subject.encode(), message.reply.encode(), message.headers
            assert headers is None or {name: headers.get(name) for name in [*headers, "no"]} == {**headers, "no": None}
            self.calls.append(("message", sid, subject, reply, message.data, headers))

        return Subscription("t", receive, raise_error, lambda _subscription: None)


def raise_error(event: LinkEvent) -> None:
    raise AssertionError(event)


async def as_read(headers: bytes | None) -> Any:
    """Headers as the library reads them, or their bytes where it cannot."""
    try:
        return await Client()._process_headers(headers)  # the library's own result, with which ours is compared
    except (ValueError, LookupError):
        return headers


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """`data` in pieces of `sizes`, over and over."""
    pieces, at = [], 0
    for size in itertools.cycle(sizes or [len(data) or 1]):
        if at >= len(data):
            break
        pieces.append(data[at : at + size])
        at += size
    return pieces


def outcome(ours: bool, pieces: list[bytes]) -> tuple[Calls, str]:
    """The calls, and the error that ended it."""
    recorder = Recorder()
    receivers = {sid: recorder.receiver(sid) for sid in DIRECT}
    parser = MessageParser(recorder, receivers, recorder.pong) if ours else Parser(recorder)

    async def feed() -> None:
        for piece in pieces:
            await parser.parse(piece)

    try:
        asyncio.run(feed())
    except Exception as error:
        return recorder.calls, repr(error)
    return recorder.calls, ""


def same(data: bytes, sizes: list[int]) -> tuple[Calls, str]:
    """The result of both. Where ours ends over a size, the library only goes on to collect bytes."""
    pieces = cut(data, sizes)
    expected, ours = outcome(False, pieces), outcome(True, pieces)
    if "the server sent a" in ours[1]:
        assert expected == (ours[0], "")
    else:
        assert ours == expected
    return expected


PROTOCOL_LIKE = [
    b"",
    b"\r\n",
    b"\r\nMSG a 1 5\r\nhello\r\n",
    b"PING\r\n",
    b"MSG b 2 0\r\n\r\n",
    b"-ERR 'x'\r\n",
    b"\r\n\r\n ",
]
subjects = st.sampled_from([b"a", b"a.b.c", "ü.é".encode(), b"_INBOX.x.1", b"5", b"MSG", b"x" * 300])
sids = st.sampled_from([b"1", b"2", b"30", b"4", b"5", b"01"])
small = st.binary(max_size=40) | st.sampled_from(PROTOCOL_LIKE)
payloads = small | st.builds(lambda part, count: (part * count)[:70_000], small, st.integers(0, 4000))
lines = st.sampled_from(
    [b"A: b", b"A:b", b"A:  c ", b"Nats-TTL: 60", b"A:", b"B: x:y", b"a b: c", b": x", b"D: \t", b"E\xff: x"]
)
headers = st.lists(lines | st.sampled_from(["U: ü".encode(), b"no colon", b"F: \rx", b""]), max_size=4).flatmap(
    lambda some: st.sampled_from([b"NATS/1.0\r\n", b"NATS/1.0 503\r\n", b"NATS/1.0 100 Idle Heartbeat\r\n"]).map(
        lambda first: first + b"".join(line + b"\r\n" for line in some) + b"\r\n"
    )
)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    """MSG or HMSG, with or without a reply subject."""
    line = [draw(subjects), draw(sids), *draw(st.lists(subjects, max_size=1))]
    payload = draw(payloads)
    if draw(st.booleans()):
        return b"MSG %b %d\r\n%b\r\n" % (b" ".join(line), len(payload), payload)
    head = draw(headers)
    return b"HMSG %b %d %d\r\n%b%b\r\n" % (b" ".join(line), len(head), len(head) + len(payload), head, payload)


others = st.sampled_from(
    [
        b"PING\r\n",
        b"PONG\r\n",
        b"+OK\r\n",
        b"-ERR 'Permissions Violation'\r\n",
        b"-ERR 'what is 'this''\r\n",
        b'INFO {"server_id": "x"}\r\n',
        b'INFO {"connect_urls": ["a:1"]} \r\n',
        b'INFO {"x": "%b"}\r\n' % (b"y" * 9000),
    ]
)
sizes = st.lists(st.sampled_from([1, 2, 3, 5, 8, 13, 100, 999, 4095, 4096, 4097, 32_768]), max_size=8)


@given(st.lists(messages() | others, max_size=12).map(b"".join), sizes)
@example(b"MSG a 1 2\r\nhi\r\n" * 3, [1])
@example(b"PING\r\nMSG a 1 0\r\n\r\nPONG\r\n", [])
def test_the_parser_makes_the_same_calls_as_the_library(data: bytes, sizes: list[int]) -> None:
    calls, error = same(data, sizes)
    assert error == ""
    assert calls == outcome(True, [data])[0]


UNUSUAL = [
    b"MSG  a 1 2\r\nhi\r\n",
    b"MSG\ta\t1 r  2\r\nhi\r\n",
    b"MSG a +1 2\r\nhi\r\n",
    b"MSG a 1\r\n 2\r\nhi\r\n",
    b"MSG a 1 2 \r\nhi\r\n",
    b"MSG a one 2\r\nhi\r\n",
    b"MSG a 1 -2\r\nhi\r\n",
    b"MSG a 1 r r 2\r\nhi\r\n",
    b"MSG a 1 00000000000000002\r\nhi\r\n",
    b"MSG a 1 99999999999\r\nhi\r\n",
    b"MSG " + b"x" * 5000 + b" 1 2\r\nhi\r\n",
    b"MSG a 1 " + b"x" * 5000 + b"\r\nhi\r\n",
    b"HMSG  a 1 r 12 14\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"HMSG a 1 12 4\r\nNATS/1.0\r\n\r\nhi\r\n",
    b"HMSG a 1 0 2\r\nhi\r\n",
    b"HMSG a 1 x 2\r\nhi\r\n",
    b"PING  \r\n",
    b"PONG\r\n\r\n \r\n",
    b"+OK\t\r\n",
    b"-ERR\r\n",
    b"-ERR \r\n",
    b"-ERR 'a\rb'\r\n",
    b"-ERR '\xff'\r\n",
    b"INFO  {}\r\n",
    b"INFO \r\n",
    b"INFO {\r\n",
    b"INFO \xff\r\n",
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"msg a 1 2\r\nhi\r\n",
    b"\r\n",
    b"\x00" * 5000 + b"\r\n",
]


@given(st.lists(messages() | others | st.sampled_from(UNUSUAL), max_size=8).map(b"".join), sizes)
def test_unusual_lines_are_parsed_by_the_library(data: bytes, sizes: list[int]) -> None:
    same(data, sizes)


@given(
    st.lists(
        st.sampled_from([b"MSG", b"PING", b"PONG", b"+OK", b"-ERR", b"INFO", b"{}", b"'x'", b"a", b"1", b"3", b"\x00"])
        | st.sampled_from([b" ", b"\t", b"\r\n", b"\r", b"\n", b" ", b"\r\n"]),
        max_size=40,
    ).map(b"".join),
    sizes,
)
@example(b"MSG a\r\nMSG 3\r\nPING\r\n", [])
@example(b"INFO \r\nMSG a 1 0\r\n\r\n", [])
def test_invalid_bytes_end_as_in_the_library(data: bytes, sizes: list[int]) -> None:
    same(data, sizes)


@pytest.mark.parametrize("line", UNUSUAL)
def test_each_unusual_line_whole_and_byte_by_byte(line: bytes) -> None:
    for data in (line, b"MSG a 1 2\r\nhi\r\n" + line + b"MSG a 2 2\r\nho\r\nPING\r\n"):
        same(data, [])
        same(data, [1])


def test_a_malformed_message_is_a_protocol_error() -> None:
    assert "malformed MSG" in same(b"MSG a one 2\r\nhi\r\n", [])[1]
    assert "unknown protocol" in same(b"MSG a 1 -2\r\nhi\r\n", [])[1]


@pytest.mark.parametrize("sizes", [[], [1], [20]])
def test_sizes_are_not_read_from_headers(sizes: list[int]) -> None:
    """The library's expression continues over the end of the line, into bytes that a publisher chose."""
    data = b"HMSG t 1 4 9\r\n5\r\nxABCDE\r\nMSG t 1 5\r\nafter\r\n"
    expected = [("message", 1, b"t", b"", b"ABCDE", b"5\r\nx"), ("message", 1, b"t", b"", b"after", None)]
    assert outcome(True, cut(data, sizes)) == (expected, "")
    assert outcome(False, [data])[0] != expected  # once it is fixed there, this test may go


def test_non_utf8_subject_is_delivered_with_replacement_characters() -> None:
    calls, error = outcome(True, [b"MSG a.\xff 1 \xfe 2\r\nhi\r\n"])
    assert (calls, error) == ([("message", 1, "a.\ufffd".encode(), "\ufffd".encode(), b"hi", None)], "")


def test_messages_after_the_end_of_a_subscription_go_to_the_client() -> None:
    recorder = Recorder()
    receivers: dict[int, MessageSink] = {}

    def last(message: InboundMessage) -> None:
        recorder.receiver(1).callback(message)
        receivers.clear()

    receivers[1] = receivers[2] = Subscription("t", last, raise_error, lambda _subscription: None)
    asyncio.run(
        MessageParser(recorder, receivers, recorder.pong).parse(
            b"MSG a 1 1\r\n1\r\nMSG a 1 1\r\n2\r\nMSG a 2 1\r\n3\r\n"
        )
    )
    # the client, which knows no such subscription either, passes over the rest
    assert recorder.calls[1:] == [("message", 1, b"a", b"", b"2", None), ("message", 2, b"a", b"", b"3", None)]
    assert recorder.calls[0] == ("message", 1, b"a", b"", b"1", None)


def test_a_large_payload_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = 0
    line, start = nats_parser.MESSAGE_LINE, nats_parser.MESSAGE_START

    def counted(match: Callable[[bytes, int], Any], data: bytes, at: int) -> Any:
        nonlocal matches
        matches += 1
        return match(data, at)

    monkeypatch.setattr(nats_parser, "MESSAGE_LINE", partial(counted, line))
    monkeypatch.setattr(nats_parser, "MESSAGE_START", partial(counted, start))
    payload = b"MSG a 1 0\r\n\r\n" * 80_000
    data = b"MSG a 1 %d\r\n%b\r\nPING\r\n" % (len(payload), payload)
    calls, error = outcome(True, cut(data, [32_768]))
    assert (calls, error) == ([("message", 1, b"a", b"", payload, None), ("ping",)], "")
    assert matches == 4  # at its start and at the PING, which both loops try


def test_a_reset_drops_an_unfinished_message() -> None:
    recorder = Recorder()
    parser = MessageParser(recorder, {1: recorder.receiver(1)}, recorder.pong)

    async def feed() -> None:
        await parser.parse(b"MSG a 1 100\r\nhello")
        parser.reset()
        await parser.parse(b"MSG a 1 2\r\nhi\r\n")

    asyncio.run(feed())
    assert recorder.calls == [("message", 1, b"a", b"", b"hi", None)]
