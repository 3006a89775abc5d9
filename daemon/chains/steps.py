"""What happens to a run, inside one transaction of the store: begun, looked at, answered, called off.

Whatever a step concludes, the envelopes that follow from it and how far the work was followed are committed together: a crash
leaves the run before the step or after it.
"""

import contextlib
import json
from typing import Any, Final

import msgspec

from aghbus.daemon.chains.messages import ArtifactNotFetched, ChainMessages
from aghbus.daemon.chains.opening import open_work, peer_of
from aghbus.daemon.send.closing import close_work
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.context import Core
from aghbus.protocol.adapters.model import BridgedEnvelope
from aghbus.protocol.bodies import Receipt, Trace
from aghbus.protocol.chains.chain import Chain, ChainNode
from aghbus.protocol.chains.conditions import read_condition
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.run import (
    ENDED,
    Fail,
    Finish,
    Next,
    Pause,
    Result,
    decide,
    native_response,
    run_value,
    scope_of,
    work_value,
)
from aghbus.protocol.chains.templates import references, render
from aghbus.protocol.envelope import Envelope, parse
from aghbus.protocol.errors import InvalidRequest, NotFound, ProtocolError, Refused
from aghbus.protocol.lifecycle import State, WorkView
from aghbus.protocol.send import Draft
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import chain_runs as chains
from aghbus.store.tables.chain_runs import Followed, Run, Visit

_GONE: Final = "the work is no longer known here"


class RunTransitions:
    """The runs of one daemon."""

    def __init__(self, core: Core, formats: ChainMessages) -> None:
        self._core = core
        self._formats = formats

    def begin(self, tx: Transaction, batch: Batch, run: Run) -> None:
        """A new run: its first node is visited."""
        self._core.steps.settle(tx)
        if chains.count_open(tx) >= chains.MAX_OPEN:
            raise Refused(
                f"{chains.MAX_OPEN} runs are in progress already", code="refused", hint="`aghctl chain list` shows them"
            )
        chains.add(tx, run)
        self._visit(tx, batch, run, run.node, 1, None)

    def advance(self, tx: Transaction, batch: Batch, run_id: str) -> bool:
        """Bring a run up to date with its work, with presence and with the time; whether anything changed.

        Raises Elsewhere when the artifact store is needed first.
        """
        run = chains.load(tx, run_id)
        if run is None or run.state in ENDED:
            return False
        self._core.steps.settle(tx)
        self._advance(tx, batch, run)
        after = chains.load(tx, run_id)
        return after is not None and after.version != run.version

    def _advance(self, tx: Transaction, batch: Batch, run: Run) -> None:
        visit = _current(tx, run)
        late = run.due_ms is not None and run.due_ms <= self._core.steps.now_millis()
        if visit.work_id is None:
            if late:
                self._end(tx, batch, run, visit, self._no_peer(run, visit), None)
            else:
                self._open(tx, batch, run, visit, None)
            return
        found = chains.followed(tx, self._core.workspace, run.channel, visit.work_id)
        if found is None:
            self._end(tx, batch, run, visit, self._result(visit, "failed", _GONE), None)
        elif found.last_seq > run.seen_seq:
            self._on_work_changed(tx, batch, run, visit, found)
        elif late and not found.work.is_terminal:
            self._time_out(tx, batch, run, visit, found.work)

    def answer(self, tx: Transaction, batch: Batch, run_id: str, text: str) -> None:
        """Say `text` into the work that asked. Raises NotFound, or Refused when nothing is asked."""
        run = _known(tx, run_id)
        if run.state != "waiting":
            raise Refused(
                f"run {run_id} is {run.state} and asks nothing",
                code="conflict",
                hint="`aghctl chain show` tells how it stands",
            )
        self._core.steps.settle(tx)
        visit = _current(tx, run)
        found = chains.followed(tx, self._core.workspace, run.channel, visit.work_id or "")
        if found is None or found.work.is_terminal:
            raise Refused(f"the work of node {visit.node} has ended meanwhile", code="work_closed")
        sent = batch.send(self._reply(found, run, text))
        self._resume(tx, run, visit, "working", sent.seq, None)

    def cancel(self, tx: Transaction, batch: Batch, run_id: str) -> None:
        """Call a run off, and the work that it waits for. Raises NotFound, or Refused when it has ended."""
        run = _known(tx, run_id)
        if run.state in ENDED:
            raise Refused(f"run {run_id} is already {run.state}", code="conflict")
        visit = _current(tx, run)
        found = chains.followed(tx, self._core.workspace, run.channel, visit.work_id) if visit.work_id else None
        if found is not None and not found.work.is_terminal:
            self._cancel_work(tx, batch, found.work, "the run was canceled")
        now_ms = self._core.steps.now_millis()
        chains.change_visit(tx, visit, work_state="canceled", message="the run was canceled", ended_ms=now_ms)
        self._close(tx, run, "canceled", None)

    def fail_internal(self, tx: Transaction, run_id: str) -> None:
        """A defect of ours stopped a run: it fails, rather than the daemon."""
        run = chains.load(tx, run_id)
        if run is not None and run.state not in ENDED:
            self._close(tx, run, "failed", "a defect of this daemon: see its log")

    # following the work

    def _on_work_changed(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, found: Followed) -> None:
        work = found.work
        envelope = _parsed(found.raw)
        if not work.is_terminal and work.state != "needs_input":
            body = None if envelope is None else envelope.body
            progress = body.message if isinstance(body, Trace) and body.state == "working" else None
            self._resume(tx, run, visit, work.state, found.last_seq, progress)
            return
        run = msgspec.structs.replace(run, seen_seq=found.last_seq)
        causation_id = None if envelope is None else envelope.id
        self._end(tx, batch, run, visit, self._work_result(tx, visit, work, envelope), causation_id)

    def _resume(
        self, tx: Transaction, run: Run, visit: Visit, state: State, seen_seq: int, progress: str | None
    ) -> None:
        """The work is under way. Its time begins anew where it was asked for something."""
        chains.change_visit(tx, visit, work_state=state, message=progress)
        now_ms = self._core.steps.now_millis()
        due_ms = self._due_ms(run, visit.node, now_ms) if run.state == "waiting" else run.due_ms
        chains.change(tx, run, state="running", question=None, seen_seq=seen_seq, due_ms=due_ms, updated_ms=now_ms)

    def _time_out(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, work: WorkView) -> None:
        timeout = _chain(run).nodes[visit.node].timeout or 0
        why = f"no result within {timeout:g} s"
        self._cancel_work(tx, batch, work, why)
        self._end(tx, batch, run, visit, self._result(visit, "canceled", why), None)

    def _cancel_work(self, tx: Transaction, batch: Batch, work: WorkView, why: str) -> None:
        body = {"for_id": work.opening_id, "status": "canceled", "detail": why}
        batch.add("receipt", close_work(tx, self._core, work, "receipt", body))

    def _no_peer(self, run: Run, visit: Visit) -> Result:
        node = _chain(run).nodes[visit.node]
        return self._result(visit, "failed", f"nobody with capability {node.capability} within {node.timeout:g} s")

    def _work_result(self, tx: Transaction, visit: Visit, work: WorkView, envelope: Envelope | None) -> Result:
        """What the end of a work, or its question, says."""
        body = None if envelope is None else envelope.body
        if isinstance(body, Trace):
            result = None if body.result is None else msgspec.json.decode(body.result)
            told = self._result(visit, work.state, body.message, result)
        else:
            told = self._result(visit, work.state, _receipt_text(body) if isinstance(body, Receipt) else None)
        if envelope is not None and envelope.ext is not None and envelope.sender == work.target:
            carried = self._formats.carried_message(
                tx, BridgedEnvelope(envelope=envelope, work=work, outcome="advanced")
            )
            if carried is not None:
                return msgspec.structs.replace(told, response=carried)
        return told

    def _result(self, visit: Visit, state: State, message: str | None, result: Any = None) -> Result:
        return Result(
            node=visit.node,
            state=state,
            response=native_response(state, message, result),
            work=work_value(visit.work_id, state, message, result),
        )

    # going on

    def _end(
        self, tx: Transaction, batch: Batch, run: Run, visit: Visit, result: Result, causation_id: str | None
    ) -> None:
        """The visit has a result, or a question: what follows from it."""
        now_ms = self._core.steps.now_millis()
        asks = result.state == "needs_input"
        chain = _chain(run)
        chains.change_visit(
            tx,
            visit,
            work_state=result.state,
            message=result.work["message"],
            ended_ms=None if asks else now_ms,
            work=_encoded(result.work),
            response=_encoded(result.response),
        )
        wanted = {
            path.root for edge in chain.edges_of(visit.node) if edge.when for path in read_condition(edge.when).paths()
        }
        scope = scope_of(
            json.loads(run.input), self._run_value(visit), chains.responses(tx, run.run_id, wanted), result
        )
        match decide(chain, run.step, result, scope):
            case Next(node):
                self._visit(tx, batch, run, node, run.step + 1, causation_id)
            case Finish():
                self._close(tx, run, "completed", None)
            case Fail(error):
                self._close(tx, run, "failed", error)
            case Pause(question):
                seen_seq = run.seen_seq
                chains.change(
                    tx, run, state="waiting", question=question, seen_seq=seen_seq, due_ms=None, updated_ms=now_ms
                )

    def _visit(self, tx: Transaction, batch: Batch, run: Run, node: str, step: int, causation_id: str | None) -> None:
        now_ms = self._core.steps.now_millis()
        visit = Visit(run_id=run.run_id, step=step, node=node, started_ms=now_ms)
        chains.add_visit(tx, visit)
        run = chains.change(
            tx,
            run,
            state="running",
            question=None,
            step=step,
            node=node,
            seen_seq=0,
            due_ms=self._due_ms(run, node, now_ms),
            updated_ms=now_ms,
        )
        with contextlib.suppress(
            ArtifactNotFetched
        ):  # the next look asks again, when the visit and its time are committed
            self._open(tx, batch, run, visit, causation_id)

    def _open(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, causation_id: str | None) -> None:
        """Hand the work over, as soon as there is somebody to hand it to."""
        node = _chain(run).nodes[visit.node]
        peer = node.peer
        try:
            value = render(node.input, self._scope(tx, run, visit, node))
            peer = peer_of(self._core, run.channel, node)
            if peer is None:
                return
            sent = open_work(
                tx,
                batch,
                self._formats,
                self._core,
                run,
                node,
                step=visit.step,
                peer=peer,
                value=value,
                causation_id=causation_id,
            )
        except (ChainError, InvalidRequest, Refused) as error:
            now_ms = self._core.steps.now_millis()
            chains.change_visit(tx, visit, peer=peer, work_state="failed", message=error.message, ended_ms=now_ms)
            self._close(tx, run, "failed", f"the input of node {visit.node}: {error.message}")
            return
        chains.change_visit(tx, visit, peer=peer, work_id=sent.work_id, work_state="submitted")
        chains.change(tx, run, seen_seq=sent.seq)

    def _close(self, tx: Transaction, run: Run, state: str, error: str | None) -> None:
        now_ms = self._core.steps.now_millis()
        chains.change(
            tx, run, state=state, error=error, question=None, seen_seq=run.seen_seq, due_ms=None, updated_ms=now_ms
        )
        age_ms = self._core.settings.store.retention_age * 1000
        chains.forget(tx, self._core.steps.prudent_millis() - age_ms)

    def _scope(self, tx: Transaction, run: Run, visit: Visit, node: ChainNode) -> dict[str, Any]:
        """What the input of the current visit can see: `response` and `work` are those of the visit before."""
        before = chains.visit(tx, run.run_id, run.step - 1)
        result = None
        if before is not None and before.response is not None and before.work is not None:
            work = json.loads(before.work)
            result = Result(node=before.node, state=work["state"], response=json.loads(before.response), work=work)
        wanted = {path.root for path in references(node.input)}
        return scope_of(json.loads(run.input), self._run_value(visit), chains.responses(tx, run.run_id, wanted), result)

    def _run_value(self, visit: Visit) -> dict[str, Any]:
        return run_value(self._core.us, visit.run_id, visit.step, visit.started_ms // 1000)

    def _due_ms(self, run: Run, node: str, now_ms: int) -> int | None:
        timeout = _chain(run).nodes[node].timeout
        return None if timeout is None else now_ms + int(timeout * 1000)

    def _reply(self, found: Followed, run: Run, text: str) -> Draft:
        """The answer, inside the work that asked."""
        core, work = self._core, found.work
        now = core.clock.seconds()
        question = _parsed(found.raw)
        asked = None if question is None else question.id
        return Draft(
            id=core.clock.mint(),
            workspace_id=work.workspace_id,
            channel=work.channel,
            kind="say",
            sender=core.identities.part_in(work) or core.us,
            to=work.target,
            ts=now,
            expires_at=now + core.settings.defaults.directed_ttl,
            surface=work.surface,
            container=work.container,
            work_id=work.work_id,
            reply_to=asked,
            causation_id=asked,
            trace_id=run.run_id,
            body={"text": text},
        )


def _known(tx: Transaction, run_id: str) -> Run:
    run = chains.load(tx, run_id)
    if run is None:
        raise NotFound(f"no run {run_id} is known here", hint="`aghctl chain list` shows the runs")
    return run


def _current(tx: Transaction, run: Run) -> Visit:
    visit = chains.visit(tx, run.run_id, run.step)
    if visit is None:
        raise LookupError(f"run {run.run_id} has lost its visit {run.step}")
    return visit


def _chain(run: Run) -> Chain:
    """The chain as it was checked when the run began."""
    return msgspec.json.decode(run.chain, type=Chain)


def _parsed(raw: bytes | None) -> Envelope | None:
    """A stored envelope, read at a time at which it was fresh; None when there is none, or other rules let it in."""
    if raw is None:
        return None
    times = msgspec.json.decode(raw, type=_Times)
    try:
        return parse(raw, times.ts if times.expires_at is None else min(times.ts, times.expires_at - 1))
    except ProtocolError:
        return None


def _receipt_text(receipt: Receipt) -> str:
    """Why a receipt ended the work: its own words, else its code."""
    return receipt.detail or " ".join(filter(None, (receipt.status, receipt.reason_code)))


class _Times(msgspec.Struct):
    ts: int
    expires_at: int | None = None


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
