"""The JetStream profile against real servers: the stream, our place in it, what happens when either is lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.jetstream.consumer import stream_sequence
from aghbus.daemon.jetstream.stream import STREAM, covers, differences, wanted
from aghbus.daemon.nats.link import InboundMessage
from aghbus.protocol.agh.delivery.acks import ANSWER_TO
from aghbus.protocol.agh.identifiers import route_token, subject_for
from aghbus.protocol.agh.nats.jetstream import MAX_MESSAGE_BYTES
from aghbus.protocol.agh.nats.names import durable_name
from aghbus.protocol.agh.trust.tags import TAG
from tests.support.jetstream import CHANNEL, WORKSPACE, Operator, Peer, admin, consumer_info, row, settled, stream_info
from tests.support.natsutil import NatsServer, wait_until

DAY = 86_400


@contextlib.asynccontextmanager
async def started_at_once(peers: list[Peer]) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for peer in peers:
            await stack.enter_async_context(peer.running(attached=False))
        assert all(await asyncio.gather(*(peer.profile.wait_attached(20) for peer in peers)))
        yield


async def test_the_first_daemon_creates_the_stream_of_the_specification(server: NatsServer) -> None:
    async with Peer(server, "a").running() as peer, admin(server) as api:
        config = (await stream_info(api))["config"]
        assert peer.problems == {}
    assert config["subjects"] == ["agh.network.v0.>"]
    assert config["storage"] == "file" and config["retention"] == "limits" and config["discard"] == "new"
    assert config["max_age"] == 7 * DAY * 10**9
    assert config["max_bytes"] == 1 << 30
    assert config["max_msg_size"] > 1_048_576
    assert config["duplicate_window"] == 120 * 10**9


async def test_many_daemons_that_start_at_once_agree_on_one_stream(server: NatsServer) -> None:
    peers = [Peer(server, f"p{number}", settings=JetStreamSettings(max_age=(number + 1) * 3600)) for number in range(6)]
    async with started_at_once(peers), admin(server) as api:
        assert (await stream_info(api))["state"]["consumer_count"] == 6
        age = (await stream_info(api))["config"]["max_age"] / 10**9 / 3600
    # only peers that wanted more than the winner report it
    assert {peer.settings.max_age / 3600 for peer in peers if peer.problems} == {
        wish for wish in range(1, 7) if wish > age
    }


async def test_a_stream_that_is_different_is_reported_and_left_alone(server: NatsServer) -> None:
    async with admin(server) as api:
        made = {
            "name": STREAM,
            "subjects": ["agh.network.v0.ws_test.>"],
            "storage": "memory",
            "max_age": DAY * 10**9,
            "max_msg_size": 100_000,
            "discard": "old",
        }
        await api.call(f"STREAM.CREATE.{STREAM}", made)
        before = (await stream_info(api))["config"]
        async with Peer(server, "a").running() as peer:
            await wait_until(lambda: peer.problems, 20, "the report")
            (sentence,) = peer.problems.values()
            assert (await stream_info(api))["config"] == before
            # it works as well as that stream lets it
            carried = await peer.profile.carrier.carry([row(1)])
            await peer.has(1)
            assert carried.published == [1]
            await api.call(
                f"STREAM.UPDATE.{STREAM}", {**wanted(JetStreamSettings(), expires=True), "storage": "memory"}
            )
            await wait_until(lambda: "1d" not in peer.problems.get("jetstream.stream", "1d"), 20, "the edit to be seen")
            (rest,) = peer.problems.values()
    for word in ("--subjects", "--max-msg-size", "--max-age 7d", "--max-bytes", "--discard new", "memory"):
        assert word in sentence
    assert "memory" in rest and "--" not in rest


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"subjects": ["agh.network.v0.*.*.>"]}, "subjects"),
        ({"subjects": []}, "nothing"),
        ({"max_msg_size": 1_048_576}, "max-msg-size"),
        ({"max_age": 3600 * 10**9}, "max-age"),
        ({"max_bytes": -1}, "max-bytes"),
        ({"discard": "old"}, "discard"),
        ({"storage": "memory"}, "memory"),
        ({"retention": "workqueue"}, "workqueue"),
        ({"max_msgs_per_subject": 1}, "per-subject"),
        ({"no_ack": True}, "confirm"),
        ({"duplicate_window": 10**9}, "dupe-window"),
        ({"allow_msg_ttl": False}, "ttl"),
    ],
)
def test_each_harmful_difference_is_one_sentence(change: dict[str, Any], word: str) -> None:
    settings = JetStreamSettings()
    (sentence,) = differences({**wanted(settings, expires=True), **change}, settings, may_expire=True)
    assert sentence.startswith(f"stream {STREAM}: ") and word in sentence


@pytest.mark.parametrize(
    "change",
    [
        {"subjects": ["other", "agh.>"]},
        {"max_msg_size": -1},
        {"max_msg_size": MAX_MESSAGE_BYTES + 1},
        {"max_age": 0},
        {"max_age": 30 * DAY * 10**9},
        {"max_bytes": 1 << 40},
        {"num_replicas": 3},
        {"duplicate_window": 3600 * 10**9},
    ],
)
def test_a_setting_above_the_required_value_is_not_a_difference(change: dict[str, Any]) -> None:
    settings = JetStreamSettings()
    assert differences({**wanted(settings, expires=True), **change}, settings, may_expire=True) == []


@pytest.mark.parametrize(
    ("pattern", "subject", "answer"),
    [
        (">", "a.>", True),
        ("a.>", "a.>", True),
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("a.>", "a", False),
        ("a.*", "a.>", False),
        ("a.b.>", "a.>", False),
        ("a.b", "a.b.c", False),
        ("b.>", "a.>", False),
    ],
)
def test_whether_a_pattern_covers_a_subject(pattern: str, subject: str, answer: bool) -> None:
    assert covers(pattern, subject) is answer


async def test_another_stream_on_our_subjects_is_reported(server: NatsServer) -> None:
    async with admin(server) as api:
        await api.call("STREAM.CREATE.OTHER", {"name": "OTHER", "subjects": ["agh.>"], "storage": "memory"})
        async with Peer(server, "a").running(attached=False) as peer:
            await wait_until(lambda: peer.problems, 20, "the report")
            assert "another stream takes subjects" in peer.problems["jetstream"]
            await api.call("STREAM.DELETE.OTHER")
            assert await peer.profile.wait_attached(10)
            assert peer.problems == {}


async def test_too_little_room_for_the_stream_names_the_setting() -> None:
    async with (
        NatsServer(config="max_payload: 2MB\njetstream { max_file_store: 100MB }") as server,
        Peer(server, "a").running(attached=False) as peer,
    ):
        await wait_until(lambda: peer.problems, 20, "the report")
        assert "1GiB" in peer.problems["jetstream"] and "jetstream.max_bytes" in peer.problems["jetstream"]


async def test_broker_without_jetstream_is_reported_until_enabled() -> None:
    async with NatsServer() as server:
        peer = Peer(server, "a")
        async with peer.running(attached=False):
            await wait_until(lambda: peer.problems, 20, "the report")
            assert "enable JetStream" in peer.problems["jetstream"]
            assert not peer.profile.attached
            server.kill()
            server.jetstream = True
            await server.start()
            assert await peer.profile.wait_attached(15)
            await wait_until(lambda: not peer.problems, 20, "the problem to be solved")
            assert (await peer.profile.carrier.carry([row(1)])).published == [1]
            await peer.has(1)


async def test_message_carries_its_ack_subject_and_is_settled(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, Peer(server, "b").running() as receiver, admin(server) as api:
        carried = await sender.profile.carrier.carry([replace(row(1, "b"), tag="its tag"), row(2)])
        await receiver.has(2)
        assert carried.published == [1, 2] and carried.impossible == []
        directed, broadcast = receiver.messages
        assert directed.data == b"1" and directed.subject.endswith(f".peer.{route_token('b')}")
        assert broadcast.headers is not None and not {ANSWER_TO, TAG} & broadcast.headers.keys()
        assert directed.headers is not None and directed.headers[TAG] == "its tag"
        await receiver.link.publish(directed.headers[ANSWER_TO], b'{"aghbus":"ack","id":"msg_1","outcome":"committed"}')
        await wait_until(lambda: sender.answers, 20, "the answer")
        assert sender.answers[0].subject.rpartition(".")[2] == "1"
        await settled(api, "b")
        await settled(api, "a")
        assert sender.texts == ["2"], (
            "our own broadcast comes back through the stream, the message to another peer does not"
        )


async def test_a_new_peer_receives_only_later_messages(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender:
        await sender.profile.carrier.carry([row(1)])
        async with Peer(server, "b").running() as receiver:
            await sender.profile.carrier.carry([row(2)])
            await receiver.has(1)
            assert receiver.texts == ["2"]


async def test_messages_sent_to_an_absent_peer_arrive_when_it_returns(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender:
        async with Peer(server, "b").running():
            pass
        rows = [row(seq, "b") for seq in range(1, 1001)]
        assert (await sender.profile.carrier.carry(rows)).published == list(range(1, 1001))
        async with Peer(server, "b", check_interval=3600).running() as back:  # several requests, none by a check
            await back.has(1000)
            assert back.texts == [str(seq) for seq in range(1, 1001)]


async def test_pending_messages_are_redelivered_first_after_a_crash(server: NatsServer) -> None:
    """ack_wait is an hour here: nothing comes by itself."""
    patient = JetStreamSettings(ack_wait=3600)
    async with Peer(server, "a").running() as sender:
        crashing = Peer(server, "b", settings=patient)
        crashing.settles = False
        async with crashing.running():
            await sender.profile.carrier.carry([row(seq, "b") for seq in range(1, 7)])
            await crashing.has(6)
            for index in (1, 3):
                settlement = crashing.messages[index].settlement
                assert settlement is not None
                settlement.ack()
            async with admin(server) as api:
                deadline = asyncio.get_running_loop().time() + 10
                while (await consumer_info(api, "b"))["num_ack_pending"] != 4:
                    assert asyncio.get_running_loop().time() < deadline
                    await asyncio.sleep(0.01)
            await crashing.cut()
        await sender.profile.carrier.carry([row(7, "b")])
        async with Peer(server, "b", settings=patient).running() as back:
            await back.has(5)
            assert back.texts == ["1", "3", "5", "6", "7"]


async def test_what_a_lost_connection_had_comes_before_later_messages(server: NatsServer) -> None:
    """Soon: the requests of that connection have ended with it. ack_wait is an hour here: nothing comes by itself."""
    patient = JetStreamSettings(ack_wait=3600)
    async with (
        Peer(server, "a").running() as sender,
        Peer(server, "b", settings=patient).running() as receiver,
    ):
        socket = receiver.link.client.socket
        assert socket is not None
        socket.pause_reading()
        await sender.profile.carrier.carry([row(1, "b")])
        socket.abort()
        await wait_until(
            lambda: receiver.link.reconnects == 1 and receiver.link.state == "up", 20, "another connection"
        )
        await sender.profile.carrier.carry([row(2, "b")])
        await receiver.has(2)
        assert receiver.texts == ["1", "2"]
        assert not any("another daemon" in said for said in receiver.history)


async def test_a_rejected_message_is_redelivered_after_its_delay(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, Peer(server, "b").running() as receiver:
        receiver.settles = False
        await sender.profile.carrier.carry([row(1, "b")])
        await receiver.has(1)
        settlement = receiver.messages[0].settlement
        assert settlement is not None
        settlement.nak(0.1)
        settlement.ack()  # comes too late, and settles nothing
        await receiver.has(2)
        assert receiver.texts == ["1", "1"]


async def test_a_pending_message_is_not_offered_twice(server: NatsServer) -> None:
    impatient = JetStreamSettings(ack_wait=1)
    receiver = Peer(server, "b", settings=impatient)
    receiver.settles = False
    async with Peer(server, "a").running() as sender, receiver.running(), admin(server) as api:
        await sender.profile.carrier.carry([row(1, "b")])
        (consumer,) = receiver.profile.consumers
        await wait_until(lambda: consumer.duplicates >= 2, 15, "two repeated deliveries")
        assert receiver.texts == ["1"]
        settlement = receiver.messages[0].settlement
        assert settlement is not None
        settlement.ack()
        await settled(api, "b")


async def test_in_flight_messages_are_bounded(server: NatsServer) -> None:
    receiver = Peer(server, "b", settings=JetStreamSettings(max_in_flight=10))
    receiver.settles = False
    async with Peer(server, "a").running() as sender, receiver.running(), admin(server) as api:
        await sender.profile.carrier.carry([row(seq, "b") for seq in range(1, 31)])
        await receiver.has(10)
        assert (await consumer_info(api, "b"))["num_pending"] == 20
        assert len(receiver.messages) == 10
        receiver.settles = True
        for message in list(receiver.messages):
            assert message.settlement is not None
            message.settlement.ack()
        await receiver.has(30)
        assert receiver.texts == [str(seq) for seq in range(1, 31)]


async def test_an_observer_gets_everything_on_the_channel(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, Peer(server, "o", observe=True).running() as observer:
        await sender.profile.carrier.carry([row(1, "b"), row(2, "c"), row(3)])
        await observer.has(3)
        assert observer.texts == ["1", "2", "3"]


async def test_large_messages_keep_flowing(server: NatsServer) -> None:
    """Sixty megabytes: more than we request, and than the broker would keep for a reader that is slow."""
    async with Peer(server, "a").running() as sender, Peer(server, "b").running() as receiver:
        rows = [row(seq, "b", raw=b"%06d" % seq + bytes(1_000_000)) for seq in range(1, 61)]
        assert len((await sender.profile.carrier.carry(rows)).published) == 60
        await receiver.has(60, 60)
        assert [int(message.data[:6]) for message in receiver.messages] == list(range(1, 61))


async def test_idle_peer_repeats_its_pull_request_only_when_it_is_lost(
    server: NatsServer,
) -> None:
    async with admin(server) as api:
        requests: list[InboundMessage] = []
        api.link.subscribe(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.>", requests.append)
        checks: list[int] = []  # the requests until then
        api.link.subscribe(f"$JS.API.CONSUMER.INFO.{STREAM}.>", lambda _: checks.append(len(requests)))
        await api.link.flush(5)
        async with Peer(server, "a", check_interval=0.02).running() as peer:
            # a broker that is slow to note a request may be asked once more
            await wait_until(lambda: checks.count(len(requests)) >= 10, 20, "checks without a request")
            assert (await consumer_info(api, "a"))["num_waiting"] >= 1
            before = len(requests)
            await api.call(f"CONSUMER.DELETE.{STREAM}.{peer.profile.consumers[0].name}")
            await wait_until(lambda: len(requests) > before, 20, "a request to the new consumer")


async def test_a_message_of_foreign_size_does_not_stop_those_behind_it() -> None:
    """Requests are bounded in bytes, and the broker takes messages that are larger."""
    async with NatsServer(jetstream=True, config="max_payload: 16MB") as server, admin(server) as api:
        await api.call(f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": ["agh.network.v0.>"]})
        async with Peer(server, "a").running() as peer:
            for number in range(3):
                await api.link.publish(subject_for(WORKSPACE, CHANNEL, "a"), b"%d" % number + bytes(12_000_000))
            await peer.has(3)
            assert [text[0] for text in peer.texts] == ["0", "1", "2"]
            assert peer.link.reconnects == 0


async def test_a_broker_that_refuses_requests_is_reported(tmp_path: Path) -> None:
    limits = "limits { max_request_batch: 100 }"
    async with (
        NatsServer(config=f'jetstream {{ store_dir: "{tmp_path}", {limits} }}') as server,
        Peer(server, "a").running(attached=False) as peer,
    ):
        await wait_until(lambda: peer.problems, 20, "the report")
        assert "refuses our requests: Exceeded MaxRequestBatch of 100" in peer.problems["jetstream"]


async def push_consumer(api: Operator, name: str, deliver_to: str) -> None:
    """The consumer of peer `name` as earlier versions had it."""
    durable = durable_name(WORKSPACE, CHANNEL, route_token(name))
    subject = subject_for(WORKSPACE, CHANNEL, name)
    config = {"durable_name": durable, "filter_subjects": [subject], "deliver_subject": deliver_to}
    config |= {"name": durable, "ack_policy": "explicit", "deliver_policy": "new"}
    await api.call(f"CONSUMER.CREATE.{STREAM}.{durable}", {"stream_name": STREAM, "config": config})


async def test_a_push_consumer_is_replaced_without_a_gap_once_nobody_uses_it(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, admin(server) as api:
        await push_consumer(api, "b", "earlier.b.token")
        got: list[InboundMessage] = []
        earlier = api.link.subscribe("earlier.b.token", got.append)
        await sender.profile.carrier.carry([row(seq, "b") for seq in (1, 2, 3)])
        await wait_until(lambda: len(got) == 3, 20, "the messages")
        for message in (got[0], got[2]):
            await api.link.request(message.reply, b"+ACK", 5)
        async with Peer(server, "b").running(attached=False) as receiver:
            await wait_until(lambda: receiver.problems, 20, "the report")
            assert "another daemon receives as b" in receiver.problems["jetstream"]
            earlier.unsubscribe()
            await sender.profile.carrier.carry([row(4, "b")])
            await receiver.has(3)
            assert receiver.texts == ["2", "3", "4"]  # the third is a duplicate, as after a crash


async def test_second_daemon_with_the_same_peer_id_is_refused(server: NatsServer) -> None:
    async with Peer(server, "a").running() as first, Peer(server, "a").running(attached=False) as second:
        await wait_until(lambda: second.problems, 20, "the report")
        assert "another daemon receives as a" in second.problems["jetstream"]
        assert "--peer-id" in second.problems["jetstream"]
        await first.profile.carrier.carry([row(1, "a")])
        await first.has(1)
        assert first.profile.attached and second.texts == []
        await first.cut()
        assert await second.profile.wait_attached(10)


def test_the_stream_sequence_is_found_in_both_reply_forms() -> None:
    for reply in (
        "$JS.ACK.S.C.1.42.7.1700000000.0",
        "$JS.ACK.hub.acc.S.C.1.42.7.1700000000.0",
        "$JS.ACK.hub.acc.S.C.1.42.7.1700000000.0.random",
    ):
        assert stream_sequence(reply) == "42"
    for reply in ("", "_INBOX.x.1", "$JS.ACK.S.C.1", "$JS.API.CONSUMER.MSG.NEXT.S.C.1.2.3"):
        assert stream_sequence(reply) == ""


def test_durable_names_tell_channels_workspaces_and_peers_apart() -> None:
    names = {
        durable_name(workspace, channel, route_token(peer))
        for workspace in ("w", "w_x", "ws")
        for channel in ("x", "y")
        for peer in ("p", "q", "p.q")
    }
    assert len(names) == 18
    assert all("." not in name for name in names)


async def test_a_broker_that_restarts_keeps_everything(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, Peer(server, "b").running() as receiver:
        await sender.profile.carrier.carry([row(1, "b")])
        await receiver.has(1)
        receiver.settles = False
        await sender.profile.carrier.carry([row(2, "b")])
        await receiver.has(2)
        await server.restart()
        receiver.settles = True
        settlement = receiver.messages[1].settlement
        assert settlement is not None
        settlement.ack()
        await wait_until(lambda: sender.profile.attached and receiver.profile.attached, 20, "both to be back")
        assert (await sender.profile.carrier.carry([row(3, "b")])).published == [3]
        await receiver.has(3)
        async with admin(server) as api:
            await settled(api, "b")
        assert receiver.texts == ["1", "2", "3"]


async def test_a_deleted_consumer_is_recreated_without_a_gap(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, Peer(server, "b").running() as receiver, admin(server) as api:
        await sender.profile.carrier.carry([row(1, "b")])
        await receiver.has(1)
        await settled(api, "b")
        await wait_until(lambda: receiver.profile.consumers[0].state.ack_floor == 1, 20, "a check")
        await api.call(f"CONSUMER.DELETE.{STREAM}.{receiver.profile.consumers[0].name}")
        await sender.profile.carrier.carry([row(2, "b"), row(3, "b")])
        await receiver.has(3)
        assert receiver.texts == ["1", "2", "3"]


async def test_a_deleted_stream_is_recreated_and_later_messages_arrive(server: NatsServer) -> None:
    async with Peer(server, "a").running() as sender, Peer(server, "b").running() as receiver, admin(server) as api:
        receiver.settles = False
        await sender.profile.carrier.carry([row(1, "b"), row(2, "b")])
        await receiver.has(2)
        receiver.settles = True
        await api.call(f"STREAM.DELETE.{STREAM}")
        taken: list[int] = []
        while not taken:
            taken = (await sender.profile.carrier.carry([row(3, "b")])).published
        await receiver.has(3)
        # the settlement of a message of the old stream must not settle one of the new stream under the same sequence
        for message in receiver.messages[:2]:
            assert message.settlement is not None
            message.settlement.ack()
        await sender.profile.carrier.carry([row(4, "b")])
        await receiver.has(4)
        assert receiver.texts == ["1", "2", "3", "4"]
        await wait_until(lambda: not (sender.problems or receiver.problems), 30, "the problems to be solved")
