"""Worker and daemon are killed at every step: no work is lost, and none is done twice without being told."""

import asyncio
import signal
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from aghbus.client import Endpoint, Job, Worker
from aghbus.protocol.api.works import Work
from tests.support.client_pair import Pair, Running
from tests.support.crashes import Keeper
from tests.support.daemons import wait_for

STEPS: Final = 11
"""Calls that the child makes until its first job is acknowledged: the last one looks for further messages of the work."""
POINTS: Final = (
    "receive.decided",
    "receive.committed",
    "inbox.leased",
    "send.decided",
    "send.committed:2",
    "publish.confirmed",
    "inbox.acked",
)


def child(pair: Pair, effects: Path, lease: float, dies: int, only: str) -> subprocess.Popen[bytes]:
    arguments = [str(pair.worker.socket_path), str(effects), str(lease), str(dies), only]
    return subprocess.Popen([sys.executable, "-m", "tests.support.client_child", *arguments])


@contextmanager
def running(process: subprocess.Popen[bytes]) -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.wait()


def give(pair: Pair, number: int) -> Running:
    """A work, whose question is answered; its result is the work when it has ended."""

    def work() -> Work:
        return pair.asking.run("worker", f"n{number}", on_question=lambda question: question[:-1], timeout=110)

    return Running(work)


def check(pair: Pair, works: list[Work], effects: list[tuple[str, int]]) -> None:
    """Every work was completed once, by its last attempt; every effect had an attempt of its own."""
    attempts: dict[str, list[int]] = defaultdict(list)
    for work_id, attempt in effects:
        attempts[work_id].append(attempt)
    assert all(told == sorted(set(told)) for told in attempts.values()), attempts
    for number, work in enumerate(works):
        assert (work.state, work.result["answer"]) == ("completed", f"n{number}")
        assert work.result["attempt"] == attempts[work.work_id][-1]
        events = [step.event for step in pair.asking.work(work.work_id).history]
        assert (events.count("trace:completed"), events.count("trace:needs_input")) == (1, 1), events
    assert len(attempts) == len(works)
    wait_for(lambda: not sum(pair.working.inbox().counts.values()), 30, "the acknowledgements")


def test_a_worker_killed_before_every_call_loses_nothing(pair: Pair, tmp_path: Path) -> None:
    effects = tmp_path / "effects"
    given = [give(pair, number) for number in range(STEPS)]
    for dies in range(1, STEPS + 1):
        assert child(pair, effects, 10, dies, f"n{dies - 1}").wait(60) == -signal.SIGKILL
    with running(child(pair, effects, 10, 0, "")):
        works = [one.result() for one in given]
        told = [(line.split()[0], int(line.split()[1])) for line in effects.read_text().splitlines()]
        check(pair, works, told)
        assert {attempt for _, attempt in told} == {1, 2}


def test_a_daemon_killed_at_every_step_of_a_worker_loses_nothing(pair: Pair) -> None:
    effects: list[tuple[str, int]] = []
    worker = Worker(Endpoint(path=str(pair.worker.socket_path)), concurrency=3, lease=5)

    @worker.capability("test.run")
    def handle(job: Job) -> dict[str, object]:
        answer = job.ask(f"{job.text}?")
        effects.append((job.work_id, job.attempt))
        return {"answer": answer, "attempt": job.attempt}

    serving = Running(lambda: asyncio.run(worker.serve()))
    given = [give(pair, 0)]
    given[0].result()  # the worker serves
    assert pair.worker.stop() == 0
    keeper = Keeper(pair.worker, POINTS)
    keeper.start()
    while not keeper.done:
        given.append(give(pair, len(given)))
        given[-1].result()
    assert keeper.failure is None and keeper.fired == list(POINTS)
    check(pair, [one.result() for one in given], effects)
    worker.stop()
    serving.result()
