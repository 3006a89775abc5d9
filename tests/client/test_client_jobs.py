"""Jobs: leased and accepted, kept leased, reported and then acknowledged; questions, cancellations, failures."""

import threading
from collections.abc import Callable
from typing import Any, Final

import pytest

from aghbus.client import AsyncClient, Client, Endpoint, Job, JobCanceled, UsageError
from aghbus.protocol.api.works import Work
from tests.support.client_pair import Pair, Running
from tests.support.daemons import wait_for

LEASE: Final = 5
"""Seconds: more than a machine stands still."""


def take(client: Client, handle: Callable[[Job], Any], **options: Any) -> Running:
    """Handle one job in a thread."""

    def work() -> Any:
        for job in client.jobs(**options):
            return handle(job)
        raise AssertionError("jobs have no end")

    return Running(work)


def unread(pair: Pair) -> int:
    return sum(pair.working.inbox().counts.values())


def test_a_job_is_accepted_reported_and_acknowledged(pair: Pair) -> None:
    def handle(job: Job) -> tuple[int, str, str]:
        with job:
            pair.working.inbox()
            job.update("half way")
            job.complete("done", result={"echo": job.text})
        return job.attempt, job.sender, job.message.trust

    worker = take(pair.working, handle, capability="test.run")
    work: Work = pair.asking.run("worker", "hello", timeout=60)
    assert (work.state, work.message, work.result) == ("completed", "done", {"echo": "hello"})
    assert worker.result() == (1, "ops", "unverified")
    history = pair.asking.work(work.work_id).history
    assert [step.event for step in history] == ["message", "receipt:accepted", "trace:working", "trace:completed"]
    assert unread(pair) == 0


def test_a_block_that_reports_nothing_completes_the_work(pair: Pair) -> None:
    jobs = pair.working.jobs()
    opened = Running(lambda: [pair.asking.run("worker", f"n{number}", timeout=60).state for number in range(2)])
    assert next(jobs).text == "n0"
    assert next(jobs).text == "n1"
    jobs.close()  # as when the block raises: the job is ready again
    others = pair.working.jobs()
    again = next(others)
    assert (again.text, again.attempt) == ("n1", 2)
    again.complete()
    others.close()
    assert opened.result() == ["completed", "completed"]


def test_an_exception_in_the_block_fails_the_work(pair: Pair) -> None:
    def handle(job: Job) -> None:
        with job:
            raise LookupError("no such suite")

    worker = take(pair.working, handle)
    work = pair.asking.run("worker", "hello", timeout=60)
    assert (work.state, work.message) == ("failed", "LookupError: no such suite")
    with pytest.raises(LookupError):
        worker.result()
    assert unread(pair) == 0


def test_a_credential_in_an_exception_does_not_leave_the_worker(pair: Pair) -> None:
    def handle(job: Job) -> None:
        with job:
            raise ValueError("ghp_" + "a1B2" * 9)

    worker = take(pair.working, handle)
    assert pair.asking.run("worker", "hello", timeout=60).message == "ValueError"
    with pytest.raises(ValueError):
        worker.result()


def test_a_question_is_answered_and_its_answer_acknowledged(pair: Pair) -> None:
    worker = take(pair.working, lambda job: job.complete(result={"answer": job.ask("which branch?")}))
    asked: list[str] = []

    def answer(question: str) -> str:
        asked.append(question)
        return "main"

    work = pair.asking.run("worker", "hello", on_question=answer, timeout=60)
    assert (asked, work.result) == (["which branch?"], {"answer": "main"})
    assert worker.result() is True
    assert unread(pair) == 0


def test_without_an_answer_at_hand_the_work_is_returned_with_its_question(pair: Pair) -> None:
    worker = take(pair.working, lambda job: job.complete(job.ask("which?")))
    asked = pair.asking.run("worker", "hello", timeout=60)
    assert (asked.state, asked.message) == ("needs_input", "which?")
    pair.asking.act_on_work(asked.work_id, "say", message="this one")
    assert pair.asking.wait(asked.work_id, timeout=60).message == "this one"
    worker.result()


def test_what_was_said_before_and_during_a_job_is_acknowledged_with_it(pair: Pair) -> None:
    def say(text: str, count: int) -> None:
        pair.asking.act_on_work(work_id, "say", message=text)
        wait_for(lambda: unread(pair) == count, 30, "the message")

    work_id = pair.asking.open_work("worker", "hello").work_id
    say("before", 2)
    jobs = pair.working.jobs()
    job = next(jobs)
    say("during", 3)
    job.complete("done")
    jobs.close()
    assert pair.asking.wait(work_id, timeout=60).message == "done"
    assert unread(pair) == 0


def test_a_cancellation_is_seen_while_the_block_runs(pair: Pair) -> None:
    taken = threading.Event()

    def handle(job: Job) -> tuple[bool, bool]:
        taken.set()
        wait_for(lambda: job.canceled, 30, "the cancellation")
        return job.complete(), job.ended

    worker = take(pair.working, handle)
    opened = pair.asking.open_work("worker", "hello")
    assert opened.work_id is not None and taken.wait(30)
    pair.asking.act_on_work(opened.work_id, "cancel")
    assert worker.result() == (False, True)
    assert unread(pair) == 0


def test_a_question_ends_with_the_work(pair: Pair) -> None:
    worker = take(pair.working, lambda job: job.ask("which?"))
    asked = pair.asking.run("worker", "hello", timeout=60)
    pair.asking.act_on_work(asked.work_id, "cancel")
    with pytest.raises(JobCanceled):
        worker.result()


def test_lease_is_renewed_while_block_runs_and_expires_on_crash(pair: Pair) -> None:
    opened = Running(lambda: pair.asking.run("worker", "hello", timeout=60))
    jobs = pair.working.jobs(lease=LEASE)
    job = next(jobs)
    (item,) = pair.working.inbox(states=frozenset({"leased"})).items
    assert item.lease_until_ms is not None

    def renewed() -> bool:
        (now,) = pair.working.inbox(states=frozenset({"leased"})).items
        assert (now.lease, now.attempts) == (item.lease, 1)
        return (now.lease_until_ms or 0) >= (item.lease_until_ms or 0) + 1_000 * LEASE

    wait_for(renewed, 30, "renewals for longer than a lease")
    job.complete()
    assert opened.result().state == "completed"


def test_a_job_whose_lease_was_taken_is_canceled(pair: Pair) -> None:
    Running(lambda: pair.asking.run("worker", "hello", timeout=60))
    jobs = pair.working.jobs(lease=LEASE)
    job = next(jobs)
    pair.working.nack(job.message.seq, delay=0)
    pair.working.lease(job.message.seq, lease="lease_of_another")
    wait_for(lambda: job.canceled, 30, "the loss of the lease")
    jobs.close()


def test_a_released_job_is_taken_again_by_the_same_consumer(pair: Pair) -> None:
    opened = Running(lambda: pair.asking.run("worker", "hello", timeout=60))
    jobs = pair.working.jobs()
    next(jobs).release(delay=0.5)
    again = next(jobs)
    assert (again.text, again.attempt) == ("hello", 2)
    again.complete("done")
    jobs.close()
    assert opened.result().message == "done"


def test_job_leased_by_another_consumer_is_retaken_after_its_nack(pair: Pair) -> None:
    opened = Running(lambda: pair.asking.run("worker", "hello", timeout=60))
    jobs = pair.working.jobs(lease=LEASE)
    job = next(jobs)
    pair.working.nack(job.message.seq, delay=0)
    pair.working.lease(job.message.seq, lease="lease_of_another", visibility=600)
    wait_for(lambda: job.canceled, 30, "the loss of the lease")
    with pytest.raises(JobCanceled), job:
        raise JobCanceled("as `update` and `ask` raise it")
    assert pair.working.inbox(states=frozenset({"leased"})).items[0].lease == "lease_of_another"
    pair.working.nack(job.message.seq, delay=0)
    again = next(jobs)
    assert (again.work_id, again.attempt) == (job.work_id, 3)
    again.complete("done")
    jobs.close()
    assert opened.result().message == "done"


def test_an_acknowledged_opening_that_is_requeued_is_taken_by_a_worker_that_waits(pair: Pair) -> None:
    opened = Running(lambda: pair.asking.run("worker", "hello", timeout=60))
    item = pair.working.next_message(wait=30, ack=True).item
    assert item is not None

    def work() -> None:
        jobs = pair.working.jobs()
        for _ in range(2):
            next(jobs).complete("done")
        jobs.close()

    worker = Running(work)
    assert pair.asking.run("worker", "another", timeout=60).message == "done"
    pair.working.requeue(item.seq)
    assert opened.result().message == "done"
    worker.result()


def test_a_worker_that_lost_its_last_attempt_leaves_the_dead_opening_to_the_operator(pair: Pair) -> None:
    opened = Running(lambda: pair.asking.run("worker", "hello", timeout=60))
    for _ in range(4):
        item = pair.working.next_message(wait=30).item
        assert item is not None
        pair.working.nack(item.seq, delay=0)
    jobs = pair.working.jobs()
    job = next(jobs)
    assert pair.working.nack(job.message.seq, error="by the operator").state == "dead"
    work: Work = opened.result()
    assert (work.state, work.message) == ("failed", "given up after 5 attempts: by the operator")
    wait_for(lambda: job.canceled, 30, "the end of the job")
    with pytest.raises(JobCanceled), job:
        raise JobCanceled("as `update` and `ask` raise it")
    jobs.close()
    assert [item.state for item in pair.working.inbox().items] == ["dead"]


def test_a_worker_takes_what_names_its_capability_or_none(pair: Pair) -> None:
    texts = [("other", "not mine"), ("test.run", "mine"), ("request", "for anybody")]
    for intent, text in texts:
        pair.asking.open_work("worker", text, intent=intent)
    jobs = pair.working.jobs("test.run", accept=lambda message: message.sender == "ops")
    assert {next(jobs).text, next(jobs).text} == {"mine", "for anybody"}
    refused = pair.asking.start("worker", "nobody's", intent="test.rum")
    waiting = Running(lambda: next(jobs))  # refuses it, and waits for the next
    assert refused.result(timeout=60).state == "failed"
    assert pair.asking.work(refused.id).history[-1].reason == "unsupported_profile"
    pair.asking.open_work("worker", "for anybody")
    waiting.result().complete()
    jobs.close()
    others = pair.working.jobs("other")
    assert next(others).text == "not mine"
    others.close()
    with pytest.raises(UsageError):
        next(pair.working.jobs("unknown.capability"))


async def test_the_asynchronous_client_has_jobs_too(pair: Pair) -> None:
    working, asking = (AsyncClient(Endpoint(path=str(daemon.socket_path))) for daemon in (pair.worker, pair.ops))
    opened = Running(lambda: pair.asking.run("worker", "hello", on_question=lambda _: "yes", timeout=60))
    async for job in working.jobs("test.run"):
        async with job:
            await job.complete(await job.ask("really?"))
        break
    work: Work = opened.result()
    assert (await asking.wait(work.work_id)).message == "yes"
