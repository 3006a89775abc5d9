"""Checkpoints: the WAL is written from its start again, whatever held a checkpoint up meanwhile."""

import contextlib
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from aghbus.store.engine import meta
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from tests.support.makers import files_up_to

WAL = 4_096 * 4_096  # bytes at which a COMMIT makes a checkpoint
PART = WAL // 128
# Holds the lock of checkpoints (sqlite.org/walformat.html#wal_locks) until its standard input is closed.
LOCKS_CHECKPOINTS = """
import fcntl, sys
with open(sys.argv[1] + "-shm", "r+b") as shm:
    fcntl.lockf(shm, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 121)
    print("locked", flush=True)
    sys.stdin.read()
"""

READS = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN")
db.execute("SELECT count(*) FROM log").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


def wal_of(path: Path) -> int:
    """The bytes of the WAL file, which does not shrink when it is written from its start."""
    return path.with_name(path.name + "-wal").stat().st_size


@contextlib.contextmanager
def checkpoints_locked(path: Path) -> Iterator[None]:
    command = [sys.executable, "-c", LOCKS_CHECKPOINTS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        yield
        other.communicate()


def replace(tx: Transaction) -> None:
    """Writes twice PART: the pages that the row had become free ones."""
    tx.db.execute("CREATE TABLE IF NOT EXISTS filling (id INTEGER PRIMARY KEY, content BLOB)")
    tx.db.execute("INSERT OR REPLACE INTO filling VALUES (1, randomblob(?))", (PART,))
    meta.bump(tx.db, "filled")


async def fill(store: Store, wals: int) -> None:
    """Commits as many pages as so many WALs have at which a checkpoint begins."""
    for _ in range(wals * 64):
        await store.write(replace)


def filled(path: Path) -> int:
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return meta.get(db, "filled") or 0


@pytest.mark.parametrize("synchronous", ["full", "normal"])
async def test_the_wal_is_bounded_under_load(path: Path, synchronous: str) -> None:
    store = await Store.open(path, synchronous="full" if synchronous == "full" else "normal")
    await fill(store, 6)
    assert WAL < wal_of(path) < 3 * WAL
    await store.close()
    assert filled(path) == 6 * 64


async def test_a_reader_holds_the_wal_up_only_while_it_reads(store: Store, path: Path) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM log").fetchone()
        await fill(store, 5)
        held = wal_of(path)
        assert held > 4 * WAL
        assert reader.execute("SELECT count(*) FROM sqlite_schema WHERE name = 'filling'").fetchone() == (0,)
        reader.execute("COMMIT")
    await fill(store, 5)
    assert wal_of(path) < held + 2 * WAL


@contextlib.contextmanager
def reading(path: Path) -> Iterator[int]:
    """Another process reads the store in one transaction. Yields its process id."""
    command = [sys.executable, "-c", READS, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"reading\n"
        yield other.pid
        other.communicate()


async def growth_of(store: Store) -> list[str]:
    """What the operator is told."""
    await store.check_wal()
    return list(store.problems)


async def test_a_process_that_reads_an_old_state_is_named_while_the_wal_grows(store: Store, path: Path) -> None:
    with reading(path) as pid:
        await fill(store, 3)
        assert await growth_of(store) == []  # short of the bound
        await fill(store, 2)
        (problem,) = await growth_of(store)
        assert re.search(rf"log has \d+ MiB, and grows while process {pid} \(python.*\) reads an old state", problem)
    with files_up_to(4096):  # the disk refuses what a checkpoint writes
        (problem,) = await growth_of(store)
    assert ": its checkpoint fails: " in problem
    assert await growth_of(store) == []


async def test_another_process_that_makes_a_checkpoint_stops_no_commit(store: Store, path: Path) -> None:
    with checkpoints_locked(path):
        await fill(store, 5)
        held = wal_of(path)
        assert held > 4 * WAL
    await fill(store, 5)
    assert wal_of(path) < held + 2 * WAL
