"""Following the store: nothing missed, nothing twice, in order, wherever the follower stands and however slow it is."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from pathlib import Path
from unittest import mock

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.services import event_stream as streams
from aghbus.daemon.services.event_stream import follow
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import EnvelopeFilter, EventsQuery
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory import events as tails
from tests.support.makers import BOB, EVE, receiving, rows, say

EVERYTHING = EnvelopeFilter()
DEADLINE = 20.0

Pages = AsyncGenerator[Sequence[Event], None]


async def commit(store: Store, announcer: Notifier, count: int, *senders: str) -> None:
    """`count` says in one transaction, and the word that they are there."""
    jobs = [
        store.submit(receiving(say((senders or (BOB,))[number % len(senders or (BOB,))]))) for number in range(count)
    ]
    for job in jobs:
        _, applied = await job
        announcer.notify(applied.seq or 0)


async def take(pages: Pages, count: int) -> list[int]:
    """The sequences of the next events, `count` at least: up to the end of a page."""
    seqs: list[int] = []
    async with asyncio.timeout(DEADLINE):
        while len(seqs) < count:
            seqs += [event.seq for event in await anext(pages)]
    return seqs


@contextlib.asynccontextmanager
async def statements(store: Store) -> AsyncIterator[list[str]]:
    """What is asked of the reading connection meanwhile."""
    asked: list[str] = []
    await store.reader.set_trace_callback(asked.append)
    yield asked
    await store.reader.set_trace_callback(lambda _: None)


async def test_a_reader_that_has_caught_up_uses_no_database(store: Store) -> None:
    announcer = Notifier(0)
    pages = follow(store, announcer, 0, EnvelopeFilter(peer=BOB))
    await commit(store, announcer, 6, BOB, EVE)
    assert await take(pages, 3) == [1, 3, 5]
    async with statements(store) as asked:
        for first in (7, 13, 19):
            await commit(store, announcer, 6, BOB, EVE)
            assert await take(pages, 3) == [first, first + 2, first + 4]
    assert asked == []
    await pages.aclose()
    assert not store.memory.events.subscribers


async def test_a_filter_that_needs_the_file_asks_only_when_something_may_match(store: Store) -> None:
    announcer = Notifier(0)
    pages = follow(store, announcer, 0, EventsQuery(peer=EVE, inbox=True))
    await commit(store, announcer, 2, EVE, BOB)
    assert await take(pages, 1) == [1]
    waiting = asyncio.ensure_future(take(pages, 1))
    async with statements(store) as asked:
        for _ in range(3):
            await commit(store, announcer, 3, BOB)
        await commit(store, announcer, 1, EVE)
        assert await waiting == [12]
    assert len([sql for sql in asked if "last_seq FROM ledger" in sql]) == 1  # with which every search begins
    await pages.aclose()


async def test_a_page_has_the_events_of_one_commit(store: Store) -> None:
    announcer = Notifier(0)
    pages = follow(store, announcer, 0, EVERYTHING)
    await commit(store, announcer, 1)
    assert await take(pages, 1) == [1]
    await commit(store, announcer, 5)
    assert [event.seq for event in await anext(pages)] == [2, 3, 4, 5, 6]
    await pages.aclose()


async def test_a_gap_comes_before_the_events_in_memory(store: Store) -> None:
    announcer = Notifier(0)
    await commit(store, announcer, 4)
    await store.write(lambda tx: tx.db.execute("DELETE FROM log WHERE seq <= 2").rowcount)
    await store.write(lambda tx: tx.db.execute("INSERT INTO meta VALUES ('pruned_through', 2)").rowcount)
    pages = follow(store, announcer, 0, EVERYTHING)
    (gap,) = await anext(pages)
    assert (gap.type, gap.seq, gap.pruned_from) == ("gap", 2, 1)
    await commit(store, announcer, 1)
    assert await take(pages, 3) == [3, 4, 5]
    await pages.aclose()


async def test_a_stream_ends_when_the_daemon_drains_with_all_that_was_committed(store: Store) -> None:
    announcer = Notifier(0)
    pages = follow(store, announcer, 0, EVERYTHING)
    await commit(store, announcer, 3)
    assert await take(pages, 3) == [1, 2, 3]
    await commit(store, announcer, 2)
    announcer.close()
    assert [event.seq async for page in pages for event in page] == [4, 5]
    assert not store.memory.events.subscribers


async def test_a_slow_reader_is_given_everything_and_holds_nothing_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes a page, does nothing while far more comes than memory keeps, and goes on from the file."""
    monkeypatch.setattr(tails, "MAX_EVENTS", 32)
    monkeypatch.setattr(streams, "_PAGE", 8)
    announcer = Notifier(0)
    slow, quick = follow(store, announcer, 0, EVERYTHING), follow(store, announcer, 0, EVERYTHING)
    await commit(store, announcer, 8)
    assert await take(slow, 8) == await take(quick, 8) == list(range(1, 9))
    for last in range(28, 309, 20):
        await commit(store, announcer, 20)
        assert (await take(quick, 20))[-1] == last
    kept = store.memory.events.read(EVERYTHING, 308 - 32, 308, 1_000)
    assert kept is not None
    assert len(kept.events) == 32
    async with statements(store) as asked:
        assert await take(slow, 300) == list(range(9, 309))
        assert asked
        asked.clear()
        await commit(store, announcer, 5)
        assert await take(slow, 5) == [309, 310, 311, 312, 313]  # caught up: from memory again
        assert asked == []
    for pages in (slow, quick):
        await pages.aclose()


class Follower:
    """A consumer that now and then goes away and resumes after the last event that it has."""

    def __init__(self, store: Store, announcer: Notifier, wanted: EnvelopeFilter) -> None:
        self._store, self._announcer, self._wanted = store, announcer, wanted
        self._pages: Pages | None = None
        self.seen: list[int] = []

    async def take(self) -> None:
        """One page, when one will come."""
        if self._pages is None:
            since = self.seen[-1] if self.seen else 0
            self._pages = follow(self._store, self._announcer, since, self._wanted)
        self.seen += [event.seq for event in await anext(self._pages)]

    async def leave(self) -> None:
        if self._pages is not None:
            await self._pages.aclose()
        self._pages = None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.integers(1, 9)),
        st.tuples(st.sampled_from(["take", "leave"]), st.integers(0, 1)),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(steps=STEPS)
def test_nothing_is_missed_and_nothing_comes_twice(steps: list[tuple[str, int]]) -> None:
    """Two consumers, one of them with a filter, over the border between memory and file, in any order of events."""

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            store, announcer = await Store.open(Path(folder) / "store.db", synchronous="normal"), Notifier(0)
            followers = [Follower(store, announcer, wanted) for wanted in (EVERYTHING, EnvelopeFilter(peer=EVE))]
            for what, number in [*steps, ("commit", 1)]:
                if what == "commit":
                    await commit(store, announcer, number, BOB, EVE)
                elif what == "leave":
                    await followers[number].leave()
                elif await expected(store, number) != followers[number].seen:
                    await followers[number].take()
            for number, follower in enumerate(followers):
                everything = await expected(store, number)
                async with asyncio.timeout(DEADLINE):
                    while len(follower.seen) < len(everything):
                        await follower.take()
                assert follower.seen == everything
                await follower.leave()
            assert not store.memory.events.subscribers
            await store.close()

    with mock.patch.object(tails, "MAX_EVENTS", 6), mock.patch.object(streams, "_PAGE", 4):
        asyncio.run(run())


async def expected(store: Store, number: int) -> list[int]:
    sql = "SELECT seq FROM envelopes" + (" WHERE sender = ?" if number else "")
    return [seq for (seq,) in await rows(store, sql, *([EVE] if number else []))]
