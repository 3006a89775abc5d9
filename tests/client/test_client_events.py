"""Event streams: nothing is lost or repeated over restarts of either side, and gaps are told."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Final

import pytest

from aghbus.client import AsyncClient, Client, Endpoint
from aghbus.protocol.agh.envelope import StoredKind
from aghbus.store.engine import meta
from aghbus.store.engine.database import Store
from tests.support.client_pair import Pair, Running
from tests.support.daemons import Daemon, wait_for

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


def change_to(daemon: Daemon, work_id: str, state: str, query: str = "&works=true") -> dict[str, Any]:
    """What the first event that brought a work into `state` says of it."""
    with contextlib.closing(daemon.events(f"?work={work_id}&since=0{query}")) as events:
        changes: Iterator[dict[str, Any]] = (event["work"] for event in events)
        return next(change for change in changes if change["after"] == state)


def test_ends_and_questions_have_the_work_of_its_initiator_with_them_on_request(pair: Pair) -> None:
    work = pair.asking.start("worker", "count").id
    wait_for(lambda: pair.worker.state_of(work) == "submitted", 30, "the work to arrive")
    for verb, said, state in (
        ("need-input", {"message": "which?"}, "needs_input"),
        ("complete", {"result": {"count": 3}}, "completed"),
    ):
        pair.worker.post(f"/v1/works/{work}/{verb}", **said)
        brought = change_to(pair.ops, work, state)
        assert brought["now"] == pair.ops.get(f"/v1/works/{work}")["work"]
        assert brought["now"]["state"] == state
        assert "now" not in change_to(pair.ops, work, state, query="")
        assert "now" not in change_to(pair.worker, work, state)
    assert "now" not in change_to(pair.ops, work, "submitted")


def test_an_end_whose_result_came_before_it_does_not_bring_the_work(pair: Pair) -> None:
    asked = pair.asking.start("worker", "count")
    waiting = Running(asked.result)
    wait_for(lambda: pair.worker.state_of(asked.id) == "submitted", 30, "the work to arrive")
    pair.worker.post(f"/v1/works/{asked.id}/update", message="half", result={"count": 3})
    pair.worker.post(f"/v1/works/{asked.id}/complete", message="that is all")
    assert waiting.result().result == {"count": 3}
    assert "now" not in change_to(pair.ops, asked.id, "completed")
