"""Purging the inbox: what is unread of some senders is dead, and nothing else changes."""

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox, inbox_purge
from tests.support.makers import BOB, EVE, NOW_MS, US, inbox_states, receive, say, sending


async def fill(store: Store, sender: str, count: int) -> list[int]:
    applied = [await receive(store, say(sender)) for _ in range(count)]
    return [one.seq for one in applied if one.seq is not None]


async def test_ready_and_leased_messages_of_the_senders_are_dead(store: Store) -> None:
    bobs, (eves,) = await fill(store, BOB, 4), await fill(store, EVE, 1)
    await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 1000, "done", ack=True))
    await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 1000, "held"))
    seqs = await inbox_purge.waiting(store.reader, store.memory.inbox.untouched())
    assert seqs == [*bobs[1:], eves]
    purged = await store.write(lambda tx: inbox_purge.purge(tx, seqs, {BOB}))
    assert [message.seq for message in purged] == bobs[1:]
    assert await inbox_states(store) == {bobs[0]: "acked", **dict.fromkeys(bobs[1:], "dead"), eves: "ready"}
    assert list(store.memory.inbox.messages.senders) == [EVE]
    item = await store.write(lambda tx: inbox.item(tx, bobs[1]))
    assert (item.lease, item.last_error) == (None, "purged by the operator")


async def test_notices_about_own_messages_are_kept(store: Store) -> None:
    seq = (await store.write(sending(say(US, BOB)))).last_seq
    await store.write(lambda tx: inbox.notify(tx, seq, "expired"))
    assert await store.write(lambda tx: inbox_purge.purge(tx, [seq], {US, BOB})) == []
    assert await inbox_states(store) == {seq: "ready"}


async def test_purged_messages_can_be_read_after_all(store: Store) -> None:
    (seq,) = await fill(store, BOB, 1)

    def purge_and_requeue(tx: Transaction) -> None:
        inbox_purge.purge(tx, [seq], {BOB})
        inbox.requeue(tx, seq)

    await store.write(purge_and_requeue)
    leased = await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 1000, "lease"))
    assert leased is not None
    assert leased.seq == seq
