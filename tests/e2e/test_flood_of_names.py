"""A flood under names that are used once each, from another process: what an honest peer gets, and what the flood leaves behind."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import NO_RETRY, Daemon, Home, delivery, ops_and_worker, wait_for
from tests.support.natsutil import NatsServer

pytestmark = pytest.mark.timeout(300)  # longer than the waits of a test together

ROOT = Path(__file__).parents[2]
WORKS = 10
BOUNDS = ("--limits-processor-percent", "10", "--receive-remembered", "20000", "--inbox-capacity", "1000")


@contextmanager
def flood(url: str, *forged: str) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "tests.support.flooder", url, *forged], cwd=ROOT)
    try:
        yield
        assert process.poll() is None  # it lasted
    finally:
        process.kill()
        process.wait()


def counters(daemon: Daemon) -> dict[str, int]:
    return dict(daemon.get("/v1/status")["counters"])


def outgoing(daemon: Daemon) -> set[str]:
    return {one["to"] for one in daemon.get("/v1/messages?direction=out")["messages"]}


async def test_known_peer_is_served_during_flood_without_retry_rows(home: Home, server: NatsServer) -> None:
    with ops_and_worker(home, "--nats", server.url, *BOUNDS) as (ops, worker):
        worker.post("/v1/messages", kind="say", to="ops", body={"text": "hello"}, thread_id="thread_hello")
        with flood(server.url):
            wait_for(lambda: counters(worker).get("overload.processing", 0) > 1000, 60, "the flood to be rejected")
            opened = {ops.post("/v1/works", to="worker", text="please")["work_id"] for _ in range(WORKS)}
            wait_for(lambda: opened <= received(worker), 60, "the works of the known peer")
            status: dict[str, Any] = worker.get("/v1/status")
            assert any(
                "limits.processor_percent is used up" in one and " of others, " in one for one in status["problems"]
            )
            doctor = home.ctl("--name", "worker", "doctor").stdout.decode()
            assert "limits.processor_percent" in doctor
        assert outgoing(worker) == {"ops"}
        assert status["quarantined"] <= 10_000
        assert counters(worker)["receipts.unstored"] > 0


async def test_a_contact_is_heard_while_its_name_is_forged(home: Home, server: NatsServer) -> None:
    """Each message gets through with its first try, though the broker carries thousands of forgeries in its sender's name."""
    ops_id, worker_id = (home.ctl_json("--name", name, "key", "generate")["handle"] for name in ("ops", "worker"))
    flags = ("--nats", server.url, "--limits-processor-percent", "10", *NO_RETRY)
    with Daemon(home, "worker", *flags) as worker, Daemon(home, "ops", *flags) as ops:
        wait_for(lambda: ops.knows(worker_id) and worker.knows(ops_id), 30, "presence")
        worker.post("/v1/messages", kind="say", to=ops_id, body={"text": "hello"}, thread_id="thread_hello")
        first = say(ops, worker_id, "thread_first")
        wait_for(lambda: delivery(ops, first) == "receipted", 30, "the first message")
        forged = ops.get(f"/v1/messages/{first}")["envelope"]
        with flood(server.url, json.dumps({**forged, "body": {"text": "forged"}})):
            wait_for(lambda: counters(worker).get("overload.signatures", 0) > 1000, 60, "the flood to be rejected")
            sent = [say(ops, worker_id, f"thread_of_{number}") for number in range(WORKS)]
            wait_for(lambda: {delivery(ops, one) for one in sent} == {"receipted"}, 30, "the messages of the contact")
        assert counters(worker).get("overload.signatures", 0) > 1000


def say(sender: Daemon, to: str, thread: str) -> str:
    return str(sender.post("/v1/messages", kind="say", to=to, body={"text": "please"}, thread_id=thread)["id"])


def received(worker: Daemon) -> set[str]:
    return {one["work_id"] for one in worker.get("/v1/works?peer=ops")["works"]}
