"""SIGKILL between any two steps: acknowledged writes are complete, no write is partial, and the next start works."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from aghbus.store.engine.database import Store
from aghbus.store.engine.log.segments import SEGMENT
from aghbus.store.tables import rooms
from tests.support.crash_child import envelope
from tests.support.log_searches import assert_found, index_problems_of
from tests.support.makers import receive, rows

ROOT = Path(__file__).parents[2]
# A bit more than the statements of one envelope that opens a work in a new thread, BEGIN and COMMIT included.
PER_ENVELOPE = 12
ENDLESS = 10**9  # envelopes: the child is killed long before, however late its parent looks


def start(
    path: Path, first: int, count: int, together: int, statement: int = 0, segment: int = SEGMENT
) -> subprocess.Popen[bytes]:
    arguments = [str(path), *map(str, (first, count, together, statement, segment))]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.support.crash_child", *arguments], cwd=ROOT, stdout=subprocess.PIPE
    )


def run_until_dead(child: subprocess.Popen[bytes], kill_after: int | None = None) -> set[int]:
    """The envelopes that the child said are committed; it is killed once it said so of `kill_after` of them."""
    assert child.stdout is not None
    said: set[int] = set()
    with child:
        for line in child.stdout:
            if line.strip().isdigit():
                said.add(int(line))
            if kill_after is not None and len(said) >= kill_after:
                child.kill()
                kill_after = None
    return said


def modified(path: Path) -> int:
    return path.stat().st_mtime_ns


async def whole(store: Store) -> set[int]:
    """The numbers of the envelopes that are there; fails when one is there in part."""
    present = {int(found[0].removeprefix("msg_"), 16) for found in await rows(store, "SELECT msg_id FROM envelopes")}
    for sql in (
        "SELECT substr(work_id, 6) FROM works",
        "SELECT substr(w.work_id, 6) FROM works AS w JOIN envelopes AS e ON e.seq = w.opened_seq AND e.outcome = 'opened'",
        "SELECT substr(work_id, 6) FROM envelopes WHERE inbox = 1",
    ):
        assert {int(number) for (number,) in await rows(store, sql)} == present, sql
    assert sum(thread.messages for thread in await rooms.threads(store.reader)) == len(present)
    assert len(store.memory.dedup) == len(present)
    assert store.memory.inbox.waiting == len(present)
    return present


async def check(path: Path, said: set[int], count: int) -> set[int]:
    """Reopens, compares with what was said, and sends everything again: each ends up there once."""
    store = await Store.open(path)  # the lock is free, the file is checked
    try:
        present = await whole(store)
        assert said <= present
        for number in range(count):
            applied = await receive(store, envelope(number), capacity=10**9)
            assert (applied.seq is None) == (number in present)
        stored = await rows(store, "SELECT msg_id FROM envelopes WHERE direction = 'in'")
        assert sorted(stored) == [(envelope(number).id,) for number in range(count)]
    finally:
        await store.close()
    return present


def test_the_child_process_commits_everything_when_it_is_not_killed(path: Path) -> None:
    child = start(path, 0, 10, 3)
    assert run_until_dead(child) == set(range(10))
    assert child.returncode == 0


@pytest.mark.parametrize("statement", [*range(100, 190, 3)])
async def test_killed_between_commits_and_batches_of_indexes(path: Path, statement: int) -> None:
    """Five envelopes are indexed together, two committed: the batches of several segments follow each other."""
    said = run_until_dead(start(path, 0, 30, 2, statement, segment=5))
    for segment in (5, SEGMENT):
        store = await Store.open(path, segment=segment)
        try:
            assert said <= await whole(store)
            await assert_found(store)
            assert not index_problems_of(path)
        finally:
            await store.close()


@pytest.mark.parametrize("statement", [*range(2, 2 + PER_ENVELOPE), 2 + 3 * PER_ENVELOPE])
async def test_killed_between_two_statements(path: Path, statement: int) -> None:
    child = start(path, 0, 6, 1, statement)
    said = run_until_dead(child)
    assert child.returncode == -9
    present = await check(path, said, 6)
    assert present == said  # one at a time: nothing of the one under way, all before it


@pytest.mark.parametrize("statement", [5, *range(38, 50), 80, 119])
async def test_killed_within_a_group(path: Path, statement: int) -> None:
    child = start(path, 0, 60, 20, statement)
    said = run_until_dead(child)
    assert child.returncode == -9
    await check(path, said, 60)


@pytest.mark.parametrize("seed", range(4))
async def test_killed_at_any_moment(path: Path, seed: int) -> None:
    chance = random.Random(seed)
    child = start(path, 0, ENDLESS, chance.choice([1, 7, 100, 1000]))
    said = run_until_dead(child, kill_after=chance.randrange(1, 1500))
    assert child.returncode == -9
    store = await Store.open(path)
    try:
        assert said <= await whole(store)
    finally:
        await store.close()


@pytest.mark.parametrize("further", [0, 1, 3, 10])
async def test_killed_during_a_checkpoint(path: Path, further: int) -> None:
    """The child is killed so many commits after the COMMIT that copies pages into the file has begun to do so."""
    child = start(path, 0, ENDLESS, 1)
    assert child.stdout is not None
    with child:
        assert child.stdout.readline() == b"open\n"
        said = [int(child.stdout.readline())]
        opened = modified(path)
        os.set_blocking(child.stdout.fileno(), False)
        while modified(path) == opened:
            said += map(int, child.stdout.readlines())
        os.set_blocking(child.stdout.fileno(), True)
        said += [int(child.stdout.readline()) for _ in range(further)]
        child.kill()
        said += [int(line) for line in child.stdout if line.endswith(b"\n")]
    assert child.returncode == -9
    store = await Store.open(path)
    try:
        assert set(said) <= await whole(store)
    finally:
        await store.close()
    assert not index_problems_of(path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100))
async def test_killed_again_and_again(path: Path, seed: int) -> None:
    chance = random.Random(1000 + seed)
    said: set[int] = set()
    first = 0
    for _ in range(5):
        together = chance.choice([1, 3, 50, 400])
        if chance.random() < 0.5:
            child = start(path, first, 2000, together, chance.randrange(2, 3000))
            said |= run_until_dead(child)
        else:
            said |= run_until_dead(start(path, first, 2000, together), kill_after=chance.randrange(1, 900))
        store = await Store.open(path)
        present = await whole(store)
        await store.close()
        assert said <= present
        first = max(present, default=-1) + 1
