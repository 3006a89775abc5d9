"""A fake job ends as the same work does at a worker of a real daemon."""

import asyncio
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from aghbus.client import (
    AsyncClient,
    AsyncJob,
    Client,
    InvalidRequest,
    Job,
    JobCanceled,
    Retry,
    SecretLike,
    UsageError,
    Work,
    WorkClosed,
    Worker,
    current_job,
)
from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.testing import FakeAsyncJob, FakeJob, Sandbox

SECRET: Final = "AKIAIOSFODNN7EXAMPLE"


@dataclass
class Order:
    """A payload."""

    branch: str
    depth: int = 1


worker: Final = Worker(concurrency=4)
CASES: Final[dict[str, str]] = {}
"""The text for each handler."""


def handler(text: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare a handler of the capability `case.NAME`, with the text that it gets."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        CASES[f"case.{function.__name__}"] = text
        return worker.capability(f"case.{function.__name__}", **options)(function)

    return register


@handler("do it")
def returns_a_text(job: Job) -> str:
    return f"done by {job.sender}: {job.text}"


@handler("do it")
def returns_nothing(job: Job) -> None: ...


@handler("do it")
async def returns_a_result(job: AsyncJob) -> dict[str, object]:
    return {"attempt": job.attempt, "body": job.body, "is": current_job() is job}


@handler('{"branch": "main", "depth": 3}')
def takes_a_payload(job: Job, order: Order) -> Order:
    return Order(order.branch.upper(), order.depth + 1)


@handler('{"branch": 7}')
def refuses_a_payload(job: Job, order: Order) -> None: ...


@handler("no JSON")
def refuses_no_json(job: Job, order: Order) -> None: ...


@handler("do it")
def returns_what_json_has_not(job: Job) -> object:
    return {"module": sys}


@handler("do it")
def returns_no_number(job: Job) -> object:
    return {"at": [1.0, float("nan")]}


@handler("do it")
def returns_too_much(job: Job) -> dict[str, str]:
    return {"text": "x" * 1_100_000}


@handler("do it")
def returns_a_credential(job: Job) -> dict[str, str]:
    return {"key": SECRET}


@handler("do it")
def fails_with_a_credential(job: Job) -> None:
    raise ValueError(f"the key {SECRET} is wrong")


@handler("do it")
def fails(job: Job) -> None:
    raise ValueError("it does not work")


@handler("do it")
def exits(job: Job) -> None:
    sys.exit("the end")


@handler("do it", time_limit=0.05)
async def takes_too_long(job: AsyncJob) -> None:
    await asyncio.sleep(60)


@handler("do it", retry=Retry(attempts=1))
def is_not_tried_again(job: Job) -> None:
    raise ConnectionError("refused")


@handler("do it")
def reports_by_itself(job: Job) -> None:
    job.update("half")
    job.complete("all", result={"parts": 2}, artifacts=[{"uri": "report.xml"}])


@handler("do it")
def fails_by_itself(job: Job) -> None:
    job.fail("not today", result={"parts": 1})


@handler("do it")
def rejects(job: Job) -> None:
    job.reject("not for me", reason="busy")


@handler("do it")
def asks_twice(job: Job) -> list[str]:
    return [job.ask("which branch?"), job.ask("how deep?")]


@handler("do it")
async def writes_a_wrong_update(job: AsyncJob) -> None:
    await job.update(result={"module": sys})


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with Sandbox() as sandbox:
        ops, target = sandbox.peers("ops", "worker", capabilities={"worker": sorted(CASES)})
        target.serve(worker)
        yield ops.client()


@pytest.mark.parametrize("capability", CASES)
@pytest.mark.parametrize("form", [FakeJob, FakeAsyncJob])
async def test_the_outcome_is_that_of_a_real_work(
    client: Client, capability: str, form: type[FakeJob] | type[FakeAsyncJob]
) -> None:
    answers, text = ["main", "3"], CASES[capability]
    asking = AsyncClient(client.core.endpoint)
    real: Work = await asking.run(
        "worker", text, intent=capability, on_question=lambda question: answers["which" not in question], timeout=60
    )
    job = form(text, capability=capability, answers=answers)
    if isinstance(job, FakeJob):
        outcome = await asyncio.to_thread(job.run, worker)
    else:
        outcome = await job.run(worker)
    reports = [report for report in job.reports if report.result or report.artifacts]
    assert ("failed" if outcome.state == "rejected" else outcome.state) == real.state
    assert (reports[-1].result if reports else None) == real.result
    assert (reports[-1].artifacts if reports else None) == real.artifacts
    if outcome.state != "rejected":  # the detail of a receipt is not shown with the work
        messages = [report.message for report in job.reports if report.message is not None]
        assert without_sizes(messages[-1] if messages else None) == without_sizes(real.message)


def without_sizes(message: str | None) -> str | None:
    """Without the number of bytes of an envelope, whose ids and extensions may be longer."""
    return message and re.sub(r"\d+ bytes", "bytes", message)


def test_reports_are_kept_in_their_order() -> None:
    job = FakeJob("do it")
    reports_by_itself(job)
    assert [(report.state, report.message) for report in job.reports] == [("working", "half"), ("completed", "all")]
    assert job.updates == ["half"] and job.questions == []
    assert job.outcome.artifacts == [{"uri": "report.xml"}]
    with pytest.raises(RuntimeError, match="has ended already"):
        job.update("more")


def test_a_failure_that_is_tried_again_releases_the_job() -> None:
    retrying = Worker()

    @retrying.capability("test.run", retry=Retry(attempts=3, delay=2, on=(ConnectionError,)))
    def run_tests(job: Job) -> None:
        raise ConnectionError("refused")

    outcomes = [FakeJob("do it", attempt=attempt).run(retrying) for attempt in (1, 2, 3)]
    assert [(one.state, one.delay) for one in outcomes] == [("released", 2.0), ("released", 4.0), ("failed", None)]
    assert outcomes[0].message == outcomes[2].message == "ConnectionError: refused"


def test_works_for_no_handler_are_rejected() -> None:
    for capability, says in (("text.translate", "names text.translate"), (None, "names no capability")):
        outcome = FakeJob("do it", capability=capability).run(worker)
        assert outcome.state == "rejected"
        assert says in (outcome.message or "")
    with pytest.raises(UsageError, match="no handler"):
        FakeJob("do it").run(Worker())


def test_middleware_runs_around_the_handler() -> None:
    counted, seen = Worker(), []

    @counted.middleware
    async def count(job: AsyncJob, call: Callable[[], Any]) -> object:
        seen.append(job.text)
        return {"of": await call()}

    @counted.capability("test.run")
    def run_tests(job: Job) -> int:
        return 7

    assert FakeJob("do it").run(counted).result == {"of": 7}
    assert seen == ["do it"]


def test_the_opening_is_that_of_a_real_message() -> None:
    body = {"artifacts": [{"uri": "a.txt"}]}
    job = FakeJob("do it", capability="test.run", body=body, sender="somebody", attempt=2)
    assert (job.text, job.sender, job.attempt, job.canceled, job.ended) == ("do it", "somebody", 2, False, False)
    assert job.body == {"text": "do it", "intent": "test.run", "artifacts": [{"uri": "a.txt"}]}
    assert (job.message.kind, job.message.work_id) == ("say", job.work_id)
    assert msgspec.json.decode(job.message.envelope)["body"] == job.body
    assert FakeJob(payload=Order("main")).text == '{"branch":"main","depth":1}'
    record: dict[str, Any] = {"id": "test.run", "summary": "runs tests", "outcome": "passed"}
    opened = FakeJob(body={"capability": {**record, "digest": capability_digest(record)}})
    assert (opened.message.kind, opened.text) == ("capability", "")


@pytest.mark.parametrize(
    ("given", "message"),
    [({}, "text"), ({"text": " "}, "text"), ({"text": "x", "sender": "Not A Name"}, "from"), ({"body": {}}, "text")],
)
def test_an_opening_that_no_daemon_sends_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        FakeJob(**given)


def test_questions_get_the_answers_in_turn_and_none_when_there_are_no_more() -> None:
    job = FakeJob("do it", answers=["main"])
    assert job.ask("which branch?") == "main"
    with pytest.raises(TimeoutError):
        job.ask("how deep?", timeout=60)
    with pytest.raises(AssertionError, match="`answers`"):
        job.ask("how deep?")
    assert job.questions == ["which branch?", "how deep?", "how deep?"]
    with pytest.raises(AssertionError, match="has not ended"):
        _ = job.outcome


def test_a_canceled_work_is_seen_by_its_job() -> None:
    job = FakeJob("do it")
    job.cancel()
    assert job.canceled
    with pytest.raises(JobCanceled):
        job.update("more")
    with pytest.raises(WorkClosed):
        job.cancel()
    assert job.outcome.state == "canceled"


async def test_a_coroutine_is_cancelled_with_its_work() -> None:
    waiting, started, seen = Worker(), asyncio.Event(), []

    @waiting.capability("test.run")
    async def run_tests(job: AsyncJob) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append(job.canceled)
            raise

    job = FakeAsyncJob("do it")
    running = asyncio.create_task(job.run(waiting))
    await started.wait()
    job.cancel()
    assert (await running).state == "canceled"
    assert seen == [True]


def test_a_report_that_a_daemon_refuses_is_refused() -> None:
    job = FakeJob("do it")
    with pytest.raises(SecretLike, match=r"body\.message"):
        job.update(f"found {SECRET}")
    with pytest.raises(InvalidRequest, match="cannot be written as JSON"):
        job.update(result={"module": sys})
    with pytest.raises(InvalidRequest, match=r"\$\.message"):
        job.update(7)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="over the limit"):
        job.complete(result={"text": "x" * 1_100_000})
    with pytest.raises(InvalidRequest, match="reason: must be one of"):
        job.reject("no", reason="tired")
    assert job.reports == [] and not job.ended


def test_as_a_context_manager_it_ends_like_a_job() -> None:
    with FakeJob("do it") as done:
        pass
    assert done.outcome.state == "completed"
    with pytest.raises(ValueError), FakeJob("do it") as failed:
        raise ValueError("no")
    assert (failed.outcome.state, failed.outcome.message) == ("failed", "ValueError: no")
    with FakeJob("do it") as released:
        released.release(delay=3, error="later")
    assert released.outcome == ("released", "later", None, None, 3.0)


def test_it_needs_no_daemon_and_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    assert FakeJob("do it").run(_echo()).result == {"text": "do it"}
    assert [*tmp_path.iterdir()] == []


def _echo() -> Worker:
    echo = Worker()

    @echo.capability("test.run")
    def run_tests(job: Job) -> dict[str, str]:
        return {"text": job.text}

    return echo
