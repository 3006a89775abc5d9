"""Daemons that are killed, brokers that go away: what was acknowledged is there afterwards."""

import time
from functools import partial
from pathlib import Path

from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer


def test_killed_daemons_come_back_as_they_were(home: Home) -> None:
    worker, ops = Daemon(home, "worker").start(), Daemon(home, "ops").start()
    begun = int(time.time())
    try:
        work_id = ops.post("/v1/works", to="worker", text="survive")["work_id"]
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
        leased = worker.post("/v1/inbox/next", visibility=600)["item"]
        wait_for(lambda: int(time.time()) > begun, 30, "a second in which no store was new: its peers ask for works")
        worker.post(f"/v1/works/{work_id}/accept")
        wait_for(lambda: ops.state_of(work_id) == "working", 30, "the receipt")
        for daemon in (worker, ops):  # the receipt was published, which is recorded a moment later
            wait_for(partial(is_working, daemon, work_id), 30, "the publication to be recorded")
        before = {
            daemon.name: (daemon.get(f"/v1/works/{work_id}"), daemon.get("/v1/messages"), daemon.get("/v1/threads"))
            for daemon in (worker, ops)
        }
        inbox = worker.get("/v1/inbox")
        for daemon in (worker, ops):
            daemon.kill()
            daemon.start()
            detail, messages, threads = before[daemon.name]
            after = daemon.get(f"/v1/works/{work_id}")
            assert after.pop("why")["code"] == detail.pop("why")["code"]  # its sentence says how long ago things were
            assert after == detail
            assert daemon.get("/v1/threads") == threads
            after = daemon.get("/v1/messages")["messages"]
            assert [(m["seq"], m["envelope"]) for m in after] == [
                (m["seq"], m["envelope"]) for m in messages["messages"]
            ]
        assert worker.get("/v1/inbox")["items"] == inbox["items"]
        worker.post(f"/v1/inbox/{leased['seq']}/ack", lease=leased["lease"])
        worker.post(f"/v1/works/{work_id}/complete", result={"n": 1})
        wait_for(lambda: ops.state_of(work_id) == "completed", 20, "the end, after both were killed")
    finally:
        worker.stop()
        ops.stop()


async def test_a_seen_id_is_remembered_over_a_kill(tmp_path: Path) -> None:
    from tests.support.foreign import foreign_peer

    async with NatsServer() as server:
        worker = Daemon(Home(tmp_path), "worker", "--nats", server.url).start()
        async with foreign_peer(server.url, "asker") as asker:
            opening = asker.work("worker", "work_once")
            await asker.publish(opening)
            wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
            worker.kill()
            worker.start()
            await asker.publish(opening)
            await asker.expect(kind="receipt", status="duplicate")
            assert worker.get("/v1/inbox")["counts"]["ready"] == 1
        worker.stop()


async def test_a_greet_forgotten_by_a_kill_is_processed_again_without_harm(tmp_path: Path) -> None:
    from tests.support.foreign import foreign_peer

    def known(daemon: Daemon) -> list[str]:
        return [one["peer_id"] for one in daemon.get("/v1/peers")["peers"] if one["presence"] == "active"]

    async with NatsServer() as server:
        worker = Daemon(Home(tmp_path), "worker", "--nats", server.url).start()
        async with foreign_peer(server.url, "asker") as asker:
            lists = ("profiles_supported", "capabilities", "artifacts_supported", "trust_modes_supported")
            greet = asker.envelope("greet", {"peer_card": {"peer_id": "asker", **{name: [] for name in lists}}})
            await asker.publish(greet)
            wait_for(lambda: "asker" in known(worker), 30, "the peer to be known")
            worker.kill()
            worker.start()
            for _ in range(2):
                await asker.publish(greet)
            wait_for(lambda: known(worker) == ["asker"], 30, "the peer to be known again, once")
            wait_for(lambda: worker.get("/v1/status")["counters"].get("ignored.duplicate") == 1, 30, "the second copy")
            assert worker.get("/v1/status")["store"]["last_seq"] == 0
        worker.stop()


async def test_an_acknowledged_request_is_published_after_an_outage_and_a_kill(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url)
    with Daemon(home, "worker", *nats) as worker, Daemon(home, "ops", *nats) as ops:
        server.kill()
        wait_for(lambda: ops.get("/v1/status")["broker"]["state"] == "down", 30, "the loss to be noticed")
        assert any("broker" in line for line in ops.get("/v1/status")["problems"])
        sent = [ops.post("/v1/works", to="worker", text=f"number {n}") for n in range(20)]
        assert {answer["state"] for answer in sent} == {"queued"}
        assert ops.get("/v1/status")["outbox"]["queued"] == 20
        ops.kill()
        await server.restart()
        worker.wait_ready()
        ops.start()
        wait_for(lambda: len(worker.get("/v1/works")["works"]) == 20, 30, "all of them to arrive")
        texts = [m["envelope"]["body"]["text"] for m in worker.get("/v1/messages?kind=say")["messages"]]
        assert texts == [f"number {n}" for n in range(20)]
        assert [m["id"] for m in worker.get("/v1/messages?kind=say")["messages"]] == [answer["id"] for answer in sent]
        wait_for(lambda: ops.get("/v1/status")["outbox"]["queued"] == 0, 30, "the outbox to be empty")
        wait_for(lambda: worker.knows("ops") and ops.knows("worker"), 30, "greetings after the reconnection")


def test_the_embedded_broker_is_replaced_when_it_dies(home: Home) -> None:
    with Daemon(home, "worker") as worker, Daemon(home, "ops") as ops:
        first = ops.get("/v1/status")["broker"]
        kill_broker(home)
        work_id = ops.post("/v1/works", to="worker", text="anyway")["work_id"]
        wait_for(lambda: worker.get("/v1/works")["works"], 20, "the work over the new broker")
        worker.post(f"/v1/works/{work_id}/complete")
        wait_for(lambda: ops.state_of(work_id) == "completed", 20, "the end")
        assert ops.get("/v1/status")["broker"]["reconnects"] > first["reconnects"]


def kill_broker(home: Home) -> None:
    import json
    import os
    import signal

    record = json.loads((home.root / "state" / "aghbus" / "broker" / "broker.json").read_text())
    os.kill(record["pid"], signal.SIGKILL)


def test_a_second_daemon_on_the_same_store_is_refused(home: Home) -> None:
    with Daemon(home, "ops"):
        second = Daemon(home, "ops")
        second.start(wait=False)
        assert second.process is not None
        assert second.process.wait(60) == 1
        log = second.log.read_text()
        assert "in use" in log
        assert "hint" in log


def test_events_resume_over_a_restart_without_a_hole_or_a_repeat(home: Home) -> None:
    worker, ops = Daemon(home, "worker").start(), Daemon(home, "ops").start()
    try:
        for number in range(5):
            ops.post("/v1/works", to="worker", text=f"before {number}")
        wait_for(lambda: len(worker.get("/v1/works")["works"]) == 5, 30, "five works")
        stream = worker.events("?since=0&kind=say")
        seen = [next(stream) for _ in range(3)]
        stream.close()
        worker.kill()
        worker.start()
        for number in range(5):
            ops.post("/v1/works", to="worker", text=f"after {number}")
        stream = worker.events(f"?since={seen[-1]['seq']}&kind=say")
        seen += [next(stream) for _ in range(7)]
        stream.close()
        texts = [event["message"]["envelope"]["body"]["text"] for event in seen]
        assert texts == [f"before {n}" for n in range(5)] + [f"after {n}" for n in range(5)]
    finally:
        worker.stop()
        ops.stop()


def is_working(daemon: Daemon, work_id: str) -> bool:
    return bool(daemon.get(f"/v1/works/{work_id}")["why"]["code"] == "working")
