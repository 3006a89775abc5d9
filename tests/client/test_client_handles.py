"""Works that were given: the handle, its result in time, its events, and waiting for who can do it."""

import asyncio
import inspect
import pydoc
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.client import (
    AsyncClient,
    Client,
    Conflict,
    Endpoint,
    Job,
    UsageError,
    WorkClosed,
    Worker,
    WorkHandle,
    WorkTimeout,
)
from tests.support.client_pair import Pair, Running
from tests.support.daemons import Daemon, Home, wait_for


@pytest.fixture
def working(pair: Pair) -> Iterator[threading.Event]:
    """A worker whose job reports progress, asks, and ends when the event is set."""
    worker, ends = Worker(Endpoint(path=str(pair.worker.socket_path)), concurrency=4), threading.Event()

    @worker.capability("test.run")
    def run_tests(job: Job) -> dict[str, Any]:
        job.update("half")
        if job.text == "ask":
            return {"answer": job.ask("Which branch?")}
        wait_for(lambda: ends.is_set() or job.canceled, 60, "the end")
        return {"passed": True}

    running = Running(worker.run)
    try:
        yield ends
    finally:
        ends.set()
        worker.stop()
        running.result()


def test_a_started_work_is_followed_by_its_handle(pair: Pair, working: threading.Event) -> None:
    told: list[str] = []
    work = pair.asking.start("worker", "x", on_progress=told.append)
    with pytest.raises(WorkTimeout) as caught:
        work.result(timeout=0.2)
    assert caught.value.work_id == work.id
    assert work.id in str(caught.value) and "cancels it" in caught.value.hint
    working.set()
    assert (work.result(timeout=60).result, told) == ({"passed": True}, ["half"])
    assert work.result(timeout=60).state == "completed"
    states = [event.work.after for event in work if event.work is not None]
    assert (states[0], states[-1]) == ("working", "completed")
    with pytest.raises(WorkClosed):
        work.cancel()


def test_a_work_is_canceled_by_its_handle(pair: Pair, working: threading.Event) -> None:
    work = pair.asking.start("worker", "x")
    work.cancel("not needed")
    assert work.result(timeout=60).state == "canceled"


def test_an_id_opens_one_work_however_often_it_is_given(pair: Pair) -> None:
    first, again = (pair.asking.start("worker", "x", id="msg_mine") for _ in range(2))
    assert again.id == first.id
    with pytest.raises(Conflict):
        pair.asking.start("worker", "y", id="msg_mine")


async def test_an_asynchronous_handle_does_the_same(pair: Pair, working: threading.Event) -> None:
    client = AsyncClient(Endpoint(path=str(pair.ops.socket_path)))
    work = await client.start("worker", "ask", on_question=lambda question: f"answer to {question}")
    assert (await work.result(timeout=60)).result == {"answer": "answer to Which branch?"}
    assert [event.work.after async for event in work if event.work is not None][-1] == "completed"
    task = asyncio.create_task(client.run("worker", "x"))
    await asyncio.to_thread(
        wait_for, lambda: any(one.state == "leased" for one in pair.working.inbox().items), 30, "it"
    )
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert "continues" in caught.value.__notes__[0]


def test_a_capability_is_waited_for_and_asked_for(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops") as ops:
        client = Client(Endpoint(path=str(ops.socket_path)), timeout=60)
        found = Running(lambda: client.whois("sum.up", wait=60, first=True))
        opened = Running(lambda: client.start(to_capability="sum.up", text="1 2"))
        with pytest.raises(TimeoutError):
            client.wait_capability("other", timeout=0.2)
        with Daemon(home, "worker", "--capability", "sum.up") as worker:
            assert [peer.peer_id for peer in found.result().peers] == ["worker"]
            handle: WorkHandle = opened.result()
            working = Client(Endpoint(path=str(worker.socket_path)))
            job = next(working.jobs("sum.up"))
            assert (job.work_id, job.body["intent"]) == (handle.id, "sum.up")
            assert client.wait_peer("worker", timeout=60).peer_id == "worker"
            client.wait_ready(timeout=60)
    with pytest.raises(UsageError, match="either `to` or `to_capability`"):
        client.start(text="x")
    with pytest.raises(UsageError, match="leave out `intent`"):
        client.start(to_capability="sum.up", text="x", intent="other")


def test_a_capability_is_waited_for_on_the_channel_of_the_work(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops", "--channel", "default", "--channel", "builds") as ops:
        client = Client(Endpoint(path=str(ops.socket_path)), timeout=40)
        opened = Running(lambda: client.start(to_capability="sum.up", text="1 2", channel="builds"))
        with Daemon(home, "worker", "--channel", "builds", "--capability", "sum.up"):
            assert ops.get(f"/v1/works/{opened.result().id}")["work"]["channel"] == "builds"


def test_inputs_are_mapped_to_works(pair: Pair) -> None:
    worker = Worker(Endpoint(path=str(pair.worker.socket_path)), concurrency=3)
    worker.capability("test.run")(lambda job: job.text.upper())
    running = Running(worker.run)
    found = {text: work.message for text, work in pair.asking.map("test.run", "abcdef", concurrency=3)}

    async def again() -> dict[str, str | None]:
        client = AsyncClient(Endpoint(path=str(pair.ops.socket_path)))
        return {text: work.message async for text, work in client.map("test.run", "abcdef", concurrency=3)}

    assert found == asyncio.run(again()) == {text: text.upper() for text in "abcdef"}
    assert len(pair.asking.works(states={"completed"}).works) == 12  # type: ignore[arg-type]
    worker.stop()
    running.result()


def test_a_wait_ends_in_time_without_a_daemon(tmp_path: Path) -> None:
    client = Client(Endpoint(path=str(tmp_path / "none.sock")), timeout=30)
    began = time.monotonic()
    for wait in (client.wait_ready, lambda timeout: client.wait_peer("worker", timeout)):
        with pytest.raises(TimeoutError):
            wait(timeout=0.2)
    with pytest.raises(TimeoutError):
        client.wait("work_1", timeout=0.2)
    assert time.monotonic() - began < 10


def test_one_request_waits_for_the_end_of_a_work(pair: Pair, working: threading.Event) -> None:
    opened = pair.asking.open_work("worker", "x")
    assert pair.asking.work(opened.work_id, wait=0.1).work.state in ("submitted", "working")
    waiting = Running(lambda: pair.asking.work(opened.work_id, wait=60))
    working.set()
    assert waiting.result().work.state == "completed"


def test_a_work_has_the_artifacts_of_its_result(pair: Pair) -> None:
    worker = Worker(Endpoint(path=str(pair.worker.socket_path)))
    worker.capability("test.run")(lambda job: job.complete(artifacts=[{"uri": "https://example.com/report"}]))
    running = Running(worker.run)
    work = pair.asking.run("worker", "x", timeout=60)
    worker.stop()
    running.result()
    assert (work.artifacts, work.result) == ([{"uri": "https://example.com/report"}], None)


def test_help_shows_a_method_of_an_instance(pair: Pair) -> None:
    assert "on_question" in (inspect.getdoc(pair.asking.run) or "")
    assert str(inspect.signature(pair.asking.wait)).startswith("(work_id: 'str', *")
    assert "Wait until a work has ended" in pydoc.render_doc(pair.asking.wait)
    assert str(pair.ops.socket_path) in repr(pair.asking)


def test_a_client_may_be_made_before_its_daemon(home_of_ops: tuple[Home, Daemon]) -> None:
    home, daemon = home_of_ops
    program = "from aghbus.client import Client\nprint(Client.from_env('ops').version().version)"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, env=home.env, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for the daemon: no daemon called ops is running")
        with daemon:
            printed, _ = process.communicate(timeout=60)
    assert printed.strip()


@pytest.fixture
def home_of_ops(tmp_path: Path) -> tuple[Home, Daemon]:
    home = Home(tmp_path)
    return home, Daemon(home, "ops")
