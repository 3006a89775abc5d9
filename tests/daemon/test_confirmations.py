"""A message counts as published only by an answer of our stream to that very publish, whatever a peer of the channel sends."""

import asyncio
import json

import pytest

from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.link import InboundMessage
from aghbus.protocol.agh.identifiers import subject_for
from tests.support.jetstream import CHANNEL, WORKSPACE, Operator, Peer, admin, row
from tests.support.natsutil import NatsServer, wait_until

SMALL = JetStreamSettings(max_bytes=4 << 20)
LARGE = bytes(1_000_000)
BROADCAST = subject_for(WORKSPACE, CHANNEL, None)


async def fill(sender: Peer, api: Operator) -> None:
    """Publish until the stream is full, and a little is left for messages of a few bytes."""
    rows = [row(seq, "absent", raw=LARGE) for seq in range(1, 7)]
    await sender.profile.carrier.carry(rows)
    assert "it is full" in sender.problems["jetstream.publish"]
    await api.link.flush(20)


async def watch(api: Operator) -> list[InboundMessage]:
    """What a peer of core NATS sees of the channel."""
    seen: list[InboundMessage] = []
    api.link.subscribe("agh.>", seen.append)
    await api.link.flush(20)
    return seen


async def test_reply_subjects_have_nothing_in_common_but_their_root(server: NatsServer) -> None:
    """A peer that gets one message can answer for no other one."""
    async with Peer(server, "a").running() as sender, admin(server) as api:
        seen = await watch(api)
        assert (await sender.profile.carrier.carry([row(seq) for seq in range(1, 50)])).published == list(range(1, 50))
        await wait_until(lambda: len(seen) == 49, 20, "all of them")
    roots, tokens = zip(*(message.reply.rpartition(".")[::2] for message in seen), strict=True)
    assert len(set(roots)) == 1 and roots[0].split(".")[2] == "pub"
    assert all(len({token[at:][:12] for token in tokens}) == 49 for at in (0, 10, 20))


async def test_no_inbox_can_be_derived_from_another(server: NatsServer) -> None:
    async with Peer(server, "a").running() as peer:
        await peer.profile.carrier.carry([row(1)])
        subjects = [one.subject.split(".") for one in peer.link.subscriptions if one.subject.startswith("_INBOX")]
    random = {parts[2]: parts[3] for parts in subjects}
    assert random.keys() == {"ack", "deliver", "pub"}
    assert len(set(random.values())) == 3


@pytest.mark.parametrize(
    "forged",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"stream":7}',
        b"\xff",
        b"[" * 100_000,
        b'{"stream":"OTHER","seq":1}',
        b'{"seq":1}',
        json.dumps({"stream": STREAM}).encode(),
        json.dumps({"stream": STREAM, "seq": -1}).encode(),
    ],
)
async def test_an_answer_that_is_none_of_our_stream_confirms_nothing(server: NatsServer, forged: bytes) -> None:
    """The stream is slow: the forged answer comes first."""
    async with Peer(server, "a").running() as sender, admin(server) as api:
        await api.call("STREAM.UPDATE." + STREAM, {**(await config(api)), "no_ack": True})
        seen = await watch(api)
        carrying = asyncio.create_task(sender.profile.carrier.carry([row(1)]))
        await wait_until(lambda: seen, 20, "the publish")
        await api.link.publish(seen[0].reply, forged)
        await api.link.flush(20)
        await sender.link.flush(20)
        assert sender.profile.carrier.unconfirmed == 1
        await api.link.publish(seen[0].reply, json.dumps({"stream": STREAM, "seq": 1}).encode())
        assert (await carrying).published == [1]
    assert sender.link.reconnects == 0


async def config(api: Operator) -> dict[str, object]:
    return dict((await api.call(f"STREAM.INFO.{STREAM}"))["config"])


async def test_peer_cannot_confirm_a_rejected_publish_with_its_own_copy(server: NatsServer) -> None:
    """It stores a few bytes of its own under the id that it has seen: the stream calls the real message a duplicate of it."""
    async with Peer(server, "a", settings=SMALL).running() as sender, admin(server) as api:
        await fill(sender, api)
        seen = await watch(api)
        refused = row(9, raw=LARGE)
        assert (await sender.profile.carrier.carry([refused])).published == []
        await wait_until(lambda: seen, 20, "the refused message on core NATS")
        for message in list(seen):
            if message.headers and (known := message.headers.get("Nats-Msg-Id")):
                stored = await api.link.request(BROADCAST, b"small", 20)
                assert "seq" in json.loads(stored.data)
                await api.link.publish(BROADCAST, b"small", {"Nats-Msg-Id": known})
        await api.link.flush(20)
        assert (await sender.profile.carrier.carry([refused])).published == []
        await api.call(f"STREAM.PURGE.{STREAM}")
        await wait_until(lambda: sender.link.state == "up", 20, "the link")
        assert (await sender.profile.carrier.carry([refused])).published == [9]
        assert (await api.call(f"STREAM.INFO.{STREAM}"))["state"]["bytes"] > len(LARGE)


async def test_a_duplicate_counts_only_of_a_publish_that_had_an_id(server: NatsServer) -> None:
    async with Peer(server, "a", settings=SMALL).running() as sender, admin(server) as api:
        await fill(sender, api)
        refused = row(9, raw=LARGE)
        assert (await sender.profile.carrier.carry([refused])).published == []
        await api.call("STREAM.UPDATE." + STREAM, {**(await config(api)), "no_ack": True})
        seen = await watch(api)
        carrying = asyncio.create_task(sender.profile.carrier.carry([refused]))
        await wait_until(lambda: seen, 20, "the publish")
        assert "Nats-Msg-Id" not in (seen[0].headers or {})
        await api.link.publish(seen[0].reply, json.dumps({"stream": STREAM, "seq": 1, "duplicate": True}).encode())
        await api.link.flush(20)
        await sender.link.flush(20)
        assert sender.profile.carrier.unconfirmed == 1
        error = {"code": 503, "err_code": 10060, "description": "expected stream does not match"}
        await api.link.publish(seen[0].reply, json.dumps({"error": error}).encode())
        assert (await carrying).published == []
