"""Daemons as services of NATS: what `nats micro` asks, and what it gets (ADR-32 of NATS)."""

import asyncio
import json
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from aghbus.protocol.agh.identifiers import route_token, subject_for
from tests.support.daemons import DURABLE, Daemon, Home
from tests.support.natsutil import NatsServer, wait_until

WORKER = route_token("worker")


async def ask(client: Client, subject: str, count: int) -> list[dict[str, Any]]:
    """So many answers to a request, by peer id."""
    found: list[dict[str, Any]] = []

    async def take(message: Msg) -> None:
        found.append(json.loads(message.data))

    subscription = await client.subscribe(inbox := client.new_inbox(), cb=take)
    await client.publish(subject, reply=inbox)
    await wait_until(lambda: len(found) >= count, 30)
    await subscription.unsubscribe()
    return sorted(found, key=lambda answer: str(answer["metadata"]["peer_id"]))


@pytest.mark.parametrize("flags", [(), DURABLE])
async def test_daemons_answer_requests_to_services(server: NatsServer, home: Home, flags: tuple[str, ...]) -> None:
    client = await nats.connect(server.url)
    home.ctl("--name", "ops", "key", "generate")
    worker = Daemon(
        home, "worker", "--nats", server.url, "--capability", "test.run", "--summary", "Runs tests.", *flags
    )
    with Daemon(home, "ops", "--nats", server.url, *flags) as ops, worker:
        handle = ops.get("/v1/status")["peer_id"]
        for subject in ("$SRV.PING", "$SRV.PING.aghbus"):
            first, second = await ask(client, subject, 2)
            assert first["metadata"]["peer_id"] == handle
            assert first["metadata"]["fingerprint"] == handle.partition("@")[2] != ""
            ping = {
                "type": "io.nats.micro.v1.ping_response",
                "name": "aghbus",
                "id": WORKER,
                "version": ops.get("/v1/status")["version"],
                "metadata": {
                    "peer_id": "worker",
                    "display_name": "worker",
                    "fingerprint": "",
                    "capabilities": "test.run",
                },
            }
            assert second == ping
        (info,) = await ask(client, f"$SRV.INFO.aghbus.{WORKER}", 1)
        place = {"queue_group": "", "metadata": {"workspace_id": "ws_local", "channel": "default"}}
        subjects = [subject_for("ws_local", "default", to) for to in (None, "worker")]
        names = ("broadcast", "peer")
        endpoints = [{"name": name, "subject": one, **place} for name, one in zip(names, subjects, strict=True)]
        answer = {"type": "io.nats.micro.v1.info_response", "description": "Runs tests.", "endpoints": endpoints}
        assert info == {**ping, **answer}
        await client.publish(subjects[0], b"counted")
        (stats,) = await ask(client, f"$SRV.STATS.aghbus.{WORKER}", 1)
        assert stats["type"] == "io.nats.micro.v1.stats_response"
        assert [one["subject"] for one in stats["endpoints"]] == subjects
        assert (stats["endpoints"][0]["num_requests"] > 0) is (not flags)
    await client.close()


async def test_answers_go_to_inboxes_of_clients_only_and_are_limited(server: NatsServer, home: Home) -> None:
    client = await nats.connect(server.url)
    elsewhere: list[Msg] = []

    async def take(message: Msg) -> None:
        elsewhere.append(message)

    await client.subscribe("orders.>", cb=take)
    await client.subscribe(f"_INBOX.{WORKER}.>", cb=take)
    with Daemon(home, "worker", "--nats", server.url, "--limits-answers-per-minute", "2") as worker:
        for reply in ("orders.new", f"_INBOX.{WORKER}.ack.1", f"_INBOX.{WORKER}.api.1.2"):
            await client.publish("$SRV.PING", reply=reply)
        await client.publish("$SRV.OTHER", reply=client.new_inbox())
        await client.publish("$SRV.PING")
        await asyncio.gather(*(ask(client, "$SRV.PING", 1) for _ in range(2)))
        await client.publish("$SRV.PING", reply=client.new_inbox())
        await client.flush()
        await wait_until(lambda: worker.get("/v1/status")["counters"].get("services.suppressed"), 30)
        assert worker.get("/v1/status")["counters"]["services.answered"] == 2
        assert elsewhere == []
    await client.close()
