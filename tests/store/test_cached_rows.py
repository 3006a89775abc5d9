"""Caches agree with the file, also after a transaction that changed them was undone."""

from hashlib import sha256
from typing import Any

import pytest

from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.cache import GenerationalCache
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import deadlines, outbox, retry
from aghbus.store.tables.works import lifecycle
from tests.support.makers import (
    BOB,
    CHANNEL,
    EVE,
    NOW_MS,
    US,
    WORKSPACE,
    receipt,
    receive,
    receiving,
    rows,
    say,
    sending,
    trace,
)

WORK = "work_one"
_PLACE = (WORKSPACE, CHANNEL, WORK)


def known(tx: Transaction) -> tuple[Any, ...]:
    return (
        lifecycle.load(tx, *_PLACE),
        lifecycle.role(tx, *_PLACE),
        lifecycle.find(tx, WORK, None),
        lifecycle.find(tx, WORK, CHANNEL),
    )


async def agrees(store: Store) -> None:
    """Memory and file say the same of the work."""
    remembered = await store.write(known)
    store.memory.works.clear()
    assert remembered == await store.write(known)


async def open_here(store: Store) -> str:
    opening = say(US, BOB, work_id=WORK, trace_id="trace_one")
    await store.write(sending(opening))
    return opening.id


async def test_a_cached_work_equals_the_stored_one(store: Store) -> None:
    opening_id = await open_here(store)
    await agrees(store)
    store.memory.works.clear()
    for number, envelope in enumerate(
        (
            say(EVE, US, work_id="work_other"),
            receipt("accepted", opening_id, work_id=WORK),
            trace("working", work_id=WORK),
            trace("completed", work_id=WORK),
        )
    ):
        await receive(store, envelope)
        if number % 2:
            await agrees(store)


async def test_a_recently_opened_work_needs_no_query(store: Store) -> None:
    opening_id = await open_here(store)
    await receive(store, receipt("accepted", opening_id, work_id=WORK))
    asked: list[str] = []

    def job(tx: Transaction) -> None:
        tx.db.set_trace_callback(asked.append)
        receiving(trace("working", work_id=WORK))(tx)
        known(tx)
        tx.db.set_trace_callback(None)

    await store.write(job)
    assert [sql.split()[0] for sql in asked] == ["UPDATE"]  # of the row of the work


async def test_an_undone_step_is_not_cached(store: Store) -> None:
    opening_id = await open_here(store)
    before = await store.write(known)

    def fails(tx: Transaction) -> None:
        receiving(receipt("accepted", opening_id, work_id=WORK))(tx)
        receiving(say(work_id="work_new"))(tx)
        raise NotFound("on purpose")

    with pytest.raises(NotFound):
        await store.write(fails)
    assert await store.write(known) == before
    assert await store.write(lambda tx: lifecycle.find(tx, "work_new", None)) is None
    await agrees(store)


async def test_of_two_works_with_one_id_the_latest_change_counts(store: Store) -> None:
    opening_id = await open_here(store)
    await store.write(sending(say(US, BOB, work_id=WORK, channel="other")))
    found = await store.write(lambda tx: lifecycle.find(tx, WORK, None))
    assert found is not None
    assert found.work.channel == "other"
    await receive(store, receipt("accepted", opening_id, work_id=WORK))
    found = await store.write(lambda tx: lifecycle.find(tx, WORK, None))
    assert found is not None
    assert found.work.channel == CHANNEL
    await agrees(store)


async def test_a_work_removed_by_retention_is_not_cached(store: Store) -> None:
    opening_id = await open_here(store)
    await receive(store, receipt("rejected", opening_id, work_id=WORK))
    await store.write(lambda tx: outbox.mark_answered(tx, 1))
    swept = await sweep(store, RetentionPolicy(max_age=1, max_bytes=None), NOW_MS + 10_000_000)
    assert swept.works == 1
    assert await store.write(lambda tx: lifecycle.load(tx, *_PLACE)) is None


async def test_only_a_work_that_may_have_a_deadline_moves_it(store: Store) -> None:
    await open_here(store)
    work = await store.write(lambda tx: lifecycle.load(tx, *_PLACE))
    assert work is not None
    assert not (await receive(store, trace("working", work_id=WORK))).may_be_due
    await store.write(lambda tx: deadlines.begin(tx, work, None, 1_000, NOW_MS))
    assert (await receive(store, trace("working", work_id=WORK))).may_be_due
    await store.write(lambda tx: deadlines.moved(tx, work, accepted=False, traced=True, now_ms=NOW_MS + 500))
    assert await store.write(deadlines.next_due_ms) == NOW_MS + 1_500
    store.memory.works.clear()
    assert (await receive(store, trace("working", work_id=WORK))).may_be_due  # only the file knows


async def test_an_arrival_is_recorded_once_for_each_transmission(store: Store) -> None:
    message_id = await open_here(store)

    def arrives(tx: Transaction) -> bool:
        return outbox.mark_receipted(tx, WORKSPACE, message_id, by=BOB)

    assert not await store.write(lambda tx: outbox.mark_receipted(tx, WORKSPACE, message_id, by=EVE))
    assert [await store.write(arrives), await store.write(arrives)] == [True, False]
    await store.write(lambda tx: outbox.requeue(tx, WORKSPACE, message_id))
    assert [await store.write(arrives), await store.write(arrives)] == [True, False]


@pytest.mark.parametrize("remembered", [True, False])
async def test_only_the_receiver_of_a_message_can_answer_it(store: Store, remembered: bool) -> None:
    message_id = await open_here(store)
    if not remembered:
        store.memory.addressed.clear()
    sent = await store.write(lambda tx: retry.addressed(tx, 1, message_id))
    assert sent is not None
    assert (sent.message_id, sent.sender, sent.recipient) == (message_id, US, BOB)
    assert sent.subject == subject_for(WORKSPACE, CHANNEL, BOB)
    ((raw,),) = await rows(store, "SELECT raw FROM envelopes")
    assert sent.digest == sha256(raw).hexdigest()
    assert await store.write(lambda tx: retry.addressed(tx, 1, "msg_guessed")) is None


async def test_the_older_generation_is_dropped_when_the_younger_is_full(store: Store) -> None:
    recent: GenerationalCache[int, str] = GenerationalCache(size=2)

    def job(tx: Transaction) -> None:
        for number in range(5):
            recent.put(tx, number, str(number))

    await store.write(job)
    assert [recent.get(number) for number in range(5)] == [None, None, "2", "3", "4"]
    recent.forget(3)
    assert recent.get(3) is None
