"""The local API: chains (docs/adapters/chains.md)."""

import re
from typing import Annotated, Any, Final

from aghbus.protocol.api.base import Channel, NonBlank, RequestModel, ResponseModel, RunState, text

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ChainStartRequest(RequestModel):
    """Start a run of a chain."""

    chain: dict[str, Any]  # the chain file as JSON
    input: Any = None  # the value of `{{input}}`
    # makes the request idempotent: the same chain and input under it is the same run
    run_id: Annotated[str, text(f"^{RUN_ID.pattern}$")] | None = None
    channel: Channel | None = None  # the default channel without it


class ChainAnswerRequest(RequestModel):
    """Answer a run that waits for input."""

    text: NonBlank  # sent as a say in the work that asked
    node: NonBlank | None = None  # that asks; required when several do


class ChainStep(ResponseModel):
    """One visit of a node."""

    step: int  # number of the visit
    node: str  # name of the node
    branch: str  # first node of its branch
    peer: str | None  # who has the work, null while no peer with the capability is known
    work_id: str | None  # its work, null before it is opened
    work_state: str  # of the work
    message: str | None  # of the last trace, null without one
    response: Any  # null before there is one, in earlier visits of a node, and beyond eight megabytes of newer ones
    started_ms: int  # when it began
    ended_ms: int | None  # when it ended, null before that


class ChainRunSummary(ResponseModel):
    """A run in a list."""

    run_id: str  # of the run
    name: str  # of the chain
    state: RunState  # of the run
    version: int  # grows with every change
    channel: str  # where the run sends
    node: str  # that asks, else visited last
    steps: int  # number of visits, of all branches
    max_steps: int  # allowed by the chain
    error: str | None  # why it failed, else null
    question: str | None  # of that node while the run waits for an answer, else null
    created_ms: int  # when it was started
    updated_ms: int  # when it last changed


class ChainRun(ChainRunSummary):
    """A run with its steps."""

    chain: dict[str, Any]  # the chain file as JSON
    input: Any  # of the run
    response: Any  # that of the node that asks, else of the last visit
    history: list[ChainStep]  # the steps, in order


class ChainRunsResponse(ResponseModel):
    """Runs."""

    runs: list[ChainRunSummary]  # latest change first
