"""Retention: bounds, envelopes that are kept, gap events, the size of the file, and other writes meanwhile."""

import asyncio
from functools import partial
from pathlib import Path

from aghbus.protocol.api.queries import EnvelopeFilter, EventsQuery
from aghbus.store.engine.commit.state import NOTHING_KEPT, Kept
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.retention import SWEEP_ROWS, RetentionPolicy, sweep
from aghbus.store.tables import envelopes, events, inbox, outbox, quarantine, retry, rooms, search
from aghbus.store.tables.works import handovers, lifecycle, reads
from tests.support.auditing import checked
from tests.support.makers import BOB, EVE, NOW, NOW_MS, US, inbox_states, receive, receiving, rows, say, sending, trace

DAY = 86_400  # seconds
BY_AGE = RetentionPolicy(max_age=DAY, max_bytes=None)
LATER_MS = NOW_MS + 2 * DAY * 1000


async def acked(store: Store, count: int, *, at: int = NOW, text: str = "old", **fields: str) -> list[int]:
    """Messages that the agent is done with."""
    jobs = [store.submit(receiving(say(text=text, ts=at, **fields), at=at, capacity=10**6)) for _ in range(count)]
    seqs = [applied.seq for _, applied in await asyncio.gather(*jobs) if applied.seq is not None]
    await store.write(lambda tx: [inbox.ack(tx, seq) for seq in seqs] and None)
    return seqs


async def left(store: Store) -> list[int]:
    return [seq for (seq,) in await rows(store, "SELECT seq FROM envelopes ORDER BY seq")]


async def test_envelopes_are_removed_by_age(store: Store) -> None:
    old = await acked(store, 2 * SWEEP_ROWS + 10)
    young = await acked(store, 10, at=NOW + 2 * DAY)
    swept = await sweep(store, BY_AGE, LATER_MS)
    assert swept.envelopes == len(old)
    assert await left(store) == young
    assert await envelopes.pruned_through(store.reader) == old[-1]
    assert list(await inbox_states(store)) == young


async def test_a_sweep_with_nothing_to_remove_removes_nothing(store: Store) -> None:
    seqs = await acked(store, 5)
    swept = await sweep(store, BY_AGE, NOW_MS)
    assert (swept.envelopes, swept.works) == (0, 0)
    assert await left(store) == seqs
    assert await envelopes.pruned_through(store.reader) == 0
    await sweep(store, RetentionPolicy(max_age=None, max_bytes=None), LATER_MS * 2)
    assert await left(store) == seqs


async def test_open_works_and_unread_messages_are_kept_at_any_age(store: Store) -> None:
    unread = (await receive(store, say())).seq
    held = (await receive(store, say())).seq
    await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 1000, "t"))
    waiting = (await store.write(sending(say(sender=US, to=None, expires_at=NOW + 300)))).seq
    (opening,) = await acked(store, 1, work_id="work_open")
    progress = (await store.write(sending(trace("working", sender=US, to=BOB, work_id="work_open")))).seq
    gone = await acked(store, 1)
    policy = RetentionPolicy(max_age=DAY, max_bytes=1)
    await store.write(
        lambda tx: retry.published(tx, [retry.RetrySchedule(seq, None) for seq in [progress or 0]], NOW_MS)
    )
    swept = await sweep(store, policy, NOW_MS + 200_000)  # not old yet, but the size bound asks for everything
    assert swept.envelopes == len(gone)
    assert await left(store) == [unread, held, waiting, opening, progress]
    detail = await reads.work(store.reader, "work_open")
    assert detail is not None
    assert len(detail.history) == 2


async def test_an_ended_work_is_removed_with_its_history(store: Store) -> None:
    await acked(store, 1, work_id="work_done")
    await store.write(sending(trace("completed", sender=US, to=BOB, work_id="work_done")))
    await store.write(lambda tx: retry.published(tx, [retry.RetrySchedule(seq, None) for seq in [2]], NOW_MS))
    await acked(store, 1, at=NOW + DAY + 50, work_id="work_long")
    await store.write(
        sending(trace("completed", sender=US, to=BOB, work_id="work_long", ts=NOW + 2 * DAY), at=NOW + 2 * DAY)
    )
    swept = await sweep(store, BY_AGE, LATER_MS)
    assert swept.works == 1
    assert await reads.work(store.reader, "work_done") is None
    detail = await reads.work(store.reader, "work_long")
    assert detail is not None
    assert [step.seq for step in detail.history] == [3, 4]


async def test_a_work_that_was_handed_over_stays_as_long_as_the_next_one(store: Store) -> None:
    for name in ("work_first", "work_next"):
        await acked(store, 1, work_id=name)
    await store.write(sending(trace("failed", sender=US, to=BOB, work_id="work_first")))
    await store.write(lambda tx: retry.published(tx, [retry.RetrySchedule(3, None)], NOW_MS))

    def link(tx: Transaction) -> None:
        known = lifecycle.find(tx, "work_first", None)
        assert known is not None
        handovers.link(tx, known.work, "work_next")

    await store.write(link)
    await sweep(store, BY_AGE, LATER_MS)
    found = await reads.work(store.reader, "work_first")
    assert found is not None
    assert found.work.work_id == "work_next"
    await store.write(sending(trace("completed", sender=US, to=BOB, work_id="work_next")))
    await store.write(lambda tx: retry.published(tx, [retry.RetrySchedule(4, None)], NOW_MS))
    for _ in range(2):  # the first one goes in the sweep after
        await sweep(store, BY_AGE, LATER_MS)
    assert await left(store) == []


async def test_a_work_is_never_kept_in_part(store: Store) -> None:
    """Its last change is young, so its old opening stays too."""
    await acked(store, 1, work_id="work_a")
    await acked(store, 20)
    late = trace("completed", sender=US, to=BOB, work_id="work_a", ts=NOW + 2 * DAY)
    await store.write(sending(late, at=NOW + 2 * DAY))
    await sweep(store, BY_AGE, LATER_MS)
    assert await left(store) == [1, 22]
    detail = await reads.work(store.reader, "work_a")
    assert detail is not None
    assert [step.id for step in detail.history][-1] == late.id


async def test_observed_works_of_others_age_even_when_open(store: Store) -> None:
    await receive(store, say(sender=BOB, to=EVE, work_id="work_theirs"), observe=True)
    swept = await sweep(store, BY_AGE, LATER_MS)
    assert (swept.works, swept.envelopes) == (1, 1)


async def test_a_single_row_out_of_order_in_time_does_not_end_the_sweep(store: Store) -> None:
    (odd,) = await acked(store, 1, at=NOW + 30 * DAY)  # the clock was wrong for a moment
    await acked(store, 50)
    await sweep(store, BY_AGE, LATER_MS)
    assert await left(store) == [odd]


async def test_a_window_full_of_kept_rows_does_not_end_the_sweep(store: Store) -> None:
    unread = [await receive(store, say(), capacity=10**6) for _ in range(SWEEP_ROWS + 5)]
    await acked(store, 5)
    swept = await sweep(store, BY_AGE, LATER_MS)
    assert swept.envelopes == 5
    assert await left(store) == [applied.seq for applied in unread]


async def test_threads_and_rooms_are_removed_with_their_last_envelope(store: Store) -> None:
    await acked(store, 2, container="thread_old")
    await acked(store, 1, container="thread_both")
    await acked(store, 1, at=NOW + 2 * DAY, container="thread_both")
    await receive(store, say(direct=True))
    await store.write(lambda tx: inbox.ack(tx, 5))
    swept = await sweep(store, BY_AGE, LATER_MS)
    assert swept.rooms == 2
    assert [thread.thread_id for thread in await rooms.threads(store.reader)] == ["thread_both"]
    assert await rooms.directs(store.reader, self_id=US) == []


async def test_old_unread_messages_do_not_keep_what_came_after_them(store: Store) -> None:
    unread = [await receive(store, say(text="x" * 4000), capacity=10**6) for _ in range(2 * SWEEP_ROWS)]
    await acked(store, 500, text="x" * 4000)
    policy = RetentionPolicy(max_age=None, max_bytes=2 * 1024 * 1024)
    swept = await sweep(store, policy, NOW_MS)
    assert 200 < swept.envelopes < 300
    assert (await left(store))[: len(unread)] == [applied.seq for applied in unread]
    assert store.memory.kept == NOTHING_KEPT
    again = await sweep(store, policy, NOW_MS)
    assert again.envelopes == 0


async def test_what_may_not_be_removed_is_reported_until_the_store_fits(store: Store) -> None:
    unread = [await receive(store, say(text="x" * 4000), capacity=10**6) for _ in range(500)]
    policy = RetentionPolicy(max_age=None, max_bytes=1024 * 1024)
    swept = await sweep(store, policy, NOW_MS)
    assert swept.envelopes == 0
    assert store.memory.kept == Kept(sum([len(raw) for (raw,) in await rows(store, "SELECT raw FROM log")]), 0)
    await store.write(lambda tx: [inbox.ack(tx, applied.seq or 0) for applied in unread[:400]] and None)
    await sweep(store, policy, NOW_MS)
    assert store.memory.kept == NOTHING_KEPT


async def test_other_tables_are_not_counted_as_kept(store: Store) -> None:
    message = say()
    await receive(store, message)

    def fill_quarantine(tx: Transaction) -> None:
        for number in range(1000):
            fields = {"subject": "s", "message_id": "", "sender": "", "reason": "malformed", "detail": ""}
            raw = bytes(30_000)
            quarantine.add(tx, **fields, raw=raw, received_ms=number, max_rows=1000, max_bytes=1 << 30)

    await store.write(fill_quarantine)
    assert store.memory.quarantine_bytes > 1024 * 1024
    await sweep(store, RetentionPolicy(max_age=None, max_bytes=1024 * 1024), NOW_MS)
    assert (store.memory.kept, len(await left(store))) == (Kept(len(message.raw), 0), 1)


OTHERS_FIRST = RetentionPolicy(max_age=None, max_bytes=3 * 1024 * 1024, is_other=lambda peer: peer not in (US, BOB))


async def works_of(store: Store, peer: str, count: int, first: int = 0) -> None:
    """Finished works that the peer opened, each of four kilobytes."""
    for number in range(first, first + count):
        work_id = f"work_{peer}_{number}"
        await acked(store, 1, sender=peer, text="x" * 4000, work_id=work_id, container=f"thread_of_{number}")
        end = await store.write(sending(trace("completed", US, peer, work_id=work_id, container=f"thread_of_{number}")))
        await store.write(partial(retry.published, schedules=[retry.RetrySchedule(end.seq or 0, None)], now_ms=NOW_MS))


async def test_finished_works_of_others_go_before_older_ones_of_contacts(store: Store) -> None:
    await works_of(store, BOB, 100)
    await works_of(store, EVE, 800)
    swept = await sweep(store, OTHERS_FIRST, NOW_MS)
    kept = await rows(store, "SELECT initiator, count(*), min(opened_seq) FROM works GROUP BY initiator ORDER BY 1")
    assert kept[0] == (BOB, 100, 1)
    assert (kept[1][0], kept[1][1] + swept.works) == (EVE, 800)
    assert 340 < kept[1][1] < 400  # no more of others than it takes
    assert await left(store) == [*range(1, 201), *range(kept[1][2], 1801)]  # their oldest, and no work in part
    assert await envelopes.pruned_through(store.reader) == kept[1][2] - 1
    assert checked(store.path).intact


async def test_contacts_pay_when_nothing_of_others_is_left(store: Store) -> None:
    await works_of(store, EVE, 100)
    await works_of(store, BOB, 800)
    await sweep(store, OTHERS_FIRST, NOW_MS)
    kept = dict(await rows(store, "SELECT initiator, count(*) FROM works GROUP BY initiator"))
    assert list(kept) == [BOB]
    assert 440 < kept[BOB] < 500
    await works_of(store, EVE, 10, 1000)
    await works_of(store, BOB, 10, 1000)
    await sweep(store, OTHERS_FIRST, NOW_MS)
    again = dict(await rows(store, "SELECT initiator, count(*) FROM works GROUP BY initiator"))
    assert 440 < again[BOB] <= kept[BOB] + 10  # a mark left by the first sweep does not mislead the second


async def test_others_are_found_in_the_indexes_of_the_log_too(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "segments.db", segment=64)
    try:
        await works_of(store, BOB, 100)
        await works_of(store, EVE, 800)
        await sweep(store, OTHERS_FIRST, NOW_MS)
        assert dict(await rows(store, "SELECT initiator, count(*) FROM works GROUP BY initiator"))[BOB] == 100
        assert (await left(store))[:200] == list(range(1, 201))
    finally:
        await store.close()


async def test_what_is_kept_of_others_is_counted_apart(store: Store) -> None:
    policy = RetentionPolicy(max_age=None, max_bytes=1024 * 1024, is_other=lambda peer: peer == EVE)
    for number in range(300):
        await receive(store, say(EVE, text="x" * 4000, work_id=f"work_{number}"), capacity=10**6)
    own = await receive(store, say(BOB))
    await sweep(store, policy, NOW_MS)
    assert store.memory.kept.others > 1_200_000
    ((size,),) = await rows(store, "SELECT length(raw) FROM log WHERE seq = ?", own.seq)
    assert store.memory.kept.contacts == size


async def test_the_size_bound_is_reached_and_the_file_follows(store: Store) -> None:
    for _ in range(8):
        await acked(store, 500, text="x" * 4000)
    pages_of = "SELECT page_count, page_size FROM pragma_page_count, pragma_page_size"
    ((before, page_bytes),) = await rows(store, pages_of)
    bound = 6 * 1024 * 1024
    pages = 0
    for _ in range(10):
        swept = await sweep(store, RetentionPolicy(max_age=None, max_bytes=bound), NOW_MS)
        pages += swept.pages
    ((after, _),) = await rows(store, pages_of)
    written = pages - (before - after)  # by the removal itself: its links, before there are free pages
    assert 0 <= written < 8
    assert pages > 1000
    assert after * page_bytes < bound + 6 * 1024 * 1024  # the reserve of free pages and a step
    remaining = await left(store)
    assert remaining == list(range(remaining[0], 4001))  # the oldest went
    assert len(remaining) > 500  # and not more than needed
    await store.close()
    assert store.path.stat().st_size == after * page_bytes


async def test_sweep_leaves_concurrent_commits_to_the_next_sweep(store: Store) -> None:
    """Each transaction of the sweep stores two messages before its step; one of them might be removed."""
    for _ in range(3):
        await receive(store, say())
    stored: list[int | None] = []

    def job(tx: Transaction) -> None:
        for to in (US, EVE):
            stored.append(receiving(say(to=to), observe=True)(tx)[1].seq)
        if len(stored) < 400:
            tx.after_commit(submit)

    def submit() -> None:
        store.submit(job)

    first = store.submit(job)
    swept = await sweep(store, RetentionPolicy(max_age=None, max_bytes=1), NOW_MS)
    assert len(stored) < 400
    assert swept.envelopes < 5  # those that were committed before it looked for the last one
    while len(stored) < 400:
        await store.write(lambda _: None)
    assert first.done()
    assert checked(store.path).intact


async def test_a_sweep_scans_no_table_of_a_store_that_fits(store: Store) -> None:
    await receive(store, say())
    asked: list[str] = []
    await store.write(lambda tx: tx.db.set_trace_callback(asked.append))
    await sweep(store, RetentionPolicy(max_age=DAY, max_bytes=1 << 30), NOW_MS)
    await store.write(lambda tx: tx.db.set_trace_callback(None))
    selects = [sql for sql in asked if sql.lstrip().startswith("SELECT")]
    plans = [plan for sql in selects for (*_, plan) in await rows(store, f"EXPLAIN QUERY PLAN {sql}")]
    assert any("SEARCH log" in plan for plan in plans)
    assert "SCAN log" not in plans


async def test_sequences_are_never_given_twice(store: Store) -> None:
    seqs = await acked(store, 3)
    await sweep(store, BY_AGE, LATER_MS)
    assert await left(store) == []
    await store.close()
    again = await Store.open(store.path)
    try:
        assert await envelopes.last_seq(again.reader) == seqs[-1]
        applied = await receive(again, say())
        assert applied.seq == seqs[-1] + 1
    finally:
        await again.close()


async def test_a_stream_reports_the_gap_that_its_filter_matches(store: Store) -> None:
    await acked(store, 1, work_id="work_open")
    seqs = await acked(store, 5)
    await sweep(store, BY_AGE, LATER_MS)
    everything = EnvelopeFilter()
    assert await events.gap_after(store.reader, everything, 0) == seqs[-1]
    assert await events.gap_after(store.reader, everything, seqs[-1] - 1) == seqs[-1]
    assert await events.gap_after(store.reader, everything, seqs[-1]) is None
    assert await events.gap_after(store.reader, EnvelopeFilter(work_id="work_open"), 0) is None
    assert await events.gap_after(store.reader, EnvelopeFilter(work_id="work_gone"), 0) == seqs[-1]
    assert await events.gap_after(store.reader, EventsQuery(inbox=True), 0) is None
    messages = await search.messages(store.reader, everything)
    assert messages.pruned_through == seqs[-1]


async def test_other_writes_run_between_the_steps(store: Store) -> None:
    await acked(store, 6 * SWEEP_ROWS)
    sweeping = asyncio.create_task(sweep(store, BY_AGE, LATER_MS))
    fresh = 0
    while not sweeping.done():
        await receive(store, say(ts=NOW + 2 * DAY), at=NOW + 2 * DAY)
        fresh += 1
    swept = await sweeping
    assert swept.envelopes == 6 * SWEEP_ROWS
    assert fresh > 5
    assert len(await left(store)) == fresh


async def test_expired_dedup_ids_are_removed_and_queued_messages_are_kept(store: Store) -> None:
    await acked(store, 10)
    await store.write(sending(say(sender=US, to=BOB)))
    swept = await sweep(store, RetentionPolicy(max_age=30 * DAY, max_bytes=None), LATER_MS)
    assert swept.ids == 10
    assert await outbox.counts(store.reader) == {"queued": 1, "refused": 0, "expired": 0, "dead": 0}
    assert len(store.memory.dedup) == 0
    assert len(await left(store)) == 11


async def test_outbox_rows_have_their_states(store: Store) -> None:
    sent = [await store.write(sending(say(sender=US, to=BOB))) for _ in range(3)]
    seqs = [applied.seq or 0 for applied in sent]
    await store.write(lambda tx: retry.give_up(tx, seqs[0], "dead", "too large for this broker"))
    await store.write(lambda tx: retry.published(tx, [retry.RetrySchedule(seq, None) for seq in seqs[:2]], NOW_MS))
    found = await rows(store, "SELECT state, attempts, published_ms, detail FROM outbox ORDER BY seq")
    assert found == [
        ("dead", 0, None, "too large for this broker"),
        ("published", 1, NOW_MS, None),
        ("queued", 0, None, None),
    ]
    assert await outbox.counts(store.reader) == {"queued": 1, "refused": 0, "expired": 0, "dead": 1}
    assert await store.write(lambda tx: retry.stale(tx, NOW, 10)) == []
    assert await store.write(lambda tx: retry.stale(tx, NOW + 3600, 10)) == [seqs[2]]
