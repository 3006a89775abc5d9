"""Group commit: shared commits, order, jobs that fail alone, callbacks, cancellation, and a store that cannot write."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine import meta
from aghbus.store.engine.commit import writer
from aghbus.store.engine.commit.policy import CommitPolicy
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.commit.writer import MAX_LOOP_YIELDS
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import envelopes
from tests.support.makers import NOW, files_up_to, rows, say

Write = Callable[[Transaction], int]


def put(value: int) -> Write:
    def job(tx: Transaction) -> int:
        tx.db.execute("INSERT INTO remembered_ids (until, key) VALUES (?, 1)", (value,))
        return value

    return job


async def stored(store: Store) -> list[int]:
    return [slot for (slot,) in await rows(store, "SELECT until FROM remembered_ids ORDER BY until")]


async def test_queued_jobs_share_a_commit(store: Store) -> None:
    results = await asyncio.gather(*(store.write(put(number)) for number in range(500)))
    assert results == list(range(500))
    assert await stored(store) == list(range(500))
    assert store.stats.jobs == 500
    assert store.stats.commits < 100  # as many as there are time slices, far from one each


async def test_jobs_one_at_a_time_have_one_commit_each(store: Store) -> None:
    for number in range(5):
        await store.write(put(number))
    assert store.stats.commits == 5
    assert store.stats.largest_batch == 1


async def test_jobs_that_arrive_during_a_commit_share_the_next(store: Store) -> None:
    taken = asyncio.Event()

    def first(tx: Transaction) -> None:
        put(0)(tx)
        taken.set()

    running = store.submit(first)
    await taken.wait()  # from here on its transaction is being committed
    rest = [store.submit(put(number)) for number in range(1, 40)]
    await asyncio.gather(running, *rest)
    assert store.stats.commits == 2
    assert store.stats.largest_batch == 39


async def test_deferred_jobs_join_the_next_transaction(store: Store) -> None:
    behind = [store.submit_deferred(put(number)) for number in range(3)]
    assert await store.write(put(3)) == 3
    assert [job.done() for job in behind] == [True] * 3
    assert store.stats.commits == 1


async def test_deferred_jobs_begin_a_transaction_soon(store: Store) -> None:
    first, second = store.submit_deferred(put(0)), store.submit_deferred(put(1))
    assert [await first, await second] == [0, 1]
    assert store.stats.commits == 1
    assert await store.submit_deferred(put(2)) == 2


async def test_a_read_may_ask_for_what_was_deferred(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "DEFER_SECONDS", 3_600.0)
    assert not await store.commit_deferred()
    assert store.stats.commits == 0
    behind = store.submit_deferred(put(0))
    assert await store.commit_deferred()
    assert behind.done() and await stored(store) == [0]


async def test_a_read_waits_for_the_commit_that_runs(store: Store) -> None:
    taken = asyncio.Event()

    def job(tx: Transaction) -> None:
        put(0)(tx)
        taken.set()

    running = store.submit(job)
    await taken.wait()
    assert await store.commit_deferred()
    assert running.done() and await stored(store) == [0]


async def test_deferred_jobs_are_committed_when_the_store_is_closed(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    behind = store.submit_deferred(put(0))
    await store.close()
    assert await behind == 0


async def test_callers_of_a_commit_go_on_before_the_next_transaction(store: Store) -> None:
    order: list[str] = []

    def noted(name: str) -> Callable[[Transaction], None]:
        return lambda tx: order.append(f"job {name}")

    async def waiting(name: str) -> None:
        await store.write(noted(name))
        order.append(f"knows {name}")
        await store.write(noted(f"{name} again"))

    def late() -> None:
        store.submit(noted("late"))

    def first(tx: Transaction) -> None:
        put(0)(tx)
        tx.after_commit(late)

    await asyncio.gather(store.write(first), waiting("a"))
    assert order == ["job a", "knows a", "job late", "job a again"]


async def test_jobs_run_in_the_order_they_were_submitted(store: Store) -> None:
    order: list[int] = []

    def noted(number: int) -> Callable[[Transaction], None]:
        return lambda tx: order.append(number)

    await asyncio.gather(*(store.submit(noted(number)) for number in range(300)))
    assert order == list(range(300))


async def test_a_job_sees_the_writes_of_earlier_jobs_of_its_transaction(store: Store) -> None:
    first = store.submit(put(1))
    second = store.submit(lambda tx: tx.db.execute("SELECT count(*) FROM remembered_ids").fetchone()[0])
    assert (await first, await second) == (1, 1)


def refuse_at_once(tx: Transaction) -> int:
    raise NotFound("no such thing")


def refuse_late(tx: Transaction) -> int:
    tx.db.execute("INSERT INTO remembered_ids (until, key) VALUES (777, 1)")
    tx.memory.inbox_acked += 5
    raise NotFound("changed my mind")


def violate(tx: Transaction) -> int:
    tx.db.execute("INSERT INTO remembered_ids (until, key) VALUES (1, NULL)")
    return 0


@pytest.mark.parametrize("bad", [refuse_at_once, refuse_late, violate])
async def test_a_job_that_fails_fails_alone(store: Store, bad: Write) -> None:
    jobs = [store.submit(job) for job in (put(1), put(2), bad, put(3), bad, put(4))]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert [result for result in results if isinstance(result, int)] == [1, 2, 3, 4]
    failed = [result for result in results if isinstance(result, Exception)]
    assert len(failed) == 2
    assert all(isinstance(error, NotFound | sqlite3.IntegrityError) for error in failed)
    assert await stored(store) == [1, 2, 3, 4]
    assert store.memory.inbox_acked == 0
    assert store.writable


async def test_many_late_failures_rerun_the_others_once(store: Store) -> None:
    jobs = [store.submit(refuse_late if number % 2 else put(number)) for number in range(200)]
    results = await asyncio.gather(*jobs, return_exceptions=True)
    assert sum(isinstance(result, NotFound) for result in results) == 100
    assert await stored(store) == list(range(0, 200, 2))
    assert store.stats.reruns <= store.stats.commits + 1


async def test_callbacks_follow_the_commit_in_order_and_before_the_futures(store: Store) -> None:
    seen: list[str] = []

    def noted(name: str) -> Callable[[Transaction], None]:
        def job(tx: Transaction) -> None:
            meta.bump(tx.db, name)
            tx.after_commit(lambda: seen.append(f"committed {name}"))
            tx.undo.append(lambda: seen.append(f"never {name}"))

        return job

    futures = [store.submit(noted(name)) for name in "ab"]
    futures[0].add_done_callback(lambda _: seen.append("resolved a"))
    await asyncio.gather(*futures)
    assert seen == ["committed a", "committed b", "resolved a"]
    assert await rows(store, "SELECT value FROM meta WHERE key IN ('a', 'b')") == [(1,), (1,)]


async def test_a_callback_runs_once_though_its_job_ran_twice(store: Store) -> None:
    seen: list[str] = []
    runs: list[str] = []

    def good(tx: Transaction) -> None:
        runs.append("run")
        meta.bump(tx.db, "good")
        tx.after_commit(lambda: seen.append("committed"))
        tx.undo.append(lambda: seen.append("rolled back"))

    first = store.submit(good)
    second = store.submit(refuse_late)
    await first
    with pytest.raises(NotFound):
        await second
    assert runs == ["run", "run"]
    assert seen == ["rolled back", "committed"]
    assert await rows(store, "SELECT value FROM meta WHERE key = 'good'") == [(1,)]


async def test_a_failing_callback_breaks_nothing(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def job(tx: Transaction) -> int:
        meta.bump(tx.db, "x")
        tx.after_commit(lambda: 1 // 0)
        return 3

    assert await store.write(job) == 3
    assert "callback" in caplog.text
    assert await store.write(put(1)) == 1


async def test_a_cancelled_waiter_breaks_nothing(store: Store) -> None:
    first = store.submit(put(1))
    waiting = asyncio.create_task(store.write(put(2)))
    await asyncio.sleep(0)
    waiting.cancel()
    third = store.submit(put(3))
    assert (await first, await third) == (1, 3)
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await store.write(put(4)) == 4


async def test_reading_jobs_do_not_pay_for_a_commit(store: Store) -> None:
    for _ in range(10):
        await store.write(lambda tx: tx.db.execute("SELECT 1").fetchone())
    assert store.stats.commits == 0
    assert store.stats.jobs == 10


async def test_the_loop_runs_between_slices_of_jobs(store: Store) -> None:
    def slow(tx: Transaction) -> None:
        tx.db.execute(
            "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 3000) SELECT count(*) FROM n"
        ).fetchone()
        meta.bump(tx.db, "slow")

    futures = [store.submit(slow) for _ in range(200)]
    turns = 0
    while not all(future.done() for future in futures):
        await asyncio.sleep(0)
        turns += 1
    assert turns > store.stats.commits  # the loop had its turn between any two transactions
    assert 1 < store.stats.commits < 200


async def test_a_busy_loop_does_not_starve_commits_and_reads(store: Store) -> None:
    raw = say().raw
    turns = 0

    async def flood() -> None:
        """Keeps the loop busy, and turns to the selector more often than threads ask for the interpreter lock."""
        nonlocal turns
        while True:
            for _ in range(64):
                parse(raw, NOW)
            turns += 1
            await asyncio.sleep(0)

    noise = asyncio.create_task(flood())
    try:
        for number in range(50):
            await store.write(put(number))
            await envelopes.last_seq(store.reader)
    finally:
        noise.cancel()
    assert turns < 100 * 50 * 2  # some ten for each; starved, a commit has lasted for ten thousand


def fill(tx: Transaction) -> None:
    tx.db.execute("INSERT INTO quarantine VALUES (NULL, 0, '', '', '', '', '', 0, zeroblob(100000))")


def limit_pages(extra: int | None) -> Callable[[Transaction], None]:
    def job(tx: Transaction) -> None:
        (pages,) = tx.db.execute("PRAGMA page_count").fetchone()
        tx.db.execute(f"PRAGMA max_page_count = {pages + extra if extra is not None else 1 << 30}").fetchone()

    return job


async def test_a_full_disk_is_reported_undone_and_recovered_from(store: Store) -> None:
    await store.write(put(1))
    await store.write(limit_pages(10))
    seen: list[str] = []

    def doomed(tx: Transaction) -> None:
        tx.memory.inbox_acked += 1
        tx.after_commit(lambda: seen.append("committed"))
        fill(tx)

    jobs: list[Callable[[Transaction], object]] = [put(2), doomed, put(3)]
    results = await asyncio.gather(*(store.submit(job) for job in jobs), return_exceptions=True)
    assert [type(result) for result in results] == [StoreUnavailable] * 3  # none of them is durable
    status = await store.status()
    assert status.writable is False
    assert "full" in (status.last_error or "")
    assert await stored(store) == [1]
    assert seen == []
    assert store.memory.inbox_acked == 0

    await store.write(limit_pages(None))
    assert (await store.status()).writable is False  # reading and pragmas prove nothing
    await recovered(store)


async def recovered(store: Store) -> None:
    assert await store.probe() is True
    status = await store.status()
    assert (status.writable, status.last_error) == (True, None)
    assert await store.write(put(4)) == 4
    assert await stored(store) == [1, 4]


async def test_a_commit_that_the_disk_refuses(store: Store, path: Path) -> None:
    await store.write(put(1))
    ran: list[str] = []

    def doomed(tx: Transaction) -> None:
        ran.append("to its end")
        tx.memory.dedup.remember(tx, 7, 1_776_366_000)
        tx.memory.ledger.note(tx, (1_776_366_000_000, "policy", "started"))

    with files_up_to(wal_size(path)):
        jobs: list[Callable[[Transaction], object]] = [put(2), doomed, put(3)]
        results = await asyncio.gather(*(store.submit(job) for job in jobs), return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        assert ran == ["to its end"]  # the jobs were fine; it was the commit that failed
        assert await store.probe() is False
        assert await stored(store) == [1]  # reading goes on
    assert (len(store.memory.dedup), store.memory.ledger.at_ms) == (0, 0)
    await recovered(store)


def wal_size(path: Path) -> int:
    return path.with_name("store.db-wal").stat().st_size


async def test_a_store_that_became_read_only(store: Store) -> None:
    await store.write(put(1))
    await store.write(lambda tx: tx.db.execute("PRAGMA query_only = ON"))
    with pytest.raises(StoreUnavailable) as caught:
        await store.write(put(2))
    assert caught.value.hint
    assert await store.probe() is False
    assert await stored(store) == [1]
    await store.close()  # cannot note that it was closed: the next start checks the file, and goes on
    again = await Store.open(store.path)
    assert await again.write(put(2)) == 2
    await again.close()


async def test_a_foreign_lock_is_waited_for_off_the_loop(store: Store, path: Path) -> None:
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    waiting = store.submit(put(1))
    turns = 0
    while turns < 2000:  # the loop runs while the writer waits in its thread
        await asyncio.sleep(0)
        turns += 1
    assert not waiting.done()
    foreign.execute("COMMIT")
    foreign.close()
    assert await waiting == 1


async def test_the_reader_sees_only_committed_rows_and_blocks_no_writer(store: Store) -> None:
    await store.write(put(1))
    cursor = await store.reader.execute("SELECT until FROM remembered_ids")  # a snapshot that stays open
    assert await store.write(put(2)) == 2
    assert [row[0] for row in await cursor.fetchall()] == [1]
    await cursor.close()
    assert await stored(store) == [1, 2]


async def _later(store: Store, turns: int) -> None:
    """A client whose request needs some turns of the loop until it is a job."""
    for _ in range(turns):
        await asyncio.sleep(0)
    await store.write(lambda tx: meta.bump(tx.db, "later"))


async def test_slightly_later_jobs_of_concurrent_clients_share_commit(store: Store) -> None:
    await store.probe()
    before = store.stats.commits
    await asyncio.gather(
        *(_later(store, turns) for turns in (0, 0, MAX_LOOP_YIELDS // 2, MAX_LOOP_YIELDS, MAX_LOOP_YIELDS + 2))
    )
    assert store.stats.commits == before + 1


async def test_a_single_caller_is_committed_without_a_yield(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even for a turn of the loop, and whatever goes with it that nobody waits for."""
    monkeypatch.setattr(CommitPolicy, "commits_on_loop", lambda *_: True)
    turned: list[str] = []

    def job(tx: Transaction) -> None:
        meta.bump(tx.db, "alone")
        asyncio.get_running_loop().call_soon(turned.append, "turned")
        tx.after_commit(lambda: turned.append("committed"))

    behind = store.submit_deferred(put(1))
    await asyncio.gather(store.write(job), behind)
    assert turned == ["committed", "turned"]
