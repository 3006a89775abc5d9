"""A whole worker: functions that handle works, run with bounded concurrency until SIGTERM."""

from __future__ import annotations

import asyncio
import inspect
import math
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from aghbus.client.core.aio import EventLoop, in_thread
from aghbus.client.core.core import Core
from aghbus.client.core.threads import Threads
from aghbus.client.http import Endpoint
from aghbus.client.work.clients import TIMEOUT, endpoint_from
from aghbus.client.work.feed import LEASE, Feed, logger
from aghbus.client.work.job import AsyncJob, Job, JobCanceled, JobCore

Result = dict[str, Any] | str | None
"""What a handler may return: the result of the work, its message, or nothing."""
Handler = Callable[[Job], Result] | Callable[[AsyncJob], Awaitable[Result]]
H = TypeVar("H", bound=Callable[[Job], Any] | Callable[[AsyncJob], Awaitable[Any]])

DRAIN: Final = 30.0
"""Seconds that running jobs have after SIGTERM."""


class Worker:
    """Takes works and gives them to handlers, `concurrency` at a time; further works wait in the inbox.

    A handler is a function with a Job, which runs in a thread, or a coroutine function with an AsyncJob. What it returns
    completes the work: a dict is the result, a text the message. An exception fails it. When the work is canceled, a
    coroutine is cancelled, and a function sees `job.canceled`.

    >>> worker = Worker(concurrency=4)
    >>> @worker.capability("test.run")
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
        self._drain = drain
        self._lease = lease
        self._others = others
        self._timeout = timeout
        self._handlers: dict[str, Handler] = {}
        self._feed: Feed | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._concurrency = concurrency
        self._slots = asyncio.Semaphore(concurrency)
        self._running: set[asyncio.Task[None]] = set()

    def capability(self, capability_id: str) -> Callable[[H], H]:
        """Let the decorated function handle the works of a capability, which the daemon must announce.

        A work that names no capability goes to the handler that was declared first.
        """

        def register(handler: H) -> H:
            self._handlers[capability_id] = handler
            return handler

        return register

    def run(self) -> None:
        """Work until SIGTERM or SIGINT, then drain. Raises ClientError when the daemon cannot be found at the start."""
        asyncio.run(self._until_signal())

    async def _until_signal(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        await self.serve()

    def stop(self) -> None:
        """Take no more works; `run` and `serve` return when the running ones have ended, or after the drain. From any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if self._feed is not None:
            self._feed.stop()
            self._slots.release()  # nobody waits for a slot any more

    async def serve(self) -> None:
        """Work until `stop`, as `run` does, in a running event loop."""
        endpoint = self._endpoint or endpoint_from(self._name)
        core = Core(endpoint, self._timeout, EventLoop())
        feed = self._feed = Feed(core, list(self._handlers), lease=self._lease, others=self._others)
        self._patient = Core(endpoint, self._timeout, EventLoop(), patience=math.inf)
        self._blocking = Core(endpoint, self._timeout, Threads())
        self._loop, self._slots = asyncio.get_running_loop(), asyncio.Semaphore(self._concurrency)
        try:
            await feed.open()
            while True:
                await self._slots.acquire()
                job = await feed.next()
                if job is None:
                    break
                task = asyncio.create_task(self._handle(job))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
                task.add_done_callback(lambda _: self._slots.release())
            await self._drained()
        finally:
            await feed.close()

    async def _drained(self) -> None:
        """Wait for the running jobs, then return them to the inbox."""
        if self._running:
            await asyncio.wait(self._running, timeout=self._drain)
        for task in list(self._running):
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _handle(self, job: JobCore) -> None:
        last = JobCore(self._patient, job.state)  # its last action is carried out, however long the daemon is away
        try:
            await self._finish(job, last)
        except asyncio.CancelledError:
            if not job.state.canceled:  # the drain is over
                await job.release(error="the worker has stopped")
                raise
            await last.drop()
        except Exception:
            logger.exception("work %s could not be reported", job.work_id)
        finally:
            if not job.state.ended:
                job.state.end(returned=True)  # the lease runs out, and the work is taken again

    async def _finish(self, job: JobCore, last: JobCore) -> None:
        try:
            result = await self._handled(job)
        except JobCanceled:
            await last.drop()
        except Exception as error:
            logger.exception("the handler of work %s failed", job.work_id)
            if not job.state.ended:
                await last.failed(error)
        else:
            if not job.state.ended:
                message, fields = (None, result) if isinstance(result, dict) else (result, None)
                await last.complete(message, result=fields)

    async def _handled(self, job: JobCore) -> Result:
        named = self._feed.named(job.state.item.message, job.state.body) if self._feed else None
        handler: Any = self._handlers.get(named or "") or next(iter(self._handlers.values()))
        if not inspect.iscoroutinefunction(handler):
            return await in_thread(lambda: handler(Job(JobCore(self._blocking, job.state))))
        task: asyncio.Task[Result] = asyncio.ensure_future(handler(AsyncJob(job)))
        job.state.on_cancel = task.cancel
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            raise
