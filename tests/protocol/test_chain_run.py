"""The decision after a node: edges in order, defaults, failures, questions, the step limit."""

import uuid
from typing import Any

import pytest

from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.chains.chain import Chain, check_chain
from aghbus.protocol.chains.run import (
    Decision,
    Fail,
    Finish,
    Next,
    Result,
    decide,
    native_response,
    run_value,
    scope_of,
    work_value,
)


def chain_of(*edges: tuple[str, str, str | None], max_steps: int = 10) -> Chain:
    """Nodes A to D with these edges (from, to, when)."""
    found, faults = check_chain(
        {
            "name": "test",
            "start": "A",
            "max_steps": max_steps,
            "nodes": {name: {"peer": f"peer-{name.lower()}", "input": "{{input}}"} for name in "ABCD"},
            "edges": [
                {"from": source, "to": target, **({} if when is None else {"when": when})}
                for source, target, when in edges
            ],
        }
    )
    assert found is not None, faults
    return found


def after(chain: Chain, state: State, data: Any = None, message: str | None = None, steps: int = 1) -> Decision:
    """What follows when node A has ended so."""
    response = native_response(state, message, data)
    result = Result(node="A", state=state, response=response, work=work_value("work_1", state, message, data))
    return decide(
        chain,
        steps,
        result,
        scope_of("the input", run_value("us", "run_1", steps, 1, 0), {"D": {"data": {"limit": 0.8}}}, result),
    )


# seed 004, section 4.1
SEED = chain_of(
    ("A", "D", "response.data.score > 0.8"),
    ("A", "B", 'response.status == "success"'),
    ("A", "C", 'response.status == "failure"'),
)


def test_the_conditions_of_the_seed() -> None:
    assert after(SEED, "completed", {"score": 0.9}) == Next("D")
    assert after(SEED, "completed", {"score": 0.8}) == Next("B")
    assert after(SEED, "completed", {"score": "0.9"}) == Next("B")
    assert after(SEED, "failed", {}) == Next("C")
    assert after(SEED, "canceled") == Next("C")


def test_the_first_edge_that_matches_is_taken_in_the_order_of_the_file() -> None:
    assert after(chain_of(("A", "B", "true"), ("A", "C", "true")), "completed") == Next("B")
    assert after(chain_of(("A", "B", "false"), ("A", "C", None), ("A", "D", "true")), "completed") == Next("C")
    assert after(chain_of(("A", "B", "true"), ("A", "C", None)), "completed") == Next("B")
    assert after(chain_of(("B", "C", "true"), ("A", "D", None)), "completed") == Next("D")


def test_without_an_edge_a_success_completes_and_a_failure_fails_the_run() -> None:
    assert after(chain_of(), "completed") == Finish()
    assert after(chain_of(("A", "B", "false")), "completed") == Finish()
    assert after(chain_of(), "failed", message="no luck") == Fail("node A failed: no luck")
    assert after(chain_of(("A", "B", "false")), "failed") == Fail("node A failed")
    assert after(chain_of(), "canceled") == Fail("node A canceled")


def test_the_default_edge_is_for_success() -> None:
    chain = chain_of(("A", "B", None))
    assert after(chain, "completed") == Next("B")
    assert after(chain, "failed", message="no") == Fail("node A failed: no")
    assert after(chain, "canceled") == Fail("node A canceled")
    told = chain_of(("A", "B", None), ("A", "C", 'work.state == "failed"'))
    assert after(told, "failed") == Next("C")


def test_loops_end_at_the_step_limit() -> None:
    loop = chain_of(("A", "A", "response.data.again"), max_steps=3)
    assert after(loop, "completed", {"again": True}, steps=2) == Next("A")
    assert after(loop, "completed", {"again": True}, steps=3) == Fail("the step limit of 3 is reached before node A")
    assert after(loop, "completed", {"again": False}, steps=3) == Finish()


def test_conditions_see_earlier_nodes_the_work_and_the_input() -> None:
    assert after(chain_of(("A", "B", "response.data.score > D.data.limit")), "completed", {"score": 1}) == Next("B")
    assert after(chain_of(("A", "B", "A.data.score == 1")), "completed", {"score": 1}) == Next("B")
    assert after(chain_of(("A", "B", "work.result.score == 1")), "completed", {"score": 1}) == Next("B")
    assert after(chain_of(("A", "B", "input == 'the input'")), "completed") == Next("B")
    assert after(chain_of(("A", "B", "C.data.score == 1")), "completed") == Finish()
    assert after(chain_of(("A", "B", "run.step == 2 and run.id == 'run_1'")), "completed", steps=2) == Next("B")


def test_each_visit_has_its_own_uuid_and_time() -> None:
    found = [run_value(peer, run, step, 1, 1_776_366_000) for peer in "ab" for run in ("r1", "r2") for step in (1, 2)]
    assert {uuid.UUID(value["uuid"]).version for value in found} == {4}
    assert len({value["uuid"] for value in found}) == 8
    assert {value["time"] for value in found} == {"2026-04-16T19:00:00Z"}
    assert run_value("a", "r1", 1, 1, 0)["uuid"] == run_value("a", "r1", 1, 1, 99)["uuid"]
    assert run_value("a", "r1", 7, 3, 0)["visit"] == 3


@pytest.mark.parametrize(
    ("state", "message", "result", "expected"),
    [
        ("completed", "done", {"n": 1}, {"status": "success", "data": {"n": 1}, "message": "done"}),
        ("completed", None, [1], {"status": "success", "data": {"result": [1]}, "message": ""}),
        ("completed", None, None, {"status": "success", "data": {}, "message": ""}),
        ("completed", None, False, {"status": "success", "data": {"result": False}, "message": ""}),
        ("failed", "no", None, {"status": "failure", "data": {}, "message": "no"}),
        ("canceled", None, None, {"status": "failure", "data": {}, "message": ""}),
        ("needs_input", "which?", None, {"status": "clarification_needed", "data": {}, "message": "which?"}),
    ],
)
def test_native_results_look_like_sacp_without_an_invented_thought(
    state: State, message: str | None, result: Any, expected: dict[str, Any]
) -> None:
    assert native_response(state, message, result) == {"thought": "", **expected}
