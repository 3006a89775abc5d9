"""Outgoing messages in the append buffer: queries give the same answers as for written rows."""

from aghbus.protocol.errors import NotFound
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import outbox, retry, works
from aghbus.store.tables.retry import Schedule
from tests.support.makers import BOB, NOW_MS, US, rows, say, sending

STATES = "SELECT seq, state, attempts, published_ms, next_ms FROM outbox ORDER BY seq"


async def sent(store: Store, count: int) -> list[int]:
    """Sequences of `count` own says that are committed and queued."""
    applied = [await store.write(sending(say(sender=US, to=BOB))) for _ in range(count)]
    return [one.outgoing[0].seq for one in applied]


async def test_a_new_outgoing_row_equals_the_stored_one(store: Store) -> None:
    texts = [say(sender=US, to=BOB), say(sender=US, to=BOB, work_id="work_1"), say(sender=US, to=BOB, work_id="work_1")]

    def job(tx: Transaction) -> list[outbox.Outgoing]:
        return [
            sending(text)(tx).outgoing[0] for text in texts
        ]  # the second opening waits while the third is asked about

    given = await store.write(job)
    assert [row.blocked_by for row in given] == [None, None, given[1].seq]
    assert given == await outbox.queued(store.reader, 0, 10)


async def test_a_message_is_blocked_by_an_unanswered_opening(store: Store) -> None:
    (first,) = (await store.write(sending(say(sender=US, to=BOB, work_id="work_1")))).outgoing
    (second,) = (await store.write(sending(say(sender=US, to=BOB, work_id="work_1")))).outgoing
    assert second.blocked_by == first.seq
    await store.write(lambda tx: outbox.mark_answered(tx, first.seq, "committed"))
    (third,) = (await store.write(sending(say(sender=US, to=BOB, work_id="work_1")))).outgoing
    assert third.blocked_by is None


async def test_a_work_is_found_while_its_opening_is_buffered(store: Store) -> None:
    text = say(sender=US, to=BOB, work_id="work_1", trace_id="trace_7")

    def job(tx: Transaction) -> works.Known | None:
        sending(text)(tx)
        return works.find(tx, "work_1", None)

    during, after = await store.write(job), await store.write(lambda tx: works.find(tx, "work_1", None))
    assert during is not None
    assert during.trace_id == "trace_7"
    assert during == after
    assert await store.write(lambda tx: works.find(tx, "work_2", None)) is None
    assert await store.write(lambda tx: works.find(tx, "work_1", "elsewhere")) is None


async def test_more_is_published_than_one_statement_takes(store: Store) -> None:
    seqs = await sent(store, 75)
    await store.write(lambda tx: retry.published(tx, [Schedule(seq, NOW_MS + seq) for seq in seqs], NOW_MS))
    assert await rows(store, STATES) == [(seq, "published", 1, NOW_MS, NOW_MS + seq) for seq in seqs]


async def test_an_answered_message_stays_answered_in_any_order(store: Store) -> None:
    first, second = await sent(store, 2)

    def note_then_answer(tx: Transaction) -> None:
        retry.published(tx, [Schedule(first, NOW_MS)], NOW_MS)
        outbox.mark_answered(tx, first, "committed")

    def answer_then_note(tx: Transaction) -> None:
        outbox.mark_answered(tx, second, "committed")
        retry.published(tx, [Schedule(second, NOW_MS)], NOW_MS)

    await store.write(note_then_answer)
    await store.write(answer_then_note)
    assert await rows(store, "SELECT state, next_ms FROM outbox") == [("receipted", None)] * 2


async def test_a_recorded_answer_is_undone_with_its_job_and_seen_by_the_next_statement(store: Store) -> None:
    first, second = await sent(store, 2)

    def failing(tx: Transaction) -> None:
        retry.published(tx, [Schedule(first, NOW_MS)], NOW_MS)
        raise NotFound("after all")

    def looking(tx: Transaction) -> int | None:
        retry.published(tx, [Schedule(second, NOW_MS + 5)], NOW_MS)
        return retry.next_due_ms(tx)

    bad, good = store.submit(failing), store.submit(looking)
    assert await good == NOW_MS + 5
    assert isinstance(bad.exception(), NotFound)
    assert await rows(store, "SELECT state FROM outbox ORDER BY seq") == [("queued",), ("published",)]
