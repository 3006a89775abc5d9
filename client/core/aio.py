"""The runtime of the core for asyncio: connections, pauses, signals and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from _socket import socket
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from aghbus.client.core.threads import Threads
from aghbus.client.core.watch import Signal
from aghbus.client.http import RECEIVE_BYTES, Connection, Endpoint

T = TypeVar("T")


class AsyncSignal(Signal):
    """Set and awaited in one event loop."""

    def __init__(self) -> None:
        self._happened = asyncio.Event()

    def set(self) -> None:
        """End the current or the next `wait`."""
        self._happened.set()

    async def wait(self, timeout: float) -> None:
        """Wait until the signal is set, at most `timeout` seconds, and clear it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._happened.wait()
        self._happened.clear()


class AsyncConnection(Connection):
    """A connection whose steps are awaited. It belongs to no event loop, so that it is kept when one ends."""

    def __init__(self, stream: socket, endpoint: Endpoint, kept: list[Connection] | None = None) -> None:
        super().__init__(stream, endpoint, kept)
        stream.settimeout(0)
        self._timeout = 0.0

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        loop = asyncio.get_running_loop()
        try:
            while data:
                try:
                    data = data[self._stream.send(data) :]
                except BlockingIOError:
                    await self._wait(loop.add_writer, loop.remove_writer)
        except OSError as error:
            raise self.endpoint.unreachable(error) from None

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                try:
                    return self._stream.recv(RECEIVE_BYTES)
                except BlockingIOError:
                    await self._wait(loop.add_reader, loop.remove_reader)
        except OSError as error:
            raise self.endpoint.unreachable(error) from None

    async def _wait(self, add: Callable[..., object], remove: Callable[[int], object]) -> None:
        """Wait for the socket. `loop.sock_recv` under `asyncio.timeout` does the same in half as much again of a whole call."""
        loop, number = asyncio.get_running_loop(), self._stream.fileno()
        ready = loop.create_future()
        timer = loop.call_later(self._timeout, _end, ready, TimeoutError())
        add(number, _end, ready)
        try:
            await ready
        finally:
            timer.cancel()
            remove(number)

    def limit(self, seconds: float) -> None:
        """Let every further step take `seconds` at most."""
        self._timeout = seconds


def _end(waiting: asyncio.Future[None], error: OSError | None = None) -> None:
    if not waiting.done():
        waiting.set_result(None) if error is None else waiting.set_exception(error)


class EventLoop(Threads):
    """The same for event loops, one after the other. Every step is awaited, and background work runs in tasks."""

    connection = AsyncConnection

    def signal(self) -> AsyncSignal:
        """A new signal."""
        return AsyncSignal()

    async def sleep(self, seconds: float) -> None:
        """A pause."""
        await asyncio.sleep(seconds)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Run `work` in the background. Returns a function that cancels it."""
        task = asyncio.create_task(work())
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # a loop may end without having ended it
        return task.cancel

    def _place(self) -> object:
        return asyncio.get_running_loop()


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work` in a thread that does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def target() -> None:
        try:
            end = partial(done.set_result, context.run(work))
        except StopIteration:  # a future cannot raise it
            end = partial(done.set_exception, RuntimeError("StopIteration was raised"))
        except BaseException as error:
            end = partial(done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(lambda: done.done() or end())

    threading.Thread(target=target, name="aghbus-job", daemon=True).start()
    return await done
