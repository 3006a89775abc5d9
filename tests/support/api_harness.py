"""Real HTTP clients for the API under test."""

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aghbus.daemon.api.http.timeouts import HttpTimeouts
from aghbus.daemon.api.server import ApiServer
from tests.support.api_simulator import SimulatedDaemon
from tests.support.daemons import UnixClient

DEADLINE = 20.0  # seconds; what a test waits for takes milliseconds
BODY_LIMIT = 100_000  # bytes, small so that tests are quick


@dataclass
class Reply:
    """One HTTP response, read to its end."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def exchange(
    connection: http.client.HTTPConnection, method: str, target: str, body: bytes | None, headers: dict[str, str]
) -> Reply:
    """One request and its response, on a connection that is closed afterwards. Blocks: call it in a thread."""
    with contextlib.closing(connection):
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return Reply(response.status, {key.lower(): value for key, value in response.getheaders()}, response.read())


class Api:
    """The server under test, its node, and requests to it."""

    def __init__(self, server: ApiServer, node: SimulatedDaemon, path: Path) -> None:
        self.server = server
        self.node = node
        self.path = path
        self._writers: list[asyncio.StreamWriter] = []

    async def request(
        self, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> Reply:
        """A request on a fresh connection."""
        return await asyncio.to_thread(exchange, UnixClient(self.path, DEADLINE), method, target, body, headers or {})

    async def get(self, target: str) -> Reply:
        return await self.request("GET", target)

    async def post(self, target: str, value: Any = None) -> Reply:
        body = None if value is None else json.dumps(value).encode()
        return await self.request("POST", target, body, {"content-type": "application/json"} if body else {})

    async def raw(self, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection on which `data` was written."""
        reader, writer = await asyncio.open_unix_connection(str(self.path))
        writer.write(data)
        self._writers.append(writer)
        return reader, writer

    async def close(self) -> None:
        """Stop the server, and close what tests have left open."""
        await self.server.stop(5.0)
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


FREQUENT_COMMENTS = HttpTimeouts(silence=0.1)


@asynccontextmanager
async def serving(path: Path, timeouts: HttpTimeouts = FREQUENT_COMMENTS) -> AsyncIterator[Api]:
    node = SimulatedDaemon()
    server = ApiServer(
        node.handlers(),
        socket_path=path,
        max_body=BODY_LIMIT,
        timeouts=timeouts,
    )
    await server.start()
    harness = Api(server, node, path)
    try:
        yield harness
    finally:
        await harness.close()
