"""The routes of chains (docs/adapters/chains.md)."""

from typing import Annotated, Any, Final

from msgspec import Meta

from aghbus.daemon.api import queries as q
from aghbus.daemon.api.handlers import Call
from aghbus.daemon.api.route import Route
from aghbus.daemon.api.service import Service
from aghbus.protocol.api.base import EmptyRequest
from aghbus.protocol.api.chains import ChainAnswerRequest, ChainRun, ChainRunsResponse, ChainStartRequest
from aghbus.protocol.chains.run import RunState

MAX_WAIT: Final = 60.0
"""Seconds, ours: ask again after that, so that a watcher notices a daemon that is gone."""

_FOUND: Final = ("not_found",)
_CHANGES: Final = ("not_found", "conflict", "refused", "work_closed")


class RunsQuery(q.Query, frozen=True):
    """Runs, latest change first."""

    state: frozenset[RunState] = frozenset()
    limit: q.Limit = 100


class RunQuery(q.Query, frozen=True):
    """`since` waits up to `wait` seconds until the run's version is beyond it."""

    since: Annotated[int, Meta(ge=0, le=q.MAX_SEQ)] | None = None
    wait: Annotated[float, Meta(ge=0, le=MAX_WAIT)] = 0.0


async def start(service: Service, call: Call[Any, Any, ChainStartRequest]) -> ChainRun:
    """Begins a run."""
    return await service.chain_start(call.ask)


async def runs(service: Service, call: Call[Any, RunsQuery, Any]) -> ChainRunsResponse:
    """The runs."""
    return await service.chain_runs(states=call.query.state, limit=call.query.limit)


async def run(service: Service, call: Call[q.ById, RunQuery, Any]) -> ChainRun:
    """One run, at once or after its next change."""
    return await service.chain_run(call.path.id, since=call.query.since, wait=call.query.wait)


async def answer(service: Service, call: Call[q.ById, Any, ChainAnswerRequest]) -> ChainRun:
    """An answer for a run that waits."""
    return await service.chain_answer(call.path.id, call.ask)


async def cancel(service: Service, call: Call[q.ById, Any, Any]) -> ChainRun:
    """Calls a run off."""
    return await service.chain_cancel(call.path.id)


CHAIN_ROUTES: Final = (
    Route(
        "POST",
        "/v1/chains/runs",
        "Begin a run of a chain",
        ChainRun,
        start,
        ask=ChainStartRequest,
        status=201,
        errors=("conflict", "refused"),
    ),
    Route("GET", "/v1/chains/runs", "Runs of chains, latest change first", ChainRunsResponse, runs, query=RunsQuery),
    Route(
        "GET",
        "/v1/chains/runs/{id}",
        "A run with its steps",
        ChainRun,
        run,
        parameters=q.ById,
        query=RunQuery,
        errors=_FOUND,
        waits=True,
    ),
    Route(
        "POST",
        "/v1/chains/runs/{id}/answer",
        "Answer a run that waits",
        ChainRun,
        answer,
        parameters=q.ById,
        ask=ChainAnswerRequest,
        errors=_CHANGES,
    ),
    Route(
        "POST",
        "/v1/chains/runs/{id}/cancel",
        "Call a run off",
        ChainRun,
        cancel,
        parameters=q.ById,
        ask=EmptyRequest,
        errors=("not_found", "conflict"),
    ),
)
"""In the order of the documentation."""
