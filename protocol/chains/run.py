"""The next step of a branch, decided from its state and the result of one node's work.

    completed            the first edge that matches (a default matches); none: the branch has ended
    failed, canceled     the first edge whose `when` matches; none: the run has failed

The default edge is for success ("Proceed to the default next node", seed 004, section 2.2): after a failure the run continues
only on an edge with a condition.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.base.backoff import exponential_delay
from aghbus.protocol.chains.chain import Chain, ChainEdge
from aghbus.protocol.chains.conditions import read_condition
from aghbus.protocol.chains.paths import Scope
from aghbus.protocol.formats.derived_ids import digest
from aghbus.protocol.formats.timestamps import utc

ENDED: Final = frozenset({"completed", "failed", "canceled"})

FIRST_RETRY_PAUSE: Final = 1.0  # seconds, doubled each time
LAST_RETRY_PAUSE: Final = 60.0
_STATUS: Final[dict[str, str]] = {
    "completed": "success",
    "failed": "failure",
    "canceled": "failure",
    "needs_input": "clarification_needed",
}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a node: the state of its work, its `response`, and `work` for conditions."""

    node: str
    state: State
    response: Any
    work: Mapping[str, Any]


class Next(msgspec.Struct, frozen=True):
    """Visit this node."""

    node: str


class Finish(msgspec.Struct, frozen=True):
    """The branch has ended; without another branch the run is completed."""


class Fail(msgspec.Struct, frozen=True):
    """The run has failed."""

    error: str


Decision = Next | Finish | Fail


def decide(chain: Chain, steps: int, result: Result, scope: Scope) -> Decision:
    """The decision after `result`, the end of a node, in a run of `steps` visits so far."""
    edge = _matching(chain, result, scope)
    if edge is None:
        if result.state == "completed":
            return Finish()
        words = _result_message(result)
        return Fail(f"node {result.node} {result.state}" + (f": {words}" if words else ""))
    return over_limit(chain, steps, edge.target) or Next(edge.target)


def over_limit(chain: Chain, steps: int, node: str) -> Fail | None:
    """The failure of a run that would visit `node` after `steps` visits; None within the limit."""
    if steps < chain.max_steps:
        return None
    return Fail(f"the step limit of {chain.max_steps} is reached before node {node}")


def scope_of(
    run_input: Any, run: Mapping[str, Any], responses: Mapping[str, Any], result: Result | None = None
) -> dict[str, Any]:
    """The scope of paths: the run's input, `run_value`, the latest response of each node, and the current result."""
    scope: dict[str, Any] = {**responses, "input": run_input, "run": run}
    if result is not None:
        scope.update({result.node: result.response, "response": result.response, "work": result.work})
    return scope


def run_value(peer: str, run_id: str, step: int, visit: int, started: int, retries: int = 0) -> dict[str, Any]:
    """`run` for conditions and templates: the numbers of the visit, and values that some messages need for each.

    `step` counts the visits of all nodes, `visit` those of this node, from 1.

    `uuid` has the form of version 4 and is derived from our `peer`, run, step and `retries`, the number of works of this visit
    that were refused as busy; `time` is the start of the visit (`started`, Unix seconds) in UTC.
    """
    digits = digest("chain.uuid", peer, run_id, opening_key(step, retries))
    uuid = f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"
    return {"id": run_id, "step": step, "visit": visit, "uuid": uuid, "time": utc(started)}


def opening_key(step: int, retries: int) -> str:
    """Distinguishes the works of a run, from which their ids are derived."""
    return f"{step}.{retries}" if retries else str(step)


def retry_pause(retries: int) -> float:
    """Seconds until the next work of a visit is opened, after `retries` (at least one) were refused as busy."""
    return exponential_delay(retries, FIRST_RETRY_PAUSE, LAST_RETRY_PAUSE)


def native_response(state: State, message: str | None, result: Any) -> dict[str, Any]:
    """The response of a native agent, in the form of SACP (seed 004, section 2) with an empty thought."""
    data = result if isinstance(result, dict) else {} if result is None else {"result": result}
    return {"thought": "", "status": _STATUS.get(state, state), "data": data, "message": message or ""}


def work_value(work_id: str | None, state: State, message: str | None, result: Any) -> dict[str, Any]:
    """`work` for conditions and templates."""
    return {"id": work_id, "state": state, "message": message, "result": result}


def _matching(chain: Chain, result: Result, scope: Scope) -> ChainEdge | None:
    for edge in chain.edges_of(result.node):
        if edge.when is None:
            if result.state == "completed":
                return edge
        elif read_condition(edge.when).holds(scope):
            return edge
    return None


def _result_message(result: Result) -> str:
    message = result.work.get("message")
    return message if isinstance(message, str) else ""
