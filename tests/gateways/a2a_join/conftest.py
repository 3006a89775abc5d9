"""Two daemons and an A2A agent that the tests of `aghctl a2a` share."""

from collections.abc import Iterator

import pytest

from tests.support.joining import AgentProcess, Join, agent
from tests.support.serving import Bus, two_peers


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with two_peers(tmp_path_factory.mktemp("a2a")) as both:
        yield both


@pytest.fixture(scope="session")
def reviewer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    with agent(tmp_path_factory.mktemp("agent")) as one:
        yield one


@pytest.fixture(scope="module", params=["jsonrpc", "http-json", "grpc"])
def joined(request: pytest.FixtureRequest, bus: Bus, reviewer: AgentProcess) -> Iterator[Join]:
    with Join(bus, reviewer.url, "--binding", request.param, "--concurrency", "8", "--metrics", "127.0.0.1:0") as join:
        yield join
