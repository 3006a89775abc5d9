"""A real API server on a real socket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import pytest_asyncio

from aghbus.daemon.api.server import ApiServer
from tests.daemon.api.harness import BODY_LIMIT, Api
from tests.daemon.api.simulator import SimulatedNode


@pytest.fixture
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: pytest's own may be longer than a socket's may be."""
    return tmp_path_factory.mktemp("api") / "run" / "d.sock"


@pytest_asyncio.fixture
async def api(socket_path: Path) -> AsyncIterator[Api]:
    """A server that allows the time of a busy machine."""
    async with serving(socket_path) as harness:
        yield harness


@pytest_asyncio.fixture
async def impatient_api(socket_path: Path) -> AsyncIterator[Api]:
    """A server that gives a request's head and body 0.3 s each."""
    async with serving(socket_path, head_seconds=0.3, body_seconds=0.3) as harness:
        yield harness


@asynccontextmanager
async def serving(path: Path, *, head_seconds: float = 10.0, body_seconds: float = 10.0) -> AsyncIterator[Api]:
    node = SimulatedNode()
    server = ApiServer(
        node,
        socket_path=path,
        max_body=BODY_LIMIT,
        head_seconds=head_seconds,
        body_seconds=body_seconds,
        keep_alive=0.1,
    )
    await server.start()
    harness = Api(server, node, path)
    try:
        yield harness
    finally:
        await harness.close()
