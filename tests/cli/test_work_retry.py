"""`aghctl work retry`: the same work again, and what it refuses."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, wait_for

Bus = tuple[Home, Daemon, Daemon]
CATALOG = """
[[capabilities]]
id = "test.run"
summary = "Runs a test"
outcome = "A report"
"""


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    home = Home(tmp_path_factory.mktemp("retry"))
    (home.root / "catalog.toml").write_text(CATALOG)
    catalog = ("--catalog", str(home.root / "catalog.toml"))
    with Daemon(home, "worker") as worker, Daemon(home, "other"), Daemon(home, "ops", *catalog) as ops:
        wait_for(lambda: ops.knows("worker", "other") and worker.knows("ops"), 30, "presence")
        yield home, ops, worker


def ended(bus: Bus, verb: str = "fail", **fields: Any) -> str:
    """A work of `ops` that has ended."""
    _, ops, worker = bus
    work_id: str = ops.post("/v1/works", to="worker", **fields)["work_id"]
    wait_for(lambda: worker.state_of(work_id), 30, "the work")
    worker.post(f"/v1/works/{work_id}/{verb}", message="first try")
    wait_for(lambda: ops.state_of(work_id) in ("failed", "completed", "canceled"), 30, "the end")
    return work_id


def opening(daemon: Daemon, work_id: str) -> dict[str, Any]:
    work = daemon.get(f"/v1/works/{work_id}")["work"]
    found: dict[str, Any] = daemon.get(f"/v1/messages/{work['opening_id']}")
    return found


@pytest.mark.parametrize("verb", ["fail", "complete", "cancel", "reject"])
def test_the_same_work_is_opened_again_and_names_the_old_one(bus: Bus, verb: str) -> None:
    home, ops, worker = bus
    body = {"text": "run it", "intent": "test.run", "artifacts": [{"uri": "https://example.org/x"}, 7]}
    old = ended(bus, verb, **body)
    new = home.ctl_json("--name", "ops", "work", "retry", old)["work_id"]
    assert new != old
    wait_for(lambda: worker.state_of(new), 30, "the new work")
    first, second = opening(ops, old), opening(worker, new)
    assert second["envelope"]["body"] == body
    assert second["thread_id"] != first["thread_id"]
    end = ops.get(f"/v1/works/{old}")["history"][-1]["id"]
    assert second["envelope"]["causation_id"] == end
    assert ops.get(f"/v1/works/{new}")["history"][0]["causation_id"] == end
    for name in ("ops", "worker"):
        shown = home.ctl("--name", name, "work", "show", new).stdout.decode()
        assert f"caused by  {old}\n" in shown


def test_a_room_an_intent_of_none_and_a_capability_stay_what_they_were(bus: Bus) -> None:
    home, ops, _ = bus
    old = ended(bus, text="quick", direct=True, intent=None)
    new = home.ctl_json("--name", "ops", "work", "retry", old)["work_id"]
    assert opening(ops, new)["direct_id"] == opening(ops, old)["direct_id"]
    assert opening(ops, new)["envelope"]["body"] == {"text": "quick"}
    old = ended(bus, capability_id="test.run")
    new = home.ctl_json("--name", "ops", "work", "retry", old)["work_id"]
    assert opening(ops, new)["envelope"]["body"] == opening(ops, old)["envelope"]["body"]


def test_another_peer_can_be_asked(bus: Bus) -> None:
    home, ops, _ = bus
    old = ended(bus, text="for anybody")
    new = home.ctl_json("--name", "ops", "work", "retry", old, "--to", "other")["work_id"]
    assert ops.get(f"/v1/works/{new}")["work"]["target"] == "other"


def test_a_retry_waits_for_its_end(bus: Bus) -> None:
    home, ops, worker = bus
    old = ended(bus, text="wait for me")
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "work", "retry", old, "--wait", "30s", "-o", "json"]
    with subprocess.Popen(command, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:

        def waiting() -> list[dict[str, Any]]:
            works = worker.get("/v1/works?text=wait+for+me&state=submitted")["works"]
            return [work for work in works if work["work_id"] != old]

        wait_for(waiting, 30, "the new work")
        new = waiting()[0]["work_id"]
        worker.post(f"/v1/works/{new}/complete", result={"n": 2})
        out, _ = process.communicate(timeout=30)
    answer = json.loads(out)
    assert (process.returncode, answer["work_id"], answer["result"]) == (0, new, {"n": 2})
    assert [item for item in ops.get("/v1/inbox")["items"] if item["message"]["work_id"] == new] == []


def test_only_ended_works_of_ours_are_tried_again(bus: Bus) -> None:
    home, ops, worker = bus
    running = ops.post("/v1/works", to="worker", text="not yet")["work_id"]
    refused = home.ctl("--name", "ops", "work", "retry", running, "-o", "json")
    error = json.loads(refused.stderr)
    assert (refused.returncode, error["code"], "submitted" in error["message"]) == (1, "not_ended", True)
    assert f"aghctl --name ops work cancel {running}" in error["hint"]
    theirs = ended(bus, text="of ops")
    assert worker.state_of(theirs) == "failed"
    refused = home.ctl("--name", "worker", "work", "retry", theirs, "-o", "json")
    assert (refused.returncode, json.loads(refused.stderr)["code"]) == (1, "not_ours")
    unknown = home.ctl("--name", "ops", "work", "retry", "work_nowhere", "-o", "json")
    assert (unknown.returncode, json.loads(unknown.stderr)["code"]) == (4, "not_found")


def test_the_same_retry_under_an_id_is_sent_once(bus: Bus) -> None:
    home, _, _ = bus
    old = ended(bus, text="once")
    again = ["--name", "ops", "work", "retry", old, "--id", "msg_retry_once"]
    first, second = home.ctl_json(*again), home.ctl_json(*again)
    assert (first["seq"], first["work_id"]) == (second["seq"], second["work_id"])
