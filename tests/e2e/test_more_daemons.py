"""Catalogs, observers, overload, reload: what a daemon does beyond the plain exchange of work."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from aghbus.protocol.agh.capability_digest import capability_digest
from tests.support.daemons import Daemon, Home, HttpError, ops_and_worker, wait_for
from tests.support.foreign import foreign_peer
from tests.support.natsutil import NatsServer

RECORD = {
    "id": "fix-tests",
    "summary": "Repair failing tests.",
    "outcome": "A patch.",
    "version": "1.2.0",
    "requirements": ["read-logs"],
}
OTHER = {"id": "read-logs", "summary": "Read logs.", "outcome": "A summary."}


def catalog(home: Home, *records: Mapping[str, object]) -> Path:
    path = home.root / "catalog.json"
    path.write_text(json.dumps(list(records)))
    return path


def test_a_catalog_is_advertised_reloaded_and_sent(home: Home) -> None:
    path = catalog(home, RECORD, OTHER)
    with (
        Daemon(home, "worker", "--catalog", str(path), "--capability", "bare.claim") as worker,
        Daemon(home, "ops") as ops,
    ):
        wait_for(lambda: ops.knows("worker"), 30, "presence")
        answer = ops.post("/v1/whois", query="fix-tests", catalog=True, wait=20)  # it ends with the last answer
        (found,) = answer["peers"]
        assert answer["ended"] == "complete"
        assert found["card"]["capabilities"] == ["fix-tests", "read-logs", "bare.claim"]
        brief = [entry["id"] for entry in found["card"]["ext"]["agh.capabilities_brief"]]
        assert brief == found["card"]["capabilities"]
        digests = {record["id"]: record["digest"] for record in found["capabilities"]}
        bare = {"id": "bare.claim", "summary": "bare.claim", "outcome": "not described"}
        assert digests == {record["id"]: capability_digest(record) for record in (RECORD, OTHER, bare)}
        ask = {"query": "fix-tests", "catalog": True, "capability_ids": ["read-logs", "nope"], "wait": 20}
        (only,) = ops.post("/v1/whois", **ask)["peers"]
        assert [record["id"] for record in only["capabilities"]] == ["read-logs"]
        assert ops.post("/v1/whois", query="fix-tests", wait=20)["peers"][0]["capabilities"] is None

        worker.post("/v1/works", to="ops", capability_id="fix-tests")
        wait_for(lambda: ops.get("/v1/works")["works"], 30, "the capability as work")
        (message,) = ops.get("/v1/messages?kind=capability")["messages"]
        assert message["envelope"]["body"]["capability"]["digest"] == capability_digest(RECORD)

        catalog(home, OTHER)
        wait_for(
            lambda: [c["id"] for c in worker.get("/v1/capabilities")["capabilities"]] == ["read-logs", "bare.claim"],
            20,
            "the changed catalog",
        )
        wait_for(lambda: not ops.post("/v1/whois", query="fix-tests", wait=0.3)["peers"], 30, "the card without it")
        path.write_text('[{"id": "broken"}]')
        wait_for(lambda: worker.get("/v1/capabilities")["problems"], 20, "the problem to be reported")
        assert [c["id"] for c in worker.get("/v1/capabilities")["capabilities"]] == ["read-logs", "bare.claim"]


async def test_an_observer_sees_works_of_others_but_no_rooms(home: Home, server: NatsServer) -> None:
    nats = ("--nats", server.url)
    with (
        Daemon(home, "worker", *nats) as worker,
        Daemon(home, "ops", *nats) as ops,
        Daemon(home, "watcher", "--observe", *nats) as watcher,
    ):
        wait_for(lambda: ops.knows("worker", "watcher"), 30, "presence")
        ops.post("/v1/works", to="worker", text="in private", direct=True)
        work_id = ops.post("/v1/works", to="worker", text="in public")["work_id"]
        wait_for(lambda: len(worker.get("/v1/works")["works"]) == 2, 30, "both works")
        worker.post(f"/v1/works/{work_id}/complete", result={"n": 1})
        wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end")
        wait_for(lambda: watcher.get("/v1/works")["works"], 30, "the observed work")
        wait_for(lambda: watcher.state_of(work_id) == "completed", 30, "the observed end")
        (seen,) = watcher.get("/v1/works")["works"]
        assert (seen["work_id"], seen["role"]) == (work_id, "observer")
        assert {m["direction"] for m in watcher.get("/v1/messages")["messages"]} == {"observed"}
        assert "in private" not in json.dumps(watcher.get("/v1/messages"))
        assert watcher.get("/v1/directs")["directs"] == []
        assert watcher.get("/v1/inbox")["counts"]["ready"] == 0
        assert watcher.get("/v1/status")["counters"]["ignored.private_room"] >= 1
        with pytest.raises(HttpError) as refused:
            watcher.post(f"/v1/works/{work_id}/cancel")
        assert refused.value.answer["code"] == "actor_not_allowed"


async def test_a_full_inbox_rejects_and_accepts_the_retry(tmp_path: Path, server: NatsServer) -> None:
    with Daemon(Home(tmp_path), "worker", "--nats", server.url, "--inbox-capacity", "8") as worker:  # two a sender
        async with foreign_peer(server.url, "asker") as asker:
            works = [asker.work("worker", f"work_{n}") for n in range(3)]
            for work in works:
                await asker.publish(work)
            wait_for(lambda: worker.get("/v1/status")["counters"].get("overload.inbox"), 30, "the overload")
            assert [work["work_id"] for work in worker.get("/v1/works")["works"]] == ["work_1", "work_0"]
            problems = worker.get("/v1/status")["problems"]
            assert any(
                "messages of one sender" in line and "as they call themselves: asker)" in line for line in problems
            )
            assert not [message for message in asker.received if message["kind"] == "receipt"]
            worker.post("/v1/inbox/next", ack=True)
            await asker.publish(works[2])
            wait_for(lambda: len(worker.get("/v1/works")["works"]) == 3, 30, "the retry to be taken")


def test_sighup_reloads_the_reloadable_keys(home: Home) -> None:
    config = home.root / "config" / "aghbus"
    config.mkdir(parents=True)
    (config / "aghbus.toml").write_text('display_name = "Before"\n')
    with ops_and_worker(home) as (ops, worker):
        assert ops.post("/v1/whois", query="Before", first=True, wait=20)["peers"]
        (config / "aghbus.toml").write_text('display_name = "After"\nworkspace = "ws_other"\n')
        assert worker.process is not None
        worker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: ops.post("/v1/whois", query="After", first=True, wait=0.5)["peers"], 20, "the new name")
        assert worker.get("/v1/status")["workspace_id"] == "ws_local"
        assert "workspace" in worker.log.read_text()
        (config / "aghbus.toml").write_text("display_name = 7\n")
        worker.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "not reloaded" in worker.log.read_text(), 30, "the refusal in the log")
        assert ops.post("/v1/whois", query="After", first=True, wait=20)["peers"]
        (config / "aghbus.toml").write_text('display_name = "After"\n')


def test_the_same_request_twice_is_sent_once(home: Home) -> None:
    with ops_and_worker(home) as (ops, worker):
        ask = {"to": "worker", "text": "once", "id": "req-1"}
        first, second = (ops.post("/v1/works", **ask) for _ in range(2))
        assert (first["seq"], first["work_id"]) == (second["seq"], second["work_id"])
        with pytest.raises(HttpError) as conflict:
            ops.post("/v1/works", **{**ask, "text": "other"})
        assert conflict.value.answer["code"] == "conflict"
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
        assert len(worker.get("/v1/messages")["messages"]) == 1


def test_three_daemons_pass_work_along(home: Home) -> None:
    with Daemon(home, "ops") as ops, Daemon(home, "lead") as lead, Daemon(home, "worker") as worker:
        wait_for(lambda: ops.knows("lead") and lead.knows("worker"), 30, "presence")
        outer = ops.post("/v1/works", to="lead", text="the whole thing")["work_id"]
        wait_for(lambda: lead.get("/v1/works")["works"], 30, "the work at the lead")
        inner = lead.post("/v1/works", to="worker", text="a part of it", trace_id=outer)["work_id"]
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the part at the worker")
        worker.post(f"/v1/works/{inner}/complete", result={"part": 1})
        wait_for(lambda: lead.state_of(inner) == "completed", 30, "the part to be done")
        lead.post(f"/v1/works/{outer}/complete", result={"parts": [1]})
        wait_for(lambda: ops.state_of(outer) == "completed", 30, "the whole to be done")
        (trace,) = lead.get(f"/v1/messages?work={inner}&kind=trace")["messages"]
        assert trace["envelope"]["trace_id"] == outer  # carried over from the opening
        assert {work["work_id"] for work in ops.get("/v1/works")["works"]} == {outer}
        assert {work["work_id"] for work in worker.get("/v1/works")["works"]} == {inner}


async def test_a_thread_is_public_and_a_broadcast_reaches_everybody(home: Home) -> None:
    with Daemon(home, "ops") as ops, Daemon(home, "one") as one, Daemon(home, "two") as two:
        wait_for(lambda: ops.knows("one", "two"), 30, "presence")
        ops.post("/v1/messages", kind="say", body={"text": "hello all"}, thread_id="thread_all")
        for daemon in (one, two):
            item = daemon.post("/v1/inbox/next", wait=25, ack=True)["item"]
            assert item["message"]["envelope"]["body"]["text"] == "hello all"
            assert item["message"]["envelope"]["to"] is None
