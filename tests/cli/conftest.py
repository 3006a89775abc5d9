"""Daemons that the tests of several commands use."""

from collections.abc import Iterator

import pytest

from tests.support.daemons import Daemon, Home, wait_for
from tests.support.serving import Bus, two_peers


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with two_peers(tmp_path_factory.mktemp("serve")) as both:
        yield both


@pytest.fixture
def ops(home: Home) -> Iterator[Daemon]:
    with Daemon(home, "ops") as daemon:
        yield daemon


@pytest.fixture
def peer(home: Home, ops: Daemon) -> Iterator[Daemon]:
    with Daemon(home, "worker") as daemon:
        wait_for(lambda: ops.knows("worker") and daemon.knows("ops"), 30, "each other")
        yield daemon
