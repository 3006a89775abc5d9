"""A least daemon, without rules: `python -m bench.peers.skeleton NAME URL FOLDER`.

It serves the requests that the load of figures `send` and `work` makes, on a Unix socket FOLDER/NAME.sock: HTTP and JSON on
one side, NATS on the other, between them one SQLite row for each envelope sent or received. Every answer, event and publication
comes after the commit of its row. Rows of one iteration of the event loop share a commit (WAL, synchronous = FULL).

There is no validation, no dedup, no lifecycle, no acknowledgement between daemons and no retry. One process, one thread, uvloop.
"""

import asyncio
import functools
import itertools
import json
import sqlite3
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from aghbus.protocol.agh.identifiers import subject_for
from bench.harness.envelopes import CHANNEL, LIFE, WORKSPACE
from bench.harness.wire import CONNECT, frame, take_http, take_payloads

_PRAGMAS: Final = ("journal_mode = WAL", "synchronous = FULL", "wal_autocheckpoint = 4096")
_TABLE: Final = "CREATE TABLE log (seq INTEGER PRIMARY KEY, msg_id TEXT NOT NULL, raw BLOB NOT NULL)"
_INSERT: Final = "INSERT INTO log (msg_id, raw) VALUES (?, ?)"
_STREAM: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: stream open\n\n"
_VERBS: Final = {"accept": ("receipt", "accepted"), "complete": ("trace", "completed")}

Then = Callable[[], object]


class Envelope(msgspec.Struct):
    """The members of an envelope (AGH Network v0, section 3)."""

    id: str
    kind: str
    sender: str = msgspec.field(name="from")
    to: str
    ts: int
    expires_at: int
    body: dict[str, Any]
    work_id: str | None = None
    protocol: str = "agh-network/v0"
    workspace_id: str = WORKSPACE
    channel: str = CHANNEL
    surface: str = "thread"
    thread_id: str = "thread_bench"
    proof: None = None


_decode: Final = msgspec.json.Decoder(Envelope).decode
_encode: Final = msgspec.json.Encoder().encode


class Log:
    """The rows, committed on the event loop."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        for statement in (*(f"PRAGMA {one}" for one in _PRAGMAS), _TABLE):
            self._db.execute(statement)
        self._rows: list[tuple[str, bytes]] = []
        self._then: list[Then] = []

    def append(self, envelope: Envelope, raw: bytes, then: Then) -> None:
        """Store it, and call `then` after the commit."""
        if not self._rows:
            asyncio.get_running_loop().call_soon(self._commit)
        self._rows.append((envelope.id, raw))
        self._then.append(then)

    def _commit(self) -> None:
        rows, then, self._rows, self._then = self._rows, self._then, [], []
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(_INSERT, rows)
        self._db.execute("COMMIT")
        for act in then:
            act()


class Skeleton:
    """The daemon between its agents and the bus."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._log = Log(folder / f"{name}.db")
        self._ids = (f"msg_{time.time_ns():016x}{number:012x}" for number in itertools.count())
        self._initiators: dict[str, str] = {}  # of works that were received
        self._ready: dict[str, bytes] = {}  # messages that wait for a consumer, by work
        self._waiting: dict[str, Http] = {}  # consumers that wait for a message, by work
        self._streams: list[Http] = []
        self.publish: Callable[[str, bytes], None] = lambda _to, _raw: None
        self._paths: dict[str, Callable[[Http, list[str], bytes], None]] = {
            "works": self._work,
            "inbox": self._next,
            "messages": self._say,
            "events": self._events,
        }

    def request(self, http: "Http", path: str, content: bytes) -> None:
        """`POST /v1/works`, `/v1/works/ID/VERB`, `/v1/inbox/next`, `/v1/messages` or `GET /v1/events`."""
        _, _, what, *rest = path.partition("?")[0].split("/")
        self._paths[what](http, rest, content)

    def received(self, raw: bytes) -> None:
        """An envelope from the bus: the opening of a work goes to its consumer, a trace to the streams."""
        envelope = _decode(raw)
        act = self._deliver if envelope.kind == "say" else self._show
        self._log.append(envelope, raw, functools.partial(act, envelope, raw))

    def _send(self, http: "Http", kind: str, to: str, body: dict[str, Any], work_id: str | None) -> None:
        now = int(time.time())
        envelope = Envelope(next(self._ids), kind, self.name, to, now, now + LIFE, body, work_id)
        raw = _encode(envelope)
        self._log.append(envelope, raw, functools.partial(self._sent, http, envelope, raw))

    def _sent(self, http: "Http", envelope: Envelope, raw: bytes) -> None:
        self.publish(envelope.to, raw)
        http.answer(_encode({"id": envelope.id, "work_id": envelope.work_id}))

    def _say(self, http: "Http", _rest: list[str], content: bytes) -> None:
        ask = msgspec.json.decode(content)
        self._send(http, ask["kind"], ask["to"], ask["body"], None)

    def _work(self, http: "Http", rest: list[str], content: bytes) -> None:
        ask = msgspec.json.decode(content)
        if not rest:
            self._send(http, "say", ask["to"], {"text": ask["text"]}, ask["work_id"])
            return
        work_id, verb = rest
        kind, state = _VERBS[verb]
        self._send(http, kind, self._initiators[work_id], {"state": state}, work_id)

    def _next(self, http: "Http", _rest: list[str], content: bytes) -> None:
        work_id = msgspec.json.decode(content)["work_id"]
        if (raw := self._ready.pop(work_id, None)) is None:
            self._waiting[work_id] = http
        else:
            _give(http, raw)

    def _deliver(self, envelope: Envelope, raw: bytes) -> None:
        if (work_id := envelope.work_id) is None:
            return
        self._initiators[work_id] = envelope.sender
        if (http := self._waiting.pop(work_id, None)) is None:
            self._ready[work_id] = raw
        else:
            _give(http, raw)

    def _events(self, http: "Http", _rest: list[str], _content: bytes) -> None:
        http.transport.write(_STREAM)
        self._streams.append(http)

    def closed(self, http: "Http") -> None:
        """A connection of an agent ended."""
        if http in self._streams:
            self._streams.remove(http)

    def _show(self, envelope: Envelope, raw: bytes) -> None:
        if envelope.kind == "trace":
            for http in self._streams:
                http.transport.write(b"id: 1\nevent: envelope\ndata: " + raw + b"\n\n")


def _give(http: "Http", raw: bytes) -> None:
    http.answer(_encode({"item": {"seq": 1, "message": msgspec.Raw(raw)}}))


class Http(asyncio.Protocol):
    """One connection of an agent."""

    transport: asyncio.WriteTransport

    def __init__(self, skeleton: Skeleton) -> None:
        self._skeleton = skeleton
        self._rest = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it for the answers."""
        self.transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is written to it any more."""
        self._skeleton.closed(self)

    def data_received(self, data: bytes) -> None:
        """Handle every request that is whole."""
        self._rest += data
        while (request := take_http(self._rest)) is not None:
            line, content = request
            self._skeleton.request(self, line.split(b" ")[1].decode(), content)

    def answer(self, content: bytes) -> None:
        """Status 200 with JSON."""
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        self.transport.write(head % len(content) + content)


class Bus(asyncio.Protocol):
    """The connection to the broker. Publications of one iteration of the event loop are one write."""

    transport: asyncio.WriteTransport

    def __init__(self, skeleton: Skeleton, ready: asyncio.Event) -> None:
        self._skeleton = skeleton
        self._ready = ready
        self._rest = b""
        self._frames: list[bytes] = []
        skeleton.publish = self.publish

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Subscribe; the broker answers PING when it has the subscription."""
        self.transport = cast(asyncio.WriteTransport, transport)
        subject = subject_for(WORKSPACE, CHANNEL, self._skeleton.name)
        self.transport.write(CONNECT + f"SUB {subject} 1\r\nPING\r\n".encode())

    def data_received(self, data: bytes) -> None:
        """Handle every message that is whole."""
        if not self._ready.is_set() and b"PONG\r\n" in data:
            self._ready.set()
        payloads, self._rest, pings = take_payloads(self._rest + data)
        self.transport.write(b"PONG\r\n" * pings)
        for payload in payloads:
            self._skeleton.received(payload)

    def publish(self, to: str, raw: bytes) -> None:
        """Write it with the others of this iteration."""
        if not self._frames:
            asyncio.get_running_loop().call_soon(self._flush)
        self._frames.append(frame(subject_for(WORKSPACE, CHANNEL, to), raw))

    def _flush(self) -> None:
        self.transport.write(b"".join(self._frames))
        self._frames.clear()


async def main(name: str, url: str, folder: str) -> None:
    """Serve until standard input ends."""
    loop, ready, where = asyncio.get_running_loop(), asyncio.Event(), Path(folder)
    skeleton, parts = Skeleton(name, where), urlsplit(url)
    await loop.create_connection(lambda: Bus(skeleton, ready), parts.hostname or "127.0.0.1", parts.port or 4222)
    await ready.wait()
    server = await loop.create_unix_server(lambda: Http(skeleton), str(where / f"{name}.sock"))
    print(json.dumps("ready"), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
