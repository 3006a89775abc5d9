"""Other daemons of this user on this machine: the page reaches their APIs through the console of one."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final

import httptools

from aghbus.daemon.api.http.body import read_body
from aghbus.daemon.api.http.cancellation import CancelScope, Draining
from aghbus.daemon.api.http.errors import HttpRefusal
from aghbus.daemon.api.http.exchange import EVENT_STREAM, Exchange, common_headers
from aghbus.daemon.api.http.timeouts import TIMEOUTS
from aghbus.daemon.console.messages import ConsoleInstance, ConsoleInstances
from aghbus.host.instances import stored_instances
from aghbus.host.locations import Locations, is_legal_name

_CONNECT_SECONDS: Final = 1.0
_READ_BYTES: Final = 65_536


class Neighbors:
    """The daemons whose sockets lie in the same private folder as that of this one."""

    def __init__(self, locations: Locations, *, max_body: int) -> None:
        """`max_body` in bytes."""
        self._locations = locations
        self._max_body = max_body

    async def list(self) -> ConsoleInstances:
        """All that have state on disk, this daemon first."""
        own = self._locations.name
        others = [name for name in stored_instances(self._locations) if name != own and self._path(name)]
        running = await asyncio.gather(*(self._runs(name) for name in others))
        found = [ConsoleInstance(name=name, running=up) for name, up in zip(others, running, strict=True)]
        return ConsoleInstances(instances=[ConsoleInstance(name=own, running=True), *found])

    async def forward(self, exchange: Exchange, name: str, target: bytes, draining: Draining) -> None:
        """Pass a request on to the instance `name`, and its response back."""
        path = self._path(name)
        if path is None:
            raise HttpRefusal(404, "unknown_path", f"instances/{name}: no such instance", "GET /instances lists them")
        body = await read_body(exchange, limit=self._max_body, seconds=TIMEOUTS.body)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                reader, writer = await asyncio.open_unix_connection(path)
        except (OSError, TimeoutError):
            raise HttpRefusal(
                503, "unavailable", f"no daemon listens at {path}", f"start it: aghd run --name {name}"
            ) from None
        try:
            writer.write(_head(exchange, target, len(body)) + body)
            with CancelScope(exchange, draining):
                await _Response(exchange).copy(reader)
        finally:
            writer.close()

    def _path(self, name: str) -> Path | None:
        if not self._locations.socket_dir_private or not is_legal_name(name):
            return None
        return Path(self._locations.socket_dir, f"{name}.sock")

    async def _runs(self, name: str) -> bool:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECT_SECONDS):
                _, writer = await asyncio.open_unix_connection(self._path(name))
                writer.close()
                return True
        return False


def _head(exchange: Exchange, target: bytes, length: int) -> bytes:
    lines = [b"%b %b HTTP/1.1" % (exchange.method.encode(), target), b"host: localhost", b"connection: close"]
    if length:
        lines += [b"content-type: application/json", b"content-length: %d" % length]
    lines += [b"last-event-id: " + value for value in exchange.headers.get(b"last-event-id", ())]
    return b"\r\n".join([*lines, b"", b""])


class _Response:
    """A response that is copied while it arrives, if it is a stream, else as a whole."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._content_type = b""
        self._pieces: list[bytes] = []
        self._is_complete = False

    async def copy(self, reader: asyncio.StreamReader) -> None:
        """Copy until the end of the response."""
        started = False
        while not self._is_complete and (data := await reader.read(_READ_BYTES)):
            self._parser.feed_data(data)
            if self._content_type == EVENT_STREAM and not started:
                started = True
                self._exchange.start(200, common_headers(EVENT_STREAM))
            if started:
                await self._exchange.write(self._take())
        if started:
            self._exchange.end()
        elif self._is_complete:
            self._exchange.respond(self._parser.get_status_code(), self._take(), content_type=self._content_type)
        else:
            raise HttpRefusal(503, "unavailable", "the daemon closed the connection", "it may be stopping: try again")

    def _take(self) -> bytes:
        taken = b"".join(self._pieces)
        self._pieces.clear()
        return taken

    # called by the parser

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header."""
        if name.lower() == b"content-type":
            self._content_type = value

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        """The end of the response."""
        self._is_complete = True
