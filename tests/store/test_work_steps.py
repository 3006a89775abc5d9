"""The table of works gets the steps of works some time after their commits, and always before it is read."""

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.base.errors import NotFound, Refused
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import Reader
from aghbus.store.engine.transaction import Transaction
from aghbus.store.engine.work_steps import MAX_WORKS
from aghbus.store.tables import envelopes, works
from tests.support.api_harness import until
from tests.support.makers import BOB, NOW, US, receipt, receive, receiving, rows, say, sending, trace

WORK = "work_one"
_RECEIPTS = {"accepted": "accepted", "busy": "rejected", "not_found": "rejected", "expired": "expired"}
_Step = tuple[str, str, str | None, object]
_ALL = "SELECT * FROM works ORDER BY id"


def in_file(path: Path, sql: str = "SELECT state FROM works ORDER BY id") -> list[tuple[object, ...]]:
    """What another program reads."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(sql).fetchall()


async def after_a_kill(path: Path) -> list[tuple[object, ...]]:
    """The works that a new process finds when this one is killed now."""
    copy = path.parent / "killed" / path.name
    shutil.rmtree(copy.parent, ignore_errors=True)
    copy.parent.mkdir()
    for suffix in ("", "-wal"):
        shutil.copy(f"{path}{suffix}", f"{copy}{suffix}")
    store = await Store.open(copy, synchronous="normal", segment=4)
    try:
        return await rows(store, _ALL)
    finally:
        await store.close()


async def open_work(store: Store, work_id: str = WORK) -> Envelope:
    opening = say(US, BOB, work_id=work_id)
    await store.write(sending(opening))
    return opening


_STEPS: st.SearchStrategy[list[_Step]] = st.lists(
    st.tuples(
        st.sampled_from(["work_a", "work_b"]),
        st.sampled_from(
            ["say", "accepted", "busy", "not_found", "expired", "working", "needs_input", "completed", "failed", "own"]
        ),
        st.sampled_from([None, "", "half done", "m" * 5_000]),
        st.sampled_from([None, {"text": "x"}, []]),
    ),
    max_size=8,
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=_STEPS, written=st.integers(0, 8))
def test_a_kill_loses_no_step(tmp_path_factory: pytest.TempPathFactory, steps: list[_Step], written: int) -> None:
    """The steps up to the one numbered `written` are in the table, the others in the log only."""

    async def run(path: Path) -> None:
        store = await Store.open(path, synchronous="normal")
        try:
            openings = {work_id: await open_work(store, work_id) for work_id in ("work_a", "work_b")}
            for number, (work_id, what, message, result) in enumerate(steps):
                if number == written:
                    await rows(store, _ALL)
                at = NOW + number
                place: dict[str, Any] = {"work_id": work_id, "ts": at}
                if what in _RECEIPTS:
                    status = _RECEIPTS[what]
                    reason = {} if status == "accepted" else {"reason_code": what}
                    envelope = receipt(status, openings[work_id].id, **reason, **place)
                elif what == "say":
                    envelope = say(**place)
                elif what == "own":
                    with contextlib.suppress(Refused):  # the work has ended
                        await store.write(sending(say(US, BOB, **place), at=at))
                    continue
                else:
                    envelope = trace(what, message=message, result=result, **place)
                await receive(store, envelope, at=at)
            found = await after_a_kill(path)
            assert found == await rows(store, _ALL)
        finally:
            await store.close()

    asyncio.run(run(tmp_path_factory.mktemp("steps") / "store.db"))


async def test_steps_are_in_the_file_after_a_while(store: Store, path: Path) -> None:
    opening = await open_work(store)
    await receive(store, receipt("accepted", opening.id, work_id=WORK))
    await until(lambda: in_file(path) == [("working",)])


async def test_steps_of_many_works_do_not_wait(store: Store) -> None:
    for number in range(MAX_WORKS):
        await open_work(store, f"work_{number}")

    def step_all(tx: Transaction) -> None:
        for number in range(MAX_WORKS):
            receiving(trace("working", work_id=f"work_{number}"))(tx)

    await store.write(step_all)
    await store.write(lambda _: None)
    assert not store.memory.steps.rows


async def test_closing_writes_the_steps(path: Path) -> None:
    store = await Store.open(path)
    await open_work(store)
    await receive(store, trace("working", work_id=WORK))
    closing = asyncio.ensure_future(store.close())
    await store.write(receiving(trace("completed", work_id=WORK)))
    await closing
    assert in_file(path) == [("completed",)]


async def test_a_step_between_an_envelope_and_its_step_is_not_lost(store: Store, path: Path) -> None:
    """The refused opening makes the transaction write the steps of other works before the one of the receipt."""
    await open_work(store, "work_a")
    refused = await open_work(store, "work_b")
    await receive(store, trace("working", work_id="work_a"))
    await receive(store, receipt("rejected", refused.id, work_id="work_b", reason_code="not_found"))
    assert await after_a_kill(path) == await rows(store, _ALL)


async def test_other_queries_do_not_wait_for_a_foreign_lock(store: Store, path: Path) -> None:
    await open_work(store)
    await receive(store, trace("working", work_id=WORK))
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN IMMEDIATE")
        await envelopes.message(store.reader, "msg_of_nobody")
        assert store.writable
        db.execute("ROLLBACK")
    assert await rows(store, "SELECT state FROM works") == [("working",)]


@pytest.mark.parametrize(
    "ended",
    [
        lambda reader: works.works(reader, states=frozenset(["completed"])),
        lambda reader: works.work(reader, WORK),
        works.counts,
        works.counts_by_role,
        works.engaged,
    ],
)
async def test_queries_of_the_state_of_works_see_every_step(
    store: Store, ended: Callable[[Reader], Awaitable[object]]
) -> None:
    await open_work(store)
    await receive(store, trace("completed", work_id=WORK))
    assert store.memory.steps.rows
    before_a_write = await ended(store.reader)
    await store.write(Transaction.flush)
    assert before_a_write == await ended(store.reader)


async def test_a_query_of_the_same_transaction_sees_the_step(store: Store) -> None:
    await open_work(store)

    def job(tx: Transaction) -> object:
        receiving(trace("working", work_id=WORK))(tx)
        return tx.db.execute("SELECT state FROM works").fetchone()[0]

    assert await store.write(job) == "working"


async def test_the_last_message_and_result_stay(store: Store) -> None:
    await open_work(store)
    await receive(store, trace("working", work_id=WORK, message="half done", result={"text": "x"}))
    await receive(store, trace("working", work_id=WORK))
    assert await rows(store, "SELECT message, result_seq FROM works") == [("half done", 2)]


async def test_steps_that_a_failed_transaction_has_written_are_written_again(store: Store) -> None:
    await open_work(store)
    await receive(store, trace("working", work_id=WORK))

    def fails(tx: Transaction) -> None:
        tx.db.execute("DELETE FROM works")
        raise NotFound("on purpose")

    with pytest.raises(NotFound):
        await store.write(fails)
    assert await rows(store, "SELECT state FROM works") == [("working",)]


async def test_a_query_waits_for_the_transaction_that_writes_the_steps(store: Store) -> None:
    opening = await open_work(store)
    for _ in range(60):
        step = await receive(store, receipt("accepted", opening.id, work_id=WORK))
        has_run = asyncio.Event()

        def writes(tx: Transaction, has_run: asyncio.Event = has_run) -> None:
            tx.db.execute("SELECT 1")
            has_run.set()

        writing = store.submit(writes)
        await has_run.wait()
        assert await rows(store, "SELECT last_seq FROM works") == [(step.seq,)]
        await writing


@pytest.mark.parametrize("queries", [False, True])
async def test_the_step_of_a_job_that_fails_is_not_written(store: Store, *, queries: bool) -> None:
    await open_work(store)
    await receive(store, trace("working", work_id=WORK))

    def fails(tx: Transaction) -> None:
        receiving(trace("completed", work_id=WORK))(tx)
        if queries:  # which writes the steps into the transaction
            tx.db.execute("SELECT 1")
        raise NotFound("on purpose")

    beside = store.submit(sending(say(US, BOB, work_id="work_two")))
    with pytest.raises(NotFound):
        await store.write(fails)
    await beside
    assert await rows(store, "SELECT state FROM works ORDER BY id") == [("working",), ("submitted",)]
    assert (await works.works(store.reader, states=frozenset(["completed"]))).works == []


async def test_a_damaged_step_does_not_stop_the_opening(path: Path) -> None:
    store = await Store.open(path, synchronous="normal")
    await open_work(store)
    await receive(store, trace("working", work_id=WORK, message="half done"))

    def damage(tx: Transaction) -> None:
        tx.db_unflushed.execute("UPDATE log SET raw = x'00' WHERE seq = 2")

    await store.write(damage)
    found = await after_a_kill(path)
    await store.close()
    assert [row[9] for row in found] == ["working"]
