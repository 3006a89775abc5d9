"""The small HTTP client and the reader of event streams, against bytes cut anywhere and a server that is no daemon."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.cli.app.arguments import LONGEST_SPAN
from aghbus.cli.app.errors import exit_code_of
from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.context import Context
from aghbus.cli.health_checks import check_daemon
from aghbus.client.api import Api
from aghbus.client.errors import ClientError, RefusedByDaemon, Unexpected, Unreachable
from aghbus.client.events import follow, messages
from aghbus.client.http import Endpoint, quote, target


def cut_up(data: bytes, places: list[int]) -> Iterator[bytes]:
    ends = sorted(place % (len(data) + 1) for place in places)
    for start, end in zip([0, *ends], [*ends, len(data)], strict=True):
        yield data[start:end]


EVENTS = b': hello\n\nid: 1\nevent: envelope\ndata: {"a":1}\n\n: keep-alive\n\nid: 2\r\ndata: {"b":\r\ndata: 2}\r\n\r\ndata: unfin'


@given(st.lists(st.integers(0, 500), max_size=30))
def test_events_are_whole_however_the_body_is_split(places: list[int]) -> None:
    assert list(messages(cut_up(EVENTS, places))) == [b'{"a":1}', b'{"b":\n2}']


@contextlib.contextmanager
def serving(path: Path, answers: list[list[bytes]]) -> Iterator[list[bytes]]:
    """A Unix socket that gives each connection the next answer, piece by piece, and closes; yields the requests."""
    requests: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection:
                requests.append(connection.recv(65_536))
                for piece in answer:
                    connection.sendall(piece)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield requests
    finally:
        thread.join(10)
        listener.close()
        assert not thread.is_alive()


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x;ext=1\r\n%s\r\n" % (len(piece), piece) for piece in pieces)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        [HEAD + b'Content-Length: 7\r\n\r\n{"a":1}'],
        [HEAD + b"content-length: 7\r\n", b'\r\n{"a"', b":1}"],
        [HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b'{"a"', b":1}"), b"0\r\n\r\n"],
        [HEAD, b'\r\n{"a":', b"1}"],
        [
            bytes([octet])
            for octet in HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(b'{"a":1}') + b"0\r\nx: y\r\n\r\n"
        ],
    ],
)
def test_a_response_is_read_in_every_framing(answer: list[bytes], tmp_path: Path) -> None:
    with serving(tmp_path / "s", [answer]) as requests:
        assert Api(Endpoint(path=str(tmp_path / "s")), 10).post("/v1/whois", {"query": "é", "to": None}) == {"a": 1}
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/whois HTTP/1.1\r\n")
    assert body == b'{"query": "\\u00e9"}'
    assert f"Content-Length: {len(body)}".encode() in head


def test_a_timeout_beyond_the_range_of_poll_is_reduced(tmp_path: Path) -> None:
    with serving(tmp_path / "s", [[HEAD + b"Content-Length: 2\r\n\r\n{}"]]):
        assert Api(Endpoint(path=str(tmp_path / "s")), LONGEST_SPAN).post("/v1/whois", {}, wait=LONGEST_SPAN) == {}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", Unexpected),
        (HEAD + b"Content-Length: 3\r\n\r\nnot", Unexpected),
        (HEAD + b"Content-Length: 2\r\n\r\n[]", Unexpected),
        (HEAD + b"Content-Length: x\r\n\r\n", Unexpected),
        (HEAD + b"Content-Length: 100\r\n\r\n{}", Unreachable),
        (b"", Unreachable),
        (b"HTTP/1.1 500 Oops\r\n\r\n{}", Unexpected),
    ],
)
def test_a_response_of_another_server_is_an_error(answer: bytes, error: type[ClientError], tmp_path: Path) -> None:
    with serving(tmp_path / "s", [[answer]]), pytest.raises(error):
        Api(Endpoint(path=str(tmp_path / "s")), 10).get("/v1/status")


def test_an_error_response_keeps_code_message_and_hint(tmp_path: Path) -> None:
    body = b'{"code":"work_closed","message":"it is over","hint":"open another"}'
    with serving(tmp_path / "s", [[b"HTTP/1.1 409 Conflict\r\n\r\n" + body]]), pytest.raises(RefusedByDaemon) as caught:
        Api(Endpoint(path=str(tmp_path / "s")), 10).post("/v1/works/w/complete", {})
    assert (caught.value.code, caught.value.message, caught.value.hint) == ("work_closed", "it is over", "open another")
    assert exit_code_of(caught.value) == 4


def test_doctor_does_not_hint_at_doctor(tmp_path: Path) -> None:
    context = Context(PROGRAM.parse(["doctor", "--socket", str(tmp_path / "s"), "--timeout", "0.2"])[1])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()  # and nobody accepts, as with a daemon that is stopped
        (finding,) = [one for one in check_daemon(context) if one["check"] == "daemon"]
    assert finding["state"] == "fail" and "in time" in finding["detail"]
    assert finding["hint"] and "doctor" not in finding["hint"]


def event(seq: int) -> bytes:
    return b'id: %d\nevent: envelope\ndata: {"seq":%d}\n\n' % (seq, seq)


def test_a_stream_resumes_after_the_last_event_without_repeats(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    first = [head, chunked(event(3), event(5)), chunked(event(6))[:-20]]  # cut off inside an event
    draining = [b'HTTP/1.1 503 Unavailable\r\n\r\n{"code":"unavailable","message":"draining","hint":""}']
    second = [head + chunked(event(5), event(6)) + chunked(event(9)) + b"0\r\n\r\n"]
    lost: list[str] = []
    with serving(tmp_path / "s", [first, draining, second]) as requests:
        stream = follow(Api(Endpoint(path=str(tmp_path / "s")), 10), [("work", "w 1")], 2, lost.append)
        assert [next(stream)["seq"] for _ in range(4)] == [3, 5, 6, 9]
        stream.close()  # type: ignore[attr-defined]
    assert b"GET /v1/events?work=w%201&since=2 " in requests[0]
    assert b"Last-Event-ID: 5\r\n" in requests[1]
    assert b"Last-Event-ID: 5\r\n" in requests[2]
    assert len(lost) == 1


def test_events_kept_of_the_range_of_a_gap_still_follow(tmp_path: Path) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    gap = b'id: 0\nevent: gap\ndata: {"seq":2,"type":"gap","pruned_from":1}\n\n'
    only_the_gap, rest = [head + chunked(gap)], [head + chunked(gap, event(1), event(3))]
    with serving(tmp_path / "s", [only_the_gap, rest]) as requests:
        stream = follow(Api(Endpoint(path=str(tmp_path / "s")), 10), [], None, lambda why: None)
        seen = [next(stream) for _ in range(4)]
        stream.close()  # type: ignore[attr-defined]
    assert [(item.get("type"), item["seq"]) for item in seen] == [("gap", 2), ("gap", 2), (None, 1), (None, 3)]
    assert b"since" not in requests[1]


def test_reconnecting_to_a_stopped_daemon_ends_after_the_timeout(tmp_path: Path) -> None:
    with serving(tmp_path / "s", [[b"HTTP/1.1 200 OK\r\n\r\n" + event(1)]]):
        stream = follow(Api(Endpoint(path=str(tmp_path / "s")), 2), [], 0, lambda why: None)
        assert next(stream)["seq"] == 1
    (tmp_path / "s").unlink()
    with pytest.raises(Unreachable):
        next(stream)


def test_a_stream_without_a_daemon_is_an_immediate_error(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        next(follow(Api(Endpoint(path=str(tmp_path / "nobody")), 30), [], 0, lambda why: None))


@given(st.text())
def test_quoting_is_percent_encoding(text: str) -> None:
    from urllib.parse import unquote

    if any("\ud800" <= char <= "\udfff" for char in text):
        return
    assert unquote(quote(text)) == text
    assert quote(text).isascii()
    assert not set(quote(text)) & set("/?&=# +")


def test_targets_omit_empty_parameters() -> None:
    query: list[tuple[str, object]] = [("a", None), ("b", False), ("c", True), ("d", ["x", "y z"]), ("e", 7), ("f", [])]
    assert target("/p", query) == "/p?c=1&d=x&d=y%20z&e=7"
    assert target("/p", []) == "/p"
