"""The transitions of a run, each inside one store transaction: begin, advance, answer, cancel.

A transition commits the new state of the run, the envelopes it sends and the position in its work's history together, so a
crash leaves the run before or after it.
"""

import contextlib
import json
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.bridge.inbound import parse_stored
from aghbus.daemon.chains.messages import ArtifactNotFetched, ChainMessages
from aghbus.daemon.chains.opening import WorkOpener
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.adapters.model import BridgedEnvelope
from aghbus.protocol.base.decoding import decode_json
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
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import InvalidRequest, NotFound, Refused
from aghbus.protocol.lifecycle import State, WorkView
from aghbus.protocol.send import Draft
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import chain_runs as chains
from aghbus.store.tables.chain_runs import Followed, Run, Visit

_WORK_GONE: Final = "the work is no longer known here"


@dataclass(frozen=True, slots=True, eq=False)
class RunTransitions:
    """Changes runs in the store, and sends the envelopes that follow from the changes."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    steps: ClockSteps
    closer: WorkCloser
    opener: WorkOpener
    messages: ChainMessages

    def begin(self, tx: Transaction, batch: Batch, run: Run) -> None:
        """Add a run and visit its first node."""
        self.steps.now_after_clock_check(tx)
        if chains.count_open(tx) >= chains.MAX_OPEN:
            raise Refused(
                f"{chains.MAX_OPEN} runs are in progress already", code="refused", hint="`aghctl chain list` shows them"
            )
        chains.add(tx, run)
        self._visit(tx, batch, run, run.node, 1, None)

    def advance(self, tx: Transaction, batch: Batch, run_id: str) -> bool:
        """Update a run from its work, from presence and from the clock; whether it changed.

        Raises ArtifactNotFetched when the artifact store is needed first.
        """
        run = chains.load(tx, run_id)
        if run is None or run.state in ENDED:
            return False
        self.steps.now_after_clock_check(tx)
        self._advance(tx, batch, run)
        after = chains.load(tx, run_id)
        return after is not None and after.version != run.version

    def _advance(self, tx: Transaction, batch: Batch, run: Run) -> None:
        visit = _current(tx, run)
        late = run.due_ms is not None and run.due_ms <= self.steps.now_millis()
        if visit.work_id is None:
            if late:
                self._end(tx, batch, run, visit, self._no_peer(run, visit), None)
            else:
                self._open(tx, batch, run, visit, None)
            return
        found = chains.followed(tx, self.identity.workspace, run.channel, visit.work_id)
        if found is None:
            self._end(tx, batch, run, visit, self._result(visit, "failed", _WORK_GONE), None)
        elif found.last_seq > run.seen_seq:
            self._on_work_changed(tx, batch, run, visit, found)
        elif late and not found.work.is_terminal:
            self._time_out(tx, batch, run, visit, found.work)

    def answer(self, tx: Transaction, batch: Batch, run_id: str, text: str) -> None:
        """Send `text` as the answer to the run's question. Raises NotFound, or Refused when it has no question."""
        run = _known(tx, run_id)
        if run.state != "waiting":
            raise Refused(
                f"run {run_id} is {run.state} and has no question",
                code="conflict",
                hint="`aghctl chain show` shows its state",
            )
        self.steps.now_after_clock_check(tx)
        visit = _current(tx, run)
        found = chains.followed(tx, self.identity.workspace, run.channel, visit.work_id or "")
        if found is None or found.work.is_terminal:
            raise Refused(f"the work of node {visit.node} has ended meanwhile", code="work_closed")
        sent = batch.send(self._reply(found, run, text), replace_secrets=True)
        self._resume(tx, run, visit, "working", sent.seq, None)

    def cancel(self, tx: Transaction, batch: Batch, run_id: str) -> None:
        """Cancel a run and its open work. Raises NotFound, or Refused when it has ended."""
        run = _known(tx, run_id)
        if run.state in ENDED:
            raise Refused(f"run {run_id} is already {run.state}", code="conflict")
        visit = _current(tx, run)
        found = chains.followed(tx, self.identity.workspace, run.channel, visit.work_id) if visit.work_id else None
        if found is not None and not found.work.is_terminal:
            self._cancel_work(tx, batch, found.work, "the run was canceled")
        now_ms = self.steps.now_millis()
        chains.change_visit(tx, visit, work_state="canceled", message="the run was canceled", ended_ms=now_ms)
        self._close(tx, run, "canceled", None)

    def fail_internal(self, tx: Transaction, run_id: str) -> None:
        """Fail a run after an internal error, instead of stopping the daemon."""
        run = chains.load(tx, run_id)
        if run is not None and run.state not in ENDED:
            self._close(tx, run, "failed", "internal error: see the log of the daemon")

    # following a work

    def _on_work_changed(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, found: Followed) -> None:
        work = found.work
        envelope = parse_stored(found.raw) if found.raw is not None else None
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
        """The work is in progress (again). After a question its timeout restarts."""
        chains.change_visit(tx, visit, work_state=state, message=progress)
        now_ms = self.steps.now_millis()
        due_ms = self._due_ms(run, visit.node, now_ms) if run.state == "waiting" else run.due_ms
        chains.change(tx, run, state="running", question=None, seen_seq=seen_seq, due_ms=due_ms, updated_ms=now_ms)

    def _time_out(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, work: WorkView) -> None:
        timeout = _chain(run).nodes[visit.node].timeout or 0
        why = f"no result within {timeout:g} s"
        self._cancel_work(tx, batch, work, why)
        self._end(tx, batch, run, visit, self._result(visit, "canceled", why), None)

    def _cancel_work(self, tx: Transaction, batch: Batch, work: WorkView, why: str) -> None:
        body = {"for_id": work.opening_id, "status": "canceled", "detail": why}
        batch.add("receipt", self.closer.close(tx, work, "receipt", body))

    def _no_peer(self, run: Run, visit: Visit) -> Result:
        node = _chain(run).nodes[visit.node]
        return self._result(visit, "failed", f"no peer with capability {node.capability} within {node.timeout:g} s")

    def _work_result(self, tx: Transaction, visit: Visit, work: WorkView, envelope: Envelope | None) -> Result:
        """The result of a work that has ended or asks a question."""
        body = None if envelope is None else envelope.body
        if isinstance(body, Trace):
            value = None if body.result is None else decode_json(body.result)
            result = self._result(visit, work.state, body.message, value)
        else:
            result = self._result(visit, work.state, _receipt_text(body) if isinstance(body, Receipt) else None)
        if envelope is not None and envelope.sender == work.target:
            arrival = BridgedEnvelope(envelope=envelope, work=work, outcome="advanced")
            return self.messages.judge(tx, arrival, result)
        return result

    def _result(self, visit: Visit, state: State, message: str | None, result: Any = None) -> Result:
        return Result(
            node=visit.node,
            state=state,
            response=native_response(state, message, result),
            work=work_value(visit.work_id, state, message, result),
        )

    # next step

    def _end(
        self, tx: Transaction, batch: Batch, run: Run, visit: Visit, result: Result, causation_id: str | None
    ) -> None:
        """Record the result (or question) of a visit, and take the decision that follows from it."""
        now_ms = self.steps.now_millis()
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
        now_ms = self.steps.now_millis()
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
        with contextlib.suppress(ArtifactNotFetched):  # the next round retries, once the visit is committed
            self._open(tx, batch, run, visit, causation_id)

    def _open(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, causation_id: str | None) -> None:
        """Open the work of a visit, if a peer for it is present."""
        node = _chain(run).nodes[visit.node]
        peer = node.peer
        try:
            value = render(node.input, self._scope(tx, run, visit, node))
            peer = self.opener.peer_of(run.channel, node)
            if peer is None:
                return
            sent = self.opener.open(
                tx, batch, run, node, step=visit.step, peer=peer, value=value, causation_id=causation_id
            )
        except (ChainError, InvalidRequest, Refused) as error:
            now_ms = self.steps.now_millis()
            chains.change_visit(tx, visit, peer=peer, work_state="failed", message=error.message, ended_ms=now_ms)
            self._close(tx, run, "failed", f"the input of node {visit.node}: {error.message}")
            return
        chains.change_visit(tx, visit, peer=peer, work_id=sent.work_id, work_state="submitted")
        chains.change(tx, run, seen_seq=sent.seq)

    def _close(self, tx: Transaction, run: Run, state: str, error: str | None) -> None:
        now_ms = self.steps.now_millis()
        chains.change(
            tx, run, state=state, error=error, question=None, seen_seq=run.seen_seq, due_ms=None, updated_ms=now_ms
        )
        age_ms = self.settings.current.store.retention_age * 1000
        chains.forget(tx, self.steps.retention_now_ms() - age_ms)

    def _scope(self, tx: Transaction, run: Run, visit: Visit, node: ChainNode) -> dict[str, Any]:
        """The scope for the input of the current visit: `response` and `work` are those of the previous visit."""
        before = chains.visit(tx, run.run_id, run.step - 1)
        result = None
        if before is not None and before.response is not None and before.work is not None:
            work = json.loads(before.work)
            result = Result(node=before.node, state=work["state"], response=json.loads(before.response), work=work)
        wanted = {path.root for path in references(node.input)}
        return scope_of(json.loads(run.input), self._run_value(visit), chains.responses(tx, run.run_id, wanted), result)

    def _run_value(self, visit: Visit) -> dict[str, Any]:
        return run_value(self.identity.self_id, visit.run_id, visit.step, visit.started_ms // 1000)

    def _due_ms(self, run: Run, node: str, now_ms: int) -> int | None:
        timeout = _chain(run).nodes[node].timeout
        return None if timeout is None else now_ms + int(timeout * 1000)

    def _reply(self, found: Followed, run: Run, text: str) -> Draft:
        """The answer, as a say within the work that asked."""
        work = found.work
        now = self.clock.seconds()
        question = parse_stored(found.raw) if found.raw is not None else None
        asked = None if question is None else question.id
        return Draft(
            id=self.clock.mint(),
            workspace_id=work.workspace_id,
            channel=work.channel,
            kind="say",
            sender=self.identity.participant_in(work) or self.identity.self_id,
            to=work.target,
            ts=now,
            expires_at=now + self.settings.current.defaults.directed_ttl,
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
        raise LookupError(f"run {run.run_id} has no visit {run.step}")
    return visit


def _chain(run: Run) -> Chain:
    """The chain as validated when the run was started."""
    return msgspec.json.decode(run.chain, type=Chain)


def _receipt_text(receipt: Receipt) -> str:
    """The reason in a receipt: its detail, else status and reason code."""
    return receipt.detail or " ".join(filter(None, (receipt.status, receipt.reason_code)))


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
