"""The chain operations of the local API."""

from dataclasses import dataclass

import msgspec

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.chains.runner import ChainRunner
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.api.chains import RUN_ID, ChainAnswerRequest, ChainRun, ChainRunsResponse, ChainStartRequest
from aghbus.protocol.api.queries import ChainRunQuery, ChainRunsQuery
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused
from aghbus.protocol.base.text import is_blank
from aghbus.protocol.chains.chain import Chain, check_chain
from aghbus.protocol.formats.derived_ids import same_json
from aghbus.protocol.formats.strict_json import check_value
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import chain_runs as chains


@dataclass(slots=True, eq=False)
class ChainService:
    """Starts, reads, answers and cancels runs."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    store: Store
    runner: ChainRunner

    async def start(self, request: ChainStartRequest) -> ChainRun:
        """Start a run. Repeating a request with the same `run_id` returns the existing run."""
        chain = self._checked(request)
        run = self._new(request, chain)

        def job(tx: Transaction, batch: Batch) -> None:
            earlier = chains.load(tx, run.run_id)
            if earlier is None:
                self.runner.transitions.begin(tx, batch, run)
            elif not (_same(earlier.chain, run.chain) and _same(earlier.input, run.input)):
                raise Refused(f"run_id: run {run.run_id} has another chain or input", code="conflict")

        await self.runner.change(job)
        return await self._run_response(run.run_id)

    async def list_runs(self, query: ChainRunsQuery) -> ChainRunsResponse:
        """Runs, latest change first."""
        found = await chains.runs(self.store.reader, states=query.states, id_end=query.id_end, limit=query.limit)
        return ChainRunsResponse(runs=found)

    async def get_run(self, run_id: str, query: ChainRunQuery) -> ChainRun:
        """One run; with `since`, once its version is greater than that or after `wait` seconds."""
        deadline = self.clock.monotonic() + query.wait
        while True:
            seen = self.runner.changes.count
            run = await self._run_response(run_id)
            left = deadline - self.clock.monotonic()
            if query.since is None or run.version > query.since or left <= 0 or self.runner.draining:
                return run
            if self.runner.changes.count == seen:
                await self.runner.changes.wait(left)

    async def answer(self, run_id: str, request: ChainAnswerRequest) -> ChainRun:
        """Answer the question of a node; `node` may be missing when only one asks."""
        if is_blank(request.text):
            raise InvalidRequest("text: is required")
        transitions = self.runner.transitions
        await self.runner.change(lambda tx, batch: transitions.answer(tx, batch, run_id, request.node, request.text))
        return await self._run_response(run_id)

    async def cancel(self, run_id: str) -> ChainRun:
        """Cancel a run."""
        await self.runner.change(lambda tx, batch: self.runner.transitions.cancel(tx, batch, run_id))
        return await self._run_response(run_id)

    async def _run_response(self, run_id: str) -> ChainRun:
        found = await chains.run(self.store.reader, run_id)
        if found is None:
            raise NotFound(f"no run {run_id} is known here", hint="`aghctl chain list` shows the runs")
        return found

    def _checked(self, request: ChainStartRequest) -> Chain:
        chain, faults = check_chain(request.chain)
        if chain is None:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            where = f"chain{faults[0].path}"
            raise InvalidRequest(f"{where}: {faults[0].message}{more}", hint="`aghctl chain check` lists every fault")
        for name, node in chain.nodes.items():
            if node.peer == self.identity.self_id:
                raise InvalidRequest(f"chain/nodes/{name}/peer: is this daemon; a work needs another peer")
        for fault in check_value(request.input):
            raise InvalidRequest(f"input{fault.path}: {fault.message}")
        if request.run_id is not None and not RUN_ID.fullmatch(request.run_id):
            raise InvalidRequest(f"run_id: must match ^{RUN_ID.pattern}$")
        return chain

    def _new(self, request: ChainStartRequest, chain: Chain) -> chains.Run:
        channel = request.channel or self.settings.current.channels[0]
        if (self.identity.workspace, channel) not in self.identity.joined:
            joined = ", ".join(self.settings.current.channels)
            raise InvalidRequest(f"channel: {channel!r} is not joined here", hint=f"joined: {joined}")
        now_ms = self.clock.millis()
        return chains.Run(
            run_id=request.run_id or self.clock.mint("run_"),
            name=chain.name,
            state="running",
            version=0,
            channel=channel,
            step=0,
            node=chain.start[0],
            max_steps=chain.max_steps,
            error=None,
            question=None,
            created_ms=now_ms,
            updated_ms=now_ms,
            chain=msgspec.json.encode(chain),
            input=msgspec.json.encode(request.input),
        )


def _same(left: bytes, right: bytes) -> bool:
    return same_json(decode_json(left), decode_json(right))
