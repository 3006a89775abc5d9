"""One run of a worker: takes works while slots are free, gives them to their handlers, reports, and drains."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import math
import time
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any, NamedTuple

from aghbus.client.core.aio import EventLoop, in_thread
from aghbus.client.core.core import Core
from aghbus.client.core.refusals import Unavailable
from aghbus.client.core.threads import Threads
from aghbus.client.errors import ClientError, RefusedByDaemon, Unreachable
from aghbus.client.http import Endpoint
from aghbus.client.work.feed import Feed
from aghbus.client.work.handlers import Handler, HandlerExit, Middleware, PayloadError, ResultError, report_of
from aghbus.client.work.job import AsyncJob, Job, JobCanceled, JobCore, text_of

logger = logging.getLogger("aghbus.client")

_current: contextvars.ContextVar[Job | AsyncJob] = contextvars.ContextVar("aghbus_job")


def current_job() -> Job | AsyncJob:
    """The job whose handler runs here. Raises LookupError outside of a handler."""
    return _current.get()


class ServingOptions(NamedTuple):
    """`drain`, `lease` and `timeout` in seconds; `others`: also works of peers that were not admitted."""

    concurrency: int
    drain: float
    lease: float
    timeout: float
    others: bool


class Serving:
    """Takes works of `handlers`, by capability, in the running event loop. `run` returns after `stop` and the drain."""

    def __init__(
        self,
        endpoint: Endpoint,
        handlers: Mapping[str, Handler],
        middleware: Middleware | None,
        options: ServingOptions,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._handlers = handlers
        self._middleware = middleware
        self._options = options
        self._core = Core(endpoint, options.timeout, EventLoop())
        self._patient = Core(endpoint, options.timeout, EventLoop(), patience=math.inf)
        self._blocking = Core(endpoint, options.timeout, Threads())
        several, asked = len(handlers) > 1, list(handlers)
        self._feed = Feed(self._core, asked, lease=options.lease, others=options.others, needs_name=several)
        self._feed.is_free = self._is_free
        self._slots = asyncio.Semaphore(options.concurrency)
        self._running: dict[asyncio.Task[None], Handler] = {}
        self._stopping = False

    async def run(self) -> None:
        """Work until `stop`. Raises UsageError when the daemon does not announce a capability."""
        opening = asyncio.ensure_future(self._feed.open(self._patient))
        self._cancel_opening = opening.cancel
        try:
            try:
                await opening
            except asyncio.CancelledError:
                if not self._stopping:
                    raise
                return  # before the daemon was there
            more = self._options.concurrency
            logger.info("serving %s at %s, %d at a time", ", ".join(self._handlers), self._core.endpoint, more)
            while not self._stopping:
                await self._slots.acquire()
                job = await self._feed.lease()
                if job is None:
                    break
                self._start(job)
            if self._running:
                await asyncio.wait(list(self._running), timeout=self._options.drain)
        finally:
            await self._end_all()
            await self._feed.close()
        logger.info("stopped")

    def stop(self) -> None:
        """Take no more works."""
        self._stopping = True
        self._cancel_opening()
        self._feed.stop()
        self._slots.release()  # nobody waits for a slot any more

    def on_signal(self) -> None:
        """Stop; at the second signal return the running jobs to the inbox now."""
        if self._stopping:
            for task in self._running:
                task.cancel()
            return
        if self._running:
            text = "stopping: %d running jobs have %g s; a second signal returns them to the inbox now"
            logger.warning(text, len(self._running), self._options.drain)
        self.stop()

    async def _end_all(self) -> None:
        """Return the running jobs to the inbox."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(list(self._running))

    # which handler

    def _handler(self, named: str | None) -> Handler | None:
        """The handler for a work that names a capability; for one that names none, the only one."""
        if named is None and len(self._handlers) == 1:
            return next(iter(self._handlers.values()))
        return self._handlers.get(named or "")

    def _is_free(self, named: str | None) -> bool:
        """Whether the handler for such a work may run once more."""
        handler = self._handler(named)
        if handler is None or handler.concurrency is None:
            return True
        return sum(one is handler for one in self._running.values()) < handler.concurrency

    # one job

    def _start(self, job: JobCore) -> None:
        handler = self._handler(self._feed.named(job.state.body))
        assert handler is not None  # the feed has refused others
        task = asyncio.create_task(self._carry_out(job, handler))
        self._running[task] = handler
        task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        self._slots.release()
        self._feed.wake()

    async def _carry_out(self, job: JobCore, handler: Handler) -> None:
        last = JobCore(self._patient, job.state)  # its last action is carried out, however long the daemon is away
        try:
            if await job.accept():
                await self._handle(job, last, handler)
        except asyncio.CancelledError:
            if not self._is_cancelled():
                await last.drop()
            elif not job.state.ended:  # the drain is over
                with suppress(ClientError):
                    await job.release(error="the worker has stopped")
        except (Unreachable, Unavailable):
            pass  # it was not accepted: it is ready again when its lease has run out
        except Exception:
            logger.exception("work %s could not be reported", job.work_id)
        finally:
            if not job.state.ended:
                job.state.end(returned=True)  # the lease runs out, and the work is taken again

    async def _handle(self, job: JobCore, last: JobCore, handler: Handler) -> None:
        began, log = time.monotonic(), Job(job).log
        log.info("taken")
        try:
            result = await self._result(job, handler)
            if not job.state.ended:
                message, fields = report_of(result)
                await self._complete(last, message, fields)
        except JobCanceled:
            log.info("ended by others")
            await last.drop()
        except PayloadError as error:
            log.warning("%s", error.message)
            await last.failed(error)
        except Exception as error:
            await self._failed(job, last, handler, error)
        else:
            log.info("ended after %.3g s", time.monotonic() - began)

    async def _complete(self, last: JobCore, message: str | None, result: dict[str, Any] | None) -> None:
        try:
            await last.complete(message, result=result)
        except RefusedByDaemon as error:
            raise ResultError(f"the daemon does not take the result: {error.message}", error.hint) from None

    async def _failed(self, job: JobCore, last: JobCore, handler: Handler, error: Exception) -> None:
        """Try again later, if the handler says so, or end the work as failed."""
        log = Job(job).log
        if job.state.ended:
            log.exception("the handler failed after its report")
            return
        pause = None if handler.retry is None else handler.retry.pause(error, job.state.item.attempts)
        if pause is None:
            log.exception("failed")
            await last.failed(error)
        else:
            log.warning("failed, and is tried again in %g s: %s: %s", pause, type(error).__name__, error)
            await last.release(delay=pause, error=text_of(error))

    async def _result(self, job: JobCore, handler: Handler) -> Any:
        """What the handler returns within its time."""
        arguments, limit = handler.arguments(job.state.body), handler.time_limit
        task = asyncio.create_task(self._called(job, handler, arguments))
        job.state.on_cancel = partial(self.loop.call_soon_threadsafe, task.cancel)
        try:
            async with asyncio.timeout(limit) as scope:
                return await task
        except TimeoutError:
            if not scope.expired():
                raise
            job.state.canceled = True  # a function sees it
            raise TimeoutError(f"the handler ran longer than {limit:g} s") from None
        except asyncio.CancelledError:
            if task.done() and not job.state.canceled and not self._is_cancelled():
                raise HandlerExit("the handler cancelled itself") from None
            raise

    @staticmethod
    def _is_cancelled() -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    async def _called(self, job: JobCore, handler: Handler, arguments: tuple[Any, ...]) -> Any:
        """What the handler returns, called within the middleware."""
        outer = AsyncJob(job)

        async def call() -> Any:
            if handler.is_coroutine:
                return await handler.function(outer, *arguments)
            inner = Job(JobCore(self._blocking, job.state))
            _current.set(inner)
            found = await in_thread(partial(handler.function, inner, *arguments))
            return await found if isawaitable(found) else found

        _current.set(outer)
        steps: Awaitable[Any] = call() if self._middleware is None else self._middleware(outer, call)
        try:
            return await steps
        except (SystemExit, KeyboardInterrupt) as error:
            raise HandlerExit(f"{type(error).__name__}({error})") from None
