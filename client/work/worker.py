"""A whole worker: functions that handle works, run with bounded concurrency until SIGTERM."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Concatenate, Final, TypeVar

from aghbus.client.errors import UsageError
from aghbus.client.http import Endpoint
from aghbus.client.work.clients import TIMEOUT, FoundEndpoint
from aghbus.client.work.execution import Execution
from aghbus.client.work.feed import LEASE
from aghbus.client.work.handlers import Handler, Middleware, Retry
from aghbus.client.work.job import AsyncJob, Job
from aghbus.client.work.serving import Serving, ServingOptions
from aghbus.protocol.agh.bodies import asked_capability

H = TypeVar("H", bound=Callable[Concatenate[Job, ...], Any] | Callable[Concatenate[AsyncJob, ...], Awaitable[Any]])

DRAIN: Final = 30.0
"""Seconds that running jobs have after SIGTERM."""


class Worker:
    """Takes works and gives them to handlers, `concurrency` at a time; further works wait in the inbox.

    A handler is a function with a Job, which runs in a thread, or a coroutine function with an AsyncJob. With a second parameter
    it gets the text of the opening as JSON, decoded as its annotation says. What it returns completes the work: a text is the
    message, anything else the result. An exception fails it. When the work is canceled, a coroutine is cancelled, and a
    function sees `job.canceled`.

    >>> worker = Worker(concurrency=4)
    >>> @worker.capability("test.run", retry=Retry(attempts=3, on=(ConnectionError,)), time_limit=600)
    ... def run_tests(job: Job) -> dict[str, object]:
    ...     return {"passed": "smoke" in job.text}
    >>> worker.run()
    """

    def __init__(
        self,
        endpoint: Endpoint | None = None,
        *,
        name: str | None = None,
        concurrency: int = 1,
        drain: float = DRAIN,
        lease: float = LEASE,
        timeout: float = TIMEOUT,
        others: bool = False,
    ) -> None:
        """`endpoint`, else the daemon called `name`, else the one that `aghctl` finds. `drain` and `lease` in seconds.
        With `others`, works of peers that were not admitted are taken, too."""
        self._endpoint = endpoint
        self._name = name
        self._options = ServingOptions(concurrency, drain, lease, timeout, others)
        self._handlers: dict[str, Handler] = {}
        self._middleware: Middleware | None = None
        self._serving: Serving | None = None

    def capability(
        self,
        capability_id: str,
        *,
        retry: Retry | None = None,
        time_limit: float | None = None,
        concurrency: int | None = None,
    ) -> Callable[[H], H]:
        """Let the decorated function handle the works of a capability, which the daemon must announce.

        `retry`: when a work is tried again after an exception; never without it. After `time_limit` seconds the handler is
        cancelled, which counts as a TimeoutError. At most `concurrency` jobs of this capability run at a time.
        A work that names no capability goes to the only handler; with several it is rejected with their list.
        """

        def register(function: H) -> H:
            self._handlers[capability_id] = Handler(function, retry, time_limit, concurrency)
            return function

        return register

    def middleware(self, function: Middleware) -> Middleware:
        """Let the decorated coroutine function run around every handler: it gets the job and a function to await, which runs the
        handler, and returns its result. What it raises fails the work, too."""
        self._middleware = function
        return function

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain; a second signal returns the running jobs to the inbox at once.

        In a thread other than the main one, until `stop`. A daemon that is not there yet is waited for.
        """
        asyncio.run(self._until_signal())

    async def _until_signal(self) -> None:
        loop, serving = asyncio.get_running_loop(), self._begin()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, serving.on_signal)
        await serving.run()

    def stop(self) -> None:
        """Take no more works; `run` and `serve` return when the running ones have ended, or after the drain. From any thread."""
        serving = self._serving
        if serving is not None:
            with suppress(RuntimeError):  # it has ended
                serving.loop.call_soon_threadsafe(serving.stop)

    async def serve(self, endpoint: Endpoint | None = None, *, on_ready: Callable[[], object] | None = None) -> None:
        """Work until `stop`, as `run` does, in a running event loop; for the daemon at `endpoint`, if it is given. `on_ready` is
        called when works are taken. Raises UsageError when no handler was declared, or the daemon does not announce a capability.
        """
        await self._begin(endpoint).run(on_ready)

    async def handle(self, job: AsyncJob) -> None:
        """Accept one job, let its handler carry it out, and report, as `run` does with those that it takes. Errors are logged."""
        self._check()
        execution = Execution(self._handlers, self._middleware, job.core.core)
        try:
            await execution.carry_out(job.core, asked_capability(job.body, self._handlers))
        finally:
            execution.close()

    def _check(self) -> None:
        if not self._handlers:
            raise UsageError("the worker has no handler", "declare one: @worker.capability(ID)")

    def _begin(self, endpoint: Endpoint | None = None) -> Serving:
        self._check()
        endpoint = endpoint or self._endpoint or FoundEndpoint(self._name)
        self._serving = Serving(endpoint, self._handlers, self._middleware, self._options)
        return self._serving
