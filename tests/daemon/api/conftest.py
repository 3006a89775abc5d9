"""A real API server on a real socket."""

from collections.abc import AsyncIterator
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
    node = SimulatedNode()
    server = ApiServer(
        node, socket_path=socket_path, max_body=BODY_LIMIT, head_seconds=0.3, body_seconds=0.3, keep_alive=0.1
    )
    await server.start()
    harness = Api(server, node, socket_path)
    yield harness
    await harness.close()
