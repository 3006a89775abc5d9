"""Jobs that run while the transaction before theirs is being committed: what they see, when they wait, and what takes them back."""

import asyncio
import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aghbus.protocol.errors import NotFound
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import NeedsFile, Transaction
from aghbus.store.errors import StoreUnavailable
from tests.support.makers import BOB, EVE, receiving, rows, say

LONG = "x" * 4_000
Job = Callable[[Transaction], Any]


@pytest.fixture(autouse=True)
def in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the disk were slow: else small transactions are committed on the loop, and nothing can run ahead."""
    monkeypatch.setattr("aghbus.store.engine.commit_policy.Pace.is_quick", lambda _self, _changes: False)


@contextlib.contextmanager
def held(store: Store) -> Iterator[None]:
    """The thread that commits is busy with something else until the block is left."""
    release = threading.Event()
    store._executor.submit(release.wait)
    try:
        yield
    finally:
        release.set()


async def until_committing(store: Store) -> None:
    """Until a transaction was handed to the thread."""
    while not store._writer._next.ahead:  # noqa: ASYNC110 - nothing tells of it
        await asyncio.sleep(0)


def raising(inner: Job, tx: Transaction) -> None:
    inner(tx)
    raise NotFound("after all")


def look(tx: Transaction) -> list[int]:
    return [seq for (seq,) in tx.db.execute("SELECT seq FROM envelopes ORDER BY seq")]


async def test_a_job_runs_ahead_and_is_durable_after_the_one_before(store: Store) -> None:
    with held(store):
        first = store.submit(receiving(say()))
        await until_committing(store)
        ran = asyncio.Event()

        def job(tx: Transaction) -> int | None:
            ran.set()
            return receiving(say())(tx)[1].seq

        second = store.submit_ahead(job)
        await ran.wait()  # though the first cannot have been committed
        assert not first.done()
        assert not second.done()
    (_, one), two = await asyncio.gather(first, second)
    assert (one.seq, two) == (1, 2)
    assert store.stats.commits == 2
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,), (2,)]


async def test_it_knows_what_the_one_before_remembers(store: Store) -> None:
    envelope = say()
    with held(store):
        first = store.submit(receiving(envelope))
        await until_committing(store)
        again = store.submit_ahead(receiving(envelope))
    _, applied = await again
    assert applied.seq is None  # a duplicate
    assert (await first)[1].seq == 1


async def test_one_that_needs_the_file_runs_in_its_turn(store: Store) -> None:
    tries: list[bool] = []

    def job(tx: Transaction) -> list[int]:
        receiving(say())(tx)
        tries.append(tx.ahead)
        return look(tx)

    with held(store):
        first = store.submit(receiving(say()))
        await until_committing(store)
        second = store.submit_ahead(job)
        third = store.submit_ahead(receiving(say()))
        while not tries:  # noqa: ASYNC110 - no event of ours: the job may run twice
            await asyncio.sleep(0)
    await first
    assert await second == [1, 2]
    assert (await third)[1].seq == 3  # not before the second
    assert tries == [True, False]
    assert len(store.memory.dedup) == store.memory.inbox_waiting.value == 3


async def test_one_that_raises_ahead_leaves_nothing(store: Store) -> None:
    def doomed(tx: Transaction) -> None:
        receiving(say())(tx)
        raise NotFound("after all")

    with held(store):
        first = store.submit(receiving(say()))
        await until_committing(store)
        bad, good = store.submit_ahead(doomed), store.submit_ahead(receiving(say()))
    results = await asyncio.gather(first, bad, good, return_exceptions=True)
    assert isinstance(results[1], NotFound)
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,), (2,)]
    assert len(store.memory.dedup) == 2


async def test_what_ran_ahead_of_a_transaction_that_failed_did_not_happen(store: Store) -> None:
    def limit(extra: int | None) -> Job:
        def job(tx: Transaction) -> None:
            (pages,) = tx.db.execute("PRAGMA page_count").fetchone()
            tx.db.execute(f"PRAGMA max_page_count = {pages + extra if extra is not None else 1 << 30}").fetchone()

        return job

    await store.write(limit(2))
    told: list[str] = []
    with held(store):
        doomed = [store.submit(receiving(say(text=LONG))) for _ in range(20)]  # more than the disk holds
        await until_committing(store)
        ran = asyncio.Event()

        def job(tx: Transaction) -> None:
            receiving(say())(tx)
            tx.after_commit(lambda: told.append("committed"))
            ran.set()

        ahead = store.submit_ahead(job)
        await ran.wait()
    results = await asyncio.gather(*doomed, ahead, return_exceptions=True)
    assert all(isinstance(result, StoreUnavailable) for result in results)
    assert (len(store.memory.dedup), store.memory.inbox_waiting.value, store.memory.last_seq.value) == (0, 0, 0)
    assert told == []
    await store.write(limit(None))
    assert (await store.submit_ahead(receiving(say())))[1].seq == 1
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,)]


async def test_the_file_is_out_of_reach_ahead(store: Store) -> None:
    refused: list[str] = []

    def job(tx: Transaction) -> None:
        for name in ("db", "apart"):
            try:
                getattr(tx, name)
            except NeedsFile:
                refused.append(name)

    with held(store):
        first = store.submit(receiving(say()))
        await until_committing(store)
        second = store.submit_ahead(job)
    await asyncio.gather(first, second)
    assert refused == ["db", "apart"]


STEPS = st.lists(
    st.tuples(st.sampled_from(["say", "again", "work", "raise", "look"]), st.booleans(), st.integers(0, 3)), max_size=30
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_any_mixture_ends_as_if_one_had_followed_the_other(
    tmp_path: Path, steps: list[tuple[str, bool, int]]
) -> None:
    store = await Store.open(tmp_path / f"{uuid.uuid4()}.db", synchronous="normal")
    store.memory.audit.enabled = True
    try:
        waiting: list[asyncio.Future[Any]] = []
        kept: list[str] = []
        said = say(BOB)
        for what, ahead, pause in steps:
            envelope = say(EVE, work_id=f"work_{len(waiting)}") if what == "work" else say(EVE)
            envelope = said if what == "again" else envelope
            job: Job = look if what == "look" else receiving(envelope)
            if what == "raise":
                job = partial(raising, receiving(envelope))
            elif what != "look" and envelope.id not in kept:
                kept.append(envelope.id)
            waiting.append(store.submit_ahead(job) if ahead else store.submit(job))
            for _ in range(pause):
                await asyncio.sleep(0)
        await asyncio.gather(*waiting, return_exceptions=True)
        stored = await rows(store, "SELECT seq, msg_id FROM envelopes ORDER BY seq")
        assert stored == [(number + 1, message_id) for number, message_id in enumerate(kept)]
        assert await rows(store, "SELECT seq FROM inbox ORDER BY seq") == [(seq,) for seq, _ in stored]
        assert [n for (n,) in await rows(store, "SELECT n FROM audit ORDER BY n")] == [seq for seq, _ in stored]
        assert store.memory.inbox_waiting.value == len(store.memory.dedup) == len(kept)
    finally:
        await store.close()


@pytest.mark.parametrize(("messages", "commits"), [(1, 1), (200, 2)])
async def test_what_may_run_ahead_does_not_join_a_large_transaction(store: Store, messages: int, commits: int) -> None:
    def many(tx: Transaction) -> None:
        for _ in range(messages):
            receiving(say())(tx)

    await asyncio.gather(store.submit_ahead(many), store.submit_ahead(many))
    assert store.stats.commits == commits
    assert await rows(store, "SELECT count(*) FROM envelopes") == [(2 * messages,)]
