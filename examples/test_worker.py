"""The handlers of worker.py, without a daemon."""

from worker import count_words, run_tests, worker

from aghbus.testing import FakeAsyncJob, FakeJob


def test_counts_words() -> None:
    assert count_words(FakeJob("one two three")) == {"words": 3}


async def test_asks_for_the_branch() -> None:
    job = FakeAsyncJob("Run the smoke test", answers=["main"])
    assert await run_tests(job) == {"branch": "main", "passed": True, "attempt": 1}
    assert job.questions == ["Which branch?"]
    assert job.updates == ["testing main"]


def test_ends_as_the_worker_reports_it() -> None:
    outcome = FakeJob("Run the smoke test", capability="test.run", answers=["main"]).run(worker)
    assert outcome.state == "completed"
    assert outcome.result == {"branch": "main", "passed": True, "attempt": 1}
    assert FakeJob("Run the smoke test", capability="text.translate").run(worker).state == "rejected"
