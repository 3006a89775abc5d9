"""The local API of chains as plain data (docs/adapters/chains.md). Times ending in `_ms` are Unix milliseconds."""

from typing import Any

from aghbus.protocol.api.models import Answer, Ask
from aghbus.protocol.chains.run import RunState


class ChainRunAsk(Ask):
    """Start a run. `chain` is the chain file as JSON, `input` what `{{input}}` stands for.

    `run_id` of one's own makes the request idempotent: the same chain and input under it is the same run. `channel` only where
    the daemon has joined several.
    """

    chain: dict[str, Any]
    input: Any = None
    run_id: str | None = None
    channel: str | None = None


class ChainAnswerAsk(Ask):
    """An answer to a run that waits: said into the work that asked."""

    text: str


class ChainStep(Answer):
    """One visit of a node. `peer` is who got it (null: nobody has the capability yet), `work_state` the state of its work.

    `response` is null while there is none, for an earlier visit of a node that was visited again, and where the newer ones
    already fill eight megabytes.
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


class ChainRunHead(Answer):
    """A run in a list. `version` grows with every change, `node` is visited now or was last; `error` says why it failed,
    `question` what it waits for."""

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


class ChainRun(ChainRunHead):
    """A run with its steps in order. `response` is the last one."""

    input: Any
    response: Any
    history: list[ChainStep]


class ChainRuns(Answer):
    """Runs, latest change first."""

    runs: list[ChainRunHead]
