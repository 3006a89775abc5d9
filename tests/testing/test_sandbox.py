"""Sandboxes and their peers, with and without pytest's fixture."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from aghbus.client import AsyncJob, ClientError, Job, Unexpected, UsageError, Worker
from aghbus.testing import Sandbox
from tests.support.daemons import wait_for
from tests.support.leftovers import processes_with

CAPABILITIES = {"worker": ["test.run"]}


def echo() -> Worker:
    """A worker that returns the text of each work."""
    worker = Worker()

    @worker.capability("test.run")
    def run_tests(job: Job) -> dict[str, object]:
        return {"text": job.text}

    return worker


def test_without_a_folder_nothing_remains() -> None:
    with Sandbox() as sandbox:
        ops, _ = sandbox.peers("ops", "worker", capabilities=CAPABILITIES)
        root = Path(ops.log).parent
        assert [peer.peer_id for peer in ops.client().whois("test.run", first=True, wait=20).peers] == ["worker"]
        assert processes_with(str(root))
    assert not root.exists()
    assert processes_with(str(root)) == []


def test_state_and_logs_remain_in_a_given_folder_whose_path_may_be_long(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30) / "sandbox"
    with Sandbox(folder) as sandbox:
        (ops,) = sandbox.peers("ops", options=["-v"])
        assert ops.client().status().ready
        sockets = Path(ops.endpoint.path).parent
    assert not sockets.exists()
    assert Path(ops.log).read_text() and Path(ops.log).is_relative_to(folder)
    assert [*folder.glob("state/aghbus/instances/ops/store.db")]


def test_the_users_configuration_has_no_effect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "aghbus").mkdir()
    (tmp_path / "aghbus" / "aghbus.toml").write_text('workspace = "of_the_user"\n')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("AGHD_PEER_ID", "of-the-user")
    monkeypatch.setenv("NATS_URL", "nats://127.0.0.1:1")
    with Sandbox() as sandbox:
        (ops,) = sandbox.peers("ops")
        status = ops.client().status()
    assert (status.peer_id, status.workspace_id, status.broker.embedded) == ("ops", "ws_local", True)


def test_later_peers_meet_the_earlier_ones(aghbus_sandbox: Sandbox) -> None:
    (ops,) = aghbus_sandbox.peers("ops")
    worker, third = aghbus_sandbox.peers("worker", "third", capabilities=CAPABILITIES, options=["--channel", "default"])
    for peer in (ops, worker, third):
        assert {one.peer_id for one in peer.client().peers().peers} == {"ops", "third", "worker"}
    assert [one.id for one in worker.client().capabilities().capabilities] == ["test.run"]
    assert third.client().capabilities().capabilities == []


def test_peers_that_cannot_meet_are_started_all_the_same(aghbus_sandbox: Sandbox) -> None:
    (ops,) = aghbus_sandbox.peers("ops")
    (other,) = aghbus_sandbox.peers("other", options=["--workspace", "elsewhere"])
    assert ops.client().status().ready and other.client().status().ready


@pytest.mark.parametrize(
    ("names", "capabilities", "message"),
    [
        (("ops", "ops"), {}, "names: ops is there already"),
        (("first",), {}, "names: first is there already"),
        (("ops",), {"worker": ["test.run"]}, "capabilities: worker is not one of the peers ops"),
        (("Not a name",), {}, "name: must be 1 to 128 characters"),
    ],
)
def test_wrong_names_are_refused(
    aghbus_sandbox: Sandbox, names: tuple[str, ...], capabilities: dict[str, list[str]], message: str
) -> None:
    aghbus_sandbox.peers("first")
    with pytest.raises(UsageError, match=message):
        aghbus_sandbox.peers(*names, capabilities=capabilities)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--no-such-option"], "the daemon ops did not start: .*--no-such-option"),
        (["--inbox-capacity", "none"], "the daemon ops did not start: .*inbox.capacity"),
        (["--nats", "nats://127.0.0.1:1"], "the broker cannot be used: .*127.0.0.1:1"),
    ],
)
def test_a_daemon_that_does_not_start_is_an_error_with_its_reason(
    aghbus_sandbox: Sandbox, options: list[str], message: str
) -> None:
    with pytest.raises(Unexpected, match=message) as caught:
        aghbus_sandbox.peers("ops", options=options)
    assert "ops.log" in caught.value.hint


def test_programs_find_the_daemon_by_its_variables(aghbus_sandbox: Sandbox) -> None:
    ops, worker = aghbus_sandbox.peers("ops", "worker", capabilities=CAPABILITIES)
    program = "from aghbus.client import Client; print(Client.from_env().status().peer_id)"
    for peer in (ops, worker):
        done = subprocess.run(
            [sys.executable, "-c", program], env={**os.environ, **peer.env}, check=True, capture_output=True, text=True
        )
        assert done.stdout == f"{peer.name}\n"


def test_a_daemon_that_was_stopped_keeps_its_messages(aghbus_sandbox: Sandbox) -> None:
    ops, worker = aghbus_sandbox.peers("ops", "worker", capabilities=CAPABILITIES)
    worker.stop()
    with pytest.raises(ClientError):
        worker.client(timeout=0.1).status()
    opened = ops.client().start("worker", "first", intent="test.run")
    worker.start()
    worker.serve(echo())
    assert opened.result(timeout=30).result == {"text": "first"}
    assert len(worker.client().messages(work_id=opened.id, kinds=frozenset({"say"})).messages) == 1


def test_a_worker_that_cannot_serve_raises(aghbus_sandbox: Sandbox) -> None:
    (ops,) = aghbus_sandbox.peers("ops")
    with pytest.raises(UsageError, match=r"does not announce the capability test\.run"):
        ops.serve(echo())
    with pytest.raises(UsageError, match="no handler"):
        ops.serve(Worker())


def test_a_worker_serves_one_sandbox_after_the_other() -> None:
    worker = echo()
    for text in ("one", "two"):
        with Sandbox() as sandbox:
            ops, target = sandbox.peers("ops", "worker", capabilities=CAPABILITIES)
            target.serve(worker)
            assert ops.client().run("worker", text, timeout=30).result == {"text": text}


async def test_in_a_running_event_loop_workers_are_served_by_a_thread_or_a_task(aghbus_sandbox: Sandbox) -> None:
    capabilities = {"worker": ["test.run"], "other": ["test.run"]}
    ops, target, other = aghbus_sandbox.peers("ops", "worker", "other", capabilities=capabilities)
    target.serve(echo())
    worker, ready = echo(), asyncio.Event()
    task = asyncio.create_task(worker.serve(other.endpoint, on_ready=ready.set))
    await asyncio.wait_for(ready.wait(), 30)
    client = ops.async_client()
    works = await asyncio.gather(*(client.run(name, name, timeout=30) for name in ("worker", "other")))
    assert [work.result for work in works] == [{"text": "worker"}, {"text": "other"}]
    worker.stop()
    await asyncio.wait_for(task, 30)


def test_the_end_of_a_sandbox_cancels_jobs_that_run(tmp_path: Path) -> None:
    worker, taken, cancelled = Worker(), threading.Event(), threading.Event()

    @worker.capability("test.run")
    async def run_tests(job: AsyncJob) -> None:
        taken.set()
        try:
            await asyncio.sleep(600)
        finally:
            cancelled.set()

    with Sandbox(tmp_path) as sandbox:
        ops, target = sandbox.peers("ops", "worker", capabilities=CAPABILITIES)
        target.serve(worker)
        ops.client().start("worker", "for long", intent="test.run")
        assert taken.wait(30)
        began = time.monotonic()
    assert cancelled.is_set()
    assert time.monotonic() - began < 25  # not the 30 seconds of a drain


def test_a_worker_ends_though_its_daemon_is_away(tmp_path: Path) -> None:
    worker, taken = Worker(), threading.Event()

    @worker.capability("test.run")
    def run_tests(job: Job) -> None:
        taken.set()
        wait_for(lambda: job.canceled, 60, "the end of the worker")

    with Sandbox(tmp_path) as sandbox:
        ops, target = sandbox.peers("ops", "worker", capabilities=CAPABILITIES)
        target.serve(worker)
        ops.client().start("worker", "for long", intent="test.run")
        assert taken.wait(30)
        target.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "aghbus-worker"]
