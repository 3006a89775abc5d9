"""A large store is usable within seconds after its daemon was killed."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aghbus.store.engine.database import Store
from aghbus.store.tables import envelopes
from tests.support.fill_child import message, template
from tests.support.log_searches import index_problems_of
from tests.support.makers import receive, rows

ROOT = Path(__file__).parents[2]
COUNT = 1_000_000
READS = 10  # times that a plain read of the file may take, which a slow disk or machine takes longer for, too


def read_seconds(path: Path) -> float:
    started = time.perf_counter()
    with path.open("rb") as file:
        while file.read(1 << 20):
            pass
    return time.perf_counter() - started


def fill_and_kill(path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.fill_child", str(path), str(COUNT)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"full\n"
        child.kill()


@pytest.mark.long
async def test_a_million_messages_are_open_within_seconds_after_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    fill_and_kill(path)
    reading = read_seconds(path)
    started = time.perf_counter()
    store = await Store.open(path)
    took = time.perf_counter() - started
    print(f"\nopened in {took:.1f} s, {took / reading:.1f} reads of the file")
    try:
        assert took < max(15.0, READS * reading)
        assert len(store.memory.dedup) == COUNT
        assert await rows(store, "SELECT count(*) FROM log") == [(COUNT,)]
        origin = template()
        for number in random.Random(1).sample(range(COUNT), 50):
            known = message(number, origin)
            assert (await receive(store, known, capacity=1 << 40)).seq is None
            found = await envelopes.message(store.reader, known.id)
            assert found is not None
            assert found.seq == number + 1
    finally:
        await store.close()
    assert index_problems_of(path) == []
