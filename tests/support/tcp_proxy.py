"""A TCP proxy that delays what it passes on, and cuts its connections."""

import asyncio
import contextlib
import threading
from types import TracebackType
from typing import Final, Self

_CHUNK: Final = 65_536


class TcpProxy:
    """Listens on a port of 127.0.0.1 in front of another one, in a thread. What is in flight when it cuts is lost."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        """`delay` is in seconds, for each direction."""
        self.cuts = 0
        self._target = port
        self._delay = delay
        self._port = 0
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        """nats:// URL."""
        return f"nats://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Ends every connection; new ones are taken."""
        self.cuts += 1
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    async def _cut(self) -> None:
        for pipe in self._pipes:
            pipe.cancel()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        pipes = [asyncio.create_task(self._pass_on(*pair)) for pair in ((reader, back), (there, writer))]
        self._pipes.update(pipes)
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
                self._pipes.discard(pipe)
            for each in (writer, back):
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: chunks are written in order, each after the delay."""
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, chunk = await chunks.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                writer.write(chunk)
                await writer.drain()

        writing = asyncio.create_task(write())
        try:
            with contextlib.suppress(OSError):
                while chunk := await reader.read(_CHUNK):
                    chunks.put_nowait((loop.time() + self._delay, chunk))
        finally:
            writing.cancel()
