"""Event streams: nothing is lost or repeated over restarts of either side, and gaps are told."""

import asyncio
from typing import Final

import pytest

from aghbus.client import AsyncClient, Client, Endpoint
from aghbus.protocol.agh.envelope import StoredKind
from aghbus.store.engine import meta
from aghbus.store.engine.database import Store
from tests.support.client_pair import Pair
from tests.support.daemons import Daemon

SAYS: Final[frozenset[StoredKind]] = frozenset({"say"})


def said(client: Client, text: str) -> str:
    return client.send("say", {"text": text}, to="worker").id


def prune(daemon: Daemon, through: int) -> None:
    """Remove the messages up to a sequence, as retention would."""

    async def job() -> None:
        store = await Store.open(daemon.store_path)
        await store.write(lambda tx: tx.db.execute("DELETE FROM log WHERE seq <= ?", (through,)).rowcount)
        await store.write(lambda tx: meta.put(tx.db, "pruned_through", through))
        await store.close()

    asyncio.run(job())


def test_a_stream_continues_over_a_kill_of_the_daemon_from_where_it_was(pair: Pair) -> None:
    first = said(pair.asking, "one")
    events = pair.asking.events(kinds=SAYS, since=0)
    assert next(events).message.id == first  # type: ignore[union-attr]
    second = said(pair.asking, "two")
    pair.ops.kill()
    pair.ops.start()
    third = said(pair.asking, "three")
    assert [next(events).message.id for _ in range(2)] == [second, third]  # type: ignore[union-attr]
    events.close()


def test_a_gap_is_told_after_a_restart(pair: Pair) -> None:
    said(pair.asking, "one")
    events = pair.asking.events(kinds=SAYS, since=0)
    seq = next(events).seq
    pair.ops.kill()  # the stream is lost, and resumes when it is read again
    pair.ops.start()
    removed = pair.asking.message(said(pair.asking, "two")).seq
    assert pair.ops.stop() == 0
    prune(pair.ops, removed)
    pair.ops.start()
    third = said(pair.asking, "three")
    gap, left = next(events), next(events)
    assert (gap.type, gap.seq, gap.pruned_from, gap.message) == ("gap", removed, seq + 1, None)
    assert left.message is not None and left.message.id == third
    events.close()


async def test_an_asynchronous_stream_continues_over_a_kill_too(pair: Pair) -> None:
    client = AsyncClient(Endpoint(path=str(pair.ops.socket_path)))
    first = said(pair.asking, "one")
    events = client.events(kinds=SAYS, since=0)
    assert (await anext(events)).message.id == first  # type: ignore[union-attr]
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.to_thread(pair.ops.kill)
    await asyncio.to_thread(pair.ops.start)
    second = said(pair.asking, "two")
    assert (await waiting).message.id == second  # type: ignore[union-attr]
    await events.aclose()


def test_waiting_for_an_event_ends_after_the_timeout(pair: Pair) -> None:
    opened = pair.asking.open_work("worker", "nobody works")
    assert opened.work_id is not None
    with pytest.raises(TimeoutError):
        pair.asking.wait(opened.work_id, timeout=0.3)
