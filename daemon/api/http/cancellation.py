"""Cancelling the wait of a request when an event happens, such as the client's disconnection.

The wait runs in the request's own task, or is a future. The events are watched only after `SOON` seconds, so that a short
wait starts no further task and its response does not wait for the end of one."""

import asyncio
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Final, Self

from aghbus.protocol.errors import Unavailable


def shutting_down() -> Unavailable:
    """The error of a request that waits when the daemon drains."""
    return Unavailable("the daemon is shutting down", hint="retry after restart")


SOON: Final = 0.01
"""Seconds: most waits are shorter, and an event may be noticed so much later."""


class CancelScope:
    """A block of a task that ends early, with an error, when one of its events happens; the first event counts."""

    def __init__(self) -> None:
        self._task: asyncio.Task[Any] | None = None
        self._wait: asyncio.Future[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._events: list[tuple[Callable[[], Coroutine[Any, Any, Any]], Callable[[], Exception]]] = []
        self._watches: list[asyncio.Task[Any]] = []
        self._error: Exception | None = None

    def when(self, event: Callable[[], Coroutine[Any, Any, Any]], error: Callable[[], Exception]) -> None:
        """Before the block: raise `error()` from it when `event()` returns, also when it would have returned before."""
        self._events.append((event, error))

    def begin(self, wait: "asyncio.Future[Any]") -> None:
        """In place of the block: cancel this wait. `end` is to be called when it is done."""
        self._wait = wait
        self._timer = asyncio.get_running_loop().call_later(SOON, self._watch)

    def end(self) -> Exception | None:
        """The wait is done; the error of the event that cancelled it."""
        assert self._timer is not None
        self._wait = None
        self._timer.cancel()
        for watch in self._watches:
            watch.cancel()
        return self._error

    def __enter__(self) -> Self:
        self._task = asyncio.current_task()
        assert self._task is not None
        self.begin(self._task)
        return self

    def _watch(self) -> None:
        for event, error in self._events:
            watch = asyncio.ensure_future(event())
            watch.add_done_callback(lambda ended, error=error: self._happened(ended, error))  # type: ignore[misc]
            self._watches.append(watch)

    def _happened(self, ended: "asyncio.Task[Any]", error: Callable[[], Exception]) -> None:
        if self._wait is not None and self._error is None and not ended.cancelled():
            self._error = error()
            self._wait.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        happened = self.end()
        assert self._task is not None
        if happened is not None and self._task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise happened from None
