"""The chain operations of the local API; the node's service inherits them."""

import re
from typing import Final

import msgspec

from aghbus.daemon.chains.runner import ChainRunner
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.context import Core
from aghbus.protocol.adapters.derived_ids import same_json
from aghbus.protocol.adapters.strict_json import check_value
from aghbus.protocol.api.chains import ChainAnswerRequest, ChainRun, ChainRunsResponse, ChainStartRequest
from aghbus.protocol.chains.chain import Chain, check_chain
from aghbus.protocol.errors import InvalidRequest, NotFound, Refused
from aghbus.protocol.text import is_blank
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import chain_runs as chains

_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class ChainService:
    """Starts, reads, answers and cancels runs; `_chains` is the runner."""

    _core: Core

    @property
    def _chains(self) -> ChainRunner:
        raise NotImplementedError

    async def chain_start(self, ask: ChainStartRequest) -> ChainRun:
        """Start a run. Repeating a request with the same `run_id` returns the existing run."""
        chain = self._checked(ask)
        run = self._new(ask, chain)

        def job(tx: Transaction, batch: Batch) -> None:
            earlier = chains.load(tx, run.run_id)
            if earlier is None:
                self._chains.steps.begin(tx, batch, run)
            elif not (_same(earlier.chain, run.chain) and _same(earlier.input, run.input)):
                raise Refused(f"run_id: run {run.run_id} has another chain or input", code="conflict")

        await self._chains.change(job)
        return await self._run_response(run.run_id)

    async def chain_runs(self, *, states: frozenset[str], limit: int) -> ChainRunsResponse:
        """Runs, latest change first."""
        return ChainRunsResponse(runs=await chains.runs(self._core.store.reader, states=states, limit=limit))

    async def chain_run(self, run_id: str, *, since: int | None, wait: float) -> ChainRun:
        """One run; with `since`, once its version is greater than that or after `wait` seconds."""
        clock = self._core.clock
        deadline = clock.monotonic() + wait
        while True:
            rings = self._chains.bell.rings
            run = await self._run_response(run_id)
            left = deadline - clock.monotonic()
            if since is None or run.version > since or left <= 0 or self._core.draining:
                return run
            if self._chains.bell.rings == rings:
                await self._chains.bell.wait(left)

    async def chain_answer(self, run_id: str, ask: ChainAnswerRequest) -> ChainRun:
        """Answer the question of a waiting run."""
        if is_blank(ask.text):
            raise InvalidRequest("text: is required")
        await self._chains.change(lambda tx, batch: self._chains.steps.answer(tx, batch, run_id, ask.text))
        return await self._run_response(run_id)

    async def chain_cancel(self, run_id: str) -> ChainRun:
        """Cancel a run."""
        await self._chains.change(lambda tx, batch: self._chains.steps.cancel(tx, batch, run_id))
        return await self._run_response(run_id)

    async def _run_response(self, run_id: str) -> ChainRun:
        found = await chains.run(self._core.store.reader, run_id)
        if found is None:
            raise NotFound(f"no run {run_id} is known here", hint="`aghctl chain list` shows the runs")
        return found

    def _checked(self, ask: ChainStartRequest) -> Chain:
        chain, faults = check_chain(ask.chain)
        if chain is None:
            more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
            where = f"chain{faults[0].path}"
            raise InvalidRequest(f"{where}: {faults[0].message}{more}", hint="`aghctl chain check` lists every fault")
        for name, node in chain.nodes.items():
            if node.peer == self._core.us:
                raise InvalidRequest(f"chain/nodes/{name}/peer: is this daemon; a work needs another peer")
        for fault in check_value(ask.input):
            raise InvalidRequest(f"input{fault.path}: {fault.message}")
        if ask.run_id is not None and not _RUN_ID.fullmatch(ask.run_id):
            raise InvalidRequest(f"run_id: must match ^{_RUN_ID.pattern}$")
        return chain

    def _new(self, ask: ChainStartRequest, chain: Chain) -> chains.Run:
        core = self._core
        channel = ask.channel or core.settings.channels[0]
        if (core.workspace, channel) not in core.joined:
            joined = ", ".join(core.settings.channels)
            raise InvalidRequest(f"channel: {channel!r} is not joined here", hint=f"joined: {joined}")
        now_ms = core.clock.millis()
        return chains.Run(
            run_id=ask.run_id or core.clock.mint("run_"),
            name=chain.name,
            state="running",
            version=0,
            channel=channel,
            step=0,
            node=chain.start,
            max_steps=chain.max_steps,
            seen_seq=0,
            due_ms=None,
            error=None,
            question=None,
            created_ms=now_ms,
            updated_ms=now_ms,
            chain=msgspec.json.encode(chain),
            input=msgspec.json.encode(ask.input),
        )


def _same(left: bytes, right: bytes) -> bool:
    return same_json(msgspec.json.decode(left), msgspec.json.decode(right))
