"""A store on a real file for each test."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aghbus.store.engine.database import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the test's store is."""
    return tmp_path / "state" / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[Store]:
    """An open store, closed afterwards. Not synced to the disk at each commit: these tests do not cut the power."""
    opened = await Store.open(path, synchronous="normal")
    yield opened
    await opened.close()
