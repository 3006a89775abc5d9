"""Two daemons, and a gateway to the worker, which all tests of a process share."""

from collections.abc import Iterator

import pytest

from tests.support.a2a_gateway import Gateway, serving_a2a
from tests.support.cluster import free_ports
from tests.support.serving import Bus, two_peers


@pytest.fixture(scope="session")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    once = ("--retry-first", "30s")  # a retry after a stall would be the latest change of a task
    with two_peers(tmp_path_factory.mktemp("a2a"), *once, worker_options=once) as both:
        yield both


@pytest.fixture(scope="session")
def gateway(bus: Bus) -> Iterator[Gateway]:
    grpc = f"127.0.0.1:{free_ports(1)[0]}"
    with serving_a2a(bus.home, "--listen", "127.0.0.1:0", "--grpc", grpc, "--peer", "worker") as running:
        yield running
