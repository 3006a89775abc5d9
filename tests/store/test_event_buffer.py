"""The event buffer: the same events as in the file, of committed envelopes only, within bounds."""

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given, settings

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import EnvelopeFilter, EventsQuery
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory import events as event_buffer
from aghbus.store.engine.memory.events import EventBuffer
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables.events import events
from tests.support.makers import BOB, CHANNEL, EVE, US, receipt, receive, receiving, say, sending, trace

EVERYTHING = EnvelopeFilter()
OPAQUE = "direct_" + "cd" * 16  # a room's id that follows from no pair
Job = Callable[[Transaction], Any]

WORKS = st.sampled_from([None, "work_a", "work_b"])
THREADS = st.sampled_from(["thread_one", "thread_two"])
FROM_OTHERS = st.sampled_from([(BOB, US), (EVE, US), (BOB, None), (BOB, EVE)])
STATES = st.sampled_from(["working", "completed", "failed"])


def received(envelope: Envelope) -> Job:
    return receiving(envelope, observe=True)


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """One envelope that comes or goes out, or a job that stores one and then raises."""
    work, place = draw(WORKS), {"container": draw(THREADS)}
    (sender, to), peer = draw(FROM_OTHERS), draw(st.sampled_from([BOB, EVE]))
    choices: list[Callable[[], Job]] = [
        lambda: received(say(sender, to, work_id=work, **place)),
        lambda: received(trace(draw(STATES), sender, to, work_id=work or "work_c", **place)),
        lambda: received(receipt("rejected", "msg_some", sender, to, work_id=work or "work_a", **place)),
        lambda: received(say(peer, US, direct=True, work_id=work)),
        lambda: received(say(peer, US, direct=True, container=OPAQUE)),
        lambda: sending(say(US, peer, work_id=work, **place)),
        lambda: sending(trace(draw(STATES), US, peer, work_id=work or "work_a", **place)),
        lambda: undone(received(say(sender, to, work_id=work, **place))),
    ]
    return draw(st.sampled_from(choices))()


def undone(job: Job) -> Job:
    def failing(tx: Transaction) -> None:
        job(tx)
        raise NotFound("changed my mind")

    return failing


TRANSACTIONS = st.lists(st.lists(jobs(), min_size=1, max_size=4), max_size=6)


class AgentEvents(EventsQuery, frozen=True):
    for_agent = True


FILTERS = st.sampled_from([EventsQuery, EventsQuery, AgentEvents]).flatmap(
    lambda form: st.builds(
        form,
        kinds=st.frozensets(st.sampled_from(["say", "trace", "receipt"]), max_size=2),
        work_id=WORKS,
        thread_id=st.none() | THREADS,
        direct_id=st.sampled_from([None, None, None, OPAQUE]),
        peer=st.sampled_from([None, BOB, EVE, US]),
        channel=st.sampled_from([None, CHANNEL, "elsewhere"]),
        directions=st.frozensets(st.sampled_from(["in", "out", "observed"]), max_size=2),
        inbox=st.sampled_from([False, False, True]),
    )
)


@settings(max_examples=60)
@given(before=TRANSACTIONS, after=TRANSACTIONS, wanted=st.lists(FILTERS, min_size=1, max_size=8))
def test_buffered_events_equal_those_of_the_file(
    before: list[list[Job]], after: list[list[Job]], wanted: list[EnvelopeFilter]
) -> None:
    async def compare() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store = await Store.open(Path(folder) / "store.db", synchronous="normal")
            start = await commit(store, before)
            with store.memory.events.subscribed():
                top = await commit(store, after)
                for one in (EVERYTHING, *wanted):
                    for since in range(top + 2):
                        await same(store, one, since, top, kept=start <= since and start < top)
            await store.close()

    asyncio.run(compare())


async def commit(store: Store, transactions: list[list[Job]]) -> int:
    """The last sequence after all jobs, those of a list in one transaction; what some raise is meant."""
    for together in transactions:
        await asyncio.gather(*(store.submit(job) for job in together), return_exceptions=True)
    return (await store.status()).last_seq


async def same(store: Store, wanted: EnvelopeFilter, since: int, top: int, *, kept: bool) -> None:
    """`kept`: the tail reaches from `since` to the end."""
    stretch = store.memory.events.read(wanted, since, top, 100)
    page = await events(store.reader, wanted, since=since)
    if stretch is None:
        assert not kept or wanted.needs_store
        return
    assert kept
    assert stretch.events == [as_it_came(event) for event in page.events]
    assert stretch.next_since == page.next_since


def as_it_came(event: Event) -> Event:
    """The event before something else showed that an own envelope had arrived or was in vain, or ended the work of an opening."""
    message = event.message
    if message is None or message.delivery is None:
        return event
    if message.direction == "out":
        before = msgspec.structs.replace(message, delivery="queued", delivery_detail=None)
    elif message.delivery == "acked":
        before = msgspec.structs.replace(message, delivery="ready")
    else:
        return event
    return msgspec.structs.replace(event, message=before)


def seqs(tail: EventBuffer, since: int = 0, upto: int = 0, limit: int = 10_000) -> list[int] | None:
    stretch = tail.read(EVERYTHING, since, upto, limit)
    return None if stretch is None else [event.seq for event in stretch.events]


async def test_nothing_is_buffered_without_a_subscriber(store: Store) -> None:
    tail = store.memory.events
    await receive(store, say())
    assert seqs(tail) is None
    with tail.subscribed(), tail.subscribed():
        await receive(store, say())
        assert seqs(tail, 1) == [2]
        assert seqs(tail, 0) is None  # the file has to be asked for the first
    assert seqs(tail, 1) is None


async def test_pages_continue_where_the_last_one_ended(store: Store) -> None:
    with store.memory.events.subscribed():
        for _ in range(5):
            await receive(store, say())
        first = store.memory.events.read(EVERYTHING, 0, 5, 2)
        assert first is not None
        assert [event.seq for event in first.events] == [1, 2]
        assert first.next_since == 2
        assert seqs(store.memory.events, first.next_since, 5) == [3, 4, 5]
        beyond = store.memory.events.read(EVERYTHING, 9, 5, 2)  # a client that knows another store
        assert beyond is not None
        assert (beyond.events, beyond.next_since) == ([], 9)


async def test_what_every_subscriber_has_read_is_dropped_with_the_next_commit(store: Store) -> None:
    tail = store.memory.events
    with tail.subscribed() as slow, tail.subscribed() as quick:
        for _ in range(3):
            await receive(store, say())
        slow.position, quick.position = 1, 3
        await receive(store, say())
        assert seqs(tail, 0, 4) is None
        assert seqs(tail, 1, 4) == [2, 3, 4]
        slow.position = quick.position = 9  # clients that know another store
        await receive(store, say())
        assert seqs(tail, 4, 5) is None
        slow.position = 5
        await receive(store, say())
        assert seqs(tail, 5, 6) == [6]


async def test_uncommitted_events_are_not_visible(store: Store) -> None:
    tail = store.memory.events
    seen: list[list[int] | None] = []

    def look(tx: Transaction) -> None:
        seen.append(seqs(tail))

    with tail.subscribed():
        await asyncio.gather(store.submit(received(say())), store.submit(look))
        assert seen == [None]
        assert seqs(tail) == [1]


async def test_subscribers_that_change_during_a_transaction_miss_nothing(store: Store) -> None:
    """The tail goes without what was stored while nobody followed, and so cannot be read from before that."""
    tail = store.memory.events
    first, second = tail.subscribed(), tail.subscribed()

    def job(action: Callable[[], object]) -> Job:
        def run(tx: Transaction) -> None:
            action()

        return run

    await asyncio.gather(
        *(
            store.submit(each)
            for each in (
                job(first.__enter__),
                received(say()),
                job(lambda: first.__exit__(None, None, None)),
                received(say()),
                job(second.__enter__),
                received(say()),
                received(say()),
            )
        )
    )
    assert seqs(tail, 1, 4) is None
    assert seqs(tail, 2, 4) == [3, 4]
    second.__exit__(None, None, None)


async def test_a_transaction_that_fails_leaves_nothing(store: Store) -> None:
    def overflow(tx: Transaction) -> None:
        (pages,) = tx.db.execute("PRAGMA page_count").fetchone()
        tx.db.execute(f"PRAGMA max_page_count = {pages}").fetchone()
        tx.db.execute("INSERT INTO quarantine VALUES (NULL, 0, '', '', '', '', '', 0, zeroblob(1000000))")

    def relieve(tx: Transaction) -> None:
        tx.db.execute(f"PRAGMA max_page_count = {1 << 30}").fetchone()

    with store.memory.events.subscribed():
        await receive(store, say())
        failed = [store.submit(received(say())), store.submit(overflow), store.submit(received(say()))]
        results = await asyncio.gather(*failed, return_exceptions=True)
        assert [type(result) for result in results] == [StoreUnavailable] * 3
        assert seqs(store.memory.events) == [1]
        await store.write(relieve)
        await receive(store, say(text="the next one"))
        assert seqs(store.memory.events) == [1, 2]
        stretch = store.memory.events.read(EVERYTHING, 1, 2, 1)
        assert stretch is not None
        assert stretch.events == (await events(store.reader, EVERYTHING, since=1)).events


async def test_the_buffer_is_bounded_by_events(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_buffer, "MAX_EVENTS", 3)
    with store.memory.events.subscribed():
        await asyncio.gather(*(store.submit(received(say())) for _ in range(7)))
        assert seqs(store.memory.events, 3, 7) is None
        assert seqs(store.memory.events, 4, 7) == [5, 6, 7]


async def test_the_buffer_is_bounded_by_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_buffer, "MAX_BYTES", 10_000)
    with store.memory.events.subscribed() as subscriber:
        for count, read, last in ((4, 0, 4), (2, 3, 6)):
            subscriber.position = read
            for _ in range(count):
                await receive(store, say(text="x" * 4_000))
            assert seqs(store.memory.events, last - 3, last) is None
            assert seqs(store.memory.events, last - 2, last) == [last - 1, last]
        await receive(store, say(text="x" * 20_000))
        assert seqs(store.memory.events, 6, 7) is None
        await receive(store, say())
        assert seqs(store.memory.events, 7, 8) == [8]
