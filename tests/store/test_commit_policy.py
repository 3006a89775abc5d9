"""Which commits run on the event loop: small ones, on a fast disk."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from aghbus.store.engine.commit import policy
from aghbus.store.engine.commit.policy import (
    FAST_SECONDS,
    MAX_PENALTY,
    PENALTY,
    SLOW_SECONDS,
    WAL_LIMIT,
    CommitPolicy,
)


class Disk:
    """In place of a connection: each COMMIT takes `seconds`."""

    def __init__(self) -> None:
        self.seconds = FAST_SECONDS / 10
        self.now = 0.0

    def execute(self, sql: str) -> None:
        assert sql == "COMMIT"
        self.now += self.seconds

    def perf_counter(self) -> float:
        return self.now


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(policy, "time", made)
    return made


def paced(disk: Any, wal: str = "") -> CommitPolicy:
    db: sqlite3.Connection = disk
    return CommitPolicy(db, wal)


def commit(one: CommitPolicy, changes: int = 10) -> bool:
    """Whether the commit stayed on the loop."""
    on_loop = one.commits_on_loop(changes)
    one.commit(on_loop=on_loop)
    return on_loop


def test_a_fast_disk_is_detected_after_some_commits(disk: Disk) -> None:
    one = paced(disk)
    assert [commit(one) for _ in range(10)] == [False] * 8 + [True] * 2


def test_commits_to_a_slow_disk_run_in_the_thread(disk: Disk) -> None:
    one = paced(disk)
    disk.seconds = 2 * FAST_SECONDS
    assert not any(commit(one) for _ in range(100))


def test_a_busy_machine_does_not_count_as_a_slow_disk(disk: Disk) -> None:
    one = paced(disk)
    for number in range(100):
        disk.seconds = FAST_SECONDS / 2 if number % 8 == 0 else SLOW_SECONDS / 2
        stayed = commit(one)
    assert stayed


def stall(one: CommitPolicy, disk: Disk) -> int:
    """How many commits leave the loop after one on it was slow."""
    while not commit(one):
        pass
    disk.seconds = 2 * SLOW_SECONDS
    assert commit(one)
    disk.seconds = FAST_SECONDS / 10
    left = 0
    while not commit(one):
        left += 1
    return left


def test_after_a_stall_commits_run_in_the_thread_ever_longer(disk: Disk) -> None:
    one = paced(disk)
    left = [stall(one, disk) for _ in range(8)]
    assert left[:3] == [PENALTY, 2 * PENALTY, 4 * PENALTY]
    assert left[-2:] == [MAX_PENALTY, MAX_PENALTY]


def test_an_old_stall_is_forgotten(disk: Disk) -> None:
    one = paced(disk)
    assert [stall(one, disk), stall(one, disk)] == [PENALTY, 2 * PENALTY]
    assert sum(commit(one) for _ in range(2 * MAX_PENALTY)) >= MAX_PENALTY
    assert stall(one, disk) == PENALTY


def test_large_transactions_are_written_in_the_thread(disk: Disk) -> None:
    one = paced(disk)
    while not commit(one):
        pass
    assert not commit(one, changes=10_000)
    assert commit(one)


def test_a_commit_that_may_copy_a_long_wal_runs_in_the_thread(disk: Disk, tmp_path: Path) -> None:
    wal = tmp_path / "store.db-wal"
    one = paced(disk, str(wal))
    while not commit(one):
        pass
    with wal.open("wb") as file:
        file.truncate(WAL_LIMIT + 1)
    assert not commit(one)
    wal.unlink()
    assert commit(one)
