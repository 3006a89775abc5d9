"""The NATS link against real servers: delivery, loss and return, limits, floods, draining."""

import asyncio
import contextlib
import logging

import pytest

from aghbus.daemon.nats.events import CallbackFailed, LinkEvent, ServerComplaint
from aghbus.daemon.nats.link import BadPublish, InboundMessage, Link, LinkDown, PayloadTooLarge
from aghbus.daemon.nats.options import NatsOptions
from tests.support.links import Inbox, to, up
from tests.support.natsutil import NatsServer, wait_until


async def test_a_message_arrives_whole(server: NatsServer) -> None:
    inbox = Inbox()
    async with up(Link(to(server), name="a")) as sender, up(Link(to(server), name="b")) as receiver:
        receiver.subscribe("s.*", inbox)
        await receiver.flush(20)
        await sender.publish("s.1", b"\x00bytes\r\n", headers={"Nats-Msg-Id": "w ü"}, reply="answers")
        await sender.publish("s.2", b"")
        await sender.flush(20)
        await wait_until(lambda: len(inbox.messages) == 2, 20, "both messages")
    first, second = inbox.messages
    assert (first.subject, first.data, first.reply) == ("s.1", b"\x00bytes\r\n", "answers")
    assert first.headers == {"Nats-Msg-Id": "w ü"}
    assert (second.subject, second.data, second.reply, second.headers) == ("s.2", b"", "", None)


async def test_flush_confirms_everything_published_before_it(server: NatsServer) -> None:
    """After the sender's flush the broker has all of it, so the receiver's own flush leaves none on its way."""
    async with up(Link(to(server), name="a")) as sender, up(Link(to(server), name="b")) as receiver:
        subscription = receiver.subscribe("t", Inbox())
        await receiver.flush(20)
        for round_number in range(1, 11):
            for _ in range(1000):
                await sender.publish("t", b"x" * 600)
            await sender.flush(20)
            await receiver.flush(20)
            assert subscription.received == 1000 * round_number


async def test_the_return_of_the_link_is_logged_at_the_level_of_its_loss(
    server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "aghbus.link"):
        async with up(Link(to(server), name="a")) as link:
            server.kill()
            await wait_until(lambda: link.state == "down", 20, "the loss")
            await server.start()
            assert await link.wait_up(20)
    levels = [(record.getMessage(), record.levelname) for record in caplog.records]
    changes = [level for level in levels if level[0] != "link not connected"]  # each once
    assert changes == [("link up", "INFO"), ("link lost", "WARNING"), ("link up", "WARNING")]


async def test_own_messages_do_not_come_back_unless_asked_for(server: NatsServer) -> None:
    quiet, loud = Inbox(), Inbox()
    async with up(Link(to(server), name="a")) as one, up(Link(to(server), name="b", no_echo=False)) as other:
        one.subscribe("t", quiet)
        other.subscribe("t", loud)
        await one.flush(20)
        await other.flush(20)
        await one.publish("t", b"from one")
        await other.publish("t", b"from other")
        await one.flush(20)
        await other.flush(20)
        await wait_until(lambda: quiet.messages and len(loud.messages) == 2, 20, "the messages")
        assert quiet.texts == [b"from other"]
        assert sorted(loud.texts) == [b"from one", b"from other"]


async def test_the_link_reconnects_on_the_same_port_with_its_subscriptions(server: NatsServer) -> None:
    inbox = Inbox()
    ups: list[Link] = []
    downs: list[str] = []
    link = Link(to(server), name="b", on_up=ups.append, on_down=lambda _, reason: downs.append(reason))
    link.subscribe("t", inbox)
    async with up(link), up(Link(to(server), name="a")) as sender:
        for count in range(1, 4):
            server.kill()
            await wait_until(lambda: link.state == sender.state == "down", 20, "the loss")
            assert link.server is None
            with pytest.raises(LinkDown):
                await link.publish("t", b"lost")
            await server.start()
            assert await link.wait_up(20)
            assert await sender.wait_up(20)
            await sender.publish("t", b"%d" % count)
            await wait_until(lambda: len(inbox.messages) == count, 20, "the message")  # noqa: B023 - awaited in the loop
    assert inbox.texts == [b"1", b"2", b"3"]
    assert ups == [link] * 4
    assert len(downs) == 3
    assert link.reconnects == 3


async def test_the_link_follows_the_resolver_to_another_port() -> None:
    inbox = Inbox()
    async with NatsServer() as first, NatsServer() as second:
        current = [first]
        link = Link(lambda: to(*current)(), name="b")
        link.subscribe("t", inbox)
        async with up(link):
            current[:] = [second]
            first.kill()
            await wait_until(lambda: link.server is not None and link.server.url == second.url, 20, "the move")
            async with up(Link(to(second), name="a")) as sender:
                await sender.publish("t", b"here")
                await wait_until(lambda: inbox.texts == [b"here"], 20, "the message")


async def test_a_missing_server_at_start_is_not_an_error() -> None:
    server = NatsServer()
    await server.start()
    server.kill()
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_exit(server)
        link = Link(to(server), name="a")
        link.start()
        stack.push_async_callback(link.close, 1)
        await wait_until(lambda: link.last_error, 20, "the first failure")
        assert link.state == "connecting"
        assert not await link.wait_up(0.01)
        assert link.last_error is not None
        assert link.last_error.code == "unreachable"
        assert str(server.port) in link.last_error.cause
        assert link.last_error.hint
        with pytest.raises(LinkDown, match="connecting"):
            await link.flush(1)
        await server.start()
        assert await link.wait_up(20)
        assert link.last_error is None


async def test_a_failing_resolver_is_retried(server: NatsServer) -> None:
    calls = 0

    async def resolve() -> NatsOptions:
        nonlocal calls
        calls += 1
        if calls < 3:
            raise RuntimeError("no broker \x1b[31myet")
        return NatsOptions(servers=(server.url,))

    link = Link(resolve, name="a")
    link.start()
    await wait_until(lambda: link.last_error, 20, "the failure")
    assert link.last_error is not None
    assert (link.last_error.code, link.last_error.cause) == ("resolve", "no broker \\x1b[31myet")
    assert await link.wait_up(20)
    assert calls == 3
    await link.close(1)


async def test_a_payload_too_large_is_refused_before_it_ends_the_connection(server: NatsServer) -> None:
    inbox = Inbox()
    async with up(Link(to(server), name="a")) as sender, up(Link(to(server), name="b")) as receiver:
        receiver.subscribe("t", inbox)
        await receiver.flush(20)
        limit = sender.max_payload
        assert limit == 1_048_576
        headers = {"Nats-Msg-Id": "ü" * 10}
        room = limit - len(b"NATS/1.0\r\nNats-Msg-Id: \r\n\r\n") - 20
        for size, given in ((limit + 1, None), (room + 1, headers)):
            with pytest.raises(PayloadTooLarge) as error:
                await sender.publish("t", b"x" * size, headers=given)
            assert (error.value.size, error.value.limit) == (limit + 1, limit)
        await sender.publish("t", b"x" * limit)
        await sender.publish("t", b"y" * room, headers=headers)
        await sender.flush(20)
        await wait_until(lambda: len(inbox.messages) == 2, 20, "the largest ones")
        assert [len(data) for data in inbox.texts] == [limit, room]
        assert sender.reconnects == 0


async def test_invalid_subjects_and_headers_are_refused(server: NatsServer) -> None:
    async with up(Link(to(server), name="a")) as link:
        for subject in ("", "a b", "a\r\nPUB b 0\r\n"):
            with pytest.raises(BadPublish):
                await link.publish(subject, b"")
        with pytest.raises(BadPublish):
            await link.publish("t", b"", headers={"a b": "c"})
        for subject in ("", "a b", "a..b", ".a", "a\r\nSUB > 1", "a.>.b", "a>", ">.>", "a*.b"):
            with pytest.raises(BadPublish):
                link.subscribe(subject, Inbox())
        assert not link.subscriptions
        await link.flush(20)
        assert link.reconnects == 0


async def test_a_large_burst_arrives_complete_and_in_order(server: NatsServer) -> None:
    inbox = Inbox()
    async with up(Link(to(server), name="b")) as link, up(Link(to(server), name="a")) as sender:
        subscription = link.subscribe("t", inbox)
        await link.flush(20)
        for number in range(5000):
            await sender.publish("t", b"%d " % number * 20, reply=f"answers.{number}")
        await sender.flush(20)
        await link.flush(20)
        assert subscription.received == 5000
        assert [int(data.split()[0]) for data in inbox.texts] == list(range(5000))
        assert [message.reply for message in inbox.messages] == [f"answers.{number}" for number in range(5000)]
        assert (link.reconnects, link.slow_consumer_events) == (0, 0)


async def test_an_exception_in_a_callback_does_not_affect_other_subscriptions(server: NatsServer) -> None:
    events: list[LinkEvent] = []
    inbox = Inbox()

    def broken(message: InboundMessage) -> None:
        if message.data == b"1":
            raise ValueError("defect")
        given_up: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        given_up.cancel("defect")
        given_up.result()

    link = Link(to(server), name="b", on_error=events.append)
    async with up(link), up(Link(to(server), name="a")) as sender:
        failing = link.subscribe("t", broken)
        link.subscribe("t", inbox)
        await link.flush(20)
        await sender.publish("t", b"1")
        await sender.publish("t", b"2", headers={"a": "b"})
        await sender.flush(20)
        await link.flush(20)
        assert (inbox.texts, failing.received, link.reconnects) == ([b"1", b"2"], 2, 0)
    assert [type(event.error) for event in events if isinstance(event, CallbackFailed)] == [
        ValueError,
        asyncio.CancelledError,
    ]
    assert len(events) == 2


@pytest.mark.parametrize(
    ("published", "complaints"),
    [
        (b"HPUB t 4 9\r\n5\r\nxABCDE\r\n", 1),
        (b"HPUB t 4 6\r\nxy\r\nAB\r\n", 1),
        (b"HPUB t 16 16\r\nNATS/1.0 \xff\xff\xff\r\n\r\n\r\n", 1),
        (b"HPUB t 12 12\r\nNATS/1.0 503\r\n", 0),
        (b"PUB t.\xff 1\r\nA\r\n", 0),
        (b"PUB t a.\xff 1\r\nA\r\n", 0),
    ],
)
async def test_malformed_messages_of_a_publisher_do_not_end_the_connection(
    server: NatsServer, published: bytes, complaints: int
) -> None:
    """The broker hands these on as they are; most of them end nats-py's read loop."""
    events: list[LinkEvent] = []
    inbox = Inbox()
    link = Link(to(server), name="b", on_error=events.append)
    link.subscribe("t.>", inbox)
    link.subscribe("t", inbox)
    async with up(link):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        with contextlib.closing(writer):
            greeting = b'CONNECT {"verbose":false,"headers":true}\r\n'
            writer.write(greeting + published + b"PUB t 5\r\nafter\r\nPING\r\n")
            assert (await reader.readline()).startswith(b"INFO")
            assert await reader.readline() == b"PONG\r\n"
        await link.flush(20)
        assert len(inbox.messages) == 2
        assert inbox.texts[1] == b"after"
        assert [type(event) for event in events] == [ServerComplaint] * complaints
        assert link.reconnects == 0


async def test_nothing_is_delivered_after_unsubscribe_even_from_the_same_read(server: NatsServer) -> None:
    inbox, other = Inbox(), Inbox()
    async with up(Link(to(server), name="a")) as link:
        subscription = link.subscribe("t", inbox)
        second = link.subscribe("t", other)
        await link.flush(20)
        client = link.client
        first, next_one = client.receivers
        piece = b"MSG t %d 1\r\n1\r\n" % first + b"HMSG t %d 12 13\r\nNATS/1.0\r\n\r\n2\r\n" % first
        await client.parser.parse(piece + b"MSG t %d 1\r\n3\r\n" % next_one)
        assert (inbox.texts, other.texts) == ([b"1", b"2"], [b"3"])
        subscription.unsubscribe()
        await client.parser.parse(piece + b"MSG t %d 1\r\n4\r\n" % next_one)
        assert (inbox.texts, other.texts) == ([b"1", b"2"], [b"3", b"4"])
        assert (subscription.received, second.received) == (2, 2)


async def test_unsubscribing_in_a_callback_holds_for_the_rest_of_the_read(server: NatsServer) -> None:
    received: list[bytes] = []

    def once(message: InboundMessage) -> None:
        received.append(message.data)
        subscription.unsubscribe()

    async with up(Link(to(server), name="a")) as link:
        subscription = link.subscribe("t", once)
        await link.flush(20)
        client = link.client
        (sid,) = client.receivers
        await client.parser.parse(b"MSG t %d 1\r\n1\r\nMSG t %d 1\r\n2\r\n" % (sid, sid))
        assert received == [b"1"]
        await link.flush(20)
        assert not link.subscriptions


async def test_an_unsubscribed_subject_is_not_delivered(server: NatsServer) -> None:
    inbox, other = Inbox(), Inbox()
    async with up(Link(to(server), name="a")) as sender, up(Link(to(server), name="b")) as receiver:
        subscription = receiver.subscribe("t", inbox)
        receiver.subscribe("t", other)
        await receiver.flush(20)
        subscription.unsubscribe()
        await receiver.flush(20)
        await sender.publish("t", b"x")
        await wait_until(lambda: other.texts == [b"x"], 20, "the message")
        assert not inbox.messages
        server.kill()
        await wait_until(lambda: receiver.reconnects == 1, 20, "the loss")
        await server.start()
        assert await receiver.wait_up(20)
        assert [each.subject for each in receiver.subscriptions] == ["t"]


async def test_close_delivers_everything_that_the_broker_has_sent(server: NatsServer) -> None:
    inbox = Inbox()
    async with up(Link(to(server), name="a")) as sender:
        receiver = Link(to(server), name="b")
        receiver.subscribe("t", inbox)
        async with up(receiver):
            for _ in range(20_000):
                await sender.publish("t", b"x" * 100)
            await sender.flush(10)
            await receiver.close(10)
        assert len(inbox.messages) == 20_000
        assert receiver.state == "closed"
        with pytest.raises(LinkDown, match="closed"):
            await receiver.publish("t", b"")
        await receiver.close(1)


async def test_close_sends_everything_that_was_published(server: NatsServer) -> None:
    inbox = Inbox()
    async with up(Link(to(server), name="b")) as receiver:
        receiver.subscribe("t", inbox)
        await receiver.flush(20)
        async with up(Link(to(server), name="a")) as sender:
            for _ in range(5000):
                await sender.publish("t", b"x" * 500)
        await wait_until(lambda: len(inbox.messages) == 5000, 30, "all of them")


async def test_publishing_continues_after_a_drain(server: NatsServer) -> None:
    inbox, answers = Inbox(), Inbox()
    async with up(Link(to(server), name="a")) as sender, up(Link(to(server), name="b")) as receiver:
        receiver.subscribe("t", inbox)
        sender.subscribe("answers", answers)
        await receiver.flush(20)
        await sender.flush(20)
        await receiver.drain(5)
        await sender.publish("t", b"too late")
        await sender.flush(20)
        await receiver.publish("answers", b"receipt")
        await receiver.flush(20)
        await wait_until(lambda: answers.texts == [b"receipt"], 20, "the receipt")
        assert not inbox.messages
