"""The agent dies at every attempt at a work, whatever kind of worker it is: the initiator is told, and the operator sees it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.base.failpoints import VARIABLE
from tests.support.daemons import Daemon, Home, HttpError, wait_for
from tests.support.mcp_client import McpClient

ATTEMPTS = 5
PYTHON = """
import sys, time
from aghbus.client import Client, Endpoint, Job, Worker
endpoint = Endpoint(path=sys.argv[2])

def handle(job: Job) -> None:
    time.sleep(600)

if sys.argv[1] == "worker":
    worker = Worker(endpoint)
    worker.capability("test.run")(handle)
    worker.run()
else:
    for job in Client(endpoint).jobs("test.run"):
        handle(job)
"""
COMMANDS = {
    "serve": ("serve", "--capability", "test.run", "--on-restart", "rerun", "--", "sleep", "600"),
    "bridge": ("bridge", "sacp", "--on-restart", "rerun", "--", "sleep", "600"),
}


class Pair:
    """`ops`, who opens a work, and `worker`, whose agents die."""

    def __init__(self, home: Home, ops: Daemon, worker: Daemon) -> None:
        self.home, self.ops, self.worker = home, ops, worker

    def open(self) -> str:
        return str(self.ops.post("/v1/works", to="worker", text="do it")["work_id"])

    def item(self, state: str) -> dict[str, Any] | None:
        """The one inbox item of the worker in this state."""
        items = self.worker.get(f"/v1/inbox?state={state}")["items"]
        return items[0] if items else None

    def let_the_lease_expire(self) -> None:
        item = self.item("leased")
        assert item is not None
        self.worker.post(f"/v1/inbox/{item['seq']}/lease", lease=item["lease"], visibility=1)
        wait_for(lambda: self.item("leased") is None, 20, "the end of the lease")

    def last_step(self, work_id: str) -> dict[str, Any]:
        wait_for(lambda: self.ops.state_of(work_id) == "failed", 30, "the end at the initiator")
        step: dict[str, Any] = self.ops.get(f"/v1/works/{work_id}")["history"][-1]
        return step


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    home = Home(tmp_path)
    with Daemon(home, "ops") as ops, Daemon(home, "worker", "--capability", "test.run") as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        yield Pair(home, ops, worker)


@contextmanager
def process(pair: Pair, kind: str) -> Iterator[None]:
    """A worker of a kind, which is killed at the end, with what it runs."""
    words = ["-m", "aghbus.cli", "--name", "worker", *COMMANDS.get(kind, ())]
    if kind not in COMMANDS:
        words = ["-c", PYTHON, kind, str(pair.worker.socket_path)]
    running = subprocess.Popen(
        [sys.executable, *words],
        env=pair.home.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    )
    try:
        yield
    finally:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait(20)


@pytest.mark.parametrize("kind", ["worker", "jobs", "serve", "bridge"])
@pytest.mark.timeout(180)
def test_a_worker_that_dies_at_every_attempt_fails_the_work(pair: Pair, kind: str) -> None:
    work_id = pair.open()
    for attempt in range(1, ATTEMPTS + 1):
        with process(pair, kind):
            wait_for(lambda: (pair.item("leased") or {}).get("work_state") == "working", 40, f"attempt {attempt}")
        item = pair.item("leased")
        assert item is not None
        assert item["attempts"] == attempt
        pair.let_the_lease_expire()
    end = pair.last_step(work_id)
    assert (end["event"], end["message"]) == ("trace:failed", "given up after 5 attempts: the lease expired")
    with process(pair, kind):  # the next one takes what is there, and leaves the dead opening to the operator
        after = pair.open()
        wait_for(lambda: pair.ops.state_of(after) == "working", 40, "the next work")
        item = pair.item("dead")
        assert item is not None
        assert item["message"]["work_id"] == work_id


def test_a_reader_that_dies_at_every_attempt_rejects_the_work(pair: Pair) -> None:
    """`aghctl inbox next`, and sessions of agent hosts, which do not accept by themselves."""
    work_id = pair.open()
    session = McpClient(pair.worker.socket_path)
    wait_for(lambda: pair.item("ready"), 20, "the opening")
    for attempt in range(ATTEMPTS):
        if attempt % 2:
            assert pair.home.ctl_json("--name", "worker", "inbox", "next")["item"] is not None
        else:
            assert len(session.tool("inbox")["messages"]) == 1
        pair.let_the_lease_expire()
    end = pair.last_step(work_id)
    assert (end["event"], end["reason"]) == ("receipt:rejected", "busy")
    assert end["message"] == "given up after 5 attempts: the lease expired"


def test_a_daemon_killed_after_the_death_ends_the_work_at_its_next_start(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops") as ops, Daemon(home, "worker", env={VARIABLE: "inbox.dead"}) as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        pair = Pair(home, ops, worker)
        work_id = pair.open()
        wait_for(lambda: pair.item("ready"), 20, "the opening")
        for _ in range(ATTEMPTS):
            item = worker.post("/v1/inbox/next")["item"]
            try:
                worker.post(f"/v1/inbox/{item['seq']}/nack", lease=item["lease"], delay=0, error="no disk")
            except (OSError, HttpError):
                assert item["attempts"] == ATTEMPTS
        assert worker.process is not None
        assert worker.process.wait(20) == -signal.SIGKILL
        assert ops.state_of(work_id) == "submitted"
        del worker.env[VARIABLE]
        worker.start()
        assert pair.last_step(work_id)["message"] == "given up after 5 attempts: no disk"


def test_the_operator_is_told_and_what_helps(pair: Pair) -> None:
    work_id = pair.open()
    wait_for(lambda: pair.item("ready"), 20, "the opening")
    for _ in range(ATTEMPTS):
        item = pair.worker.post("/v1/inbox/next")["item"]
        pair.worker.post(f"/v1/inbox/{item['seq']}/nack", lease=item["lease"], delay=0, error="no disk")
    pair.last_step(work_id)
    said = pair.home.ctl("--name", "worker", "status").stdout.decode()
    assert "aghctl inbox list --state dead" in " ".join(said.split())
    doctor = pair.home.ctl_json("--name", "worker", "doctor")["checks"]
    assert [row["state"] for row in doctor if "inbox list --state dead" in row["detail"]] == ["warn"]
    listed = pair.home.ctl("--name", "worker", "inbox", "list", "--state", "dead").stdout.decode()
    assert "DEAD (no disk): say “do it”" in listed
    seq = str(item["seq"])
    again = pair.home.ctl("--name", "worker", "inbox", "requeue", seq)
    assert again.returncode == 4
    assert b"opened a work that is failed" in again.stderr
    assert pair.home.ctl("--name", "worker", "inbox", "ack", seq).returncode == 0
    assert "inbox list --state dead" not in str(pair.worker.get("/v1/status")["problems"])
