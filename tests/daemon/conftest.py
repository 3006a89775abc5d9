"""Fixtures of several tests of the daemon's parts."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aghbus.host.locations import Locations, locate
from aghbus.store.engine.database import Store


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "store.db", synchronous="normal")
    yield opened
    await opened.close()


@pytest.fixture
def places(tmp_path: Path) -> Locations:
    """Those of the instance `ops`, with its state directory."""
    found = locate("ops", {}, uid=os.getuid(), home=str(tmp_path))
    Path(found.state_dir).mkdir(parents=True)
    return found
