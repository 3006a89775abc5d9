"""Workers: bounded concurrency, handlers of both kinds, cancellation, failures, and the drain."""

import asyncio
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from aghbus.client import AsyncJob, Client, Endpoint, Job, Unreachable, UsageError, Worker
from aghbus.protocol.api.works import Work
from tests.support.client_pair import Pair, Running
from tests.support.daemons import wait_for


@contextmanager
def serving(worker: Worker) -> Iterator[Running]:
    running = Running(lambda: asyncio.run(worker.serve()))
    try:
        yield running
    finally:
        worker.stop()
        running.result()


def worker_of(pair: Pair, **options: Any) -> Worker:
    return Worker(Endpoint(path=str(pair.worker.socket_path)), **options)


def given(pair: Pair, count: int, **options: Any) -> list[Running]:
    def give(number: int) -> Running:
        return Running(lambda: pair.asking.run("worker", f"n{number}", timeout=60, **options))

    return [give(number) for number in range(count)]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_at_most_so_many_jobs_run_and_all_are_done(pair: Pair, kind: str) -> None:
    worker, lock, running, most = worker_of(pair, concurrency=3), threading.Lock(), 0, 0
    full = threading.Event()

    def enter(change: int) -> None:
        nonlocal running, most
        with lock:
            running += change
            most = max(most, running)
            if running == 3:
                full.set()

    @worker.capability("test.run")
    def function(job: Job) -> str:
        enter(1)
        assert full.wait(30)
        enter(-1)
        return job.text

    async def coroutine(job: AsyncJob) -> str:
        enter(1)
        assert await asyncio.to_thread(full.wait, 30)
        enter(-1)
        return job.text

    if kind == "coroutine":
        worker.capability("test.run")(coroutine)
    with serving(worker):
        works: list[Work] = [one.result() for one in given(pair, 7)]
    assert {work.message for work in works} == {f"n{number}" for number in range(7)}
    assert (most, running) == (3, 0)


def test_work_goes_to_the_handler_of_its_intent_else_to_the_first(pair: Pair) -> None:
    worker = worker_of(pair)
    worker.capability("test.run")(lambda job: "first")
    worker.capability("other")(lambda job: "second")
    with serving(worker):
        assert pair.asking.run("worker", "hello", timeout=60).message == "first"
        assert pair.asking.run("worker", "hello", intent="other", timeout=60).message == "second"


def test_an_exception_fails_the_work_and_the_worker_goes_on(pair: Pair) -> None:
    worker = worker_of(pair)

    @worker.capability("test.run")
    def handle(job: Job) -> dict[str, int]:
        return {"quotient": 6 // int(job.text)}

    with serving(worker):
        failed = pair.asking.run("worker", "0", timeout=60)
        assert (failed.state, failed.message) == ("failed", "ZeroDivisionError: integer division or modulo by zero")
        assert pair.asking.run("worker", "2", timeout=60).result == {"quotient": 3}


def test_a_coroutine_is_cancelled_with_its_work_and_a_function_sees_it(pair: Pair) -> None:
    worker, started, ended = worker_of(pair, concurrency=2), threading.Semaphore(0), threading.Semaphore(0)

    @worker.capability("test.run")
    async def coroutine(job: AsyncJob) -> None:
        started.release()
        try:
            await asyncio.sleep(600)
        finally:
            ended.release()

    @worker.capability("other")
    def function(job: Job) -> None:
        started.release()
        wait_for(lambda: job.canceled, 30, "the cancellation")
        ended.release()

    with serving(worker):
        for intent in ("test.run", "other"):
            opened = pair.asking.open_work("worker", "hello", intent=intent)
            assert opened.work_id is not None and started.acquire(timeout=30)
            pair.asking.act_on_work(opened.work_id, "cancel")
            assert ended.acquire(timeout=30)
        wait_for(lambda: not sum(pair.working.inbox().counts.values()), 30, "the acknowledgements")


def test_result_is_reported_after_outage_beyond_the_call_timeout(pair: Pair) -> None:
    worker, started, proceed = worker_of(pair, timeout=0.1), threading.Event(), threading.Event()
    ended = threading.Event()

    @worker.capability("test.run")
    def handle(job: Job) -> str:
        started.set()
        assert proceed.wait(60)
        ended.set()
        return f"attempt {job.attempt}"

    with serving(worker):
        (opened,) = given(pair, 1)
        assert started.wait(30)
        pair.worker.kill()
        proceed.set()
        assert ended.wait(30)
        with pytest.raises(Unreachable):  # as long as the first attempts to report last
            Client(Endpoint(path=str(pair.worker.socket_path)), timeout=1).status()
        pair.worker.start()
        assert opened.result().message == "attempt 1"


def test_the_event_of_the_own_report_cancels_nothing(pair: Pair) -> None:
    worker, finished = worker_of(pair, concurrency=4), threading.Semaphore(0)

    @worker.capability("test.run")
    async def handle(job: AsyncJob) -> None:
        assert await job.complete("reported")
        await asyncio.sleep(0.05)
        assert not job.canceled
        finished.release()

    with serving(worker):
        assert {one.result().message for one in given(pair, 8)} == {"reported"}
        assert all(finished.acquire(timeout=30) for _ in range(8))


def test_what_runs_is_finished_when_the_worker_stops_and_no_more_is_taken(pair: Pair) -> None:
    worker, started, proceed = worker_of(pair), threading.Event(), threading.Event()

    @worker.capability("test.run")
    def handle(job: Job) -> str:
        started.set()
        assert proceed.wait(30)
        return "done"

    with serving(worker) as running:
        (first,) = given(pair, 1)
        assert started.wait(30)
        second = pair.asking.open_work("worker", "later")
        worker.stop()
        proceed.set()
        assert first.result().message == "done"
        running.result()
    assert second.work_id is not None
    assert pair.asking.work(second.work_id).work.state == "submitted"


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_jobs_unfinished_after_drain_are_ready_for_the_next_worker(pair: Pair, kind: str) -> None:
    worker, started = worker_of(pair, drain=0.1), threading.Event()

    async def coroutine(job: AsyncJob) -> None:
        started.set()
        await asyncio.sleep(600)

    def function(job: Job) -> None:
        started.set()
        wait_for(lambda: job.ended, 60, "the end of the drain")

    worker.capability("test.run")(coroutine if kind == "coroutine" else function)
    with serving(worker):
        (opened,) = given(pair, 1)
        assert started.wait(30)
    jobs = pair.working.jobs()
    again = next(jobs)
    assert (again.text, again.attempt) == ("n0", 2)
    again.complete("by another")
    jobs.close()
    assert opened.result().message == "by another"


def test_a_capability_that_the_daemon_does_not_announce_is_an_error(pair: Pair) -> None:
    worker = worker_of(pair)
    worker.capability("unknown.one")(lambda job: None)
    with pytest.raises(UsageError) as caught:
        asyncio.run(worker.serve())
    assert caught.value.hint == "start it with: aghd run --name worker --capability unknown.one"


def test_a_second_signal_does_not_lose_the_running_job(pair: Pair, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import time\n"
        "from aghbus.client import Endpoint, Job, Worker\n"
        f"worker = Worker(Endpoint(path={str(pair.worker.socket_path)!r}))\n"
        "@worker.capability('test.run')\n"
        "def handle(job: Job) -> str:\n"
        "    print('started', flush=True)\n"
        "    while input() != 'go':\n"
        "        pass\n"
        "    return 'done'\n"
        "worker.run()\n"
    )
    command = [sys.executable, str(program)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        (opened,) = given(pair, 1)
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert opened.result().message == "done"
        assert process.wait(30) == 0
