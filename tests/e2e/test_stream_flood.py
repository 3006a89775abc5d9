"""Durability "jetstream": what a receiver does not take leaves the stream at once, and its sender brings it again."""

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from aghbus.protocol.agh.delivery.order import AFTER
from aghbus.protocol.agh.identifiers import subject_for
from tests.support.daemons import DURABLE, NO_RETRY, Daemon, Home, delivery, ops_and_worker, wait_for
from tests.support.foreign import Foreign, foreign_peer
from tests.support.natsutil import NatsServer

DAYS = 6 * 86_400
CAPACITY = 2000  # a quarter of it, and the 1,024 places of the consumer, are less than what a flood sends
QUICK = ("--retry-first", "200ms", "--retry-ceiling", "2s")


def say(peer: Foreign, number: int, to: str | None, **fields: Any) -> dict[str, Any]:
    more = {"surface": "thread", "thread_id": "thread_flood", "to": to, "expires_at": int(time.time()) + DAYS, **fields}
    return peer.envelope("say", {"text": f"flood {number}"}, **more)


def early(peer: Foreign, number: int) -> dict[str, Any]:
    """After a message that never comes."""
    after = {"id": "msg_never", "expires_at": int(time.time()) + DAYS}
    return say(peer, number, "worker", ext={AFTER: after})


def directed(peer: Foreign, number: int) -> dict[str, Any]:
    return say(peer, number, "worker")


def broadcast(peer: Foreign, number: int) -> dict[str, Any]:
    return say(peer, number, None)


def counters(daemon: Daemon) -> dict[str, int]:
    return dict(daemon.get("/v1/status")["counters"])


def consumer(daemon: Daemon) -> tuple[int, int]:
    """Messages that wait in the stream for the daemon: not delivered, and not settled."""
    (found,) = daemon.get("/v1/status")["broker"]["jetstream"]["consumers"]
    return found["pending"], found["ack_pending"]


@pytest.mark.parametrize(
    ("message", "count", "counter"),
    [(early, 1100, "receive.early"), (directed, 1600, "overload.inbox"), (broadcast, 1600, "overload.inbox")],
    ids=["early", "directed", "broadcast"],
)
async def test_a_flood_in_the_stream_delays_no_contact(
    home: Home,
    server: NatsServer,
    message: Callable[[Foreign, int], dict[str, Any]],
    count: int,
    counter: str,
) -> None:
    args = ("--nats", server.url, *DURABLE, *NO_RETRY)
    with Daemon(home, "worker", *args, "--inbox-capacity", str(CAPACITY)) as worker, Daemon(home, "ops", *args) as ops:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        worker.post("/v1/messages", kind="say", to="ops", thread_id="thread_talk", body={"text": "hello"})
        async with foreign_peer(server.url, "mallory") as mallory:
            await mallory.greet(ext={"aghbus.instance": "instance_mallory"})  # else nothing of it is early
            await asyncio.to_thread(wait_for, lambda: worker.knows("mallory"), 30, "the greet")
            for number in range(count):
                sent = message(mallory, number)
                subject = subject_for("ws_local", "default", sent["to"])
                await mallory.client.publish(subject, json.dumps(sent).encode())
            refused = count if counter == "receive.early" else count - CAPACITY // 4
            await asyncio.to_thread(wait_for, lambda: counters(worker).get(counter, 0) >= refused, 30, "the flood")

        def delivered(text: str) -> None:
            sent = ops.post("/v1/messages", kind="say", to="worker", thread_id="thread_talk", body={"text": text})["id"]
            wait_for(lambda: delivery(ops, sent) == "receipted", 10, text)

        delivered("during the flood")
        assert counters(worker)[counter] == refused  # each was delivered once
        problems = " ".join(worker.get("/v1/status")["problems"])
        assert counter == "receive.early" or f"{refused} of others, in the lane that they share" in problems
        assert counter == "receive.early" or "mallory" in problems
        worker.kill()
        worker.start()
        delivered("after a restart")
        wait_for(lambda: consumer(worker) == (0, 0), 10, "an empty stream")


@pytest.mark.parametrize("profile", [(), DURABLE], ids=["core", "jetstream"])
async def test_a_refused_opening_is_answered_and_leaves_the_stream(
    home: Home, server: NatsServer, profile: tuple[str, ...]
) -> None:
    rule = ("--trust-may-open-work", "default=friend")
    with Daemon(home, "worker", "--nats", server.url, *profile, *rule) as worker:
        async with foreign_peer(server.url, "unknown") as unknown:
            for number in range(3):
                await unknown.publish(unknown.work("worker", f"work_{number}"))
            receipt = await unknown.expect(kind="receipt", work_id="work_0")
            assert (receipt["body"]["status"], receipt["body"]["reason_code"]) == ("rejected", "verification_failed")
            await asyncio.to_thread(
                wait_for, lambda: counters(worker).get("receipts.suppressed") == 2, 30, "the limit of one a minute"
            )
            await unknown.client.flush()
            assert [one for one in unknown.received if one["kind"] == "receipt"] == [receipt]
        if profile:
            wait_for(lambda: consumer(worker) == (0, 0), 10, "an empty stream")
        assert worker.get("/v1/inbox")["items"] == []


@pytest.mark.parametrize("restarted", ["worker", "ops"])
async def test_a_rejected_message_comes_again_after_restarts(home: Home, server: NatsServer, restarted: str) -> None:
    """Also though the stream recognizes, for two minutes, an id that it has had."""
    nats = ("--nats", server.url, *DURABLE, *QUICK, "--inbox-capacity", "4")  # one for each sender
    with ops_and_worker(home, *nats) as (ops, worker):
        texts = [f"number {number}" for number in range(4)]
        sent = [
            ops.post("/v1/messages", kind="say", to="worker", thread_id="thread_talk", body={"text": text})["id"]
            for text in texts
        ]
        wait_for(lambda: counters(worker).get("overload.inbox", 0) > 1, 30, "rejected tries")
        wait_for(lambda: consumer(worker) == (0, 0), 10, "nothing to wait in the stream")
        wait_for(lambda: {delivery(ops, one) for one in sent[1:]} == {"published"}, 10, "the record of it")
        {"ops": ops, "worker": worker}[restarted].kill()
        {"ops": ops, "worker": worker}[restarted].start()
        assert {delivery(ops, one) for one in sent[1:]} == {"published"}
        for text in texts:
            item = worker.post("/v1/inbox/next", wait=20, ack=True)["item"]
            assert item is not None, f"{text} is missing"
            assert item["message"]["envelope"]["body"]["text"] == text
        wait_for(lambda: {delivery(ops, one) for one in sent} == {"receipted"}, 20, "the acknowledgements")
