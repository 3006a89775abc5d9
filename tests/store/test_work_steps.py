"""A step of a work is in the table of works with its commit: for every program that reads the file, and after a kill."""

import asyncio
import contextlib
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.api.queries import WorksQuery
from aghbus.protocol.base.errors import NotFound, Refused
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables.works import reads
from tests.support.makers import BOB, NOW, US, receipt, receive, receiving, rows, say, sending, trace

WORK = "work_one"
_RECEIPTS = {"accepted": "accepted", "busy": "rejected", "not_found": "rejected", "expired": "expired"}
_Step = tuple[str, str, str | None, object]
_ALL = "SELECT * FROM works ORDER BY id"
_STATES = "SELECT state, last_seq FROM works ORDER BY work_id"
_LOGGED = """
SELECT state_after, max(seq) FROM envelopes
WHERE outcome IN ('opened', 'advanced', 'unchanged') AND state_after IS NOT NULL GROUP BY work_id ORDER BY work_id
"""


def in_file(path: Path, sql: str) -> list[tuple[object, ...]]:
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
@given(steps=_STEPS)
def test_the_table_agrees_with_the_log_after_each_step_and_a_kill(
    tmp_path_factory: pytest.TempPathFactory, steps: list[_Step]
) -> None:
    async def run(path: Path) -> None:
        store = await Store.open(path, synchronous="normal")
        try:
            openings = {work_id: await open_work(store, work_id) for work_id in ("work_a", "work_b")}
            for number, (work_id, what, message, result) in enumerate(steps):
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
                    assert in_file(path, _STATES) == in_file(path, _LOGGED)
                    continue
                else:
                    envelope = trace(what, message=message, result=result, **place)
                await receive(store, envelope, at=at)
                assert in_file(path, _STATES) == in_file(path, _LOGGED)
            assert await after_a_kill(path) == await rows(store, _ALL)
        finally:
            await store.close()

    asyncio.run(run(tmp_path_factory.mktemp("steps") / "store.db"))


async def test_another_program_sees_a_step_when_its_job_has_returned(store: Store, path: Path) -> None:
    opening = await open_work(store)
    await receive(store, receipt("accepted", opening.id, work_id=WORK))
    assert in_file(path, "SELECT state FROM works") == [("working",)]


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


async def test_the_step_of_a_job_that_fails_is_not_written(store: Store) -> None:
    await open_work(store)
    await receive(store, trace("working", work_id=WORK))

    def fails(tx: Transaction) -> None:
        receiving(trace("completed", work_id=WORK))(tx)
        raise NotFound("on purpose")

    beside = store.submit(sending(say(US, BOB, work_id="work_two")))
    with pytest.raises(NotFound):
        await store.write(fails)
    await beside
    assert await rows(store, "SELECT state FROM works ORDER BY id") == [("working",), ("submitted",)]
    assert (await reads.works(store.reader, WorksQuery(states=frozenset(["completed"])))).works == []
