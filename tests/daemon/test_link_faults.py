"""The NATS link against real servers: what fails or ends while it is used."""

import asyncio
import contextlib
import gc
import json
from pathlib import Path

import pytest

from aghbus.daemon.nats import client as nats_client
from aghbus.daemon.nats.events import LinkEvent, PermissionDenied
from aghbus.daemon.nats.link import (
    BadPublish,
    InboundMessage,
    Link,
    LinkDown,
    LinkTimeout,
    NoResponders,
    PayloadTooLarge,
)
from aghbus.daemon.nats.options import NatsOptions
from tests.support.links import Inbox, always, to, up
from tests.support.natsutil import NatsServer, wait_until


def open_files() -> int:
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


async def test_close_is_bounded_when_the_server_hangs(server: NatsServer) -> None:
    link = Link(to(server), name="a")
    link.subscribe("t", Inbox())
    async with up(link):
        await server.pause()
        try:
            async with asyncio.timeout(30):  # else it waits for ever, or for the keep-alive
                await link.close(0.5)
        finally:
            server.resume()


async def test_close_leaves_no_socket_when_the_server_hangs(server: NatsServer) -> None:
    """Also with bytes that the server has not taken."""
    sockets = open_files()
    async with up(Link(to(server), name="a")) as link:
        await server.pause()
        try:
            await wait_until(lambda: not link.publish_nowait("t", b"x" * 100_000), 20, "a full buffer")
            await link.close(0.1)
            await wait_until(lambda: open_files() == sockets, 20, "the socket to be closed")
        finally:
            server.resume()


async def test_a_flush_that_times_out_does_not_harm_the_connection(server: NatsServer) -> None:
    """The PONGs come later, when nobody waits for them."""
    inbox = Inbox()
    async with up(Link(to(server), name="a")) as link, up(Link(to(server), name="b")) as other:
        link.subscribe("t", inbox)
        await link.flush(20)
        await server.pause()
        try:
            with pytest.raises(LinkTimeout):
                await link.flush(0.05)
            waiting = asyncio.create_task(link.flush(60))
            await asyncio.sleep(0)
            waiting.cancel()
        finally:
            server.resume()
        await link.flush(20)
        await other.publish("t", b"still reading")
        await wait_until(lambda: inbox.texts == [b"still reading"], 20, "the message")
        assert link.reconnects == 0


async def test_a_pending_flush_fails_immediately_when_the_link_is_lost(server: NatsServer) -> None:
    async with up(Link(to(server), name="a")) as link:
        await server.pause()
        flush = asyncio.create_task(link.flush(60))
        await asyncio.sleep(0)
        server.kill()
        with pytest.raises(LinkDown):
            await asyncio.wait_for(flush, 20)


async def test_publishers_waiting_for_a_full_buffer_fail_when_the_link_is_lost(server: NatsServer) -> None:
    async def pour(link: Link) -> None:
        while True:
            await link.publish("t", b"x" * 100_000)

    async with up(Link(to(server), name="a")) as link:
        await server.pause()
        publishers = [asyncio.create_task(pour(link)) for _ in range(5)]
        await wait_until(lambda: len(link.client.pings) == 5, 30, "all of them to wait")
        server.kill()
        ends = await asyncio.wait_for(asyncio.gather(*publishers, return_exceptions=True), 30)
        assert all(isinstance(end, LinkDown) for end in ends)


async def test_a_connection_that_died_silently_is_detected(server: NatsServer) -> None:
    link = Link(to(server), name="a", keepalive=0.05, pong_wait=0.2)
    async with up(link):
        await server.pause()
        try:
            await wait_until(lambda: link.state == "down", 20, "the loss to be seen")
        finally:
            server.resume()
        assert await link.wait_up(30)


async def test_messages_received_before_the_loss_are_delivered(server: NatsServer) -> None:
    """Also those behind the server's last word, in the same piece."""
    inbox = Inbox()
    link = Link(to(server), name="a")
    subscription = link.subscribe("t", inbox)
    async with up(link):
        client = link.client
        (sid,) = client.receivers
        await client.parser.parse(
            b"MSG t %d 5\r\nhello\r\n-ERR 'Slow Consumer'\r\nMSG t %d 5\r\nworld\r\n" % (sid, sid)
        )
        assert inbox.texts == [b"hello", b"world"]
        assert subscription.received == 2
        await wait_until(lambda: link.reconnects == 1, 20, "the loss")
        assert inbox.texts == [b"hello", b"world"]
        assert link.slow_consumer_events == 1


async def test_requests(server: NatsServer) -> None:
    async with up(Link(to(server), name="a")) as asking, up(Link(to(server), name="b")) as answering:

        def answer(message: InboundMessage) -> None:
            tasks.append(asyncio.ensure_future(answering.publish(message.reply, b"re: " + message.data)))

        tasks: list[asyncio.Future[None]] = []
        answering.subscribe("ask", answer)
        answering.subscribe("mute", Inbox())
        await answering.flush(20)
        assert (await asking.request("ask", b"x", 5)).data == b"re: x"
        with pytest.raises(NoResponders):
            await asking.request("nobody", b"x", 5)
        with pytest.raises(LinkTimeout):
            await asking.request("mute", b"x", 0.05)
        await asyncio.gather(*tasks)


async def test_the_link_reports_round_trip_and_server(server: NatsServer) -> None:
    link = Link(to(server), name="a")
    assert link.rtt_ms() is None
    async with up(link):
        await link.flush(5)
        assert 0 < (link.rtt_ms() or 0) < 5000
        assert link.server is not None
        assert link.server.url == server.url
        assert link.server.version.startswith("2.")
        assert link.server.jetstream
    async with NatsServer() as other, up(Link(to(other), name="a")) as second:
        assert second.server is not None
        assert not second.server.jetstream


async def test_old_connections_leave_no_tasks_and_sockets(server: NatsServer) -> None:
    link = Link(to(server), name="a", ceiling=0.01)
    link.subscribe("t", Inbox())
    async with up(link):
        await link.flush(20)
        files, tasks = open_files(), len(asyncio.all_tasks())
        for count in range(1, 26):
            await link.client.close()
            await wait_until(lambda: link.reconnects == count, 20, "the loss")  # noqa: B023 - awaited in the loop
            assert await link.wait_up(10)
        await link.flush(20)
        await wait_until(lambda: open_files() <= files, 20, "files to be closed")
        await wait_until(lambda: len(asyncio.all_tasks()) <= tasks, 20, "tasks to end")
    assert len(asyncio.all_tasks()) == 1


async def test_the_rest_of_a_cluster_is_found_when_its_known_server_dies() -> None:
    async with NatsServer(config="cluster { name: c, listen: 127.0.0.1:-1 }") as seed:
        await wait_until(lambda: "Listening for route connections on" in seed.log, 20, "the route port")
        route = seed.log.split("Listening for route connections on ")[1].split()[0]
        config = f'cluster {{ name: c, listen: "127.0.0.1:-1", routes: ["nats://{route}"] }}'
        async with NatsServer(config=config) as other, up(Link(to(seed), name="a", keepalive=0.05)) as link:
            await wait_until(lambda: link.client.discovered_servers, 30, "the other server to be announced")
            before = link.rtt_ms()
            await wait_until(lambda: link.rtt_ms() != before, 30, "the next PONG, after which servers are remembered")
            seed.kill()
            await wait_until(lambda: link.server is not None and link.server.url == other.url, 30, "the move")


async def test_a_refused_subscription_is_reported_and_ends_nothing() -> None:
    events: list[LinkEvent] = []
    config = 'authorization { users: [{ user: u, password: p, permissions: { publish: ">", subscribe: "ok.>" } }] }'
    async with NatsServer(config=config) as server:
        options = NatsOptions(servers=(server.url,), user="u", password="p")
        link = Link(always(options), name="a", on_error=events.append)
        link.subscribe("secret.plans", Inbox())
        async with up(link):
            await wait_until(lambda: events, 20, "the refusal")
            assert isinstance(events[0], PermissionDenied)
            assert "secret.plans" in events[0].detail
            assert link.reconnects == 0


async def test_malformed_addresses_of_other_servers_do_not_end_the_link() -> None:
    links: list[asyncio.StreamWriter] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        links.append(writer)
        info = {"server_id": "x", "server_name": "x", "version": "2.11.0", "max_payload": 1_048_576, "headers": True}
        writer.write(b"INFO " + json.dumps({**info, "connect_urls": ["10.0.0.1:99999"]}).encode() + b"\r\n")
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"PING"):
                    writer.write(b"PONG\r\n")

    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with up(Link(always(NatsOptions(servers=(url,))), name="a")) as link:
        links[0].close()
        await wait_until(lambda: len(links) > 1 and link.state == "up", 30, "another connection")
    listener.close()


async def test_a_message_that_comes_before_the_link_is_up_can_be_answered() -> None:
    published: list[bytes] = []

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id": "x", "version": "2.11.0", "max_payload": 1048576, "headers": true}\r\n')
        subscribed = False
        with contextlib.closing(writer), contextlib.suppress(OSError):
            while line := await reader.readline():
                if line.startswith(b"SUB"):
                    subscribed = True
                    writer.write(b"MSG question %b answers 0\r\n\r\n" % line.split()[-1])  # no PONG yet
                elif line.startswith(b"PUB"):
                    published.append(line)
                if line.startswith(b"PUB") or (line.startswith(b"PING") and not subscribed):
                    writer.write(b"PONG\r\n")

    listener = await asyncio.start_server(server, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    link = Link(always(NatsOptions(servers=(url,))), name="a")
    states: list[str] = []

    def answer(message: InboundMessage) -> None:
        states.append(link.state)
        assert link.publish_nowait(message.reply, b"")

    link.subscribe("question", answer)
    async with up(link):
        assert (states, published) == (["connecting"], [b"PUB answers 0\r\n"])
    listener.close()


async def test_a_defect_in_the_loop_of_the_link_is_not_hidden(server: NatsServer) -> None:
    class Defect(BaseException):
        pass

    async def resolve() -> NatsOptions:
        if link.reconnects:
            raise Defect
        return NatsOptions(servers=(server.url,))

    link = Link(resolve, name="a")
    link.start()
    assert await link.wait_up(20)
    await server.restart()
    with pytest.raises(Defect):
        await asyncio.wait_for(link.ended(), 30)
    await link.close(1)


@pytest.mark.parametrize(
    "greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"INFO {not json\r\n", b"", b"INFO {}\r\n-ERR '\x1b[2J'\r\n"]
)
async def test_a_port_with_another_protocol_is_reported(greeting: bytes) -> None:
    async def other(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            writer.write(greeting)
            await writer.drain()

    listener = await asyncio.start_server(other, "127.0.0.1", 0)
    url = f"nats://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    link = Link(always(NatsOptions(servers=(url,))), name="a")
    link.start()
    await wait_until(lambda: link.last_error, 30, "a failed attempt")
    assert link.last_error is not None
    assert link.last_error.code in {"protocol", "unreachable"}
    assert link.last_error.hint
    assert json.dumps(link.last_error.cause).isascii()
    assert "\x1b" not in link.last_error.cause
    await link.close(1)
    listener.close()
    await listener.wait_closed()


@pytest.mark.parametrize("turns", range(20))
async def test_the_link_closes_at_any_point_of_a_connection_attempt(turns: int) -> None:
    link = Link(always(NatsOptions(servers=("nats://127.0.0.1:1",))), name="test")
    link.start()
    for _ in range(turns):
        await asyncio.sleep(0)  # one turn of the loop further into the attempt
    async with asyncio.timeout(60):
        await link.close(0.1)
    assert link.state == "closed"


def test_publishing_into_a_closed_uvloop_transport_raises_link_down() -> None:
    """On uvloop, where `aghd` runs: its transports raise RuntimeError once they are closed, before the loss is reported."""
    uvloop = pytest.importorskip("uvloop")

    async def lose() -> None:
        server = NatsServer()
        await server.start()
        link = Link(to(server), name="test", ceiling=0.01)
        try:
            async with up(link):
                assert link.client.socket is not None
                link.client.socket.abort()
                with pytest.raises(LinkDown):
                    while True:  # at every turn of the loop until the link knows
                        link.publish_nowait("a.b", b"late")
                        await asyncio.sleep(0)
                with pytest.raises(LinkDown):  # not a defect, and not a wait for the answer
                    await link.flush(60)
                await wait_until(lambda: link.reconnects == 1 and link.state == "up")
                await link.flush(15)
        finally:
            server.kill()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(lose())


async def test_a_flushed_publish_is_written_before_the_loop_turns(server: NatsServer) -> None:
    async with up(Link(to(server), name="a")) as sender, up(Link(to(server), name="b")) as receiver:
        inbox = Inbox()
        receiver.subscribe("t.>", inbox)
        await receiver.flush(20)
        client = sender.client
        await sender.publish("t.1", b"first")
        assert client.pending_data_size > 0
        assert sender.publish_nowait("t.2", b"second", {"Nats-TTL": "60"})
        assert client.pending_data_size == 0  # with what was published before, and behind it
        await wait_until(lambda: len(inbox.messages) == 2, 20, "both messages")
        assert [(message.subject, message.data, message.headers) for message in inbox.messages] == [
            ("t.1", b"first", None),
            ("t.2", b"second", {"Nats-TTL": "60"}),
        ]


async def test_publish_nowait_is_false_while_the_buffer_is_full(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where too much is on its way already it is not published, and says so; what is published waits for the broker."""
    monkeypatch.setattr(nats_client, "MAX_UNSENT", 1000)
    async with up(Link(to(server), name="a")) as sender, up(Link(to(server), name="b")) as receiver:
        inbox = Inbox()
        receiver.subscribe("t", inbox)
        await receiver.flush(20)
        await sender.publish("t", b"x" * 1001)
        assert not sender.publish_nowait("t", b"nowhere")
        await sender.publish("t", b"last")
        await wait_until(lambda: len(inbox.messages) == 2, 20, "both messages")
        assert inbox.texts == [b"x" * 1001, b"last"]


@pytest.mark.parametrize(
    ("subject", "reply", "headers"),
    [("", "", None), ("a b", "", None), ("a\r\nPUB b", "", None), ("a", "b c", None), ("a", "", {"no name": "x"})],
)
async def test_a_publish_with_an_invalid_subject_or_header_is_not_sent(
    server: NatsServer, subject: str, reply: str, headers: dict[str, str] | None
) -> None:
    async with up(Link(to(server), name="a")) as link:
        with pytest.raises(BadPublish):
            await link.publish(subject, b"", headers, reply)
        await link.flush(20)


@pytest.mark.parametrize("payloads", [[b"same"] * 3, [b"one", b"two", b""]])
async def test_messages_published_as_one_piece_all_arrive_in_order_or_none_does(
    server: NatsServer, payloads: list[bytes]
) -> None:
    async with up(Link(to(server), name="a")) as sender, up(Link(to(server), name="b")) as receiver:
        inbox = Inbox()
        receiver.subscribe(">", inbox)
        await receiver.flush(20)
        together = [(f"t.{number}", payload) for number, payload in enumerate(payloads)]
        for subject in ("", "a b", "a\r\nPUB b", " "):
            with pytest.raises(BadPublish):
                sender.publish_all_nowait([*together, (subject, payloads[0])])
        with pytest.raises(PayloadTooLarge):
            sender.publish_all_nowait([*together, ("t", b"x" * (sender.max_payload + 1))])
        assert sender.publish_all_nowait(together)
        assert sender.publish_all_nowait([("ä\u00a0b", b"after")])
        await wait_until(lambda: len(inbox.messages) == 4, 20, "the messages")
        expected = [*together, ("ä\u00a0b", b"after")]
        assert [(message.subject, message.data) for message in inbox.messages] == expected
