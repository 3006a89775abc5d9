"""Jobs without a daemon, which keep what their handlers report."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

import msgspec

from aghbus.client.errors import UsageError
from aghbus.client.work.handlers import encoded
from aghbus.client.work.job import AsyncJob, Job, JobCore, JobState, JobSurface
from aghbus.client.work.worker import Worker
from aghbus.protocol.api.inbox import InboxNackRequest
from aghbus.protocol.api.works import WorkActionRequest, WorkVerb
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.testing.one_work import LEASE, OneWork

ReportState = Literal["working", "needs_input", "completed", "failed", "rejected", "released", "canceled"]

_STATES: Final[dict[WorkVerb, ReportState]] = {
    "update": "working",
    "need-input": "needs_input",
    "complete": "completed",
    "fail": "failed",
    "reject": "rejected",
}


class Report(NamedTuple):
    """What a job reported: progress (`working`), a question (`needs_input`), or its outcome.

    `released`: it returned to the inbox, for a further attempt after `delay` seconds. `canceled`: its initiator canceled it.
    """

    state: ReportState
    message: str | None = None
    result: dict[str, Any] | None = None
    artifacts: list[Any] | None = None
    delay: float | None = None


class Recorded(JobSurface):
    """A job without a daemon: the protocol's rules apply to its reports, which are kept."""

    def __init__(
        self,
        text: str | None = None,
        *,
        payload: object = None,
        capability: str | None = None,
        body: dict[str, Any] | None = None,
        sender: str = "ops",
        attempt: int = 1,
        answers: Iterable[str] = (),
    ) -> None:
        """The work has this `text`, or `payload` as JSON, and asks for `capability`; `body` has further members of the opening.

        Questions get the `answers` in turn. Without one, a question with a timeout raises TimeoutError, any other AssertionError.
        Raises UsageError for an opening that no daemon would send.
        """
        members = {**(body or {})}
        if payload is not None:
            text = msgspec.json.encode(payload, enc_hook=encoded).decode()
        members |= {name: value for name, value in (("text", text), ("intent", capability)) if value is not None}
        try:
            work = OneWork("capability" if "capability" in members else "say", members, sender, attempt, answers)
        except InvalidRequest as error:
            raise UsageError(error.message, error.hint) from None
        super().__init__(JobCore(work, JobState(work.item, LEASE)))
        work.on_action, work.on_return = self._on_action, self._on_return
        self.reports: list[Report] = []
        self._work = work

    @property
    def updates(self) -> list[str | None]:
        """The texts of the progress reports."""
        return [report.message for report in self.reports if report.state == "working"]

    @property
    def questions(self) -> list[str | None]:
        """The questions that were asked."""
        return [report.message for report in self.reports if report.state == "needs_input"]

    @property
    def outcome(self) -> Report:
        """The report that ended the job. Raises AssertionError when it has not ended."""
        if not self.reports or self.reports[-1].state in ("working", "needs_input"):
            raise AssertionError("the job has not ended")
        return self.reports[-1]

    def cancel(self) -> None:
        """Let the initiator cancel the work, from any thread. Raises WorkClosed when it has ended."""
        self._work.cancel()
        self.reports.append(Report("canceled"))
        self.core.state.cancel()

    def _on_action(self, verb: WorkVerb, ask: WorkActionRequest) -> None:
        if verb in _STATES:
            self.reports.append(Report(_STATES[verb], ask.message, ask.result, ask.artifacts))

    def _on_return(self, ask: InboxNackRequest) -> None:
        self.reports.append(Report("released", ask.error, delay=ask.delay))


class FakeJob(Recorded, Job):
    """A job for a handler that is a function.

    >>> assert count_words(FakeJob("one two three")) == {"words": 3}
    >>> assert FakeJob("one two three", capability="text.count").run(worker).result == {"words": 3}
    """

    def run(self, worker: Worker) -> Report:
        """The outcome when `worker` handles the job, as one that its daemon gave it: payload, middleware, retry and result."""
        asyncio.run(worker.handle(AsyncJob(self.core)))
        return self.outcome


class FakeAsyncJob(Recorded, AsyncJob):
    """A job for a handler that is a coroutine function.

    >>> job = FakeAsyncJob("smoke test", answers=["main"])
    >>> assert await run_tests(job) == {"branch": "main", "passed": True, "attempt": 1}
    >>> assert job.questions == ["Which branch?"] and job.updates == ["testing main"]
    """

    async def run(self, worker: Worker) -> Report:
        """The outcome when `worker` handles the job, as one that its daemon gave it: payload, middleware, retry and result."""
        await worker.handle(self)
        return self.outcome
