"""Outgoing messages in the append buffer: queries give the same answers as for written rows."""

from pathlib import Path

import pytest

from aghbus.protocol.agh.delivery.order import AFTER, Predecessor
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import outbox, retry
from aghbus.store.tables.retry import RetrySchedule
from aghbus.store.tables.works import lifecycle
from tests.support.makers import BOB, CHANNEL, NOW, NOW_MS, US, WORKSPACE, rows, say, sending

STATES = "SELECT seq, state, attempts, published_ms, next_ms FROM outbox ORDER BY seq"


async def sent(store: Store, count: int) -> list[int]:
    """Sequences of `count` own says that are committed and queued."""
    applied = [await store.write(sending(say(sender=US, to=BOB))) for _ in range(count)]
    return [one.outgoing[0].seq for one in applied]


async def test_a_new_outgoing_row_equals_the_stored_one(store: Store) -> None:
    texts = [say(sender=US, to=BOB), say(sender=US, to=BOB, work_id="work_1"), say(sender=US, to=BOB, work_id="work_1")]

    def job(tx: Transaction) -> list[outbox.Outgoing]:
        return [sending(text)(tx).outgoing[0] for text in texts]

    assert await store.write(job) == await outbox.queued(store.reader, 0, 10)


def predecessor(store: Store, container: str = "thread_one") -> Predecessor | None:
    return store.memory.flows.predecessor((WORKSPACE, CHANNEL, US, BOB, container))


class TestPredecessors:
    async def test_the_last_unanswered_message_of_a_stream(self, store: Store) -> None:
        first, second = say(US, BOB), say(US, BOB, expires_at=NOW + 60)
        assert predecessor(store) is None
        await store.write(sending(first))
        assert predecessor(store) == Predecessor(first.id, first.fresh_until)
        (row,) = (await store.write(sending(second))).outgoing
        assert predecessor(store) == Predecessor(second.id, first.fresh_until), "as long as any before it is fresh"
        assert predecessor(store, "thread_two") is None
        await store.write(lambda tx: outbox.mark_answered(tx, row.seq))
        assert predecessor(store) is None

    async def test_an_answer_to_an_earlier_message_changes_nothing(self, store: Store) -> None:
        first, second = [say(US, BOB), say(US, BOB)]
        rows = [(await store.write(sending(text))).outgoing[0] for text in (first, second)]
        await store.write(lambda tx: outbox.mark_answered(tx, rows[0].seq))
        found = predecessor(store)
        assert found is not None
        assert found.id == second.id

    async def test_a_job_that_is_undone_leaves_no_predecessor(self, store: Store) -> None:
        first = say(US, BOB)
        (row,) = (await store.write(sending(first))).outgoing

        def fails(tx: Transaction) -> None:
            sending(say(US, BOB))(tx)
            outbox.mark_answered(tx, row.seq)
            raise NotFound("undone")

        with pytest.raises(NotFound):
            await store.write(fails)
        assert predecessor(store) == Predecessor(first.id, first.fresh_until)

    async def test_unanswered_messages_are_restored_after_a_restart(self, tmp_path: Path) -> None:
        texts = [say(US, BOB), say(US, BOB), say(US, BOB, container="thread_two"), say(US, None)]
        store = await Store.open(tmp_path / "again.db")
        given = [(await store.write(sending(text))).outgoing[0].seq for text in texts]
        await store.write(
            lambda tx: retry.published(tx, [RetrySchedule(given[0], NOW_MS), RetrySchedule(given[2], None)], NOW_MS)
        )
        await store.close()
        store = await Store.open(tmp_path / "again.db")
        try:
            assert predecessor(store) == Predecessor(texts[1].id, texts[1].fresh_until)
            assert predecessor(store, "thread_two") is None, "it waits for no answer"
            assert len(store.memory.flows) == 1
        finally:
            await store.close()

    async def test_streams_whose_messages_have_expired_are_dropped(self, store: Store) -> None:
        for number in range(4_096):
            container = f"thread_{number:05}"
            await store.write(sending(say(US, BOB, container=container, expires_at=NOW + 1)))
        late = say(US, BOB, ts=NOW + 2, expires_at=NOW + 60)
        await store.write(sending(late))
        assert len(store.memory.flows) == 1


class TestSettled:
    async def test_unless_a_message_before_it_is_unanswered(self, store: Store) -> None:
        texts: list[Envelope] = []
        seqs: list[int] = []
        for _ in range(3):
            after = predecessor(store)
            texts.append(say(US, BOB, ext=None if after is None else {AFTER: after}))
            seqs.append((await store.write(sending(texts[-1]))).outgoing[0].seq)

        async def settled(number: int) -> bool:
            return await store.write(lambda tx: retry.is_settled(tx, WORKSPACE, texts[number].id))

        await store.write(lambda tx: retry.give_up(tx, seqs[1], "dead", "no answer"))
        assert [await settled(number) for number in range(3)] == [False, False, False]
        await store.write(lambda tx: retry.give_up(tx, seqs[0], "expired", "no answer"))
        assert [await settled(number) for number in range(3)] == [True, True, False]
        await store.write(lambda tx: outbox.mark_answered(tx, seqs[2]))
        assert await settled(2)
        assert await store.write(lambda tx: retry.is_settled(tx, WORKSPACE, "msg_removed"))


async def test_a_work_is_found_while_its_opening_is_buffered(store: Store) -> None:
    text = say(sender=US, to=BOB, work_id="work_1", trace_id="trace_7")

    def job(tx: Transaction) -> lifecycle.Known | None:
        sending(text)(tx)
        return lifecycle.find(tx, "work_1", None)

    during, after = await store.write(job), await store.write(lambda tx: lifecycle.find(tx, "work_1", None))
    assert during is not None
    assert during.trace_id == "trace_7"
    assert during == after
    assert await store.write(lambda tx: lifecycle.find(tx, "work_2", None)) is None
    assert await store.write(lambda tx: lifecycle.find(tx, "work_1", "elsewhere")) is None


async def test_more_is_published_than_one_statement_takes(store: Store) -> None:
    seqs = await sent(store, 85)
    await store.write(lambda tx: retry.published(tx, [RetrySchedule(seq, NOW_MS + seq) for seq in seqs], NOW_MS))
    assert await rows(store, STATES) == [(seq, "published", 1, NOW_MS, NOW_MS + seq) for seq in seqs]


async def test_an_answered_message_stays_answered_in_any_order(store: Store) -> None:
    first, second = await sent(store, 2)

    def note_then_answer(tx: Transaction) -> None:
        retry.published(tx, [RetrySchedule(first, NOW_MS)], NOW_MS)
        outbox.mark_answered(tx, first)

    def answer_then_note(tx: Transaction) -> None:
        outbox.mark_answered(tx, second)
        retry.published(tx, [RetrySchedule(second, NOW_MS)], NOW_MS)

    await store.write(note_then_answer)
    await store.write(answer_then_note)
    assert await rows(store, "SELECT state, next_ms FROM outbox") == [("receipted", None)] * 2


async def test_recorded_publish_rolls_back_and_is_visible_to_next_statement(store: Store) -> None:
    first, second = await sent(store, 2)

    def failing(tx: Transaction) -> None:
        retry.published(tx, [RetrySchedule(first, NOW_MS)], NOW_MS)
        raise NotFound("after all")

    def looking(tx: Transaction) -> int | None:
        retry.published(tx, [RetrySchedule(second, NOW_MS + 5)], NOW_MS)
        return retry.next_due_ms(tx)

    bad, good = store.submit(failing), store.submit(looking)
    assert await good == NOW_MS + 5
    assert isinstance(bad.exception(), NotFound)
    assert await rows(store, "SELECT state FROM outbox ORDER BY seq") == [("queued",), ("published",)]
