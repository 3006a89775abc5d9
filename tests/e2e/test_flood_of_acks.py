"""Invented acknowledgements in any number neither stop those of honest peers nor take the processor."""

import asyncio
import json
import statistics
import time

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.support.daemons import DURABLE, Daemon, Home, delivery, ops_and_worker
from tests.support.foreign import foreign_peer
from tests.support.natsutil import NatsServer

FLOOD = 100_000


@pytest.mark.parametrize("durability", [(), DURABLE], ids=["core", "jetstream"])
async def test_an_honest_peer_is_acknowledged_within_a_second_during_a_flood(
    home: Home, server: NatsServer, durability: tuple[str, ...]
) -> None:
    nats = ("--nats", server.url, *durability)
    with ops_and_worker(home, *nats) as (ops, _worker):
        async with foreign_peer(server.url, "eve") as eve:
            replies: asyncio.Queue[str] = asyncio.Queue()

            async def hear(message: Msg) -> None:
                replies.put_nowait((message.headers or {}).get("Aghbus-Answer-To") or message.reply)

            await eve.client.subscribe("agh.network.v0.ws_local.default.peer.*", cb=hear)
            await eve.client.flush()
            ops.post("/v1/messages", kind="say", to="eve", body={"text": "hello"}, thread_id="thread_eve")
            root = (await asyncio.wait_for(replies.get(), 20)).rpartition(".")[0]
            assert ".ack." in root
            before, done = ops.processor_seconds(), asyncio.Event()
            flooding = asyncio.create_task(flood(eve.client, root, done))
            usual = statistics.median([await seconds_to_acknowledge(ops, "worker") for _ in range(10)])
            done.set()
            count = await flooding
            counters = ops.get("/v1/status")["counters"]
            read = sum(counters.get(f"acks.{name}", 0) for name in ("unknown", "committed", "refused"))
            assert usual < 1
            assert read < count / 100, f"{ops.processor_seconds() - before} s of processor time for {count} messages"
            assert counters["acks.flooded"] == 1
            assert any("acknowledgements" in problem for problem in ops.get("/v1/status")["problems"])


async def seconds_to_acknowledge(ops: Daemon, to: str) -> float:
    """How long a message to that peer takes until its acknowledgement is recorded."""
    message = {"kind": "say", "to": to, "body": {"text": "hello"}, "thread_id": "thread_honest"}
    started = time.monotonic()
    sent = await asyncio.to_thread(ops.post, "/v1/messages", **message)
    while await asyncio.to_thread(delivery, ops, sent["id"]) != "receipted":
        assert time.monotonic() - started < 20
        await asyncio.sleep(0.01)
    return time.monotonic() - started


async def flood(client: Client, root: str, done: asyncio.Event) -> int:
    """Publish invented acknowledgements below `root` until `done`, FLOOD at least; how many."""
    data = json.dumps({"aghbus": "ack", "id": "msg_invented", "outcome": "committed", "digest": "0" * 64}).encode()
    count = 0
    while count < FLOOD or not done.is_set():
        for number in range(1, 501):
            await client.publish(f"{root}.{number}", data)
        await client.flush()
        count += 500
    return count
