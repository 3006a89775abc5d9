"""One run of a worker: takes works while slots are free, gives them to their handlers, reports, and drains."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from aghbus.client.core.aio import EventLoop
from aghbus.client.core.core import Core
from aghbus.client.http import Endpoint
from aghbus.client.work.execution import Execution
from aghbus.client.work.feed import Feed
from aghbus.client.work.handlers import Handler, Middleware

logger = logging.getLogger("aghbus.client")


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
        self._options = options
        self._core = Core(EventLoop(endpoint), options.timeout)
        self._execution = Execution(handlers, middleware, self._core)
        self._feed = Feed(
            self._core,
            list(handlers),
            lease=options.lease,
            others=options.others,
            needs_name=len(handlers) > 1,
            takes=options.concurrency,
        )
        self._feed.is_free = self._is_free
        self._slots = asyncio.Semaphore(options.concurrency)
        self._running: dict[asyncio.Task[None], Handler | None] = {}
        self._stopping = False

    async def run(self, on_ready: Callable[[], object] | None = None) -> None:
        """Work until `stop`; `on_ready` is called before the first work is taken. Raises UsageError when the daemon does not
        announce a capability."""
        opening = asyncio.ensure_future(self._feed.open(self._core.variant(patience=math.inf)))
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
            if on_ready is not None:
                on_ready()
            while not self._stopping:
                await self._slots.acquire()
                if (picked := await self._feed.pick()) is None:
                    break
                self._start(*picked)
            if self._running:
                await asyncio.wait(list(self._running), timeout=self._options.drain)
        finally:
            await self._end_all()
            await self._feed.close()
            self._execution.close()
            self._core.runtime.close()
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

    def _is_free(self, named: str | None) -> bool:
        """Whether the handler for such a work may run once more."""
        handler = self._execution.handler(named)
        if handler is None or handler.concurrency is None:
            return True
        return sum(one is handler for one in self._running.values()) < handler.concurrency

    def _start(self, seq: int, named: str | None) -> None:
        task = asyncio.create_task(self._carry_out(seq, named))
        self._running[task] = self._execution.handler(named)
        task.add_done_callback(self._on_end)

    async def _carry_out(self, seq: int, named: str | None) -> None:
        if (job := await self._feed.take(seq, accept=True)) is not None:
            await self._execution.carry_out(job, named)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        del self._running[task]
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a work could not be taken", exc_info=error)
        self._slots.release()
        self._feed.wake()
