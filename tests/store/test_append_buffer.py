"""The append buffer: visible to later statements, undone with its job, written in bulk, and isolated when a row is invalid."""

import asyncio
import sqlite3
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.unit_of_work import BulkStatement
from aghbus.store.errors import StoreUnavailable
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import inbox, rooms
from tests.support.makers import BOB, EVE, NOW_MS, US, inbox_states, make, receive, receiving, rows, say

META = BulkStatement.insert("meta", ("key", "value"))
OUTBOX = BulkStatement.insert("outbox", ("seq", "state", "attempts", "expires_at", "subject"))


async def touched(store: Store) -> list[tuple[str, int]]:
    """The threads with the numbers of their messages."""
    return sorted((thread.thread_id, thread.messages) for thread in await rooms.threads(store.reader))


def failing(text: str, *, look: bool) -> Callable[[Transaction], None]:
    """A job that receives a say, looks at the table when `look`, and raises."""
    envelope = say(text=text)

    def job(tx: Transaction) -> None:
        receiving(envelope)(tx)
        if look:
            tx.flush()
            tx.db.execute("SELECT count(*) FROM envelopes").fetchone()
        raise NotFound("after all")

    return job


def late(tx: Transaction) -> None:
    """A job that looks, receives a say, and raises."""
    seqs(tx)
    receiving(say())(tx)
    raise NotFound("after all")


def seqs(tx: Transaction) -> list[int]:
    tx.flush()
    return [seq for (seq,) in tx.db.execute("SELECT seq FROM envelopes ORDER BY seq")]


async def test_a_statement_sees_rows_appended_before_it(store: Store) -> None:
    first = store.submit(receiving(say()))
    second = store.submit(seqs)
    _, applied = await first
    assert await second == [applied.seq]


async def test_a_job_that_raises_is_undone_without_a_rerun(store: Store) -> None:
    good = [store.submit(receiving(say(container="thread_good"))) for _ in range(2)]
    bad = store.submit(failing("bad", look=False))
    good += [store.submit(receiving(say(container="thread_good"))) for _ in range(2)]
    results = await asyncio.gather(*good)
    assert isinstance(bad.exception(), NotFound)
    assert [applied.seq for _, applied in results] == [1, 2, 3, 4]
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,), (2,), (3,), (4,)]
    assert list(await inbox_states(store)) == [1, 2, 3, 4]
    assert await touched(store) == [("thread_good", 4)]
    assert store.memory.inbox.waiting == 4
    assert len(store.memory.dedup) == 4
    assert store.stats.reruns == 0


async def test_a_job_that_flushed_its_rows_before_it_raised_is_undone(store: Store) -> None:
    jobs: list[asyncio.Future[Any]] = [
        store.submit(receiving(say())),
        store.submit(failing("bad", look=True)),
        store.submit(receiving(say())),
    ]
    done = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(done[1], NotFound)
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,), (2,)]
    assert store.memory.last_seq == 2
    assert store.stats.reruns == 1


async def test_a_failed_job_leaves_the_rows_of_others_that_it_has_flushed(store: Store) -> None:
    def look(tx: Transaction) -> None:
        seqs(tx)
        raise NotFound("only looking")

    jobs: list[asyncio.Future[Any]] = [
        store.submit(receiving(say())),
        store.submit(look),
        store.submit(receiving(say())),
    ]
    done = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(done[1], NotFound)
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,), (2,)]
    assert store.memory.last_seq == 2


async def test_rows_appended_after_a_flush_are_undone(store: Store) -> None:
    """Its look has written the rows of the others; what it has appended since is not among them."""

    jobs: list[asyncio.Future[Any]] = [
        store.submit(receiving(say())),
        store.submit(receiving(say())),
        store.submit(late),
        store.submit(receiving(say())),
    ]
    done = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(done[2], NotFound)
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,), (2,), (3,)]
    assert list(await inbox_states(store)) == [1, 2, 3]
    assert store.memory.last_seq == len(store.memory.dedup) == 3


async def test_rows_that_cannot_be_written_fail_their_own_job_alone(store: Store) -> None:
    def impossible(tx: Transaction) -> None:
        tx.append(META, ("key", "\ud800"))  # no UTF-8

    jobs: list[asyncio.Future[Any]] = [
        store.submit(receiving(say())),
        store.submit(impossible),
        store.submit(receiving(say())),
    ]
    done = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(done[1], UnicodeEncodeError)
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,), (2,)]
    assert store.writable


async def test_unwritable_rows_do_not_fail_later_jobs_that_flush_them(store: Store) -> None:
    def impossible(tx: Transaction) -> None:
        tx.append(OUTBOX, (999, "queued", 0, 0, "subject"))  # of no envelope

    def select(tx: Transaction) -> object:
        tx.flush()
        return tx.db.execute("SELECT 7").fetchone()[0]

    def insert(tx: Transaction) -> object:
        tx.flush()
        return tx.db.execute("INSERT INTO meta (key, value) VALUES ('x', 1)").rowcount

    jobs: list[asyncio.Future[Any]] = [
        store.submit(impossible),
        store.submit(select),
        store.submit(insert),
        store.submit(receiving(say())),
    ]
    done = await asyncio.gather(*jobs, return_exceptions=True)
    assert isinstance(done[0], sqlite3.IntegrityError)
    assert done[1:3] == [7, 1]
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,)]
    assert store.writable


async def test_any_exception_of_a_job_fails_that_job_alone(store: Store) -> None:
    def stops(_tx: Transaction) -> None:
        next(iter(()))

    jobs: list[asyncio.Future[Any]] = [store.submit(job) for job in (receiving(say()), stops, receiving(say()))]
    done = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 10)
    assert isinstance(done[1], RuntimeError)
    await store.write(receiving(say()))
    assert await rows(store, "SELECT seq FROM envelopes") == [(1,), (2,), (3,)]


async def test_more_rows_than_one_statement_takes(store: Store) -> None:
    await asyncio.gather(*(store.submit(receiving(say(container=f"thread_{n % 7:03}"))) for n in range(523)))
    assert await rows(store, "SELECT count(*), max(seq) FROM envelopes") == [(523, 523)]
    expected = Counter(f"thread_{n % 7:03}" for n in range(523))
    assert dict(await touched(store)) == expected
    raws = {raw for (raw,) in await rows(store, "SELECT raw FROM envelopes")}
    assert len(raws) == 523


async def test_rooms_count_their_messages(store: Store) -> None:
    await asyncio.gather(*(store.submit(receiving(say(sender, direct=True))) for sender in (BOB, EVE, BOB, BOB)))
    found = await rooms.directs(store.reader, self_id=US)
    assert [(room.peer, room.messages, room.last_seq) for room in found] == [(BOB, 3, 4), (EVE, 1, 2)]


async def test_a_sequence_is_never_given_twice(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "store.db")
    await receive(store, say())
    await receive(store, say())
    for _ in range(2):
        await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 1_000, "token", ack=True))
    assert (await sweep(store, RetentionPolicy(max_age=1, max_bytes=None), NOW_MS + 10_000)).envelopes == 2
    await store.close()
    again = await Store.open(tmp_path / "store.db")
    try:
        assert (await receive(again, say())).seq == 3
    finally:
        await again.close()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["say", "direct", "work", "raise", "look", "raise after a look", "raise later"]),
        st.integers(0, 2),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
async def test_any_mixture_of_jobs_leaves_the_writes_of_the_successful_ones(
    tmp_path: Path, steps: list[tuple[str, int]]
) -> None:
    store = await Store.open(tmp_path / f"{uuid.uuid4()}.db", synchronous="normal")
    try:
        jobs: list[Any] = []
        kept: list[str] = []
        for what, number in steps:
            sender = (BOB, EVE, "carol")[number]
            if what in ("say", "direct", "work"):
                extra: dict[str, Any] = {"direct": True} if what == "direct" else {}
                if what == "work":
                    extra["work_id"] = f"work_{len(jobs)}"
                envelope = make("say", {"text": "x"}, sender=sender, to="us", **extra)
                kept.append(envelope.id)
                jobs.append(receiving(envelope))
            elif what == "look":
                jobs.append(seqs)
            else:
                jobs.append(late if what == "raise later" else failing("bad", look=what != "raise"))
        results = await asyncio.gather(*(store.submit(job) for job in jobs), return_exceptions=True)
        assert sum(isinstance(one, NotFound) for one in results) == sum(what.startswith("raise") for what, _ in steps)
        stored = await rows(store, "SELECT seq, msg_id FROM envelopes ORDER BY seq")
        assert stored == [(number + 1, message_id) for number, message_id in enumerate(kept)]
        assert len(await inbox_states(store)) == len(kept)
        assert store.memory.inbox.waiting == len(store.memory.dedup) == len(kept)
    finally:
        await store.close()


class Defect(BaseException):
    """No job may raise it: the writer does not catch it."""


async def test_a_writer_that_ended_by_a_defect_fails_its_jobs(store: Store) -> None:
    def defect(_tx: Transaction) -> None:
        raise Defect

    jobs: list[asyncio.Future[Any]] = [store.submit(defect), store.submit(receiving(say()))]
    with pytest.raises(Defect):
        await asyncio.wait_for(store.ended(), 10)
    done = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(one) for one in done] == [StoreUnavailable] * 2
