"""A real API server on a real socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
import uvloop

from aghbus.daemon.api.http.timeouts import HttpTimeouts
from tests.support.api_harness import Api, serving


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the daemon runs on."""
    return {"uvloop": uvloop.new_event_loop}


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
    async with serving(socket_path, HttpTimeouts(head=0.3, body=0.3, silence=0.1)) as harness:
        yield harness
