"""Workers: bounded concurrency, handlers of both kinds, cancellation, failures, and the drain."""

import asyncio
import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aghbus.client import (
    AsyncClient,
    AsyncJob,
    Client,
    Endpoint,
    Job,
    JobCanceled,
    Retry,
    Unreachable,
    UsageError,
    Worker,
    current_job,
)
from aghbus.protocol.api.works import Work
from tests.support.client_pair import Pair, Running
from tests.support.daemons import Daemon, Home, wait_for


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


def test_work_goes_to_the_handler_of_what_it_asks_for_or_is_rejected(pair: Pair) -> None:
    worker = worker_of(pair)
    worker.capability("test.run")(lambda job: "first")
    worker.capability("other")(lambda job: "second")
    with serving(worker):
        assert pair.asking.run("worker", "x", intent="other", timeout=60).message == "second"
        for intent, what in (("request", "names no capability"), ("test.rum", "names test.rum")):
            work = pair.asking.run("worker", "x", intent=intent, timeout=60)
            reason = pair.asking.work(work.work_id).history[-1]
            assert (work.state, reason.reason) == ("failed", "unsupported_profile")
            assert reason.message == f"the work {what}; this peer serves test.run, other"


@dataclass
class Report:
    passed: bool
    names: set[str]


class Request(msgspec.Struct):
    branch: str
    times: int = 1


@pytest.mark.parametrize(
    ("returned", "message", "result"),
    [
        ([1, "x"], None, {"value": [1, "x"]}),
        (3, None, {"value": 3}),
        (True, None, {"value": True}),
        (Report(True, {"a"}), None, {"passed": True, "names": ["a"]}),
        (Request("main"), None, {"branch": "main", "times": 1}),
        ({"a": {1: None}}, None, {"a": {"1": None}}),
        ("", None, None),
    ],
)
def test_what_a_handler_returns_is_the_result(pair: Pair, returned: Any, message: Any, result: Any) -> None:
    worker = worker_of(pair)
    worker.capability("test.run")(lambda job: returned)
    with serving(worker):
        work = pair.asking.run("worker", "x", timeout=60)
    assert (work.state, work.message, work.result) == ("completed", message, result)


class _Exits:
    def __init__(self, error: BaseException) -> None:
        self.error = error


ENDINGS: list[tuple[Any, str]] = [
    ({"p": Path("/x")}, "PosixPath has no JSON form"),
    ({object()}, "object has no JSON form"),
    ({"n": [float("nan")]}, "nan at `$.n[0]`"),
    ("\udc80", "a lone surrogate at `$`"),
    ("x" * 2_000_000, "the daemon does not take the result"),
    ({"token": "abcdefghijklmnop1234"}, "the daemon does not take the result"),
    (_Exits(SystemExit(3)), "SystemExit(3)"),
    (_Exits(KeyboardInterrupt()), "KeyboardInterrupt()"),
    (_Exits(StopIteration()), "StopIteration"),
    (_Exits(asyncio.CancelledError()), "cancelled itself"),
    (_Exits(ValueError("\udc80")), "ValueError: ?"),
    (_Exits(ValueError("x" * 2_000_000)), "ValueError: xxx"),
]


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_what_cannot_be_a_result_fails_the_work_with_its_reason(
    pair: Pair, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "aghbus.job")  # pytest-xdist cannot carry lines with lone surrogates
    worker = worker_of(pair)

    def function(job: Job) -> Any:
        returned = ENDINGS[int(job.text)][0]
        if isinstance(returned, _Exits):
            raise returned.error
        return returned

    async def coroutine(job: AsyncJob) -> Any:
        return function(Job(job.core))

    worker.capability("test.run")(function if kind == "function" else coroutine)
    with serving(worker):
        for number, (_, reason) in enumerate(ENDINGS):
            work = pair.asking.run("worker", str(number), timeout=60)
            assert work.state == "failed"
            assert reason in (work.message or ""), number


def test_a_handler_is_retried_as_it_says(pair: Pair) -> None:
    worker, attempts = worker_of(pair), list[int]()

    @worker.capability("test.run", retry=Retry(attempts=3, delay=0.1, on=(ConnectionError,)))
    def flaky(job: Job) -> str:
        attempts.append(job.attempt)
        raise ConnectionError("away") if job.text != "value" else ValueError("wrong")

    with serving(worker):
        work = pair.asking.run("worker", "x", timeout=60)
        assert (work.state, work.message, attempts) == ("failed", "ConnectionError: away", [1, 2, 3])
        work = pair.asking.run("worker", "value", timeout=60)
        assert (work.message, attempts) == ("ValueError: wrong", [1, 2, 3, 1])


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_handler_has_its_time(pair: Pair, kind: str) -> None:
    worker, seen = worker_of(pair), threading.Event()

    def function(job: Job) -> None:
        wait_for(lambda: job.canceled, 30, "the end of its time")
        seen.set()

    async def coroutine(job: AsyncJob) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.set()

    worker.capability("test.run", time_limit=0.2)(function if kind == "function" else coroutine)
    with serving(worker):
        work = pair.asking.run("worker", "x", timeout=60)
        assert (work.state, work.message) == ("failed", "TimeoutError: the handler ran longer than 0.2 s")
        assert seen.wait(30)


def test_works_of_a_capability_that_is_announced_later_are_left_to_its_worker(pair: Pair) -> None:
    earlier, later = worker_of(pair), worker_of(pair)

    @earlier.capability("test.run")
    def run(job: Job) -> str:
        return "the earlier one"

    @later.capability("text.review")
    def review(job: Job) -> str:
        return "the later one"

    with serving(earlier):
        assert pair.asking.run("worker", "first", intent="test.run", timeout=30).message == "the earlier one"
        pair.working.announce_capability("text.review", summary="Reviews", outcome="the findings", expires_in=60)
        work = pair.asking.start("worker", "second", intent="text.review")
        assert pair.asking.run("worker", "third", intent="test.run", timeout=30).message == "the earlier one"
        with serving(later):
            assert work.result(30).message == "the later one"


def test_a_full_capability_leaves_its_works_to_others(pair: Pair) -> None:
    worker, running, ends = worker_of(pair, concurrency=4), list[str](), threading.Event()

    @worker.capability("test.run", concurrency=1)
    def slow(job: Job) -> None:
        running.append(job.text)
        assert ends.wait(60)

    worker.capability("other")(lambda job: "fast")
    with serving(worker):
        works = given(pair, 3, intent="test.run")
        wait_for(lambda: bool(running), 30, "a slow job")
        assert pair.asking.run("worker", "x", intent="other", timeout=60).message == "fast"
        assert (len(running), pair.working.inbox(states=frozenset({"leased"})).items[1:]) == (1, [])
        ends.set()
        assert [work.result().state for work in works] == ["completed"] * 3


def test_a_payload_is_read_by_the_annotation_or_refused(pair: Pair) -> None:
    worker = worker_of(pair)

    @worker.capability("test.run")
    def run_tests(job: Job, request: Request) -> Report:
        return Report(request.times == 2, {request.branch})

    with serving(worker):
        work = pair.asking.run("worker", '{"branch": "main", "times": 2}', timeout=60)
        assert work.result == {"passed": True, "names": ["main"]}
        work = pair.asking.run("worker", '{"branch": 5}', timeout=60)
        assert work.state == "failed"
        assert "`$.branch`" in (work.message or "")


def test_middleware_runs_around_handlers_which_know_their_job(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    worker, seen = worker_of(pair), list[object]()

    @worker.middleware
    async def around(job: AsyncJob, call: Callable[[], Awaitable[Any]]) -> Any:
        seen.append(job.work_id)
        return [await call()]

    @worker.capability("test.run")
    def function(job: Job) -> str:
        seen.append(current_job().work_id)
        job.log.warning("at work")
        return "done"

    with serving(worker):
        work = pair.asking.run("worker", "x", timeout=60)
    assert (work.result, seen) == ({"value": ["done"]}, [work.work_id] * 2)
    line = next(one for one in caplog.records if one.name == "aghbus.job" and one.levelname == "WARNING")
    assert line.getMessage() == f"{work.work_id} of ops, attempt 1: at work"
    assert (line.__dict__["work_id"], line.__dict__["attempt"]) == (work.work_id, 1)
    with pytest.raises(LookupError):
        current_job()


def test_a_worker_waits_for_its_daemon_in_any_thread(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = Home(tmp_path)
    daemon = Daemon(home, "worker", "--capability", "test.run")
    worker = Worker(Endpoint(path=str(daemon.socket_path)))
    worker.capability("test.run")(lambda job: "done")
    running = Running(worker.run)
    wait_for(lambda: "waiting for the daemon: no daemon listens" in caplog.text, 30, "the warning")
    with daemon, Daemon(home, "ops") as ops:
        asking = Client(Endpoint(path=str(ops.socket_path)))
        wait_for(lambda: ops.knows("worker") and daemon.knows("ops"), 30, "presence")
        assert asking.run("worker", "x", timeout=60).message == "done"
        worker.stop()
        running.result()


def test_an_exception_fails_the_work_and_the_worker_goes_on(pair: Pair) -> None:
    worker = worker_of(pair)

    @worker.capability("test.run")
    def handle(job: Job) -> dict[str, int]:
        return {"quotient": 6 // int(job.text)}

    with serving(worker):
        failed = pair.asking.run("worker", "0", timeout=60)
        assert (failed.state, failed.message) == ("failed", "ZeroDivisionError: integer division or modulo by zero")
        assert pair.asking.run("worker", "2", timeout=60).result == {"quotient": 3}


def test_a_job_that_its_handler_drops_is_tried_again(pair: Pair) -> None:
    """JobCanceled of a handler says nothing about the work: it goes on."""
    worker = worker_of(pair)

    @worker.capability("test.run")
    def handle(job: Job) -> str:
        if job.attempt < 3:
            raise JobCanceled("somebody else has it")
        return f"attempt {job.attempt}"

    with serving(worker):
        (opened,) = given(pair, 1)
        assert opened.result().message == "attempt 3"


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


def test_a_second_signal_returns_the_running_job_at_once(pair: Pair, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import threading\n"
        "from aghbus.client import Endpoint, Job, Worker\n"
        f"worker = Worker(Endpoint(path={str(pair.worker.socket_path)!r}))\n"
        "@worker.capability('test.run')\n"
        "def handle(job: Job) -> str:\n"
        "    print('started', flush=True)\n"
        "    threading.Event().wait()\n"
        "worker.run()\n"
    )
    command = [sys.executable, str(program)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        (opened,) = given(pair, 1)
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGTERM)
        text = "stopping: 1 running jobs have 30 s; a second signal returns them to the inbox now\n"
        assert process.stderr.readline() == text
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
    (item,) = pair.working.inbox(states=frozenset({"ready"})).items
    assert (item.attempts, item.last_error) == (1, "the worker has stopped")
    worker = worker_of(pair)
    worker.capability("test.run")(lambda job: f"attempt {job.attempt}")
    with serving(worker):
        assert opened.result().message == "attempt 2"


async def test_a_worker_handles_a_job_that_was_taken_otherwise(pair: Pair) -> None:
    worker = Worker()

    @worker.capability("test.run")
    def run_tests(job: Job) -> str:
        return job.ask("which branch?")

    (work,) = given(pair, 1, intent="test.run", on_question=lambda _: "main")
    async for job in AsyncClient(Endpoint(path=str(pair.worker.socket_path))).jobs("test.run"):
        await worker.handle(job)
        break
    done: Work = await asyncio.to_thread(work.result)
    assert (done.state, done.message) == ("completed", "main")
