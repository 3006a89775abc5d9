"""Waiting in the task of a request until something else happens: no task for what is waited for, and none to be ended before
the answer can go out."""

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self


class Interruption:
    """Within its block the task may be interrupted; the first of what happened is raised from the block."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._watches: list[asyncio.Task[Any]] = []
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        return self

    def when(self, event: Coroutine[Any, Any, Any], error: Exception) -> None:
        """Raise `error` from the block as soon as `event` is over, unless the block is."""

        def happened(watch: asyncio.Task[Any]) -> None:
            if self._task is not None and self._error is None and not watch.cancelled():
                self._error = error
                self._task.cancel()

        watch = asyncio.ensure_future(event)
        watch.add_done_callback(happened)
        self._watches.append(watch)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        for watch in self._watches:
            watch.cancel()
        if self._error is None or task is None:
            return
        if task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._error from None
