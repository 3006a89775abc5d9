"""Deliberate damage: commits that SQLite drops silently are reported at the next start, a corrupt file is refused."""

import asyncio
import contextlib
import itertools
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from aghbus.daemon.check_store import StoreCheck, accept_loss, check_store
from aghbus.protocol.api.queries import EnvelopeFilter, EventsQuery
from aghbus.store.engine.commit.ledger import Head
from aghbus.store.engine.commit.watermark import CommitWatermark, encode_watermark, read_watermark, watermark_path
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreDamaged, StoreError, StoreUnavailable
from aghbus.store.tables import search
from aghbus.store.tables.events import gap_after
from tests.support.makers import receive, rows, say

CRASH = """
import asyncio, os, signal, sys
from pathlib import Path
from aghbus.store.engine.database import Store
from aghbus.store.engine.commit.watermark import read_watermark
from tests.support.crash_child import envelope
from tests.support.makers import receiving
async def main():
    store = await Store.open(Path(sys.argv[1]))
    for number in range(int(sys.argv[2])):
        await store.write(receiving(envelope(number), capacity=10**9))
    path, commits = Path(sys.argv[1]), store.memory.ledger.head.n
    while read_watermark(path).head.n < commits:  # it follows the commits within milliseconds
        await asyncio.sleep(0.001)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
ROOT = Path(__file__).parents[2]
SENT = 40
_numbers = itertools.count()
WAL_HEADER, FRAME_HEADER, PAGE = 32, 24, 2048  # sqlite.org/fileformat2.html#the_write_ahead_log


def crashed(path: Path, count: int = SENT) -> None:
    """A store of `count` envelopes, each committed and acknowledged, whose process then died without closing it."""
    child = subprocess.run([sys.executable, "-c", CRASH, str(path), str(count)], cwd=ROOT, check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL


def wal(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def flip(path: Path, offset: int, length: int = 1) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        content = file.read(length)
        file.seek(offset)
        file.write(bytes(byte ^ 0xFF for byte in content))


def cut_short(path: Path, length: int) -> None:
    os.truncate(path, path.stat().st_size - length)


def flip_text(path: Path, text: bytes) -> None:
    flip(path, path.read_bytes().index(text))


def remove(path: Path) -> None:
    path.unlink()


def left_beside(path: Path) -> set[str]:
    return {event.name for event in path.parent.iterdir()}


def named(found: list[StoreCheck], check: str) -> StoreCheck:
    return next(one for one in found if one.check == check)


@pytest.fixture
def killed(path: Path) -> Path:
    """The path of a store whose process was killed after its last yes: everything is in the WAL."""
    crashed(path)
    return path


async def opened_with_loss(path: Path) -> tuple[int, tuple[str, ...]]:
    """How many envelopes an opening leaves, and what it reports."""
    store = await Store.open(path)
    try:
        ((count,),) = await rows(store, "SELECT count(*) FROM envelopes")
        return count, store.problems
    finally:
        await store.close()


async def test_a_killed_process_leaves_no_damage(killed: Path) -> None:
    assert check_store(killed, quick=False).ok
    assert await opened_with_loss(killed) == (SENT, ())


def test_the_watermark_counts_every_acknowledged_commit(killed: Path) -> None:
    watermark = read_watermark(killed)
    assert watermark is not None
    assert watermark.head.last_seq == SENT
    assert watermark.head.n >= SENT


@pytest.mark.parametrize("cut", [1, FRAME_HEADER + PAGE, 5 * (FRAME_HEADER + PAGE) + 7])
async def test_a_cut_wal_is_noticed(killed: Path, cut: int) -> None:
    cut_short(wal(killed), cut)
    assert named(check_store(killed, quick=True).checks, "store commits").state == "fail"
    count, problems = await opened_with_loss(killed)
    assert count < SENT or "changes to older ones" in problems[0]
    assert len(problems) == 1
    assert "has lost commits" in problems[0]
    assert "aghd check-store" in problems[0]


async def test_a_flipped_byte_in_the_wal_loses_later_commits_and_is_detected(killed: Path) -> None:
    frames = (wal(killed).stat().st_size - WAL_HEADER) // (FRAME_HEADER + PAGE)
    flip(wal(killed), WAL_HEADER + frames * 3 // 4 * (FRAME_HEADER + PAGE) + FRAME_HEADER + 100)
    count, problems = await opened_with_loss(killed)
    assert 0 < count < SENT
    assert f"messages after sequence {count}, up to {SENT}" in problems[0]


async def test_a_deleted_wal_is_noticed(path: Path) -> None:
    store = await Store.open(path)
    for _ in range(3):
        await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    await store.close()
    crashed(path, 10)
    wal(path).unlink()
    count, problems = await opened_with_loss(path)
    assert count == 3
    assert "up to 13" in problems[0]


async def test_a_store_whose_rows_are_all_in_a_deleted_wal_is_detected(killed: Path) -> None:
    wal(killed).unlink()
    assert not check_store(killed, quick=True).ok
    count, problems = await opened_with_loss(killed)
    assert count == 0
    assert f"after sequence 0, up to {SENT}" in problems[0]


async def test_an_older_copy_put_back_is_noticed(path: Path) -> None:
    store = await Store.open(path)
    await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    await store.close()
    backup = shutil.copy(path, path.with_name("backup.db"))
    store = await Store.open(path)
    for _ in range(4):
        await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    await store.close()
    shutil.copy(backup, path)
    assert not check_store(path, quick=True).ok
    count, problems = await opened_with_loss(path)
    assert count == 1
    assert "4 commits" in problems[0]


async def test_a_file_that_vanished_is_noticed(path: Path) -> None:
    store = await Store.open(path)
    await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    await store.close()
    remove(path)
    (finding,) = check_store(path, quick=True).checks
    assert finding.state == "fail"
    assert "is missing" in finding.detail
    assert path.name not in left_beside(path)  # looking makes nothing
    count, problems = await opened_with_loss(path)
    assert count == 0
    assert "up to 1" in problems[0]


async def test_a_watermark_older_than_the_store_is_not_a_loss(killed: Path) -> None:
    """A crash between COMMIT and the write of the watermark, or a loss of power that lost its last writes."""
    watermark = read_watermark(killed)
    assert watermark is not None
    store = await Store.open(killed)
    assert store.problems == ()
    await store.close()
    with contextlib.closing(sqlite3.connect(killed)) as db:
        (first,) = db.execute("SELECT hash FROM ledger WHERE n = 1").fetchone()
    older = CommitWatermark(watermark.identity, Head(1, first, 1))
    watermark_path(killed).write_bytes(encode_watermark(older))
    assert read_watermark(killed) == older
    assert check_store(killed, quick=False).ok
    assert await opened_with_loss(killed) == (SENT, ())


@pytest.mark.parametrize("content", [None, b"", b"garbage" * 9, "flip"])
async def test_a_store_without_its_watermark_reports_that_once(killed: Path, content: bytes | str | None) -> None:
    if content is None:
        watermark_path(killed).unlink()
    elif content == "flip":
        flip(watermark_path(killed), 17)
    else:
        assert isinstance(content, bytes)
        watermark_path(killed).write_bytes(content)
    finding = named(check_store(killed, quick=True).checks, "store commits")
    assert finding.state == "warn"
    count, problems = await opened_with_loss(killed)
    assert count == SENT
    assert "lost commits cannot be detected" in problems[0]
    assert await opened_with_loss(killed) == (SENT, ())  # the new watermark is compared


async def test_another_stores_file_in_its_place_is_noticed(path: Path, tmp_path: Path) -> None:
    for place in (path, tmp_path / "other" / "store.db"):
        store = await Store.open(place)
        await receive(store, say(id=f"msg_own_{next(_numbers)}"))
        await store.close()
    shutil.copy(tmp_path / "other" / "store.db", path)
    _, problems = await opened_with_loss(path)
    assert "another store's" in problems[0]


async def test_a_loss_is_reported_until_it_is_accepted(killed: Path) -> None:
    cut_short(wal(killed), 1)
    _, first = await opened_with_loss(killed)
    _, second = await opened_with_loss(killed)
    assert first == second
    assert named(check_store(killed, quick=True).checks, "earlier loss").state == "warn"
    assert "accepted: 1 commits" in await asyncio.to_thread(accept_loss, killed)
    _, after = await opened_with_loss(killed)
    assert after == ()
    assert await asyncio.to_thread(accept_loss, killed) == "no loss is on record"


async def test_the_sequence_continues_after_a_loss_and_streams_report_the_gap(killed: Path) -> None:
    os.truncate(wal(killed), wal(killed).stat().st_size // 2)
    store = await Store.open(killed)
    try:
        ((left,),) = await rows(store, "SELECT max(seq) FROM envelopes")
        assert left < SENT
        applied = await receive(store, say(id=f"msg_own_{next(_numbers)}"))
        assert applied.seq == SENT + 1  # not one that a flow has shown before
        assert await gap_after(store.reader, EventsQuery(inbox=True), left) == SENT
        assert await gap_after(store.reader, EnvelopeFilter(), SENT) is None
    finally:
        await store.close()


async def test_two_losses_add_up(killed: Path) -> None:
    cut_short(wal(killed), 1)
    _, first = await opened_with_loss(killed)
    backup = shutil.copy(killed, killed.with_name("backup.db"))
    store = await Store.open(killed)
    await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    await store.close()
    shutil.copy(backup, killed)
    _, second = await opened_with_loss(killed)
    assert "1 commits" in first[0]
    assert "2 commits" in second[0]
    assert f"up to {SENT + 1}" in second[0]


def checkpointed(path: Path) -> None:
    """All pages in the main file, and still not closed in order."""
    db = sqlite3.connect(path)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def power_lost(path: Path) -> None:
    """As `checkpointed`, and the machine was started again since."""
    db = sqlite3.connect(path)
    db.execute("UPDATE meta SET value = value + 1 WHERE key = 'boot'")
    db.commit()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()


def root_page(path: Path, name: str) -> int:
    db = sqlite3.connect(path)
    (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (name,)).fetchone()
    db.close()
    return int(page)


@pytest.mark.parametrize("name", ["log", "outbox_open", "works", "flows"])
async def test_a_damaged_page_refuses_the_start_with_a_hint(killed: Path, name: str) -> None:
    power_lost(killed)
    flip(killed, (root_page(killed, name) - 1) * PAGE + 1, 7)  # header of the b-tree page
    with pytest.raises(StoreDamaged) as caught:
        await Store.open(killed)
    assert "aghd check-store" in caught.value.hint
    assert ".recover" in caught.value.hint
    checked = check_store(killed, quick=True)
    assert not checked.ok
    assert any("recover" in one.hint for one in checked.checks if one.state == "fail")


async def test_damage_after_kill_ends_the_store_and_blocks_next_open(killed: Path) -> None:
    checkpointed(killed)
    flip(killed, (root_page(killed, "works_by_id") - 1) * PAGE + 1, 7)  # opening does not read it
    store = await Store.open(killed)
    try:
        with pytest.raises(StoreDamaged) as caught:
            await asyncio.wait_for(store.ended(), 30)
        assert "aghd check-store" in caught.value.hint
        assert "failed its check" in store.problems[0]
        with pytest.raises(StoreUnavailable):
            await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    finally:
        await store.close()
    with pytest.raises(StoreDamaged):
        await Store.open(killed)


async def test_a_sound_store_is_checked_after_a_kill_while_it_is_used(killed: Path) -> None:
    store = await Store.open(killed)
    await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    await store.close()
    assert "closed cleanly" in named(check_store(killed, quick=True).checks, "store pages").detail


async def test_a_damaged_header_is_not_a_store(killed: Path) -> None:
    checkpointed(killed)
    flip(killed, 0, 16)
    with pytest.raises(StoreDamaged):
        await Store.open(killed)
    assert [one.state for one in check_store(killed, quick=True).checks] == ["fail"]


async def test_a_main_file_cut_short_is_refused(killed: Path) -> None:
    power_lost(killed)
    cut_short(killed, 3 * PAGE)
    with pytest.raises(StoreDamaged):
        await Store.open(killed)


async def test_a_flipped_letter_is_found_by_the_full_check_only(killed: Path) -> None:
    """SQLite keeps no checksum of its pages: such damage is no contradiction to it."""
    checkpointed(killed)
    flip_text(killed, b'"id":"msg_')
    assert await opened_with_loss(killed) == (SENT, ())
    assert check_store(killed, quick=True).ok
    finding = named(check_store(killed, quick=False).checks, "store envelopes")
    assert finding.state == "fail"
    assert "1 envelopes" in finding.detail


async def test_damage_met_while_running_refuses_writes_with_its_own_hint(killed: Path) -> None:
    store = await Store.open(killed)
    await store.close()
    flip(killed, (root_page(killed, "flows_lookup") - 1) * PAGE + 1, 7)  # closed in order: the start does not look
    store = await Store.open(killed, name="late")
    try:
        with pytest.raises(StoreUnavailable) as caught:
            await receive(store, say(id=f"msg_own_{next(_numbers)}"))
        assert "aghd check-store" in caught.value.hint
        assert not store.writable
    finally:
        await store.close()


def test_a_store_saved_by_recover_opens_again(killed: Path) -> None:
    """The hint's own words, when the machine has SQLite's shell, and that was built with the command."""
    shell = shutil.which("sqlite3")
    if shell is None or subprocess.run([shell, ":memory:", ".recover"], capture_output=True, check=False).returncode:
        pytest.skip("there is no sqlite3 command that knows .recover")
    power_lost(killed)
    flip(killed, (root_page(killed, "outbox_due") - 1) * PAGE + 1, 7)
    with pytest.raises(StoreDamaged):
        asyncio.run(Store.open(killed))
    saved = killed.with_name("new.db")
    script = subprocess.run([shell, str(killed), ".recover"], capture_output=True, check=True, timeout=60).stdout
    subprocess.run([shell, str(saved)], input=script, check=True, timeout=60, capture_output=True)
    saved.replace(killed)
    assert asyncio.run(opened_with_loss(killed)) == (SENT, ())


async def test_a_check_changes_nothing(killed: Path) -> None:
    before = {event.name: event.read_bytes() for event in killed.parent.iterdir() if not event.name.endswith("-shm")}
    check_store(killed, quick=True)
    check_store(killed, quick=False)
    after = {event.name: event.read_bytes() for event in killed.parent.iterdir() if not event.name.endswith("-shm")}
    assert after == before


async def test_a_store_in_use_can_be_checked(store: Store) -> None:
    await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    checked = check_store(store.path, quick=True)
    assert checked.ok
    assert "in use" in named(checked.checks, "store pages").detail
    assert check_store(store.path, quick=False).ok
    await receive(store, say(id=f"msg_own_{next(_numbers)}"))  # and is not disturbed


async def test_a_loss_cannot_be_accepted_under_a_running_daemon(store: Store) -> None:
    with pytest.raises(StoreError, match="in use"):
        await asyncio.to_thread(accept_loss, store.path)


async def test_a_watermark_that_cannot_be_written_costs_only_the_check(path: Path) -> None:
    store = await Store.open(path)
    file, aside = watermark_path(path), path.with_name("aside")
    file.rename(aside)
    file.mkdir()  # nothing can be written there
    await receive(store, say(id=f"msg_own_{next(_numbers)}"))
    assert store.writable
    await store.close()
    file.rmdir()
    aside.rename(file)
    assert await opened_with_loss(path) == (1, ())


async def test_a_store_that_lost_all_rows_is_detected_by_its_watermark(tmp_path: Path) -> None:
    """A WAL cut after the schema: even the identity that the watermark names is lost."""
    path = tmp_path / "store.db"
    store = await Store.open(path)
    await receive(store, say())
    await store.close()
    db = sqlite3.connect(path)
    for table in ("inbox", "flows", "log", "ledger"):
        db.execute(f"DELETE FROM {table}")
    db.execute("DELETE FROM meta WHERE key = 'identity'")
    db.commit()
    db.close()
    assert named(check_store(path, quick=True).checks, "store commits").state == "fail"
    again = await Store.open(path)
    try:
        assert any("commits that had been made durable are lost" in problem for problem in again.problems)
    finally:
        await again.close()


async def test_the_watermark_of_a_start_survives_a_loss_of_power(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: set[str] = set()
    fsync = os.fsync

    def noted(fd: int) -> None:
        fsync(fd)
        synced.add(str(Path(f"/proc/self/fd/{fd}").readlink()))

    monkeypatch.setattr(os, "fsync", noted)
    await (await Store.open(path)).close()
    assert synced == {str(watermark_path(path)), str(path.parent)}


async def test_a_read_that_fails_is_unavailable_and_names_the_kernel_log(path: Path) -> None:
    store = await Store.open(path)
    for _ in range(200):
        await receive(store, say(text="x" * 2_000))
    await store.close()
    store = await Store.open(path)
    content = await asyncio.to_thread(path.read_bytes)
    try:
        os.truncate(path, 2 * PAGE)  # the pages cannot be read
        with pytest.raises(StoreUnavailable, match="the store cannot be read: ") as caught:
            await search.messages(store.reader, EnvelopeFilter())
        assert "kernel's log" in caught.value.hint
        assert any(problem.startswith("the store: cannot be read: ") for problem in store.problems)
    finally:
        await asyncio.to_thread(path.write_bytes, content)
    await receive(store, say())  # the reader forgets the pages that it has
    await search.messages(store.reader, EnvelopeFilter())
    assert store.problems == ()
    await store.close()
