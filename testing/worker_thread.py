"""A worker in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from contextlib import suppress

from aghbus.client.http import Endpoint
from aghbus.client.work.worker import Worker

STOP_INTERVAL = 1.0
"""Seconds that each step of the end may take, such as returning a job to a daemon that is away; then it is cancelled, too."""


class WorkerThread:
    """Lets `worker` take works of the daemon at `endpoint`, from `start` to `stop`."""

    def __init__(self, worker: Worker, endpoint: Endpoint) -> None:
        self._worker = worker
        self._endpoint = endpoint
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="aghbus-worker", daemon=True)

    def start(self) -> None:
        """Return when works are taken. Raises what keeps the worker from that."""
        self._thread.start()
        self._ready.result()

    def stop(self) -> None:
        """Take no more works, and return those that run to the inbox."""
        while self._thread.is_alive():
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._task.cancel)
            self._thread.join(STOP_INTERVAL)

    def _run(self) -> None:
        try:
            with suppress(asyncio.CancelledError):
                asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.ensure_future(
            self._worker.serve(self._endpoint, on_ready=lambda: self._ready.set_result(None))
        )
        await self._task
