"""The local API: chains (docs/adapters/chains.md)."""

import re
from typing import Annotated, Any, Final

from aghbus.protocol.api.base import Channel, NonBlank, RequestModel, ResponseModel, text
from aghbus.protocol.chains.run import RunState

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ChainStartRequest(RequestModel):
    """Start a run of a chain.

    chain: the chain file as JSON.
    input: what `{{input}}` stands for.
    run_id: makes the request idempotent: the same chain and input under it is the same run.
    channel: the default channel without it.
    """

    chain: dict[str, Any]
    input: Any = None
    run_id: Annotated[str, text(f"^{RUN_ID.pattern}$")] | None = None
    channel: Channel | None = None


class ChainAnswerRequest(RequestModel):
    """Answer a run that waits for input.

    text: said into the work that asked.
    """

    text: NonBlank


class ChainStep(ResponseModel):
    """One visit of a node.

    step: number of the visit.
    node: name of the node.
    peer: who has the work, null while no peer with the capability is known.
    work_id: its work, null before it is opened.
    work_state: of the work.
    message: of the last trace, null without one.
    response: null before there is one, in earlier visits of a node, and beyond eight megabytes of newer ones.
    started_ms: when it began.
    ended_ms: when it ended, null before that.
    """

    step: int
    node: str
    peer: str | None
    work_id: str | None
    work_state: str
    message: str | None
    response: Any
    started_ms: int
    ended_ms: int | None


class ChainRunSummary(ResponseModel):
    """A run in a list.

    run_id: of the run.
    name: of the chain.
    state: of the run.
    version: grows with every change.
    channel: where the run sends.
    node: visited now, or last.
    steps: number of visits.
    max_steps: allowed by the chain.
    error: why it failed, else null.
    question: what it waits for, else null.
    created_ms: when it was started.
    updated_ms: when it last changed.
    """

    run_id: str
    name: str
    state: RunState
    version: int
    channel: str
    node: str
    steps: int
    max_steps: int
    error: str | None
    question: str | None
    created_ms: int
    updated_ms: int


class ChainRun(ChainRunSummary):
    """A run with its steps.

    input: of the run.
    response: the last one.
    history: the steps, in order.
    """

    input: Any
    response: Any
    history: list[ChainStep]


class ChainRunsResponse(ResponseModel):
    """Runs.

    runs: latest change first.
    """

    runs: list[ChainRunSummary]
