"""A waiting consumer gets a message in the transaction that stores it: one consumer, once, and only if it commits."""

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.inbox_waiters import InboxWaiter, InboxWaiters
from aghbus.daemon.wiring import DaemonParts
from aghbus.protocol.api.inbox import InboxAckRequest, InboxItem, InboxNextRequest, InboxNextResponse
from aghbus.protocol.api.queries import InboxQuery
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox
from tests.support.makers import NOW_MS, receive, receiving, say
from tests.support.natsutil import wait_until
from tests.support.wiring import daemon_context, daemon_parts

VISIBLE_MS = 60_000


def take(tx: Transaction, fresh: int | None, work_id: str | None = None) -> InboxItem | None:
    return inbox.lease_next(tx, NOW_MS, VISIBLE_MS, "lease", work_id=work_id, fresh=fresh)


def _ignore(_item: InboxItem) -> None:
    """For consumers that do not go away."""


async def waiting(store: Store, consumers: InboxWaiters, work_id: str | None = None) -> InboxWaiter:
    consumer = InboxWaiter(work_id, partial(take, work_id=work_id), _ignore)
    await store.write(lambda tx: consumers.join(tx, consumer))
    return consumer


def arrives(tx: Transaction, consumers: InboxWaiters, work_id: str | None = None) -> None:
    _, applied = receiving(say(work_id=work_id))(tx)
    assert applied.seq is not None
    consumers.offer(tx, [(applied.seq, work_id)])


async def test_one_message_is_for_the_one_that_waited_longest(store: Store) -> None:
    consumers = InboxWaiters()
    first, second = await waiting(store, consumers), await waiting(store, consumers)
    before = store.stats.commits
    await store.write(lambda tx: arrives(tx, consumers))
    item = await first.wait(consumers, 0)
    assert item is not None
    assert item.state == "leased"
    assert store.stats.commits == before + 1
    assert not second.served.done()
    await store.write(lambda tx: arrives(tx, consumers))
    assert await second.wait(consumers, 0) is not None


@pytest.mark.parametrize("ack", [True, False])
async def test_a_new_message_is_leased_without_asking_the_file(store: Store, ack: bool) -> None:
    """What the agent gets is what the file has after the commit."""
    parts = parts_of(store)
    earlier = (await receive(store, say())).last_seq  # the stream is known
    await store.write(lambda tx: inbox.ack(tx, earlier))
    (asked,) = await asking(parts, 1, InboxNextRequest(wait=60, ack=ack))
    statements: list[str] = []

    def job(tx: Transaction) -> None:
        tx.db.set_trace_callback(statements.append)
        arrives(tx, parts.waiters)
        assert statements == []
        tx.after_commit(lambda: tx.db.set_trace_callback(None))

    await store.write(job)
    assert {sql.split()[0] for sql in statements if "inbox" in sql} == {"INSERT"}
    item = (await asked).item
    assert item is not None
    stored = await store.write(lambda tx: inbox.item(tx, item.seq))
    assert replace(item, leased_by=None, leased_ms=None) == stored  # which are read from the lease when it is answered
    assert (item.state, item.attempts) == ("acked" if ack else "leased", 1)
    assert store.memory.inbox.waiting == (0 if ack else 1)


async def test_a_new_message_does_not_overtake_one_that_was_returned(store: Store) -> None:
    parts = parts_of(store)
    await store.write(receiving(say()))
    old = await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, VISIBLE_MS, "first"))
    assert old is not None
    consumer = await waiting(store, parts.waiters)

    def job(tx: Transaction) -> None:
        inbox.nack(tx, old.seq, now_ms=NOW_MS, delay_ms=0)
        arrives(tx, parts.waiters)

    await store.write(job)
    item = await consumer.wait(parts.waiters, 0)
    assert item is not None
    assert item.seq == old.seq


async def test_message_is_leased_to_waiters_for_its_work_or_any_work(store: Store) -> None:
    consumers = InboxWaiters()
    other = await waiting(store, consumers, "work_other")
    mine = await waiting(store, consumers, "work_mine")
    any_one = await waiting(store, consumers)
    for _ in range(2):
        await store.write(lambda tx: arrives(tx, consumers, "work_mine"))
    for one in (mine, any_one):
        item = await one.wait(consumers, 0)
        assert item is not None
        assert item.message.work_id == "work_mine"
    assert not other.served.done()


async def test_a_rolled_back_lease_is_not_returned(store: Store) -> None:
    consumers = InboxWaiters()
    consumer = await waiting(store, consumers)

    def fails(tx: Transaction) -> None:
        arrives(tx, consumers)
        raise NotFound("on purpose")

    with pytest.raises(NotFound):
        await store.write(fails)
    assert await consumer.wait(consumers, 0) is None  # it has to look again
    assert await store.write(lambda tx: take(tx, None)) is None


async def test_a_waiter_that_has_left_gets_nothing(store: Store) -> None:
    consumers = InboxWaiters()
    consumer = await waiting(store, consumers)
    assert await consumer.wait(consumers, 0) is None
    await store.write(lambda tx: arrives(tx, consumers))
    assert await store.write(lambda tx: take(tx, None)) is not None


async def test_a_message_leased_before_the_wait_ended_is_still_handed_out(store: Store) -> None:
    consumers = InboxWaiters()
    consumer = await waiting(store, consumers)
    stored = asyncio.Event()

    def job(tx: Transaction) -> None:
        arrives(tx, consumers)
        stored.set()

    committing = store.submit(job)
    await stored.wait()
    assert await consumer.wait(consumers, 0) is not None
    await committing


async def test_wake_all_makes_every_waiter_query_again(store: Store) -> None:
    consumers = InboxWaiters()
    both = [await waiting(store, consumers), await waiting(store, consumers, "work_mine")]
    consumers.wake_all()
    assert [await one.wait(consumers, 60) for one in both] == [None, None]


async def test_a_transaction_that_is_run_again_loses_no_message(store: Store) -> None:
    """The join is undone, and its consumer told to look again: what comes in the second run is not for a deaf one."""
    consumers = InboxWaiters()
    consumer = InboxWaiter(None, take, _ignore)

    def refused(tx: Transaction) -> None:
        tx.db.execute("INSERT INTO meta (key, value) VALUES ('late', 1)")
        raise NotFound("changed my mind")

    joining = store.submit(lambda tx: consumers.join(tx, consumer))
    coming = store.submit(lambda tx: arrives(tx, consumers))
    failing = store.submit(refused)
    await asyncio.gather(joining, coming, failing, return_exceptions=True)
    assert isinstance(failing.exception(), NotFound)
    given = await consumer.wait(consumers, 0)
    if given is None:  # it has to look again, and finds it
        given = await store.write(lambda tx: take(tx, None))
    assert given is not None
    assert given.attempts == 1


async def test_a_disconnected_waiter_does_not_join(store: Store) -> None:
    consumers = InboxWaiters()
    consumer = InboxWaiter(None, take, _ignore)
    consumer.gone = True
    await store.write(lambda tx: consumers.join(tx, consumer))
    await store.write(lambda tx: arrives(tx, consumers))
    assert (await store.write(lambda tx: take(tx, None))) is not None


# as the API asks


class Rushing(Clock):
    """A test puts it on."""

    elapsed = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.elapsed


def parts_of(store: Store, clock: Clock | None = None) -> DaemonParts:
    return daemon_parts(daemon_context(Settings(name="us", peer_id="us"), clock), store)


async def asking(parts: DaemonParts, count: int, ask: InboxNextRequest) -> list[asyncio.Task[InboxNextResponse]]:
    """So many consumers that wait, in this order."""
    asks = []
    for _ in range(count):
        before = len(parts.waiters.waiting)
        asks.append(asyncio.create_task(parts.inbox.next(ask)))
        await wait_until(lambda: len(parts.waiters.waiting) > before, 10, "a consumer to wait")  # noqa: B023 - awaited at once
    return asks


async def test_waiting_for_an_empty_inbox_takes_no_transaction(store: Store) -> None:
    parts = parts_of(store)
    before = store.stats.jobs
    (asked,) = await asking(parts, 1, InboxNextRequest(wait=60))
    assert store.stats.jobs == before
    await store.write(lambda tx: arrives(tx, parts.waiters))
    assert (await asked).item is not None


async def test_waiting_for_a_work_without_messages_takes_no_transaction(store: Store) -> None:
    parts = parts_of(store)
    await store.write(lambda tx: arrives(tx, parts.waiters, work_id="work_other"))
    before = store.stats.jobs
    (asked,) = await asking(parts, 1, InboxNextRequest(wait=60, work_id="work_ours"))
    assert store.stats.jobs == before
    await store.write(lambda tx: arrives(tx, parts.waiters, work_id="work_ours"))
    item = (await asked).item
    assert item is not None
    assert item.message.work_id == "work_ours"
    assert store.memory.inbox.messages.works == {"work_other": 1, "work_ours": 1}
    await parts.inbox.next(InboxNextRequest(work_id="work_other", ack=True))
    await parts.inbox.ack(item.seq, InboxAckRequest(lease=item.lease))
    assert store.memory.inbox.messages.works == {}


@pytest.mark.parametrize("ack", [True, False])
async def test_a_message_leased_at_the_end_of_a_wait_is_returned(store: Store, ack: bool) -> None:
    """It was found by nobody when it asked, stored in the same transaction, and its time was up when that was durable."""
    clock = Rushing()
    parts = parts_of(store, clock)

    def job(tx: Transaction) -> None:
        arrives(tx, parts.waiters)
        clock.elapsed = 6.0

    commits = store.stats.commits
    leased, _ = await asyncio.gather(parts.inbox.next(InboxNextRequest(wait=5, ack=ack)), store.write(job))
    item = leased.item
    assert store.stats.commits == commits + 1
    assert item is not None
    assert item.state == ("acked" if ack else "leased")


async def test_waiter_gets_a_dead_consumers_message_at_lease_expiry(store: Store) -> None:
    parts = parts_of(store)
    first, second = await asking(parts, 2, InboxNextRequest(wait=60, visibility=1))
    await store.write(lambda tx: arrives(tx, parts.waiters))
    dies = (await first).item
    assert dies is not None
    async with asyncio.timeout(15):
        item = (await second).item
    assert item is not None
    assert (item.seq, item.attempts) == (dies.seq, 2)


async def test_waiter_leases_older_message_and_the_next_the_new_one(store: Store) -> None:
    parts = parts_of(store)
    await store.write(receiving(say()))
    old = await store.write(lambda tx: inbox.lease_next(tx, NOW_MS - 60_000, 1_000, "of a dead one"))
    consumers = [await waiting(store, parts.waiters) for _ in range(2)]
    await store.write(lambda tx: arrives(tx, parts.waiters))
    items = [await consumer.wait(parts.waiters, 0) for consumer in consumers]
    assert old is not None
    assert [item.seq for item in items if item is not None] == [old.seq, old.seq + 1]


@pytest.mark.parametrize("ack", [True, False])
@pytest.mark.parametrize("waits", [True, False])
async def test_a_message_leased_to_a_disconnected_consumer_is_ready_again(store: Store, ack: bool, waits: bool) -> None:
    """It is gone when the transaction that leased it is through: at its own look, or while it waited."""
    parts, asks = parts_of(store), InboxNextRequest(wait=60, ack=ack)
    if waits:
        (asked,) = await asking(parts, 1, asks)

        def arrive(tx: Transaction) -> None:
            arrives(tx, parts.waiters)
            asked.cancel()

        await store.write(arrive)
    else:
        await store.write(receiving(say()))
        asked = asyncio.create_task(parts.inbox.next(asks))
        commits = store.stats.commits
        await asyncio.gather(asyncio.sleep(0), store.write(lambda _tx: asked.cancel()))
        assert store.stats.commits == commits + 1  # of one transaction
    assert isinstance((await asyncio.gather(asked, return_exceptions=True))[0], asyncio.CancelledError)
    async with asyncio.timeout(15):
        item = (await parts.inbox.next(InboxNextRequest(wait=60))).item
    assert item is not None
    assert item.attempts == 1
    assert parts.counters["inbox.given_back"] == 1


async def test_an_expired_lease_is_listed_as_ready_without_a_consumer(store: Store) -> None:
    clock = Rushing()
    parts = parts_of(store, clock)
    await store.write(receiving(say()))
    item = (await parts.inbox.next(InboxNextRequest(visibility=1))).item
    assert item is not None

    async def ready() -> bool:
        found = await parts.inbox.list_items(InboxQuery(states=frozenset({"ready"})))
        return [one.seq for one in found.items] == [item.seq] and found.counts == {"ready": 1, "leased": 0, "dead": 0}

    async with asyncio.timeout(15):
        while not await ready():
            assert item.lease_until_ms is None or clock.millis() < item.lease_until_ms + 5_000


async def test_listing_the_inbox_does_not_wait_for_a_store_that_cannot_write(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = parts_of(store)
    await store.write(receiving(say()))
    jobs = store.stats.jobs
    await parts.inbox.list_items(InboxQuery())
    assert store.stats.jobs == jobs  # no lease has run out: nothing to write
    await store.write(lambda tx: inbox.lease_next(tx, NOW_MS, 1, "of a dead one"))

    async def stalls(_job: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "write", stalls)
    async with asyncio.timeout(15):
        found = await parts.inbox.list_items(InboxQuery())
    assert [item.state for item in found.items] == ["leased"]
