"""The dedup window: which ids are remembered, for how long, and that memory and table agree."""

import string
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.log.dedup import GRACE, MessageIds
from aghbus.store.engine.log.removal import remove
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables.envelopes import received_ack
from tests.support.makers import EVE, NOW, receive, rows, say, trace

TEXT = st.text(string.printable.replace("\0", "") + "äß€", max_size=8)


IDS = MessageIds()


def key(number: int) -> int:
    return IDS.dedup_key("ws", "bob", f"msg_{number}")


@given(st.tuples(TEXT, TEXT, TEXT), st.tuples(TEXT, TEXT, TEXT))
def test_different_origins_have_different_keys(one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
    assert (IDS.dedup_key(*one) == IDS.dedup_key(*other)) == (one == other)


def remember(*ids: tuple[int, int]) -> Callable[[Transaction], None]:
    """The job that remembers each `(number, until)`."""

    def job(tx: Transaction) -> None:
        for number, until in ids:
            tx.memory.dedup.remember(tx, key(number), until)

    return job


async def test_a_second_copy_in_the_same_transaction_is_seen(store: Store) -> None:
    envelope = say(work_id="work_a")
    first = store.submit(lambda tx: key(1) in tx.memory.dedup.keys)
    second = store.submit(remember((1, NOW)))
    third = store.submit(lambda tx: key(1) in tx.memory.dedup.keys)
    await second
    assert (await first, await third) == (False, True)
    applied = [await receive(store, envelope), await receive(store, envelope)]
    assert [one.seq is None for one in applied] == [False, True]


async def test_a_failed_job_forgets_its_ids(store: Store) -> None:
    def doomed(tx: Transaction) -> None:
        tx.memory.dedup.remember(tx, key(1), NOW)
        raise NotFound("after all")

    failing = store.submit(doomed)
    after = store.submit(lambda tx: key(1) in tx.memory.dedup.keys)
    assert await after is False
    assert isinstance(failing.exception(), NotFound)
    assert await rows(store, "SELECT * FROM remembered_ids") == []


async def test_the_window_survives_reopening(store: Store) -> None:
    await store.write(remember(*((number, NOW + number) for number in range(2000))))
    await store.close()
    again = await Store.open(store.path)
    try:
        assert len(again.memory.dedup) == 2000
        missing = await again.write(
            lambda tx: [number for number in range(2000) if key(number) not in tx.memory.dedup.keys]
        )
        assert missing == []
        # New slots do not collide with those of before, of the same minute or any other.
        await again.write(remember(*((number, NOW) for number in range(2000, 4000))))
        assert await rows(again, "SELECT count(*) FROM remembered_ids") == [(4000,)]
    finally:
        await again.close()


async def test_ids_expire_after_their_time_and_the_grace(store: Store) -> None:
    until = {number: NOW + number * 7 for number in range(500)}
    await store.write(remember(*until.items()))
    for later in (0, 600, 1800, 4000):
        now = NOW + later
        while await store.write(lambda tx, now=now: tx.memory.dedup.expire(tx, now, 50)):  # type: ignore[misc]
            pass
        kept = await store.write(lambda tx: {n for n in until if key(n) in tx.memory.dedup.keys})
        must = {n for n, at in until.items() if at + GRACE > now}
        may = {n for n, at in until.items() if at + GRACE + 120 > now}
        assert must <= kept <= may
        assert await rows(store, "SELECT count(*) FROM remembered_ids") == [(len(kept),)]
        assert len(store.memory.dedup) == len(kept)


async def test_expiry_comes_in_steps(store: Store) -> None:
    await store.write(remember(*((number, NOW) for number in range(100))))
    counts = [await store.write(lambda tx: tx.memory.dedup.expire(tx, NOW + 3600, 40)) for _ in range(4)]
    assert counts == [40, 40, 20, 0]
    assert len(store.memory.dedup) == 0


async def test_expired_ids_are_not_read_again_at_the_next_opening(store: Store) -> None:
    await receive(store, say())
    await receive(store, say(expires_at=NOW + 7200))
    await store.write(remember((1, NOW), (2, NOW + 7200)))
    while await store.write(lambda tx: tx.memory.dedup.expire(tx, NOW + 4000)):
        pass
    await store.close()
    again = await Store.open(store.path)
    try:
        assert len(again.memory.dedup) == 2
        assert await again.write(lambda tx: key(2) in tx.memory.dedup.keys)
        for now, left in ((NOW + 7200 + GRACE - 1, 2), (NOW + 7200 + GRACE + 120, 0)):
            await again.write(lambda tx, now=now: tx.memory.dedup.expire(tx, now))  # type: ignore[misc]
            assert len(again.memory.dedup) == left
    finally:
        await again.close()


async def test_remembering_again_changes_nothing(store: Store) -> None:
    for _ in range(3):
        await store.write(remember((1, NOW)))
    assert await rows(store, "SELECT count(*) FROM remembered_ids") == [(1,)]


async def test_id_expired_by_a_fast_clock_can_be_stored_and_removed_twice(store: Store) -> None:
    envelope = say(to=EVE)
    await receive(store, envelope, observe=True)
    await store.write(lambda tx: tx.memory.dedup.expire(tx, NOW + 7200))  # the clock is ahead, and is set back
    assert (await receive(store, envelope, observe=True)).seq == 2
    await sweep(store, RetentionPolicy(max_age=0, max_bytes=None), NOW * 1000 + 1)
    assert await rows(store, "SELECT count(*) FROM log") == [(0,)]
    assert (await receive(store, envelope, observe=True)).seq is None


async def test_a_repetition_gets_the_same_answer_after_its_first_copy_was_removed(store: Store) -> None:
    taken, refused = say(), trace("working", work_id="work_unknown")
    for envelope in (taken, refused):
        await receive(store, envelope)
    seqs = [row[0] for row in await rows(store, "SELECT seq FROM log")]
    before = [await store.write(lambda tx, one=one: received_ack(tx, one, None)) for one in (taken, refused)]  # type: ignore[misc]
    await store.write(lambda tx: remove(tx, tx.memory.log, tx.memory.dedup, seqs) and None)
    await store.close()
    again = await Store.open(store.path)
    try:
        assert await rows(again, "SELECT count(*) FROM log") == [(0,)]
        after = [await again.write(lambda tx, one=one: received_ack(tx, one, None)) for one in (taken, refused)]  # type: ignore[misc]
        assert [(ack.outcome, ack.reason) for ack in after] == [("committed", None), ("refused", "not_found")]
        assert after == before
        assert (await receive(again, taken)).seq is None
    finally:
        await again.close()


async def test_far_dates_are_kept(store: Store) -> None:
    await store.write(remember((1, 2**53)))
    await store.write(lambda tx: tx.memory.dedup.expire(tx, NOW))
    assert await store.write(lambda tx: key(1) in tx.memory.dedup.keys)
