"""Daemons of their own for each test, because tests kill them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.client_pair import Pair, running_pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with running_pair(tmp_path) as both:
        yield both
