"""Faults around the outbox: lies about it, outages, a broker that stands still, requests repeated, a part that dies."""

import asyncio
import json
import sqlite3
from functools import partial
from pathlib import Path

import pytest
from nats.aio.msg import Msg

from aghbus.protocol.agh.identifiers import subject_for
from tests.support.daemons import Daemon, Home, HttpError, has_no_subscriber, wait_for
from tests.support.foreign import CHANNEL, WORKSPACE, Foreign, foreign_peer
from tests.support.natsutil import NatsServer, wait_until

QUICK = ("--retry-first", "100ms", "--retry-ceiling", "300ms")


def counter(daemon: Daemon, name: str) -> int:
    return int(daemon.get("/v1/status")["counters"].get(name, 0))


def ignored(daemon: Daemon, duplicates: int) -> bool:
    return counter(daemon, "ignored.duplicate") >= duplicates


async def replies_to(peer: Foreign) -> list[str]:
    """The reply subjects of what is directed at `peer`, as they come."""
    seen: list[str] = []

    async def hear(message: Msg) -> None:
        seen.append(message.reply)

    await peer.client.subscribe(subject_for(WORKSPACE, CHANNEL, peer.peer_id), cb=hear)
    await peer.client.flush()
    return seen


async def test_a_third_peer_cannot_refuse_a_message(tmp_path: Path) -> None:
    async with NatsServer() as server, foreign_peer(server.url, "mallory") as mallory:
        with Daemon(Home(tmp_path), "ops", "--nats", server.url, *QUICK) as ops:
            replies = await replies_to(mallory)
            work = ops.post("/v1/works", to="absent", text="not for mallory")
            ops.post("/v1/messages", kind="say", body={"text": "hi"}, to="mallory", thread_id="thread_one")
            await wait_until(lambda: replies, 20, "the reply subject of one of its messages")
            wait_for(lambda: has_no_subscriber(ops, work["id"]), 20, "a try of the opening")
            root = replies[0].rpartition(".")[0]
            lies = [json.dumps({"aghbus": "ack", "id": "msg_x", "outcome": said}) for said in ("refused", "committed")]
            tokens = (str(work["seq"]), "9" * 18, "9" * 30, "٣", "x")
            for token in tokens:
                for lie in lies:
                    await mallory.client.publish(f"{root}.{token}", lie.encode())
            await mallory.client.flush()
            wait_for(lambda: counter(ops, "acks.unknown") >= 4, 20, "the lies to be seen through")
            assert has_no_subscriber(ops, work["id"])
            assert ops.state_of(work["work_id"]) == "submitted"
            assert "Traceback" not in ops.log.read_text()


async def test_an_end_asked_for_twice_by_a_peer_that_acknowledges_nothing(tmp_path: Path) -> None:
    async with NatsServer() as server, foreign_peer(server.url, "flaky") as flaky:
        with Daemon(Home(tmp_path), "ops", "--nats", server.url, *QUICK) as ops:
            card = {"peer_id": "flaky", **{key: [] for key in ("profiles_supported", "capabilities")}}
            card |= {"artifacts_supported": [], "trust_modes_supported": []}
            await flaky.publish(flaky.envelope("greet", {"peer_card": card}, ext={"aghbus.instance": "f"}))
            opening = flaky.work("ops", "work_1")
            await flaky.publish(opening)
            wait_for(lambda: ops.get("/v1/works")["works"], 20, "the work")
            ops.post("/v1/messages", kind="say", body={"text": "first"}, to="flaky", thread_id="thread_one")
            ops.post("/v1/works/work_1/complete")
            wait_for(lambda: counter(ops, "outbox.retried") >= 2, 20, "a try in vain")
            raw, subject = json.dumps(opening).encode(), subject_for("ws_local", "default", "ops")
            for burst in range(1, 9):  # some of them while others wait for their turn
                for _ in range(5):
                    await flaky.client.publish(subject, raw)
                await flaky.client.flush()
                wait_for(partial(ignored, ops, 5 * burst), 20, "the duplicates")
            later = ops.post("/v1/works", to="other", text="it still publishes")
            wait_for(lambda: has_no_subscriber(ops, later["id"]), 20, "another message")
            assert ops.process is not None and ops.process.poll() is None


async def test_a_broker_that_was_paused_receives_the_unconfirmed_messages(tmp_path: Path, server: NatsServer) -> None:
    with Daemon(Home(tmp_path), "ops", "--nats", server.url) as ops:
        await server.pause()
        try:
            sent = ops.post("/v1/works", to="nobody", text="hello?")
            wait_for(lambda: counter(ops, "outbox.interrupted"), 25, "the PONG to be late")
        finally:
            server.resume()
        wait_for(lambda: has_no_subscriber(ops, sent["id"]), 30, "the broker to have had the message")
        assert counter(ops, "link.lost") == 0  # else the link's return would have done it


def test_an_outage_does_not_fill_the_memory(tmp_path: Path) -> None:
    ops = Daemon(Home(tmp_path), "ops", "--nats", "nats://127.0.0.1:1").start(wait=False)
    try:
        wait_for(ops.answers, 20, "the API")
        ops.post("/v1/messages", kind="say", body={"text": "warm"}, to="nobody", thread_id="thread_one")
        before = resident(ops)
        text = "x" * 900_000
        for _ in range(80):
            ops.post("/v1/messages", kind="say", body={"text": text}, to="nobody", thread_id="thread_one")
        assert resident(ops) - before < 40_000_000
        assert ops.get("/v1/status")["outbox"]["queued"] == 81
    finally:
        ops.stop()


def resident(daemon: Daemon) -> int:
    """Bytes of memory of the process."""
    assert daemon.process is not None
    return int(Path(f"/proc/{daemon.process.pid}/statm").read_text().split()[1]) * 4096


def test_a_daemon_with_a_failed_task_exits_and_reports_it(tmp_path: Path) -> None:
    daemon = Daemon(Home(tmp_path), "ops", *QUICK).start()
    try:
        daemon.post("/v1/works", to="nobody", text="tried again and again")
        wait_for(lambda: counter(daemon, "outbox.retried"), 20, "the first of many tries")
        db = sqlite3.connect(daemon.store_path, timeout=20)
        db.execute("ALTER TABLE outbox RENAME TO taken_away")
        db.close()
        assert daemon.process is not None
        assert daemon.process.wait(30) == 1  # what a supervisor starts anew
        assert "task=retry" in daemon.log.read_text() or "task=publisher" in daemon.log.read_text()
    finally:
        daemon.stop()


def test_the_same_id_for_another_work_is_not_a_repetition(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops") as ops:
        one, two = (ops.post("/v1/works", to="nobody", text="a work")["work_id"] for _ in range(2))
        say = {"kind": "say", "body": {"text": "more"}, "to": "nobody", "id": "req-1"}
        first = ops.post("/v1/messages", **say, work_id=one)
        assert ops.post("/v1/messages", **say, work_id=one)["seq"] == first["seq"]
        for path, ask in (
            ("/v1/messages", {**say, "work_id": two}),
            (f"/v1/works/{two}/say", {"message": "more", "id": "req-1"}),
        ):
            with pytest.raises(HttpError) as refused:
                ops.post(path, **ask)
            assert refused.value.answer["code"] == "conflict"


async def test_the_same_request_at_the_same_time_is_sent_once(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops") as ops:
        ask = {"to": "nobody", "text": "once", "id": "req-1"}
        answers = await asyncio.gather(*(asyncio.to_thread(ops.post, "/v1/works", **ask) for _ in range(12)))
        assert len({(answer["seq"], answer["work_id"]) for answer in answers}) == 1
        assert len(ops.get("/v1/works")["works"]) == 1


def test_waiting_for_one_work_costs_nothing_while_others_have_messages(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops", *QUICK, "--retry-limit", "1") as ops:
        sent = ops.post("/v1/works", to="nobody", text="comes back as given up")
        wait_for(lambda: ops.get("/v1/inbox")["items"], 20, "the notice in the inbox")
        before = ops.processor_seconds()
        assert ops.post("/v1/inbox/next", work_id="work_other", wait=4)["item"] is None
        assert ops.processor_seconds() - before < 1.0  # who looks again and again takes all four
        assert ops.post("/v1/inbox/next", work_id=sent["work_id"])["item"] is not None
