"""The inbox: ready -> leased -> acked | dead, one lease for one message, and clocks that jump."""

import msgspec
import pytest

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.base.errors import NotFound, Refused
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import INBOX_STATE
from aghbus.store.tables import inbox, inbox_list
from tests.support.makers import NOW_MS, inbox_states, receive, receiving, rows, say

VISIBLE = 5_000  # milliseconds


async def fill(store: Store, count: int, **fields: str) -> list[int]:
    applied = [await receive(store, say(**fields)) for _ in range(count)]
    return [one.seq for one in applied if one.seq is not None]


async def lease(store: Store, token: str, at: int = 0, **options: object) -> InboxItem | None:
    options = {"concurrent": True, **options}
    return await store.write(lambda tx: inbox.lease_next(tx, NOW_MS + at, VISIBLE, token, **options))  # type: ignore[arg-type]


async def test_the_oldest_ready_message_is_leased_with_everything_about_it(store: Store) -> None:
    first, second = await fill(store, 2)
    one = await lease(store, "a")
    assert one is not None
    assert (one.seq, one.state, one.attempts, one.lease, one.lease_until_ms) == (
        first,
        "leased",
        1,
        "a",
        NOW_MS + VISIBLE,
    )
    assert msgspec.json.decode(one.message.envelope)["body"] == {"text": "hello"}
    assert one.message.delivery == "leased"
    two = await lease(store, "b")
    assert two is not None
    assert two.seq == second
    assert await lease(store, "c") is None
    assert await inbox_list.counts(store.reader, store.memory.inbox) == {"ready": 0, "leased": 2, "dead": 0}


async def test_only_a_message_of_that_work(store: Store) -> None:
    await fill(store, 1)
    (wanted,) = await fill(store, 1, work_id="work_w")
    assert await lease(store, "a", work_id="work_other") is None
    found = await lease(store, "a", work_id="work_w")
    assert found is not None
    assert found.seq == wanted
    memory, (last,) = store.memory.inbox, await fill(store, 1)
    assert [memory.is_untouched(seq) for seq in (wanted - 1, wanted, last)] == [True, False, True]
    assert memory.may_wait(wanted)
    await lease(store, "b")
    assert (memory.seq, memory.is_untouched(wanted)) == (wanted, False)


async def test_a_message_is_counted_once_a_page_has_it(store: Store) -> None:
    def job(tx: Transaction) -> int:
        receiving(say())(tx)
        return tx.memory.inbox.waiting_through(first)

    (first,) = await fill(store, 1)
    assert await store.write(job) == 1  # the commit may take long, or fail
    assert (await inbox_list.counts(store.reader, store.memory.inbox))["ready"] == 2


@pytest.mark.parametrize("work_id", [None, "work_w"])
async def test_a_message_that_was_taken_may_wait_until_the_commit(store: Store, work_id: str | None) -> None:
    def job(tx: Transaction) -> bool:
        assert inbox.lease_next(tx, NOW_MS, VISIBLE, "token", work_id=work_id, ack=True) is not None
        return tx.memory.inbox.has_any(work_id)

    await fill(store, 1, work_id="work_w")
    assert await store.write(job)  # the commit may fail
    assert not store.memory.inbox.has_any(work_id)


@pytest.mark.parametrize("envelope", [say(work_id="work_w"), say(direct=True)], ids=["work", "room"])
async def test_a_message_leased_from_memory_is_the_one_in_the_file(store: Store, envelope: Envelope) -> None:
    def job(tx: Transaction) -> tuple[InboxItem | None, InboxItem]:
        seq = receiving(envelope)(tx)[1].seq
        assert seq is not None
        return inbox.lease_next(tx, NOW_MS, VISIBLE, "token", fresh=seq), inbox.item(tx, seq)

    leased, stored = await store.write(job)
    assert leased == stored


async def test_an_expired_lease_is_given_to_the_next_client(store: Store) -> None:
    (seq,) = await fill(store, 1)
    await lease(store, "a")
    assert await lease(store, "b", at=VISIBLE - 1) is None
    again = await lease(store, "b", at=VISIBLE)
    assert again is not None
    assert (again.seq, again.attempts, again.lease) == (seq, 2, "b")
    with pytest.raises(Refused) as caught:
        await store.write(lambda tx: inbox.ack(tx, seq, "a"))
    assert caught.value.error_code == "lease_lost"
    acked = await store.write(lambda tx: inbox.ack(tx, seq, "b"))
    assert (acked.state, acked.lease) == ("acked", None)


async def lease_one(store: Store, seq: int, token: str, at: int = 0) -> tuple[InboxItem, bool]:
    return await store.write(lambda tx: inbox.lease(tx, seq, token, NOW_MS + at, VISIBLE))


async def test_a_lease_is_renewed_and_kept_from_others(store: Store) -> None:
    _, seq = await fill(store, 2)
    taken, new = await lease_one(store, seq, "a")
    assert (new, taken.attempts, taken.lease, taken.lease_until_ms) == (True, 1, "a", NOW_MS + VISIBLE)
    renewed, new = await lease_one(store, seq, "a", at=VISIBLE - 1)
    assert (new, renewed.attempts, renewed.lease_until_ms) == (False, 1, NOW_MS + 2 * VISIBLE - 1)
    with pytest.raises(Refused) as caught:
        await lease_one(store, seq, "b", at=VISIBLE)
    assert caught.value.error_code == "lease_lost"
    again, new = await lease_one(store, seq, "b", at=2 * VISIBLE - 1)
    assert (new, again.attempts, again.lease) == (True, 2, "b")
    with pytest.raises(Refused) as lost:
        await lease_one(store, seq, "a", at=2 * VISIBLE)
    assert lost.value.error_code == "lease_lost"
    await store.write(lambda tx: inbox.ack(tx, seq, "b"))
    with pytest.raises(Refused) as acked:
        await lease_one(store, seq, "b", at=2 * VISIBLE)
    assert acked.value.error_code == "conflict"


async def test_acking_again_is_not_an_error(store: Store) -> None:
    (seq,) = await fill(store, 1)
    await lease(store, "a")
    for _ in range(2):
        assert (await store.write(lambda tx: inbox.ack(tx, seq, "a"))).state == "acked"
    assert store.memory.inbox.waiting == 0
    assert await inbox_list.counts(store.reader, store.memory.inbox) == {"ready": 0, "leased": 0, "dead": 0}


async def test_acking_without_a_lease_is_allowed(store: Store) -> None:
    (seq,) = await fill(store, 1)
    assert (await store.write(lambda tx: inbox.ack(tx, seq))).state == "acked"
    assert await lease(store, "a") is None


async def test_a_returned_message_waits_and_keeps_its_place(store: Store) -> None:
    first, second = await fill(store, 2)
    await lease(store, "a")
    back = await store.write(
        lambda tx: inbox.nack(tx, first, lease="a", now_ms=NOW_MS, delay_ms=1000, error="no time\x1b[2J")
    )
    assert (back.state, back.lease, back.available_ms, back.last_error) == (
        "ready",
        None,
        NOW_MS + 1000,
        "no time\x1b[2J",
    )
    found = await lease(store, "b", at=999)
    assert found is not None
    assert found.seq == second
    assert await store.write(inbox.due_ms) == NOW_MS + 1000
    found = await lease(store, "c", at=1000)
    assert found is not None
    assert found.seq == first


async def test_backoff_grows_with_the_attempts_and_has_an_end(store: Store) -> None:
    (seq,) = await fill(store, 1)
    waits, at = [], 0
    for _ in range(4):
        assert await lease(store, "a", at=at) is not None
        back = await store.write(lambda tx, now=NOW_MS + at: inbox.nack(tx, seq, now_ms=now))  # type: ignore[misc]
        waits.append(back.available_ms - NOW_MS - at)
        at = back.available_ms - NOW_MS
    assert waits == [1000, 2000, 4000, 8000]
    assert inbox.backoff_ms(10_000) == inbox.BACKOFF_LIMIT_MS


async def test_a_message_without_attempts_left_is_dead_and_can_be_requeued(store: Store) -> None:
    (seq,) = await fill(store, 1)
    for attempt in range(2):
        at = attempt * VISIBLE
        assert await lease(store, "a", at=at, max_attempts=2) is not None
    assert await lease(store, "a", at=2 * VISIBLE, max_attempts=2) is None
    assert await inbox_list.counts(store.reader, store.memory.inbox) == {"ready": 0, "leased": 0, "dead": 1}
    (dead,) = (await inbox_list.items(store.reader, states=frozenset(["dead"]))).items
    assert dead.seq == seq
    assert dead.last_error
    assert store.memory.inbox.waiting == 0
    with pytest.raises(Refused):
        await store.write(lambda tx: inbox.nack(tx, seq, now_ms=NOW_MS))
    revived = await store.write(lambda tx: inbox.requeue(tx, seq))
    assert (revived.state, revived.attempts) == ("ready", 0)
    assert store.memory.inbox.waiting == 1
    assert await lease(store, "b") is not None


async def test_a_nack_at_the_last_attempt_makes_a_dead_letter(store: Store) -> None:
    (seq,) = await fill(store, 1)
    await lease(store, "a")
    back = await store.write(lambda tx: inbox.nack(tx, seq, now_ms=NOW_MS, max_attempts=1, error="poison"))
    assert (back.state, back.last_error) == ("dead", "poison")
    assert store.memory.inbox.waiting == 0


async def test_a_dead_letter_can_be_acked(store: Store) -> None:
    (seq,) = await fill(store, 1)
    await lease(store, "a")
    await store.write(lambda tx: inbox.nack(tx, seq, now_ms=NOW_MS, max_attempts=1))
    assert (await store.write(lambda tx: inbox.ack(tx, seq))).state == "acked"
    assert store.memory.inbox.waiting == 0
    assert await inbox_list.counts(store.reader, store.memory.inbox) == {"ready": 0, "leased": 0, "dead": 0}


async def test_unknown_messages_are_not_found(store: Store) -> None:
    for call in (inbox.ack, inbox.requeue, inbox.item):
        with pytest.raises(NotFound) as caught:
            await store.write(lambda tx, call=call: call(tx, 99))  # type: ignore[misc]
        assert "99" in caught.value.message


async def test_a_clock_that_steps_back_hides_nothing_new(store: Store) -> None:
    await receive(store, say(ts=1_776_366_000 + 200), at=1_776_366_000 + 200)
    assert await lease(store, "a", at=-3_600_000) is not None


async def test_the_list_is_in_order_and_without_the_acked(store: Store) -> None:
    seqs = await fill(store, 5)
    await store.write(lambda tx: inbox.ack(tx, seqs[1]))
    assert [item.seq for item in (await inbox_list.items(store.reader)).items] == [seqs[0], *seqs[2:]]
    assert [item.seq for item in (await inbox_list.items(store.reader, limit=2)).items] == [seqs[0], seqs[2]]
    assert [item.seq for item in (await inbox_list.items(store.reader, since=seqs[2])).items] == seqs[3:]
    assert [item.seq for item in (await inbox_list.items(store.reader, states=frozenset(["acked"]))).items] == [seqs[1]]


async def test_the_number_of_waiting_messages_is_restored_after_reopening(store: Store) -> None:
    seqs = await fill(store, 4)
    await lease(store, "a")
    await store.write(lambda tx: inbox.ack(tx, seqs[2]))
    assert store.memory.inbox.waiting == 3
    await store.close()
    again = await Store.open(store.path)
    try:
        assert again.memory.inbox.waiting == 3
        assert list((await inbox_states(again)).values()) == ["leased", "ready", "acked", "ready"]
    finally:
        await again.close()


async def test_a_lease_writes_its_row_and_no_position(store: Store) -> None:
    first, second = await fill(store, 2)
    at = "SELECT value FROM meta WHERE key = 'inbox_position'"
    await lease(store, "a")
    assert (await rows(store, at), store.memory.inbox.seq) == ([(0,)], first)
    await store.close()
    store = await Store.open(store.path, synchronous="normal")
    try:
        assert (await inbox_states(store), store.memory.inbox.untouched()) == (
            {first: "leased", second: "ready"},
            [second],
        )
        await lease(store, "b", ack=True)
        assert await rows(store, at) == [(second,)]
    finally:
        await store.close()


async def test_delivering_and_acking_at_once_write_no_row(store: Store) -> None:
    await fill(store, 3)
    for _ in range(2):
        assert await lease(store, "a", ack=True) is not None
    assert await rows(store, "SELECT * FROM inbox") == []
    assert list((await inbox_states(store)).values()) == ["acked", "acked", "ready"]


def settle(tx: Transaction, count: int, work_id: str | None) -> list[int]:
    """Delivers, leases and acks so many messages, each under its own lease. Returns their sequences."""
    seqs = []
    for number in range(count):
        receiving(say(work_id=work_id and f"work_{number}"), capacity=inbox.CAPACITY)(tx)
        token, work = f"lease_{number}", work_id and f"work_{number}"
        item = inbox.lease_next(tx, NOW_MS, VISIBLE, token, work)
        assert item is not None
        inbox.ack(tx, item.seq, token)
        seqs.append(item.seq)
    return seqs


async def test_rows_of_acked_messages_are_swept_but_for_the_newest(store: Store) -> None:
    seqs = await store.write(lambda tx: settle(tx, 2 * inbox.SWEEP_ROWS, None))
    kept = [seq for (seq,) in await rows(store, "SELECT seq FROM inbox")]
    assert kept == seqs[-inbox.SWEEP_ROWS :]
    with pytest.raises(Refused):
        await store.write(lambda tx: inbox.ack(tx, seqs[-1], "another"))
    swept = await store.write(lambda tx: inbox.ack(tx, seqs[0], "another"))
    assert (swept.state, swept.attempts, swept.lease) == ("acked", 1, None)
    assert set((await inbox_states(store)).values()) == {"acked"}
    assert (await store.write(lambda tx: inbox.requeue(tx, seqs[0]))).state == "ready"
    again = await lease(store, "b")
    assert again is not None
    assert again.seq == seqs[0]


async def test_an_unread_message_does_not_keep_the_rows_of_those_acked_after_it(store: Store) -> None:
    """All consumers ask for messages of their work."""
    (unread,) = await fill(store, 1)
    await store.write(lambda tx: settle(tx, 3 * inbox.SWEEP_ROWS, "work"))
    ((count,),) = await rows(store, "SELECT count(*) FROM inbox")
    assert count <= 2 * inbox.SWEEP_ROWS + 1
    await store.close()
    again = await Store.open(store.path)
    try:
        assert again.memory.inbox.waiting == 1
        found = await lease(again, "a")
        assert found is not None
        assert (found.seq, found.attempts) == (unread, 1)
        assert await lease(again, "b") is None
    finally:
        await again.close()


async def test_one_sweep_passes_a_bounded_number_of_unread_messages(store: Store) -> None:
    count = inbox.PASSED_ROWS + 100
    unread = await store.write(lambda tx: [receiving(say(), capacity=count)(tx)[1].seq for _ in range(count)])
    await store.write(lambda tx: settle(tx, 2 * inbox.SWEEP_ROWS, "work"))
    ((ready,),) = await rows(store, "SELECT count(*) FROM inbox WHERE state = 'ready'")
    assert ready == inbox.PASSED_ROWS
    await store.write(lambda tx: settle(tx, 2 * inbox.SWEEP_ROWS, "work"))
    ((acked,),) = await rows(store, "SELECT count(*) FROM inbox WHERE state = 'acked'")
    assert acked <= 2 * inbox.SWEEP_ROWS
    found = await rows(store, f"SELECT e.seq FROM envelopes AS e WHERE {INBOX_STATE} = 'ready' ORDER BY e.seq")
    assert [seq for (seq,) in found] == unread


async def test_a_delivered_message_that_is_rolled_back_is_not_in_the_inbox(store: Store) -> None:
    def job(tx: Transaction) -> None:
        receiving(say())(tx)
        assert inbox.lease_next(tx, NOW_MS, VISIBLE, "a") is not None
        raise NotFound("changed its mind")

    (seq,) = await fill(store, 1)
    with pytest.raises(NotFound):
        await store.write(job)
    assert await inbox_states(store) == {seq: "ready"}
    found = await lease(store, "b")
    assert found is not None
    assert (found.seq, found.attempts) == (seq, 1)
