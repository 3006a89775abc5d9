"""Ending the wait of a request when its client disconnects or the daemon drains."""

import asyncio
from types import TracebackType
from typing import Any, Final, Self

from aghbus.daemon.api.http.exchange import ClientDisconnected, Exchange
from aghbus.protocol.base.errors import Unavailable


def shutting_down() -> Unavailable:
    """The error of a request that waits when the daemon drains."""
    return Unavailable("the daemon is shutting down", hint="retry after restart")


class Draining(asyncio.Event):
    """Set when the daemon drains; the waits of `scopes` end then."""

    def __init__(self) -> None:
        super().__init__()
        self.scopes: Final[set[CancelScope]] = set()

    def set(self) -> None:
        """The daemon drains."""
        super().set()
        for scope in tuple(self.scopes):
            scope.cancel(shutting_down())


class CancelScope:
    """The wait of one request: a block of its task, or a future. It ends early, with an error, when the client disconnects or
    the daemon drains; the first event counts."""

    def __init__(self, exchange: Exchange, draining: Draining) -> None:
        self._exchange = exchange
        self._draining = draining
        self._wait: asyncio.Future[Any] | None = None
        self._error: Exception | None = None

    def begin(self, wait: "asyncio.Future[Any]") -> None:
        """In place of the block: cancel this wait. `end` is to be called when it is done."""
        self._wait = wait
        self._exchange.on_disconnect = self._disconnected
        self._draining.scopes.add(self)
        if self._draining.is_set():
            wait.get_loop().call_soon(self.cancel, shutting_down())
        elif self._exchange.disconnected:
            wait.get_loop().call_soon(self._disconnected)

    def cancel(self, error: Exception) -> None:
        """End the wait, unless it is done."""
        if self._wait is not None and self._error is None and self._wait.cancel():
            self._error = error

    def _disconnected(self) -> None:
        self.cancel(ClientDisconnected())

    def end(self) -> Exception | None:
        """The wait is done; the error of the event that cancelled it."""
        self._wait = self._exchange.on_disconnect = None
        self._draining.scopes.discard(self)
        return self._error

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self.begin(task)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task, happened = self._wait, self.end()
        assert isinstance(task, asyncio.Task)
        if happened is not None and task.uncancel() == 0 and kind is asyncio.CancelledError:
            raise happened from None
