"""The runtime of the core for asyncio: connections, pauses, signals and tasks."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from aghbus.client.core.threads import Signal, Threads
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
    """A connection of an event loop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, endpoint: Endpoint, timeout: float
    ) -> None:
        self.endpoint = endpoint
        self._reader = reader
        self._writer = writer
        self._timeout = timeout

    @property
    def address(self) -> tuple[str, int]:
        """Numeric address and port of the daemon, of a TCP connection."""
        host, port = self._writer.get_extra_info("peername")[:2]
        return host, port

    async def send(self, data: bytes) -> None:
        """Send all of `data`."""
        try:
            async with asyncio.timeout(self._timeout):
                self._writer.write(data)
                await self._writer.drain()
        except OSError as error:
            raise self.endpoint.unreachable(error) from None

    async def receive(self) -> bytes:
        """The next bytes; empty at the end."""
        try:
            async with asyncio.timeout(self._timeout):
                return await self._reader.read(RECEIVE_BYTES)
        except OSError as error:
            raise self.endpoint.unreachable(error) from None

    def limit(self, seconds: float) -> None:
        """Let every further step take `seconds` at most."""
        self._timeout = seconds

    def abort(self) -> None:
        """End the step that waits."""
        self._writer.transport.abort()

    def close(self) -> None:
        """Drop the connection."""
        self._writer.close()


class EventLoop(Threads):
    """Every step is awaited, and background work runs in tasks."""

    def signal(self) -> AsyncSignal:
        """A new signal."""
        return AsyncSignal()

    async def connect(self, endpoint: Endpoint, timeout: float) -> Connection:
        """A connection whose every step may take `timeout` seconds. Raises Unreachable."""
        endpoint = endpoint.resolved()
        try:
            async with asyncio.timeout(timeout):
                if endpoint.path:
                    reader, writer = await asyncio.open_unix_connection(endpoint.path)
                else:
                    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
        except OSError as error:
            raise endpoint.unreachable(error) from None
        return AsyncConnection(reader, writer, endpoint, timeout)

    async def sleep(self, seconds: float) -> None:
        """A pause."""
        await asyncio.sleep(seconds)

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Run `work` in the background. Returns a function that cancels it."""
        return asyncio.create_task(work()).cancel


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
