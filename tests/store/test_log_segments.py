"""The log and its indexes, written behind: searches find what a scan finds, and what is derived can be made again."""

import asyncio
import logging
import re
import secrets
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.daemon.check_store import check_store, rebuild_indexes
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.log.removal import remove
from aghbus.store.engine.log.tail import Tail
from aghbus.store.errors import StoreUnavailable
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import inbox, outbox, rooms, search
from tests.support.log_searches import assert_found, index_problems_of
from tests.support.makers import BOB, EVE, NOW_MS, US, receive, receiving, rows, say, sending

SEGMENT = 5
LATER_MS = NOW_MS + 10_000
EVERYTHING = RetentionPolicy(max_age=1, max_bytes=None)
INDEX_TABLES = ("segments", "log_ids", "log_flows", "log_works")

KINDS = st.sampled_from(["thread", "direct", "work", "sent", "broadcast", "same id"])
STEPS = st.lists(
    st.one_of(
        st.tuples(KINDS, st.integers(0, 2)),
        st.tuples(st.sampled_from(["raise", "raise after a look", "reopen", "expire", "ack and sweep"]), st.just(0)),
    ),
    max_size=40,
)


def made(kind: str, number: int) -> Envelope:
    peer = (BOB, EVE, "carol")[number]
    message_id = f"msg_{secrets.token_hex(16)}"
    match kind:
        case "direct":
            return say(peer, id=message_id, direct=True)
        case "work":
            return say(peer, id=message_id, work_id=f"work_{number}")
        case "sent":
            return say(US, peer, id=message_id, container="thread_sent")
        case "broadcast":
            return say(peer, None, id=message_id, container=f"thread_no_{number}")
        case "same id":
            return say(peer, id="msg_same")
        case _:
            return say(peer, id=message_id, container=f"thread_no_{number}")


async def ack_all(tx_store: Store) -> None:
    while await tx_store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 1_000, "token", ack=True)) is not None:
        pass
    unsent = await rows(tx_store, "SELECT seq FROM outbox")
    for (seq,) in unsent:
        await tx_store.write(lambda tx, one=seq: outbox.mark_answered(tx, one))  # type: ignore[misc]


class Play:
    """A store to which the steps are applied."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def apply(self, step: str, number: int) -> None:
        store = self.store
        match step:
            case "raise" | "raise after a look":
                with pytest.raises(NotFound):
                    await store.write(lambda tx: fails(tx, look=step != "raise"))
            case "reopen":
                await store.close()
                self.store = await Store.open(store.path, synchronous="normal", segment=SEGMENT)
            case "expire":
                await store.write(lambda tx: tx.memory.dedup.expire(tx, NOW_MS // 1000))
            case "ack and sweep":
                await ack_all(store)
                await sweep(store, EVERYTHING, LATER_MS)
            case "sent":
                await store.write(sending(made(step, number)))
            case _:
                await receive(store, made(step, number))


def fails(tx: Transaction, *, look: bool) -> None:
    receiving(say("mallory", container="thread_new"))(tx)
    if look:
        tx.db.execute("SELECT 1")
    raise NotFound("after all")


@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_searches_find_what_a_scan_finds(steps: list[tuple[str, int]]) -> None:
    async def play(path: Path) -> None:
        played = Play(await Store.open(path, synchronous="normal", segment=SEGMENT))
        try:
            for step, number in steps:
                await played.apply(step, number)
            await assert_found(played.store)
            remembered = len(played.store.memory.dedup)
        finally:
            await played.store.close()
        assert index_problems_of(path) == []
        again = await Store.open(path, segment=3)
        try:
            assert len(again.memory.dedup) == remembered
            await assert_found(again)
        finally:
            await again.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder) / "store.db"))


@pytest.fixture
async def filled(path: Path) -> Path:
    """A closed store with several segments and a tail."""
    store = await Store.open(path, synchronous="normal", segment=SEGMENT)
    for number in range(18):
        await receive(store, made(("thread", "work", "direct")[number % 3], number % 2))
    await store.close()
    return path


@pytest.mark.parametrize("table", INDEX_TABLES)
@pytest.mark.parametrize("how", ["DROP TABLE {}", "DELETE FROM {}", "DELETE FROM {} WHERE rowid = 3"])
async def test_indexes_that_were_deleted_are_made_again(
    filled: Path, table: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    how = how.replace("rowid = 3", "n = 3" if table == "segments" else "segment = 3")
    with closing(sqlite3.connect(filled)) as db:
        db.execute(how.format(table))
        db.commit()
    with caplog.at_level(logging.WARNING, "aghbus.store"):
        store = await Store.open(filled, segment=SEGMENT)
    try:
        assert "made again" in caplog.text
        assert await rows(store, "SELECT last_seq FROM segments") == [(SEGMENT,), (2 * SEGMENT,), (3 * SEGMENT,)]
        await assert_found(store)
    finally:
        await store.close()
    assert index_problems_of(filled) == []


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE log_flows SET seqs = '[1,' WHERE segment = (SELECT max(n) FROM segments)",
        "DROP TABLE log_flows; CREATE TABLE log_flows (segment, flow, seq)",
    ],
)
async def test_values_and_tables_of_another_form_are_made_again(filled: Path, damage: str) -> None:
    with closing(sqlite3.connect(filled)) as db:
        db.executescript(damage)
    store = await Store.open(filled, segment=SEGMENT)
    try:
        await assert_found(store)
    finally:
        await store.close()
    assert index_problems_of(filled) == []


@pytest.mark.parametrize("damage", ["seqs = '[1,' WHERE segment = 1", "block = block + 1"])
async def test_check_store_finds_wrong_values_of_streams(filled: Path, damage: str) -> None:
    with closing(sqlite3.connect(filled)) as db:
        db.execute(f"UPDATE log_flows SET {damage}")
        db.commit()
    (problem,) = index_problems_of(filled)
    assert "log_flows" in problem


async def test_a_kill_while_the_indexes_are_emptied_leaves_no_counts_behind(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as db:
        for table in INDEX_TABLES:
            db.execute(f"DELETE FROM {table}")
        db.commit()
    store = await Store.open(filled, segment=SEGMENT)
    await store.close()
    assert index_problems_of(filled) == []


async def test_check_store_compares_the_indexes_and_makes_them_again(filled: Path) -> None:
    def state() -> tuple[str, str]:
        return next(
            (one.state, one.hint) for one in check_store(filled, quick=False).checks if one.check == "store indexes"
        )

    assert state()[0] == "ok"
    with closing(sqlite3.connect(filled)) as db:
        db.execute("DELETE FROM log_flows WHERE segment = 1 AND flow = 2")
        db.execute("UPDATE log_ids SET flow = 99 WHERE segment = 1 AND seq = 3")
        db.commit()
    assert state() == ("fail", "stop the daemon and run `aghd check-store --rebuild-indexes`")
    await asyncio.to_thread(rebuild_indexes, filled)
    assert state()[0] == "ok"


def test_an_undone_row_of_the_tail_is_not_found() -> None:
    tail = Tail()
    tail.rows += [(1, 11, 21, "work_a"), (2, 12, 22, None), (3, 12, 22, "work_a")]
    assert tail.of_id(12) == [2, 3]
    tail.pop()
    assert (tail.of_id(12), tail.of_flow(22), tail.of_work("work_a")) == ([2], [2], [1])
    tail.pop()
    tail.rows.append((2, 13, 21, "work_b"))
    assert (tail.of_id(12), tail.of_id(13), tail.of_flow(21), tail.of_work("work_b")) == ([], [2], [1, 2], [2])


async def test_a_job_that_is_undone_leaves_dictionaries_and_window_as_they_were(store: Store) -> None:
    await receive(store, say(container="thread_known"))
    with pytest.raises(NotFound):
        await store.write(lambda tx: fails(tx, look=False))
    await receive(store, say(container="thread_next", work_id="work_next"))
    assert await rows(store, "SELECT id, container FROM flows") == [(1, "thread_known"), (2, "thread_next")]
    assert await rows(store, "SELECT id, outcome FROM verdicts") == [(1, None), (2, "opened")]
    assert [row[0] for row in store.memory.log.tail.rows] == [1, 2]
    assert len(store.memory.dedup) == 2


async def test_a_known_stream_and_verdict_cost_no_query(store: Store) -> None:
    await receive(store, say())
    asked: list[str] = []

    def job(tx: Transaction) -> None:
        tx.db.set_trace_callback(asked.append)
        receiving(say())(tx)
        tx.db.set_trace_callback(None)

    await store.write(job)
    assert asked == []


async def test_a_stream_whose_removal_is_undone_is_still_known(store: Store) -> None:
    await receive(store, say(container="thread_kept"))

    def removes(tx: Transaction) -> None:
        assert remove(tx, tx.memory.log, tx.memory.dedup, [1]) != []
        raise NotFound("after all")

    with pytest.raises(NotFound):
        await store.write(removes)
    await assert_found(store)
    await receive(store, say(container="thread_kept"))
    assert await rows(store, "SELECT container FROM flows") == [("thread_kept",)]
    await assert_found(store)


@pytest.mark.parametrize("indexed", [True, False])
async def test_sequence_replaced_in_a_failed_transaction_is_still_found(path: Path, indexed: bool) -> None:
    def removes(tx: Transaction) -> None:
        assert remove(tx, tx.memory.log, tx.memory.dedup, [1, 2]) != []

    def disk_is_full(tx: Transaction) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    store = await Store.open(path, synchronous="normal", segment=2 if indexed else SEGMENT)
    try:
        for _ in range(2):
            await receive(store, say(container="thread_kept"))
        if indexed:  # opened again, the flow is not in memory
            await store.close()
            store = await Store.open(path, synchronous="normal", segment=2)
        again = receiving(say(container="thread_kept"))
        jobs = [store.write(removes), store.write(again), store.write(disk_is_full)]
        assert [type(one) for one in await asyncio.gather(*jobs, return_exceptions=True)] == [StoreUnavailable] * 3
        await assert_found(store)
        await receive(store, say(container="thread_kept"))
        await assert_found(store)
    finally:
        await store.close()


async def test_streams_that_are_dropped_from_memory_are_found_in_the_table(path: Path) -> None:
    count, at_once, segment = 9_000, 500, 1_000
    store = await Store.open(path, synchronous="normal", segment=segment)
    try:
        for first in range(0, count, at_once):
            envelopes = [say(container=f"thread_{number:05}") for number in range(first, first + at_once)]
            await asyncio.gather(*(store.write(receiving(one, capacity=2 * count)) for one in envelopes))
        await store.write(lambda _: None)  # after the last segment
        assert len(store.memory.log.flows.ids) < count - segment // 2
        for number in (0, 1, count - 1):
            await receive(store, say(container=f"thread_{number:05}"), capacity=2 * count)
            wanted = EnvelopeFilter(thread_id=f"thread_{number:05}")
            assert (await search.find(store.reader, wanted, since=0, limit=10)).seqs[0] == number + 1
        assert await rows(store, "SELECT count(*) FROM flows") == [(count,)]
    finally:
        await store.close()


async def test_a_new_thread_is_looked_up_once_for_all_its_streams(store: Store) -> None:
    asked: list[str] = []

    def job(tx: Transaction) -> None:
        tx.db.set_trace_callback(asked.append)
        for sender in (BOB, EVE):
            receiving(say(sender, container="thread_new"))(tx)
        tx.db.set_trace_callback(None)

    await store.write(job)
    assert len([sql for sql in asked if "flows" in sql]) == 1


async def test_retention_removes_the_rows_of_the_indexes_and_keeps_the_ids(path: Path) -> None:
    store = await Store.open(path, synchronous="normal", segment=SEGMENT)
    messages = [made("thread", number % 2) for number in range(12)]
    for message in messages:
        await receive(store, message)
    await ack_all(store)
    swept = await sweep(store, EVERYTHING, LATER_MS)
    assert (swept.envelopes, swept.rooms) == (12, 2)
    for table in (*INDEX_TABLES, "flows", "log"):
        assert await rows(store, f"SELECT count(*) FROM {table}") == [(0,)], table
    await store.close()
    again = await Store.open(path, segment=SEGMENT)
    try:
        assert [(await receive(again, message)).seq for message in messages] == [None] * 12
        assert (await receive(again, made("thread", 0))).seq == 13
    finally:
        await again.close()


async def test_thread_search_spans_segments_and_skips_removed_rows(path: Path) -> None:
    count, removed = 1_400, {1, 255, 256, 300, 650, 651, 1_399}
    store = await Store.open(path, synchronous="normal", segment=650)
    try:
        for first in range(0, count, 100):
            envelopes = [say(container=f"thread_no_{number % 2}") for number in range(first, first + 100)]
            await asyncio.gather(*(store.write(receiving(one, capacity=2 * count)) for one in envelopes))
        await store.write(lambda tx: remove(tx, tx.memory.log, tx.memory.dedup, sorted(removed)))
        wanted = EnvelopeFilter(thread_id="thread_no_0")
        stored = [seq for seq in range(1, count + 1, 2) if seq not in removed]
        for since in (0, 254, 255, 511, 649, 650, 1_300):
            after = [seq for seq in stored if seq > since]
            assert (await search.find(store.reader, wanted, since=since, limit=count)).seqs == after
            assert (await search.find(store.reader, wanted, since=since, limit=90, last=True)).seqs == after[-90:]
        threads = await rooms.threads(store.reader)
        assert [one.messages for one in threads if one.thread_id == "thread_no_0"] == [len(stored)]
    finally:
        await store.close()
    assert index_problems_of(path) == []


async def test_a_removed_envelope_of_the_tail_is_not_in_the_next_segment(path: Path) -> None:
    store = await Store.open(path, synchronous="normal", segment=SEGMENT)
    try:
        for _ in range(3):
            await receive(store, say())
        await store.write(lambda tx: remove(tx, tx.memory.log, tx.memory.dedup, [2]))
        for _ in range(3):
            await receive(store, say())
        assert [one.messages for one in await rooms.threads(store.reader)] == [5]
        assert await rows(store, "SELECT messages, last_seq FROM flows") == [(4, 5)]
    finally:
        await store.close()
    assert index_problems_of(path) == []


async def test_the_documented_queries_read_a_store(filled: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text("utf-8")
    queries = re.findall(r'^sqlite3 -readonly store\.db "(.*)"$', text, re.MULTILINE)
    assert len(queries) == 2
    with closing(sqlite3.connect(filled)) as db:
        assert len(db.execute(queries[0]).fetchall()) == 10
        assert db.execute(queries[1].replace("'ops'", "'bob'")).fetchone() == ("hello",)
