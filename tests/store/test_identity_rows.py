"""Our own peer ids in the store: former ids with open works or unsent messages."""

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import identities, outbox
from aghbus.store.tables.identities import Former
from tests.support.makers import BOB, NOW_MS, US, receipt, receive, say, sending, trace

NEW = "us@0123456789abcdef0123456789abcdef"


async def begin(store: Store, us: str) -> list[Former]:
    def job(tx: Transaction) -> list[Former]:
        identities.begin(tx, us, NOW_MS)
        return identities.former(tx.db, us)

    return await store.write(job)


async def test_an_id_retires_when_its_works_and_its_outbox_are_done(store: Store) -> None:
    assert await begin(store, US) == []
    opening = say(work_id="work_1")
    await receive(store, opening)
    await store.write(sending(say(US, BOB, work_id="work_2")))
    talk = say(US, BOB)
    await store.write(sending(talk))
    assert await begin(store, US) == []
    (one,) = await begin(store, NEW)
    assert (one.peer_id, one.open_works, one.unsent) == (US, 2, 2)
    assert await identities.read_former(store.reader, NEW) == [one]
    assert await store.write(lambda tx: identities.retire_idle(tx, NEW, NOW_MS)) == []

    await receive(store, trace("completed", BOB, US, work_id="work_2"))
    await receive(store, receipt("canceled", opening.id, work_id="work_1"))
    (still,) = await identities.read_former(store.reader, NEW)
    assert (still.open_works, still.unsent) == (0, 1), "a message that waits to go out"
    await store.write(lambda tx: outbox.mark_receipted(tx, "ws_test", talk.id, by=BOB))
    assert await store.write(lambda tx: identities.retire_idle(tx, NEW, NOW_MS)) == [US]
    assert await identities.read_former(store.reader, NEW) == []
    assert [one.peer_id for one in await begin(store, US)] == [NEW], "and comes back, with the other one before it"
