"""Messages that wait for an answer or for their time: kept, found again, and read in bounded pages."""

import asyncio
from functools import partial
from itertools import pairwise
from pathlib import Path

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.log.removal import remove
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import inbox, outbox, retry
from aghbus.store.tables.retry import RetrySchedule
from tests.support.makers import BOB, EVE, NOW, NOW_MS, US, receive, receiving, rows, say, sending

HOUR_MS = 3_600_000


async def published(store: Store, text: str = "hello", next_ms: int | None = NOW_MS) -> int:
    """An own message that the broker has, to be retried at `next_ms`."""
    seq = (await store.write(sending(say(sender=US, to=BOB, text=text)))).seq
    assert seq is not None
    await store.write(lambda tx: retry.published(tx, [RetrySchedule(seq, next_ms)], NOW_MS))
    return seq


async def test_retention_keeps_unanswered_messages(store: Store) -> None:
    waiting = await published(store)
    await published(store, next_ms=None)  # nothing will come of it any more
    await sweep(store, RetentionPolicy(max_age=None, max_bytes=1), NOW_MS)
    assert await rows(store, "SELECT seq FROM envelopes") == [(waiting,)]


async def test_a_clock_that_steps_back_delays_no_retry(store: Store) -> None:
    seq = await published(store, next_ms=NOW_MS + 1000)
    before = NOW_MS - 24 * HOUR_MS
    await store.write(lambda tx: retry.pull_in(tx, before, before + HOUR_MS))
    assert [row.seq for row in await store.write(lambda tx: retry.due(tx, before, 10))] == [seq]
    later = await published(store, next_ms=before + HOUR_MS)  # as late as a pause may be: left alone
    await store.write(lambda tx: retry.pull_in(tx, before, before + HOUR_MS))
    assert later not in [row.seq for row in await store.write(lambda tx: retry.due(tx, before, 10))]


async def test_a_page_of_the_outbox_is_bounded_in_bytes_and_the_rest_follows(store: Store) -> None:
    text = "x" * 1_000_000
    count = outbox.PAGE_BYTES // len(text) + 3
    seqs = [(await store.write(sending(say(sender=US, to=BOB, text=text)))).seq for _ in range(count)]
    found: list[int] = []
    while page := await store.write(partial(outbox.load_queued, after_seq=found[-1] if found else 0, limit=1000)):
        assert sum(len(row.raw) for row in page) < outbox.PAGE_BYTES + outbox.PAGE_BYTES // 8
        found += [row.seq for row in page]
    assert found == seqs


async def test_only_the_receiver_of_a_message_can_know_its_id(store: Store) -> None:
    seq = await published(store)
    ((message_id,),) = await rows(store, "SELECT msg_id FROM envelopes")
    sent = await store.write(lambda tx: retry.addressed(tx, seq, message_id))
    assert sent is not None
    assert (sent.sender, sent.recipient) == (US, BOB)
    assert await store.write(lambda tx: retry.addressed(tx, seq, "msg_guessed")) is None
    assert await store.write(lambda tx: retry.addressed(tx, seq + 1, message_id)) is None


async def test_a_ready_message_of_another_work_is_not_due(store: Store) -> None:
    await receive(store, say(work_id="work_other"))
    assert await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 5000, "lease_a", work_id="work_mine")) is None
    assert await store.write(inbox.due_ms) is None
    held = await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 5000, "lease_a"))
    assert held is not None
    await receive(store, say(work_id="work_third", ts=NOW))
    assert await store.write(inbox.due_ms) == NOW_MS + 5000


async def test_an_answered_or_given_up_message_is_not_sent_again(store: Store) -> None:
    first, second = await published(store), await published(store)
    [(name,)] = await rows(store, f"SELECT msg_id FROM envelopes WHERE seq = {first}")
    assert await store.write(lambda tx: outbox.mark_receipted(tx, "ws_test", name, by=BOB))
    assert await store.write(lambda tx: retry.next_due_ms(tx)) == NOW_MS
    await store.write(lambda tx: outbox.mark_answered(tx, second))
    assert await store.write(retry.next_due_ms) is None
    assert await store.write(retry.stale_from) is None


async def test_the_first_expiry_is_known(store: Store) -> None:
    assert await store.write(retry.stale_from) is None
    waiting = await published(store)
    queued = (await store.write(sending(say(sender=US, to=BOB, expires_at=NOW + 50)))).seq
    assert await store.write(retry.stale_from) == NOW + 50
    assert await store.write(lambda tx: retry.stale(tx, NOW + 50, 10)) == [queued]
    await store.write(lambda tx: retry.give_up(tx, queued or 0, "expired", "nobody answered"))
    later = await store.write(retry.stale_from)
    assert later is not None and later > NOW + 50
    assert await store.write(lambda tx: retry.stale(tx, later, 10)) == [waiting]


async def test_next_message_of_a_sequence_is_found_in_and_after_indexes(path: Path) -> None:
    store = await Store.open(path, synchronous="normal", segment=4)
    seqs: list[list[int]] = [[], []]
    for number in range(14):
        text = say(sender=US, to=(BOB, EVE)[number % 2])
        seqs[number % 2] += (await store.write(sending(text))).queued
    later = [RetrySchedule(seq, NOW_MS + HOUR_MS) for seq in seqs[0] + seqs[1]]
    await store.write(lambda tx: retry.published(tx, later, NOW_MS))
    try:
        for one, following in (*pairwise(seqs[0]), *pairwise(seqs[1])):
            assert await store.write(lambda tx, one=one: retry.release_next(tx, one, NOW_MS))  # type: ignore[misc]
            assert await rows(store, "SELECT seq FROM outbox WHERE next_ms = ?", NOW_MS) == [(following,)]
            await store.write(lambda tx, seq=following: outbox.mark_answered(tx, seq))  # type: ignore[misc]
        assert not await store.write(lambda tx: retry.release_next(tx, seqs[0][-1], NOW_MS))
    finally:
        await store.close()


async def test_next_message_of_a_sequence_skips_removed_rows(path: Path) -> None:
    store = await Store.open(path, synchronous="normal", segment=4)
    try:
        seqs = [await published(store, next_ms=NOW_MS + HOUR_MS) for _ in range(6)]
        await store.write(lambda tx: remove(tx, tx.memory.log, tx.memory.dedup, seqs[1:3]))
        assert await store.write(lambda tx: retry.release_next(tx, seqs[0], NOW_MS))
        assert await rows(store, "SELECT seq FROM outbox WHERE next_ms = ?", NOW_MS) == [(seqs[3],)]
    finally:
        await store.close()


async def test_next_message_of_a_sequence_is_found_without_a_full_scan(store: Store) -> None:
    first = await published(store)
    await asyncio.gather(*[store.submit(receiving(say(), capacity=2000)) for _ in range(2000)])
    steps = 0

    def count() -> int:
        nonlocal steps
        steps += 1
        return 0

    def job(tx: Transaction) -> bool:
        tx.db.set_progress_handler(count, 1)
        released = retry.release_next(tx, first, NOW_MS)
        tx.db.set_progress_handler(None, 0)
        return released

    assert await store.write(job) is False
    assert 0 < steps < 500
