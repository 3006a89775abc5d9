"""How one job is carried out: its handler is found, called within the middleware, and its outcome reported."""

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
from typing import Any

from aghbus.client.core.aio import in_thread
from aghbus.client.core.core import Core
from aghbus.client.core.refusals import Unavailable
from aghbus.client.core.threads import Threads
from aghbus.client.errors import ClientError, RefusedByDaemon, Unreachable
from aghbus.client.work.handlers import Handler, HandlerExit, Middleware, PayloadError, ResultError, report_of
from aghbus.client.work.job import AsyncJob, Job, JobCanceled, JobCore, text_of
from aghbus.protocol.base.text import shorten

logger = logging.getLogger("aghbus.client")

NAME_CHARACTERS = 100
"""Most characters of a capability of a peer in our answer."""

_current: contextvars.ContextVar[Job | AsyncJob] = contextvars.ContextVar("aghbus_job")


def current_job() -> Job | AsyncJob:
    """The job whose handler runs here. Raises LookupError outside of a handler."""
    return _current.get()


class Execution:
    """Carries out jobs of the daemon behind `core` with `handlers`, by capability, in the running event loop."""

    def __init__(self, handlers: Mapping[str, Handler], middleware: Middleware | None, core: Core) -> None:
        self._handlers = handlers
        self._middleware = middleware
        self._patient = core.variant(patience=math.inf)
        self._blocking = core.variant(runtime=Threads(core.endpoint))

    def close(self) -> None:
        """Close the connections of functions that block."""
        self._blocking.runtime.close()

    def handler(self, named: str | None) -> Handler | None:
        """The handler for a work that names a capability; for one that names none, the only one."""
        if named is None and len(self._handlers) == 1:
            return next(iter(self._handlers.values()))
        return self._handlers.get(named or "")

    async def carry_out(self, job: JobCore, named: str | None) -> None:
        """Accept a leased work that names a capability, let its handler carry it out, and report. Errors are logged."""
        handler = self.handler(named)
        last = JobCore(self._patient, job.state)  # its last action is carried out, however long the daemon is away
        try:
            if handler is None:
                what = "names no capability" if named is None else f"names {shorten(named, NAME_CHARACTERS)}"
                await last.refuse(f"the work {what}; this peer serves {', '.join(self._handlers)}")
            elif await job.accept():
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
        job.state.on_cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
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
