"""Daemons that several tests of `aghctl serve` use."""

from collections.abc import Iterator

import pytest

from tests.support.serving import Bus, two_peers


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with two_peers(tmp_path_factory.mktemp("serve")) as both:
        yield both
