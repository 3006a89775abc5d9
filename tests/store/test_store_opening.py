"""Opening: the lock, file modes, versions, damage, and stores that were not closed in order."""

import asyncio
import contextlib
import errno
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from aghbus.store.engine.database import Store
from aghbus.store.engine.schema import check_owner, migrate, shipped
from aghbus.store.engine.store_lock import StoreLock
from aghbus.store.errors import StoreDamaged, StoreLocked, StoreTooNew, StoreUnopenable
from tests.support.makers import receive, rows, say

HOLD = """
import asyncio, sys
from pathlib import Path
from aghbus.store.engine.database import Store
async def main():
    await Store.open(Path(sys.argv[1]), name="other-one")
    print("open", flush=True)
    sys.stdin.read()
asyncio.run(main())
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def other_file(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)


@contextlib.contextmanager
def holder(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the store open."""
    command = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        yield child


def foreign_database(path: Path) -> bytes:
    path.parent.mkdir()
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE theirs (x)")
    db.commit()
    db.close()
    return path.read_bytes()


def garble_index(path: Path, name: str) -> None:
    """As if the power had been lost, and a page of this index been damaged."""
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = 0 WHERE key IN ('closed', 'boot')")
    (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    db.commit()
    db.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * page_bytes + 3)
        file.write(b"\x7f\xff\x7f\xff")


async def test_a_new_store_has_small_pages_and_one_with_others_keeps_them(path: Path) -> None:
    store = await Store.open(path)
    assert await rows(store, "PRAGMA page_size") == [(2048,)]
    await store.close()
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode = DELETE; PRAGMA page_size = 4096; VACUUM")  # as an earlier version made it
    db.close()
    store = await Store.open(path)
    try:
        await receive(store, say())
        assert await rows(store, "PRAGMA page_size") == [(4096,)]
        assert await rows(store, "SELECT count(*) FROM envelopes") == [(1,)]
        assert store.problems == ()
    finally:
        await store.close()


async def test_a_new_store_is_private_and_in_wal_mode(path: Path) -> None:
    store = await Store.open(path)
    try:
        assert mode(path) == 0o600
        assert mode(path.parent) == 0o700
        assert mode(path.with_name("store.db-wal")) == 0o600
        assert await rows(store, "PRAGMA journal_mode") == [("wal",)]
        assert await rows(store, "PRAGMA auto_vacuum") == [(2,)]
        settings = await store.write(
            lambda tx: [tx.db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("synchronous", "foreign_keys")]
        )
        assert settings == [2, 1]  # FULL, ON
    finally:
        await store.close()


async def test_a_store_may_be_behind_a_link(path: Path) -> None:
    store = await Store.open(path)
    await store.close()
    link = path.parent / "elsewhere" / "link.db"
    link.parent.mkdir()
    link.symlink_to(path)
    linked = await Store.open(link)
    assert await linked.probe()
    await linked.close()


async def test_a_looser_mode_is_tightened(path: Path) -> None:
    await (await Store.open(path)).close()
    await asyncio.to_thread(path.chmod, 0o644)
    await (await Store.open(path)).close()
    assert mode(path) == 0o600


async def test_synchronous_normal_is_a_switch(store: Store) -> None:
    assert await store.write(lambda tx: tx.db.execute("PRAGMA synchronous").fetchone()) == (1,)
    assert (await store.status()).synchronous == "normal"


async def test_the_reader_cannot_write(store: Store) -> None:
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await store.reader.execute("DELETE FROM meta")


async def test_a_second_opener_of_this_process_is_refused(store: Store, path: Path) -> None:
    with pytest.raises(StoreLocked) as caught:
        await Store.open(path)
    assert caught.value.pid == os.getpid()


def test_a_full_disk_does_not_prevent_the_lock(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path.parent.mkdir(exist_ok=True)
    lock = StoreLock(path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", full)
        lock.acquire("ops")
    with pytest.raises(StoreLocked, match="another process"):
        StoreLock(path).acquire("second")
    lock.release()


async def test_the_lock_names_its_holder_and_is_released_when_that_dies(path: Path) -> None:
    with holder(path) as child:
        with pytest.raises(StoreLocked) as caught:
            await Store.open(path)
        assert caught.value.pid == child.pid
        assert "other-one" in str(caught.value)
        assert f"pid {child.pid}" in str(caught.value)
        assert caught.value.hint
        child.kill()
        child.wait()
    await (await Store.open(path)).close()


async def test_a_failed_opening_leaves_nothing_locked(path: Path) -> None:
    other_file(path, b"not a database at all" * 100)
    for _ in range(2):  # the second one would meet the lock of the first
        with pytest.raises(StoreDamaged):
            await Store.open(path)


async def test_another_programs_file_is_left_alone(path: Path) -> None:
    before = foreign_database(path)
    with pytest.raises(StoreDamaged, match="another program"):
        await Store.open(path)
    assert await asyncio.to_thread(path.read_bytes) == before


async def test_a_newer_schema_is_refused(path: Path) -> None:
    await (await Store.open(path)).close()
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 999")
    db.close()
    with pytest.raises(StoreTooNew, match=f"has schema 999, this program knows {len(shipped())}"):
        await Store.open(path)


async def test_a_store_of_a_version_before_the_first_release_is_refused(path: Path) -> None:
    await (await Store.open(path)).close()
    db = sqlite3.connect(path)
    db.executescript("DROP INDEX follow_ups_chain; ALTER TABLE follow_ups DROP COLUMN chain; PRAGMA user_version = 1")
    db.close()
    with pytest.raises(StoreUnopenable, match="development version before the first release") as caught:
        await Store.open(path)
    assert "move store.db" in caught.value.hint
    assert "restore it with that version" in caught.value.hint


async def test_damage_after_an_unclean_end_is_found(path: Path) -> None:
    store = await Store.open(path)
    for number in range(50):
        await receive(store, say(work_id=f"work_{number}"))
    await store.close()
    garble_index(path, "log_ids")
    with pytest.raises(StoreDamaged) as caught:
        await Store.open(path)
    assert caught.value.hint


async def test_writes_persist_after_reopening(path: Path) -> None:
    store = await Store.open(path)
    envelope = say()
    await receive(store, envelope)
    await store.close()
    left = await asyncio.to_thread(lambda: {entry.name for entry in path.parent.iterdir()})
    assert left == {"store.db", "store.db.lock", "store.db.mark", "store.db.reserve"}
    store = await Store.open(path)
    try:
        assert await rows(store, "SELECT msg_id, raw FROM envelopes") == [(envelope.id, envelope.raw)]
        assert store.memory.inbox.waiting == 1
    finally:
        await store.close()


async def test_closing_twice_is_harmless_and_later_writes_fail(path: Path) -> None:
    store = await Store.open(path)
    pending = store.submit(lambda tx: 7)
    await store.close()
    assert await pending == 7  # what waited was carried out
    await store.close()
    with pytest.raises(Exception, match="closed"):
        await store.write(lambda tx: 8)


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnopenable) as caught:
        await Store.open(tmp_path / "file" / "store.db")
    assert caught.value.hint


async def test_a_store_that_is_a_folder(tmp_path: Path) -> None:
    await asyncio.to_thread((tmp_path / "store.db").mkdir)
    with pytest.raises(StoreUnopenable):
        await Store.open(tmp_path / "store.db")


def test_migrations_are_numbered_without_a_gap() -> None:
    names = sorted(entry.name for entry in files("aghbus.store").joinpath("migrations").iterdir())
    assert [name[:5] for name in names] == [f"{number:04}_" for number in range(1, len(names) + 1)]
    assert len(shipped()) == len(names)


def test_only_the_missing_migrations_run(tmp_path: Path) -> None:
    first = "CREATE TABLE a (x); INSERT INTO a VALUES (1);"
    second = "ALTER TABLE a ADD COLUMN y DEFAULT 5;"
    db = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
    migrate(db, 0, [first])
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    migrate(db, 1, [first, second])
    assert db.execute("PRAGMA user_version").fetchone() == (2,)
    assert db.execute("SELECT * FROM a").fetchall() == [(1, 5)]
    db.close()


def test_a_migration_that_fails_changes_nothing(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "old.db", isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        migrate(db, 0, ["CREATE TABLE a (x);", "CREATE TABLE b (x); INSERT INTO nowhere VALUES (1);"])
    assert db.execute("PRAGMA user_version").fetchone() == (1,)
    assert [name for (name,) in db.execute("SELECT name FROM sqlite_schema")] == ["a"]
    assert not db.in_transaction
    db.close()


def test_every_table_is_strict(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    db = sqlite3.connect(path, isolation_level=None)
    migrate(db, check_owner(db, path), shipped())
    loose = [
        row[1]
        for row in db.execute("PRAGMA table_list")
        if row[2] == "table" and not row[1].startswith("sqlite_") and row[5] != 1
    ]
    db.close()
    assert loose == []
