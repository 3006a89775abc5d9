"""Rows of chain runs: contents, due runs, and removal of old ones."""

import json
from typing import Any

from aghbus.protocol.chains.run import ENDED
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import chain_runs as chains
from aghbus.store.tables import time_shift
from aghbus.store.tables.chain_runs import Followed, Run, Visit
from tests.support.makers import BOB, CHANNEL, NOW_MS, US, WORKSPACE, receipt, receive, rows, say, sending, trace


def a_run(run_id: str = "run_1", **fields: Any) -> Run:
    """A run at its first node."""
    given: dict[str, Any] = {
        "run_id": run_id,
        "name": "test",
        "state": "running",
        "version": 0,
        "channel": CHANNEL,
        "step": 1,
        "node": "A",
        "max_steps": 5,
        "error": None,
        "question": None,
        "created_ms": NOW_MS,
        "updated_ms": NOW_MS,
        "chain": b'{"nodes":{}}',
        "input": b'"the input"',
        **fields,
    }
    return Run(**given)


def first_visit(run: Run, **fields: Any) -> Visit:
    """The current visit of a run, over if the run is."""
    ended_ms = NOW_MS if run.state in ENDED else None
    return Visit(
        run_id=run.run_id, step=run.step, node=run.node, branch="A", started_ms=NOW_MS, ended_ms=ended_ms, **fields
    )


async def add(store: Store, run: Run, **visit: Any) -> None:
    """The run and its current visit."""

    def job(tx: Transaction) -> None:
        chains.add(tx, run)
        chains.add_visit(tx, first_visit(run, **visit))

    await store.write(job)


async def opened(store: Store, work_id: str = "work_1") -> tuple[str, int]:
    """A work that we opened for bob: the id of its opening and its sequence."""
    opening = say(sender=US, to=BOB, work_id=work_id)
    seq = (await store.write(sending(opening))).seq
    assert seq is not None
    return opening.id, seq


async def pending(store: Store, now_ms: int = NOW_MS) -> list[str]:
    return await chains.pending(store.reader, WORKSPACE, now_ms, 10)


async def followed(store: Store, work_id: str = "work_1") -> Followed | None:
    return await store.write(lambda tx: chains.followed(tx, WORKSPACE, CHANNEL, work_id))


async def test_a_run_is_kept_as_it_was_put(store: Store) -> None:
    run = a_run(question="which?")
    await add(store, run, peer=BOB, work_id="work_1", work_state="submitted", due_ms=5)
    assert await store.write(lambda tx: chains.load(tx, "run_1")) == run
    assert await store.write(lambda tx: chains.load(tx, "run_2")) is None
    visit = await store.write(lambda tx: chains.visit(tx, "run_1", 1))
    assert visit is not None
    assert (visit.peer, visit.work_id, visit.work_state, visit.response) == (BOB, "work_1", "submitted", None)
    assert visit.due_ms == 5
    shown = await chains.run(store.reader, "run_1")
    assert shown is not None
    assert (shown.input, shown.response, shown.question, len(shown.history)) == ("the input", None, "which?", 1)
    assert await chains.run(store.reader, "run_2") is None


async def test_every_change_has_a_new_version(store: Store) -> None:
    await add(store, a_run())

    def job(tx: Transaction) -> None:
        run = chains.load(tx, "run_1")
        assert run is not None
        run = chains.change(tx, run, state="waiting", question="x" * 5000)
        chains.change(tx, run, state="running", question=None)

    await store.write(job)
    shown = await chains.run(store.reader, "run_1")
    assert shown is not None
    assert (shown.version, shown.state, shown.question) == (2, "running", None)


async def test_a_run_is_due_when_its_work_moved_and_not_before(store: Store) -> None:
    opening_id, seq = await opened(store)
    await add(store, a_run(), work_id="work_1", seen_seq=seq)
    assert await pending(store) == []
    await receive(store, receipt("accepted", opening_id, work_id="work_1"))
    assert await pending(store) == ["run_1"]
    found = await followed(store)
    assert found is not None
    assert (found.work.state, found.raw) == ("working", None)

    def seen(tx: Transaction) -> None:
        visit = chains.visit(tx, "run_1", 1)
        assert visit is not None
        chains.change_visit(tx, visit, seen_seq=found.last_seq)

    await store.write(seen)
    assert await pending(store) == []
    await receive(store, say(work_id="another_work"))
    assert await pending(store) == []


async def test_run_is_due_when_timed_out_or_work_or_peer_is_missing(store: Store) -> None:
    _, seq = await opened(store)
    await add(store, a_run("run_alone"))
    await add(store, a_run(), work_id="work_1", seen_seq=seq, due_ms=NOW_MS + 10)
    await add(store, a_run("run_gone"), work_id="work_gone")
    await add(store, a_run("run_over", state="completed"))
    assert await pending(store) == ["run_gone", "run_alone"]  # who waits for somebody keeps nobody else waiting
    assert await pending(store, NOW_MS + 10) == ["run_1", "run_gone", "run_alone"]
    assert await chains.pending(store.reader, WORKSPACE, NOW_MS + 10, 1, excluded=["run_1", "run_gone"]) == [
        "run_alone"
    ]
    assert await chains.in_progress(store.reader) == (3, NOW_MS + 10)
    assert await chains.in_progress(store.reader, excluded=["run_1"]) == (3, None)
    assert await store.write(chains.count_open) == 3


async def test_a_run_with_a_busy_peer_is_due_when_the_next_work_is_opened(store: Store) -> None:
    _, seq = await opened(store)
    await add(store, a_run(), work_id="work_1", seen_seq=seq, due_ms=NOW_MS + 10, open_ms=NOW_MS + 5)
    assert await chains.in_progress(store.reader) == (1, NOW_MS + 5)
    assert await pending(store, NOW_MS + 4) == []
    assert await pending(store, NOW_MS + 5) == ["run_1"]


async def test_times_of_visits_in_progress_move_with_the_clock(store: Store) -> None:
    await add(store, a_run(), due_ms=NOW_MS + 10, open_ms=NOW_MS + 5)
    await add(store, a_run("run_over", state="failed"), due_ms=NOW_MS + 10, open_ms=NOW_MS + 5)
    await store.write(lambda tx: time_shift.shift(tx, 100))
    moved = await rows(store, "SELECT run_id, due_ms, open_ms FROM chain_steps ORDER BY run_id")
    assert moved == [("run_1", NOW_MS + 110, NOW_MS + 105), ("run_over", NOW_MS + 10, NOW_MS + 5)]


async def test_run_with_several_visits_is_due_once_and_waits_for_peer_last(
    store: Store,
) -> None:
    run = a_run(step=3)
    _, seq = await opened(store)
    await add(store, a_run("run_alone"), due_ms=NOW_MS + 20)
    await add(store, run, work_id="work_1", seen_seq=seq, due_ms=NOW_MS + 10)

    def more(tx: Transaction) -> None:
        for step in (1, 2):
            node = f"n{step}"
            chains.add_visit(tx, Visit(run_id="run_1", step=step, node=node, branch=node, started_ms=NOW_MS))

    await store.write(more)
    assert await pending(store, NOW_MS + 10) == ["run_1", "run_alone"]
    assert await chains.in_progress(store.reader) == (2, NOW_MS + 10)
    assert [visit.step for visit in await store.write(lambda tx: chains.open_visits(tx, "run_1"))] == [1, 2, 3]
    assert await store.write(lambda tx: chains.branches(tx, "run_1")) == {"A": False, "n1": False, "n2": False}


async def test_the_followed_envelope_is_the_end_or_the_last_trace(store: Store) -> None:
    opening_id, _ = await opened(store)
    asks = trace("needs_input", work_id="work_1", message="which?")
    await receive(store, asks)
    await receive(store, receipt("accepted", opening_id, work_id="work_1"))  # changes nothing, and asks nothing
    found = await followed(store)
    assert found is not None
    assert (found.work.state, found.raw) == ("needs_input", asks.raw)
    ends = trace("completed", work_id="work_1", result={"n": 1})
    await receive(store, ends)
    await receive(store, trace("failed", work_id="work_1"))  # too late
    found = await followed(store)
    assert found is not None
    assert (found.work.state, found.raw) == ("completed", ends.raw)
    assert await followed(store, "work_2") is None


async def test_only_the_latest_response_of_a_node_is_kept(store: Store) -> None:
    await add(store, a_run())

    def job(tx: Transaction) -> None:
        for step, node in ((1, "A"), (2, "B"), (3, "A")):
            visit = Visit(run_id="run_1", step=step, node=node, branch="A", started_ms=NOW_MS)
            if step > 1:
                chains.add_visit(tx, visit)
            chains.change_visit(tx, visit, response=json.dumps({"n": step}).encode(), work_state="completed")

    await store.write(job)
    stored = await rows(store, "SELECT step, response IS NULL FROM chain_steps ORDER BY step")
    assert stored == [(1, 1), (2, 0), (3, 0)]
    both = await store.write(lambda tx: chains.responses(tx, "run_1", {"A", "B", "C"}))
    assert both == {"A": {"n": 3}, "B": {"n": 2}}
    assert await store.write(lambda tx: chains.responses(tx, "run_1", {"B"})) == {"B": {"n": 2}}
    shown = await chains.run(store.reader, "run_1")
    assert shown is not None
    assert shown.response == {"n": 3}


async def test_one_answer_holds_the_newest_responses_within_a_bound(store: Store) -> None:
    await add(store, a_run())
    content = json.dumps("x" * (chains.RESPONSES_BYTES // 3)).encode()

    def job(tx: Transaction) -> None:
        for step in range(1, 5):
            visit = Visit(run_id="run_1", step=step, node=f"n{step}", branch="A", started_ms=NOW_MS)
            if step > 1:
                chains.add_visit(tx, visit)
            chains.change_visit(tx, visit, response=content)

    await store.write(job)
    shown = await chains.run(store.reader, "run_1")
    assert shown is not None
    assert [step.response is not None for step in shown.history] == [False, False, True, True]


async def test_ended_runs_are_forgotten_by_age_and_number_with_their_steps(store: Store) -> None:
    for number in range(6):
        state = "running" if number == 0 else "failed"
        await add(store, a_run(f"run_{number}", state=state, updated_ms=NOW_MS + number))
    assert await store.write(lambda tx: chains.forget(tx, NOW_MS + 2, keep=100)) == 1
    assert await store.write(lambda tx: chains.forget(tx, 0, keep=2)) == 2
    assert [run.run_id for run in await chains.runs(store.reader)] == ["run_5", "run_4", "run_0"]
    assert await rows(store, "SELECT run_id FROM chain_steps ORDER BY run_id") == [("run_0",), ("run_4",), ("run_5",)]


async def test_runs_are_listed_by_state_latest_change_first(store: Store) -> None:
    for number, state in enumerate(["running", "waiting", "completed", "failed"]):
        await add(store, a_run(f"run_{number}", state=state, updated_ms=NOW_MS + number))
    found = await chains.runs(store.reader, states=frozenset({"waiting", "failed"}))
    assert [run.run_id for run in found] == ["run_3", "run_1"]
    assert [run.run_id for run in await chains.runs(store.reader, limit=1)] == ["run_3"]
    assert [run.run_id for run in await chains.runs(store.reader, id_end="un_2")] == ["run_2"]
