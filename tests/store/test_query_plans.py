"""Queries made for every message use an index and scan no table."""

import pytest

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.log import memory
from aghbus.store.tables import inbox, outbox, retry, wait_facts
from aghbus.store.tables.retry import RetrySchedule
from aghbus.store.tables.works import lifecycle, reads
from tests.support.makers import BOB, NOW_MS, US, receive, rows, say, sending


async def test_leasing_expiring_and_publishing_search_by_an_index(store: Store) -> None:
    def job(tx: Transaction) -> list[str]:
        asked: list[str] = []
        tx.db.set_trace_callback(asked.append)
        assert inbox.lease_next(tx, 1_000, 1_000, "token") is not None
        outbox.load_queued(tx, 0, 10)
        retry.stale(tx, 1, 10)
        tx.db.set_trace_callback(None)
        plans = [
            row[3]
            for sql in asked
            if "inbox" in sql or "outbox" in sql
            for row in tx.db.execute(f"EXPLAIN QUERY PLAN {sql}")
        ]
        assert len(plans) >= 4
        return plans

    await receive(store, say())
    plans = await store.write(job)
    scans = {plan for plan in plans if plan.startswith("SCAN") and "INDEX" not in plan}
    assert scans <= {"SCAN inbox", "SCAN (subquery-2)"}  # only exceptions, when a lease has expired
    assert sum("inbox_returned" in plan for plan in plans) == 2  # what is due next, leasing
    assert sum("outbox_open" in plan for plan in plans) == 2


async def test_a_work_is_found_by_its_id_among_many(store: Store) -> None:
    def job(tx: Transaction) -> list[str]:
        asked: list[str] = []
        tx.db.set_trace_callback(asked.append)
        lifecycle.find(tx, "work_1", None)
        lifecycle.find(tx, "work_1", "default")
        tx.db.set_trace_callback(None)
        return [row[3] for sql in asked for row in tx.db.execute(f"EXPLAIN QUERY PLAN {sql}") if " w " in row[3]]

    plans = await store.write(job)
    assert len(plans) == 2
    assert all("works_by_id" in plan for plan in plans)


async def test_outbox_updates_use_no_ephemeral_tables(store: Store) -> None:
    def job(tx: Transaction) -> list[str]:
        asked: list[str] = []
        (row,) = sending(say(sender=US, to=BOB))(tx).outgoing
        retry.published(tx, [RetrySchedule(row.seq, NOW_MS)], NOW_MS)
        outbox.mark_answered(tx, row.seq)
        tx.db.set_trace_callback(asked.append)
        tx.flush()
        tx.db.set_trace_callback(None)
        changes = [sql for sql in asked if "outbox" in sql]
        assert len(changes) == 3
        return [row[1] for sql in changes for row in tx.db.execute(f"EXPLAIN {sql}")]

    assert "OpenEphemeral" not in await store.write(job)


@pytest.mark.parametrize("at_hand", [True, False])
async def test_a_work_is_read_by_keys_with_one_visit_to_the_thread_at_most(
    store: Store, monkeypatch: pytest.MonkeyPatch, at_hand: bool
) -> None:
    await receive(store, say(work_id="work_1"))
    if not at_hand:
        monkeypatch.setattr(memory, "_AT_HAND", 0)
    visited: list[str] = []
    here: list[str] = []
    await store.reader.set_trace_callback(visited.append)
    store.reader.here.set_trace_callback(here.append)
    commits = store.stats.commits
    assert await reads.work(store.reader, "work_1", before=1) is not None
    assert (len(here), visited) == (1, [])
    found = await reads.work(store.reader, "work_1")
    assert found is not None and len(found.history) == 1
    assert (len(here), len(visited)) == ((3, 0) if at_hand else (2, 1))
    assert store.stats.commits == commits
    await store.reader.set_trace_callback(lambda _sql: None)
    plans = [plan for sql in here[:2] for (*_, plan) in await rows(store, f"EXPLAIN QUERY PLAN {sql}")]
    assert plans and not [plan for plan in plans if plan.startswith("SCAN")]


async def test_why_a_work_does_not_move_is_read_by_keys(store: Store) -> None:
    await receive(store, say(work_id="work_1"))
    found = await reads.work(store.reader, "work_1")
    assert found is not None
    asked: list[str] = []
    await store.reader.set_trace_callback(asked.append)
    store.reader.here.set_trace_callback(asked.append)
    for role in ("target", "initiator"):
        found.work.role = role
        assert await wait_facts.read(store.reader, found.work) is not None
    await store.reader.set_trace_callback(lambda _sql: None)
    store.reader.here.set_trace_callback(None)
    plans = [plan for sql in asked for (*_, plan) in await rows(store, f"EXPLAIN QUERY PLAN {sql}")]
    assert any("works_by_id" in plan for plan in plans)
    assert {plan for plan in plans if plan.startswith("SCAN") and "VIRTUAL TABLE" not in plan} <= {"SCAN g"}  # segments
