"""Daemons that several modules start."""

from collections.abc import Iterator

import pytest

from tests.support.sentient_daemons import Six, six_daemons


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Six]:
    with six_daemons(tmp_path_factory.mktemp("six")) as made:
        yield made


@pytest.fixture(scope="module")
def six_and_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Six]:
    """The daemons of `six`, whose user is the desk."""
    with six_daemons(tmp_path_factory.mktemp("six"), "--sentient-user", "desk") as made:
        yield made
