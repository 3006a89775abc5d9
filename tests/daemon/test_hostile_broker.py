"""A broker that sends more than the protocol allows is disconnected before it takes memory."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from aghbus.daemon.nats.client import MAX_DISCOVERED
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.daemon.nats.options import NatsOptions
from aghbus.daemon.nats.parser import MAX_LINE
from tests.support.links import up
from tests.support.natsutil import wait_until

MAX_PAYLOAD = 100_000
ENOUGH = 64 << 20  # bytes that a client without bounds would take


class FakeBroker:
    """A server that speaks the handshake and then sends `attack`, followed by `filler` for as long as it is taken."""

    def __init__(self, attack: bytes, filler: bytes = b"", *, max_payload: object = MAX_PAYLOAD) -> None:
        self.attack = attack
        self.filler = filler * (65_536 // max(1, len(filler)))
        self.max_payload = max_payload
        self.sent = 0  # bytes of the attack
        self.ended = asyncio.Event()  # the attack's connection was closed by the client, or ENOUGH was sent
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["FakeBroker"]:
        listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            listener.close()

    async def resolve(self) -> NatsOptions:
        return NatsOptions(servers=(self.url,))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        info = {"server_id": "x", "server_name": "x", "version": "2.11.0", "headers": True}
        writer.write(b"INFO " + json.dumps({**info, "max_payload": self.max_payload}).encode() + b"\r\n")
        attacked = False
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")
                if line.startswith(b"SUB") and not self.sent and not attacked:
                    attacked = True
                    sid = line.split()[-1]
                    attacking = asyncio.create_task(self._attack(writer, self.attack.replace(b"SID", sid)))
            if attacked:
                await attacking

    async def _attack(self, writer: asyncio.StreamWriter, start: bytes) -> None:
        try:
            piece = start
            while piece and self.sent < ENOUGH:
                writer.write(piece)
                await writer.drain()
                self.sent += len(piece)
                piece = self.filler
        except OSError:
            pass
        if self.filler:
            self.ended.set()


@pytest.mark.parametrize(
    ("attack", "filler", "max_payload"),
    [
        (b"MSG t SID 999999999\r\n", b"x", MAX_PAYLOAD),
        (b"HMSG t SID 12 999999999\r\nNATS/1.0\r\n\r\n", b"x", MAX_PAYLOAD),
        (b"MSG  t  SID  999999999\r\n", b"x", MAX_PAYLOAD),
        (b"MSG t SID 99999999999999999999\r\n", b"x", MAX_PAYLOAD),
        (b"MSG t SID 999999999\r\n", b"x", 10**15),
        (b"MSG t SID 999999999\r\n", b"x", "unlimited"),
        (b"MSG ", b"x", MAX_PAYLOAD),
        (b"INFO ", b"x", MAX_PAYLOAD),
        (b"-ERR '", b"x", MAX_PAYLOAD),
        (b"", b"\x00", MAX_PAYLOAD),
        (b"PING", b" ", MAX_PAYLOAD),
    ],
)
async def test_a_broker_that_sends_too_much_is_disconnected(attack: bytes, filler: bytes, max_payload: object) -> None:
    async with FakeBroker(attack or filler, filler, max_payload=max_payload).running() as broker:
        link = Link(broker.resolve, name="a", ceiling=0.01)
        link.subscribe("t", lambda _message: None)
        async with up(link):
            await asyncio.wait_for(broker.ended.wait(), 60)
            assert broker.sent < ENOUGH / 4  # what the sockets hold
            await wait_until(lambda: link.reconnects == 1 and link.state == "up", 30, "another connection")


@pytest.mark.parametrize("why", ["message", "line"])
async def test_the_reason_is_shown(why: str) -> None:
    attack = b"MSG t SID 200000\r\n" if why == "message" else b"INFO " + b"x" * MAX_LINE
    async with FakeBroker(attack, b"x").running() as broker:
        reasons: list[str] = []
        link = Link(broker.resolve, name="a", ceiling=0.01, on_down=lambda _link, reason: reasons.append(reason))
        link.subscribe("t", lambda _message: None)
        async with up(link):
            await wait_until(lambda: reasons, 30, "the loss")
    assert f"the server sent a {why} of" in reasons[0]
    assert ("200000" if why == "message" else str(MAX_LINE)) in reasons[0]


async def test_a_message_of_the_largest_size_and_a_long_line_are_taken() -> None:
    """A server may add headers to a message that it has stored, and name a large cluster."""
    info = b"INFO " + json.dumps({"connect_urls": [f"10.0.0.{n % 250}:{n}" for n in range(1000, 2500)]}).encode()
    head = b"NATS/1.0\r\nNats-Subject: t\r\n\r\n"
    size = len(head) + MAX_PAYLOAD
    attack = b"%b\r\nHMSG t SID %d %d\r\n%b%b\r\n" % (info, len(head), size, head, bytes(MAX_PAYLOAD))
    received: list[InboundMessage] = []
    async with FakeBroker(attack).running() as broker:
        link = Link(broker.resolve, name="a")
        link.subscribe("t", received.append)
        async with up(link):
            await wait_until(lambda: received, 30, "the message")
            assert link.reconnects == 0
    assert received[0].data == bytes(MAX_PAYLOAD)


async def test_a_server_that_names_others_without_end_fills_no_memory() -> None:
    lines = b"".join(
        b"INFO " + json.dumps({"connect_urls": [f"10.{n}.0.{m}:4222" for m in range(250)]}).encode() + b"\r\n"
        for n in range(100)
    )
    received: list[InboundMessage] = []
    async with FakeBroker(b'%bINFO {"connect_urls": 7}\r\nMSG t SID 2\r\nhi\r\n' % lines).running() as broker:
        link = Link(broker.resolve, name="a")
        link.subscribe("t", received.append)
        async with up(link):
            await wait_until(lambda: received, 30, "the message")
            assert len(link.client.discovered_servers) <= MAX_DISCOVERED
