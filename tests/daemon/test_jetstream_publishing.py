"""The JetStream profile against real servers: publishing, status, and the end."""

import asyncio
import base64
import contextlib
import json
from typing import Any

import pytest
from msgspec.structs import replace
from nats.js import JetStreamContext
from nats.js.api import AccountInfo

from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.jetstream.cleanup import StreamCleanup
from aghbus.daemon.jetstream.stream import STREAM, ensure_stream, wanted
from aghbus.daemon.nats.link import InboundMessage, JetStreamError, LinkDown
from aghbus.protocol.agh.delivery.order import AFTER_SETTLED
from aghbus.protocol.agh.identifiers import route_token, subject_for
from tests.support.jetstream import WORKSPACE, Peer, admin, consumer_info, row, settled, stream_info
from tests.support.natsutil import NatsServer, wait_until


async def test_the_same_message_twice_is_stored_once(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, admin(server) as api:
        for _ in range(2):
            assert (await sender.profile.carrier.carry([row(1), row(2)])).published == [1, 2]
        assert (await stream_info(api))["state"]["messages"] == 2
        stored = await api.call(f"STREAM.MSG.GET.{STREAM}", {"seq": 1})
    headers = base64.b64decode(stored["message"]["hdrs"]).decode()
    assert f"Nats-Msg-Id: {WORKSPACE} sender msg_1\r\n" in headers


async def test_a_copy_that_settles_its_predecessor_is_stored_beside_the_first(server: NatsServer) -> None:
    """The first copy has no header, and a receiver does not take it."""
    async with Peer(server, "a").running() as sender, admin(server) as api:
        assert (await sender.profile.carrier.carry([row(1)])).published == [1]
        for _ in range(2):
            assert (await sender.profile.carrier.carry([replace(row(1, attempts=1), settled="{}")])).published == [1]
        assert (await stream_info(api))["state"]["messages"] == 2
        stored = await api.call(f"STREAM.MSG.GET.{STREAM}", {"seq": 2})
    assert f"{AFTER_SETTLED}: {{}}\r\n" in base64.b64decode(stored["message"]["hdrs"]).decode()


async def test_two_calls_at_once_keep_their_own_results(server: NatsServer) -> None:
    async with Peer(server, "a", settings=JetStreamSettings(publish_window=7)).running() as sender:
        first, second = await asyncio.gather(
            sender.profile.carrier.carry([row(seq) for seq in range(1, 300)]),
            sender.profile.carrier.carry([row(seq) for seq in range(300, 500)]),
        )
        assert first.published == list(range(1, 300)) and second.published == list(range(300, 500))
        assert sender.profile.carrier.unconfirmed == 0
        await sender.has(499)


async def test_a_full_stream_leaves_messages_in_the_outbox_until_there_is_room(server: NatsServer) -> None:
    small = JetStreamSettings(max_bytes=16 << 20)
    async with Peer(server, "a", settings=small).running() as sender, admin(server) as api:
        rows = [row(seq, "absent", raw=bytes(1_000_000)) for seq in range(1, 21)]
        taken = (await sender.profile.carrier.carry(rows)).published
        assert taken == list(range(1, len(taken) + 1)) and 10 <= len(taken) < 20
        assert "it is full" in sender.problems["jetstream.publish"]
        assert "--max-bytes" in sender.problems["jetstream.publish"]
        assert (await sender.profile.carrier.carry(rows[len(taken) :])).published == []
        await api.call(f"STREAM.PURGE.{STREAM}")
        rest = rows[len(taken) :]
        assert (await sender.profile.carrier.carry(rest)).published == [one.seq for one in rest]
        assert "jetstream.publish" not in sender.problems


async def test_message_over_stream_limit_fails_without_blocking_others(server: NatsServer) -> None:
    async with admin(server) as api:
        await api.call(f"STREAM.CREATE.{STREAM}", {**wanted(JetStreamSettings(), expires=True), "max_msg_size": 10_000})
        async with Peer(server, "a").running() as sender:
            rows = [row(1), row(2, raw=bytes(20_000)), row(3), row(4, raw=bytes(2_000_000))]
            carried = await sender.profile.carrier.carry(rows)
    assert carried.published == [1, 3]
    assert sorted(seq for seq, _ in carried.impossible) == [2, 4]
    assert "exceeds maximum" in dict(carried.impossible)[2]


async def test_an_envelope_of_full_size_is_sent_without_headers_that_do_not_fit(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender:
        assert (await sender.profile.carrier.carry([row(1, raw=bytes(1_048_576))])).published == [1]
        await sender.has(1)
        assert len(sender.messages[0].data) == 1_048_576


async def test_a_message_leaves_the_stream_at_its_time_to_live(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, admin(server) as api:
        headers = sender.profile.ttl_headers(1)
        assert headers is not None
        await api.link.publish("agh.network.v0.ws_test.builders.broadcast", b"greet", headers)
        await sender.has(1)
        deadline = asyncio.get_running_loop().time() + 20
        while (await stream_info(api))["state"]["messages"]:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.05)


async def test_retry_is_stored_only_after_receiver_settled_first_copy(server: NatsServer) -> None:
    """Copies for a peer that is away would fill the stream; a peer whose answer was lost needs one more."""
    async with Peer(server, "a").running() as sender, admin(server) as api:

        async def stored() -> int:
            return int((await stream_info(api))["state"]["messages"])

        carrier = sender.profile.carrier
        live: list[InboundMessage] = []
        core = api.link.subscribe("agh.>", live.append)
        await api.link.flush(20)
        await carrier.carry([row(1, "b")])
        assert (await carrier.carry([row(1, "b", attempts=1)])).published == [1]
        assert await stored() == 1, "nobody has a consumer for b: a copy for peers of core NATS is enough"
        await wait_until(lambda: len(live) == 2, 20, "both copies on core NATS")
        core.unsubscribe()

        receiver = Peer(server, "b")
        receiver.settles = False
        async with receiver.running():
            await carrier.carry([row(1, "b", attempts=2)])
            await receiver.has(1)  # it joined after the first copy
            assert await stored() == 2
            await carrier.carry([row(1, "b", attempts=3)])
            assert await stored() == 2, "the stream keeps it for b"
            settlement = receiver.messages[0].settlement
            assert settlement is not None
            settlement.ack()
            await settled(api, "b")
            await carrier.carry([row(1, "b", attempts=4)])
            await receiver.has(2)  # settled without an answer to us
            assert await stored() == 3


async def test_the_status_of_stream_and_consumers_is_plain_data(server: NatsServer) -> None:
    receiver = Peer(server, "b")
    receiver.settles = False
    async with Peer(server, "a").running() as sender, receiver.running():
        await sender.profile.carrier.carry([row(1, "b"), row(2, "b")])
        await receiver.has(2)

        def consumer() -> dict[str, Any]:
            (one,) = json.loads(json.dumps(receiver.profile.status()))["consumers"]
            return dict(one)

        await wait_until(lambda: consumer()["ack_pending"] == 2, 20, "a check")
        status = receiver.profile.status()
        assert status["attached"] is True and status["stream"] == STREAM and status["messages"] == 2


async def test_a_drained_daemon_stops_receiving_but_settles_and_publishes(server: NatsServer) -> None:
    receiver = Peer(server, "b")
    receiver.settles = False
    async with Peer(server, "a").running() as sender, receiver.running(), admin(server) as api:
        await sender.profile.carrier.carry([row(1, "b")])
        await receiver.has(1)
        await receiver.profile.drain(5)
        await sender.profile.carrier.carry([row(2, "b")])
        assert (await receiver.profile.carrier.carry([row(3, "a")])).published == [3]
        await sender.has(1)
        settlement = receiver.messages[0].settlement
        assert settlement is not None
        settlement.ack()
        deadline = asyncio.get_running_loop().time() + 10
        while (await consumer_info(api, "b"))["num_ack_pending"]:
            assert asyncio.get_running_loop().time() < deadline
            await asyncio.sleep(0.01)
        await wait_until(lambda: receiver.profile.status()["messages"] == 3, 20, "another check")
        assert receiver.texts == ["1"] and not receiver.profile.attached


async def test_the_last_acks_are_sent_at_close(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, admin(server) as api:
        async with Peer(server, "b").running() as receiver:
            await sender.profile.carrier.carry([row(seq, "b") for seq in range(1, 201)])
            await receiver.has(200)
        await settled(api, "b")  # nobody is there to send more: the broker counts what it has received in its own time
        assert (await consumer_info(api, "b"))["ack_floor"]["stream_seq"] == 200


async def test_api_errors_carry_code_and_escaped_words(server: NatsServer) -> None:
    async with admin(server) as api:
        with pytest.raises(JetStreamError) as caught:
            await api.call("STREAM.INFO.NOPE")
        assert caught.value.code == 10059 and "not found" in str(caught.value)


async def test_a_request_fails_as_soon_as_its_connection_is_lost(server: NatsServer) -> None:
    async with Peer(server, "ops").running() as peer:
        await server.pause()
        started = asyncio.Event()

        async def operation(js: JetStreamContext) -> AccountInfo:
            started.set()
            return await js.account_info()

        asking = asyncio.create_task(peer.link.jetstream(operation, timeout=3600))
        await started.wait()
        server.kill()
        with pytest.raises(LinkDown):
            await asking


async def test_a_subscription_that_the_broker_does_not_end_counts_as_lost(
    server: NatsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker stops answering at that moment: the checks go on, and succeed again when it is back."""
    async with Peer(server, "a", former=("b",), flush_timeout=0.5).running() as peer, admin(server) as api:
        (subscription,) = (sub for sub in peer.link.subscriptions if f".{route_token('b')}.deliver." in sub.subject)
        drain = subscription.drain

        async def stalled() -> None:
            await server.pause()
            await drain()

        monkeypatch.setattr(subscription, "drain", stalled)
        peer.profile.retire("b")
        await wait_until(lambda: any("did not end" in said for said in peer.history), 8, "the report")
        server.resume()
        await wait_until(lambda: peer.profile.attached and not peer.problems, 20, "everything to be right again")
        assert [sub.attached for sub in peer.link.subscriptions if "deliver" in sub.subject] == [True]
        with pytest.raises(JetStreamError):
            await consumer_info(api, "b")


async def test_messages_are_purged_once_all_subject_consumers_acked(
    server: NatsServer,
) -> None:
    async with (
        Peer(server, "a").running() as sender,
        Peer(server, "b").running(),
        Peer(server, "o", observe=True).running() as observer,
        admin(server) as api,
    ):
        observer.settles = False
        nobody = subject_for(WORKSPACE, "another-channel", "never-joined")
        rows = [row(number, "b") for number in range(1, 21)]
        await sender.profile.carrier.carry([*rows, row(21), replace(row(22), subject=nobody)])
        await observer.has(21)
        await settled(api, "b")
        cleanup = StreamCleanup(sender.link, full_pause=0.0)
        stream = await ensure_stream(sender.link, sender.settings)
        assert await cleanup.check(stream, full=False) == 0
        assert await cleanup.check(stream, full=True) == 0  # the observer has acknowledged nothing
        for message in observer.messages[:5]:
            assert message.settlement is not None
            message.settlement.ack()
        await observer.link.flush(5)
        purged = 0
        while purged < 5:
            purged += await cleanup.check(stream, full=True)
        assert purged == 5
        for message in observer.messages[5:]:
            assert message.settlement is not None
            message.settlement.ack()
        await settled(api, "o")
        while purged < 20:
            purged += await cleanup.check(stream, full=True)
        assert (await stream_info(api))["state"]["last_seq"] == 22
        request = {"subjects_filter": nobody}
        assert (await api.call(f"STREAM.INFO.{STREAM}", request))["state"]["subjects"] == {nobody: 1}


async def test_publishing_during_a_link_loss_raises_link_down(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender:
        await server.pause()
        carrying = asyncio.create_task(sender.profile.carrier.carry([row(1), row(2)]))
        await wait_until(lambda: sender.profile.carrier.unconfirmed == 2, 20, "the messages to be on their way")
        server.kill()
        with pytest.raises(LinkDown):
            await carrying
        await server.start()
        assert await sender.profile.wait_attached(20)
        assert (await sender.profile.carrier.carry([row(1), row(2)])).published == [1, 2]
        await sender.has(2)


async def test_publishing_waits_until_the_stream_exists_again(server: NatsServer) -> None:
    """Nobody may make a stream here after the first: the daemon reports it, keeps what it has, and goes on when there is one."""
    async with Peer(server, "a").running() as sender, admin(server) as api:
        await api.call("STREAM.CREATE.BLOCK", {"name": "BLOCK", "subjects": ["x"], "storage": "memory"})
        blocked = False
        while not blocked:  # the daemon may have made the stream again before
            with contextlib.suppress(JetStreamError):
                await api.call(f"STREAM.DELETE.{STREAM}")
            with contextlib.suppress(JetStreamError):
                await api.call("STREAM.UPDATE.BLOCK", {"name": "BLOCK", "subjects": ["agh.>"], "storage": "memory"})
                blocked = True
        await wait_until(lambda: "jetstream" in sender.problems, 30, "the report")
        assert (await sender.profile.carrier.carry([row(1)])).published == []
        carrying = asyncio.create_task(sender.profile.carrier.carry([row(1)]))
        await api.call("STREAM.DELETE.BLOCK")
        assert (await carrying).published == [1]
        await sender.has(1)
