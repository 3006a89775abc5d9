"""Cancelling the wait of a request when an event happens, such as the client's disconnection.

The wait runs in the request's own task. The events are watched only after `SOON` seconds, so that a short wait starts no
further task and its response does not wait for the end of one."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self

SOON: Final = 0.01
"""Seconds: most waits are shorter, and an event may be noticed so much later."""


class CancelScope:
    """A block of a task that ends early, with an error, when one of its events happens; the first event counts."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._events: list[tuple[Callable[[], Coroutine[Any, Any, Any]], Exception]] = []
        self._watches: list[asyncio.Task[Any]] = []
        self._error: Exception | None = None

    def when(self, event: Callable[[], Coroutine[Any, Any, Any]], error: Exception) -> None:
        """Before the block: raise `error` from it when `event()` returns, also when it would have returned before."""
        self._events.append((event, error))

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(SOON, self._watch)
        return self

    def _watch(self) -> None:
        for event, error in self._events:
            watch = asyncio.ensure_future(event())
            watch.add_done_callback(lambda ended, error=error: self._happened(ended, error))  # type: ignore[misc]
            self._watches.append(watch)

    def _happened(self, ended: "asyncio.Task[Any]", error: Exception) -> None:
        if self._task is not None and self._error is None and not ended.cancelled():
            self._error = error
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, self._task = self._task, None
        assert task is not None
        assert self._timer is not None
        self._timer.cancel()
        for watch in self._watches:
            watch.cancel()
        if self._error is not None and task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise self._error from None
