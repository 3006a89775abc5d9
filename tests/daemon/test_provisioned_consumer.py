"""Consumers that an operator has made, and what untrusted peers may try on the inboxes of the JetStream profile."""

from typing import Any

import pytest

from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.link import InboundMessage
from aghbus.protocol.agh.delivery.acks import ANSWER_TO, Ack, encode_ack, may_answer, parse_ack
from aghbus.protocol.agh.identifiers import route_token
from aghbus.protocol.agh.nats.jetstream import PROVISIONED
from aghbus.protocol.agh.nats.names import durable_name
from aghbus.protocol.agh.nats.permissions import Network, setup
from tests.support.jetstream import CHANNEL, WORKSPACE, Operator, Peer, admin, row
from tests.support.natsutil import NatsServer, wait_until

NAME = durable_name(WORKSPACE, CHANNEL, route_token("b"))


async def provision(api: Operator, **changes: Any) -> None:
    """What `aghctl nats permissions` says to send, with changes to the consumer."""
    for step in setup(Network(WORKSPACE, (CHANNEL,), jetstream=True), ["b"]):
        payload = step.payload
        if "config" in payload:
            payload = {**payload, "config": {**payload["config"], **changes}}
        await api.call(step.subject.removeprefix("$JS.API."), payload)


async def config_of(api: Operator) -> dict[str, Any]:
    config: dict[str, Any] = (await api.call(f"CONSUMER.INFO.{STREAM}.{NAME}"))["config"]
    return config


async def test_the_operators_consumer_is_used_unchanged(server: NatsServer) -> None:
    async with admin(server) as api:
        await provision(api, ack_wait=7_000_000_000, max_ack_pending=3)
        before = await config_of(api)
        async with Peer(server, "a").running() as sender, Peer(server, "b").running() as receiver:
            assert sender.problems == receiver.problems == {}
            assert len((await sender.profile.carrier.carry([row(n, "b") for n in range(1, 9)])).published) == 8
            await receiver.has(8)
            assert receiver.texts == [str(n) for n in range(1, 9)]
        assert await config_of(api) == before
        assert before["description"] == PROVISIONED


@pytest.mark.parametrize(
    ("key", "changes"),
    [
        ("filter_subjects", {"filter_subjects": ["agh.network.v0.ws_test.builders.broadcast"]}),
        ("ack_policy", {"ack_policy": "none", "max_ack_pending": 0}),
        ("push consumer", {"deliver_subject": f"_INBOX.b.deliver.{NAME}"}),
    ],
)
async def test_provisioned_consumer_that_would_lose_messages_is_refused(
    server: NatsServer, key: str, changes: dict[str, Any]
) -> None:
    async with admin(server) as api:
        await provision(api, **changes)
        async with Peer(server, "b").running(attached=False) as peer:
            await wait_until(lambda: key in peer.problems.get("jetstream", ""), 30, "the report")
            for hint in ("aghctl nats permissions", "deliver_policy by_start_sequence, opt_start_seq 1"):
                assert hint in peer.problems["jetstream"]
            assert not peer.profile.attached
            await api.call(f"CONSUMER.DELETE.{STREAM}.{NAME}")
            await wait_until(lambda: peer.profile.attached and not peer.problems, 15, "the problem to be solved")


async def test_a_daemon_switches_to_the_operators_consumer(server: NatsServer) -> None:
    async with (
        Peer(server, "a").running() as sender,
        Peer(server, "b", check_interval=3600).running() as receiver,
        admin(server) as api,
    ):
        assert "description" not in await config_of(api)
        await sender.profile.carrier.carry([row(1, "b")])
        await receiver.has(1)
        await api.call(f"CONSUMER.DELETE.{STREAM}.{NAME}")
        (step,) = (
            step for step in setup(Network(WORKSPACE, (CHANNEL,), jetstream=True), ["b"]) if NAME in step.subject
        )
        await api.call(step.subject.removeprefix("$JS.API."), step.payload)
        receiver.profile.link_down()  # it looks again
        assert await receiver.profile.wait_attached(10)
        await sender.profile.carrier.carry([row(2, "b")])
        await receiver.has(2)
        assert receiver.texts == ["1", "2"]
        assert receiver.profile.consumers[0].is_provisioned


async def test_receivers_acknowledge_on_another_inbox_than_the_stream(server: NatsServer) -> None:
    """A receiver cannot confirm in the stream's name: what it sends there is a commit acknowledgement or nothing."""
    async with Peer(server, "a").running() as sender, Peer(server, "b").running() as receiver:
        await sender.profile.carrier.carry([row(1, "b")])
        await receiver.has(1)
        answer_to = (receiver.messages[0].headers or {})[ANSWER_TO]
        assert may_answer(answer_to)
        assert receiver.messages[0].reply == ""
        ack = Ack("msg_1", "committed")
        await receiver.link.publish(answer_to, b'{"stream":"AGH_NETWORK_V0","seq":99}')
        await receiver.link.publish(answer_to, encode_ack(ack))
        await wait_until(lambda: len(sender.answers) == 2, 20, "the acknowledgement")
        assert [parse_ack(message.data) for message in sender.answers] == [None, ack]
        core: list[InboundMessage] = []
        listening = receiver.link.subscribe(f"agh.network.v0.{WORKSPACE}.{CHANNEL}.peer.*", core.append)
        await receiver.link.flush(5)
        await sender.profile.carrier.carry([row(2, "b")])
        await wait_until(lambda: core, 20, "the message in core NATS")
        assert not may_answer(core[0].reply)
        listening.unsubscribe()
