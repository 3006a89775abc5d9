"""Delivery that tells the truth: retry, acknowledgement, giving up, deadlines."""

import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aghbus.protocol.agh.identifiers import subject_for
from tests.support.daemons import DURABLE, Daemon, Home, HttpError, has_no_subscriber, ops_and_worker, wait_for
from tests.support.foreign import foreign_peer
from tests.support.natsutil import NatsServer, wait_until

QUICK = ("--retry-first", "100ms", "--retry-ceiling", "300ms")


def delivery(daemon: Daemon, message_id: str) -> str:
    return str(daemon.get(f"/v1/messages/{message_id}")["delivery"])


async def test_an_outage_loses_nothing_though_everybody_was_cut_off(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url, *QUICK)
    with ops_and_worker(home, *nats) as (ops, worker):
        server.kill()
        wait_for(lambda: ops.get("/v1/status")["broker"]["state"] == "down", 30, "the loss to be noticed")
        sent = [ops.post("/v1/works", to="worker", text=f"number {n}") for n in range(20)]
        await server.restart()
        wait_for(lambda: len(worker.get("/v1/works")["works"]) == 20, 30, "all of them to arrive")
        for answer in sent:
            worker.post(f"/v1/works/{answer['work_id']}/complete")
        server.kill()
        wait_for(lambda: worker.get("/v1/status")["broker"]["state"] == "down", 30, "the second loss")
        await server.restart()
        ids = [answer["work_id"] for answer in sent]
        wait_for(lambda: {ops.state_of(work_id) for work_id in ids} == {"completed"}, 30, "the end on both sides")
        # An acknowledgement that was lost with the broker comes with the next try.
        wait_for(lambda: {delivery(ops, one["id"]) for one in sent} == {"receipted"}, 30, "every acknowledgement")
        texts = [m["envelope"]["body"]["text"] for m in worker.get("/v1/messages?kind=say")["messages"]]
        assert sorted(texts) == sorted(f"number {n}" for n in range(20))


async def test_a_receiver_that_was_away_gets_traces_and_receipts_too(home: Home) -> None:
    with ops_and_worker(home, *QUICK) as (ops, worker):
        work_id = ops.post("/v1/works", to="worker", text="while you are away")["work_id"]
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
        ops.kill()
        accepted = worker.post(f"/v1/works/{work_id}/accept")
        done = worker.post(f"/v1/works/{work_id}/complete", result={"n": 1})  # may have to wait behind the other
        wait_for(lambda: has_no_subscriber(worker, accepted["id"]), 20, "the broker to have had it")
        ops.start()
        wait_for(lambda: ops.state_of(work_id) == "completed", 20, "the missed end")
        wait_for(lambda: delivery(worker, done["id"]) == "receipted", 20, "the acknowledgement")
        events = [row["event"] for row in ops.get(f"/v1/works/{work_id}")["history"]]
        # A try of the opening too many (its acknowledgement was not yet noted at the kill) is answered with a receipt.
        assert sorted(set(events) - {"receipt:duplicate"}) == ["message", "receipt:accepted", "trace:completed"]
        assert len([event for event in events if event != "receipt:duplicate"]) == 3


async def test_retries_are_the_same_bytes_until_a_receipt(tmp_path: Path, server: NatsServer) -> None:
    with Daemon(Home(tmp_path), "ops", "--nats", server.url, *QUICK) as ops:
        async with foreign_peer(server.url, "outsider") as outsider:
            raw: list[bytes] = []

            async def hear(message: Any) -> None:
                raw.append(message.data)

            await outsider.client.subscribe(subject_for("ws_local", "default", "outsider"), cb=hear)
            await outsider.client.flush()
            sent = ops.post("/v1/works", to="outsider", text="are you there?")
            await outsider.expect(work_id=sent["work_id"])
            await wait_until(lambda: len(raw) >= 4, 20, "three retries")
            assert len(set(raw)) == 1
            assert delivery(ops, sent["id"]) == "published"
            opening = json.loads(raw[0])
            receipt = outsider.envelope(
                "receipt",
                {"for_id": opening["id"], "status": "duplicate", "reason_code": "duplicate"},
                to="ops",
                surface="thread",
                thread_id=opening["thread_id"],
                work_id=opening["work_id"],
                reply_to=opening["id"],
            )
            await outsider.publish(receipt)
            wait_for(lambda: delivery(ops, sent["id"]) == "receipted", 30, "the receipt to count")
            assert ops.state_of(sent["work_id"]) == "submitted"
            later = ops.post("/v1/works", to="outsider", text="and now?")

            def received(answer: dict[str, Any]) -> int:
                return sum(answer["id"].encode() in one for one in raw)

            await wait_until(lambda: received(later) >= 1, 20, "another one")
            answered = received(sent)  # one try may have been under way when the receipt came
            await wait_until(lambda: received(later) >= 5, 20, "retries of the other one")
            assert received(sent) == answered


def test_an_unanswered_message_becomes_dead_and_the_agent_is_notified(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops", *QUICK, "--retry-limit", "3") as ops:
        sent = ops.post("/v1/works", to="nobody", text="hello?")
        wait_for(lambda: delivery(ops, sent["id"]) == "dead", 20, "giving up")
        message = ops.get(f"/v1/messages/{sent['id']}")
        assert "3 tries" in message["delivery_detail"]
        work = ops.get(f"/v1/works/{sent['work_id']}")
        assert work["work"]["state"] == "canceled"
        assert work["history"][-1]["event"] == "receipt:canceled"
        item = ops.post("/v1/inbox/next", wait=5)["item"]
        assert (item["message"]["id"], item["message"]["direction"]) == (sent["id"], "out")
        assert "dead" in item["last_error"]


@pytest.mark.parametrize("durability", [(), DURABLE], ids=["core", "jetstream"])
@pytest.mark.parametrize("keys", [False, True], ids=["plain", "keys"])
async def test_the_sender_learns_that_the_work_id_of_its_opening_is_taken(
    tmp_path: Path, durability: tuple[str, ...], keys: bool
) -> None:
    """Another peer has opened a work of that id: the receiver ignores the opening, and the protocol has no receipt for it."""
    home, names = Home(tmp_path), ("worker", "ops", "late")
    if keys:
        for name in names:
            home.ctl_json("--name", name, "key", "generate")
    async with NatsServer(jetstream=True) as server:
        nats = ("--nats", server.url, *durability)
        with (
            Daemon(home, "worker", *nats) as worker,
            Daemon(home, "ops", *nats) as ops,
            Daemon(home, "late", *nats) as late,
        ):
            to = str(worker.get("/v1/status")["peer_id"])
            wait_for(lambda: ops.knows(to) and late.knows(to), 30, "presence")
            first = ops.post("/v1/works", to=to, text="first", work_id="work_taken", thread_id="thread_one")
            wait_for(lambda: delivery(ops, first["id"]) == "receipted", 20, "the work")
            second = late.post("/v1/works", to=to, text="second", work_id="work_taken", thread_id="thread_one")
            wait_for(lambda: delivery(late, second["id"]) == "refused", 20, "the refusal")
            assert "actor_not_allowed" in late.get(f"/v1/messages/{second['id']}")["delivery_detail"]
            assert late.state_of("work_taken") == "canceled"
            item = late.post("/v1/inbox/next", wait=5)["item"]
            assert (item["message"]["id"], item["message"]["direction"]) == (second["id"], "out")
            assert "refused" in item["last_error"]
            # the work of the others is as it was
            assert worker.state_of("work_taken") == ops.state_of("work_taken") == "submitted"
            assert worker.get("/v1/inbox")["counts"]["ready"] == 1


def test_an_unanswered_message_expires_and_the_agent_is_notified(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops", *QUICK) as ops:
        sent = ops.post("/v1/works", to="nobody", text="quickly", expires_in=1)
        wait_for(lambda: delivery(ops, sent["id"]) == "expired", 20, "the expiry")
        assert ops.state_of(sent["work_id"]) == "canceled"
        assert ops.post("/v1/inbox/next", wait=5)["item"]["message"]["id"] == sent["id"]


def test_a_work_that_is_not_accepted_in_time_is_canceled_on_both_sides(home: Home) -> None:
    with ops_and_worker(home) as (ops, worker):
        work_id = ops.post("/v1/works", to="worker", text="soon", accept_within=0.5)["work_id"]
        kept = ops.post("/v1/works", to="worker", text="whenever")["work_id"]
        wait_for(lambda: ops.state_of(work_id) == "canceled", 20, "the deadline")
        wait_for(lambda: worker.state_of(work_id) == "canceled", 20, "the deadline over there")
        assert "not accepted within 0.5 s" in str(ops.get(f"/v1/works/{work_id}")["history"][-1])
        assert ops.state_of(kept) == "submitted"


def report_for(seconds: float, worker: Daemon, work_id: str) -> float:
    """Traces without a pause for so long, and then it must still be `working`; the longest time between two looks at the clock.

    After a time without traces that may be the deadline it is given up.
    """
    started = before = time.monotonic()
    longest, state = 0.0, "working"
    while before - started < seconds and longest < 1.5:
        try:
            worker.post(f"/v1/works/{work_id}/update", message="on it")
            state = worker.state_of(work_id)
        except HttpError as error:
            state = error.answer["code"]
        now = time.monotonic()
        longest, before = max(longest, now - before), now
        assert state == "working" or longest >= 1.5, (state, now - started, longest)
    return longest


def test_traces_reset_the_progress_deadline(home: Home) -> None:
    with Daemon(home, "worker", "--work-progress-within", "2s") as worker, Daemon(home, "ops") as ops:
        wait_for(lambda: ops.knows("worker"), 30, "presence")
        for _ in range(10):  # a machine that stood still as long as the deadline has shown nothing
            work_id = ops.post("/v1/works", to="worker", text="step by step")["work_id"]
            wait_for(partial(worker.state_of, work_id), 30, "the work")
            if (longest := report_for(4, worker, work_id)) < 1.5:
                break
        assert longest < 1.5, "the machine never ran for 4 s without a stall"
        wait_for(lambda: worker.state_of(work_id) == "failed", 20, "the deadline without an answer")
        wait_for(lambda: ops.state_of(work_id) == "failed", 20, "the deadline over there")
        assert ops.get(f"/v1/works/{work_id}")["work"]["message"] == "no progress within 2 s"


def test_leases_run_out_and_dead_letters_can_be_requeued(home: Home) -> None:
    with ops_and_worker(home) as (ops, worker):
        ops.post("/v1/messages", kind="say", to="worker", thread_id="thread_one", body={"text": "take me"})
        held = worker.post("/v1/inbox/next", wait=20, visibility=600)["item"]
        assert worker.post("/v1/inbox/next")["item"] is None  # one message, one lease
        worker.post(f"/v1/inbox/{held['seq']}/nack", lease=held["lease"], delay=0)
        first = worker.post("/v1/inbox/next", visibility=1)["item"]  # never given back
        again = worker.post("/v1/inbox/next", wait=20, visibility=60)["item"]
        assert (again["seq"], again["attempts"]) == (first["seq"], 3) == (held["seq"], 3)
        returned = worker.post(f"/v1/inbox/{again['seq']}/nack", lease=again["lease"], delay=0, error="not mine")
        assert (returned["state"], returned["last_error"]) == ("ready", "not mine")
        while (item := worker.post("/v1/inbox/next", wait=5)["item"]) is not None:
            last = worker.post(f"/v1/inbox/{item['seq']}/nack", lease=item["lease"], delay=0)
        assert last["state"] == "dead"
        assert [row["seq"] for row in worker.get("/v1/inbox?state=dead")["items"]] == [first["seq"]]
        assert worker.post(f"/v1/inbox/{first['seq']}/requeue")["state"] == "ready"
        assert worker.post("/v1/inbox/next", wait=5, ack=True)["item"]["attempts"] == 1


def test_a_peer_that_was_away_gets_everything_in_order(home: Home) -> None:
    with ops_and_worker(home, *QUICK) as (ops, worker):
        ops.post("/v1/works", to="worker", text="first contact")
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the first work")
        worker.kill()
        ids = []
        for number in range(40):
            work_id = ops.post("/v1/works", to="worker", text=f"number {number}")["work_id"]
            ops.post(f"/v1/works/{work_id}/say", message="one thing more")
            ops.post(f"/v1/works/{work_id}/cancel")
            ids.append(work_id)
        retried = "outbox.retried"
        wait_for(lambda: ops.get("/v1/status")["counters"].get(retried), 30, "a try in vain")
        worker.start()
        wait_for(lambda: len(worker.get("/v1/works?state=canceled")["works"]) == 40, 30, "every end")
        for work_id in ids:
            events = [row["event"] for row in worker.get(f"/v1/works/{work_id}")["history"]]
            # A try more than needed of the opening is answered with a receipt, which the history keeps.
            assert [e for e in events if e != "receipt:duplicate"] == ["message", "message", "receipt:canceled"]
        said = worker.get("/v1/messages?kind=say&limit=200")["messages"]
        texts = [m["envelope"]["body"]["text"] for m in said if m["envelope"]["body"]["text"].startswith("number")]
        assert texts == [f"number {number}" for number in range(40)]
