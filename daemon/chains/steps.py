"""The transitions of a run, each inside one store transaction: begin, advance, answer, cancel.

A transition commits the new state of the run, the envelopes it sends and the positions in its works' histories together, so a
crash leaves the run before or after it.
"""

import contextlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from aghbus.daemon.bridge.inbound import parse_stored
from aghbus.daemon.chains.artifact_files import ArtifactFiles, FilesNotWritten, Key
from aghbus.daemon.chains.messages import ArtifactNotFetched
from aghbus.daemon.chains.opening import WorkOpener
from aghbus.daemon.chains.questions import Questions, asking, asking_node
from aghbus.daemon.chains.results import WorkResults, is_busy, result_of
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.bodies import Say, Trace
from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.api.base import RunState
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused
from aghbus.protocol.chains.branches import ready
from aghbus.protocol.chains.chain import Chain
from aghbus.protocol.chains.conditions import read_condition
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.run import (
    ENDED,
    Fail,
    Finish,
    Next,
    Result,
    decide,
    over_limit,
    retry_pause,
    scope_of,
)
from aghbus.protocol.formats.humaninloop.shape import kind_of
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import chain_runs as chains
from aghbus.store.tables.chain_runs import Followed, Run, Visit

_WORK_GONE: Final = "the work is no longer known here"


@dataclass(frozen=True, slots=True, eq=False)
class RunTransitions:
    """Changes runs in the store, and sends the envelopes that follow from the changes."""

    settings: LiveSettings
    identity: Identity
    clock_changes: ClockChanges
    opener: WorkOpener
    results: WorkResults
    questions: Questions
    files: ArtifactFiles

    def begin(self, tx: Transaction, batch: Batch, run: Run) -> None:
        """Add a run and visit its start nodes."""
        self.clock_changes.now_after_clock_check(tx)
        if chains.count_open(tx) >= chains.MAX_OPEN:
            raise Refused(
                f"{chains.MAX_OPEN} runs are in progress already", code="refused", hint="`aghctl chain list` shows them"
            )
        chains.add(tx, run)
        self._begin_branches(tx, batch, run, _chain(run).start, None, None)

    def advance(self, tx: Transaction, batch: Batch, run_id: str) -> bool:
        """Update a run from its works, from presence and from the clock; whether it changed.

        Raises ArtifactNotFetched when the artifact store is needed first, and FilesNotWritten.
        """
        before = chains.load(tx, run_id)
        if before is None or before.state in ENDED:
            return False
        self.clock_changes.now_after_clock_check(tx)
        for visit in chains.open_visits(tx, run_id):
            run = _known(tx, run_id)
            if run.state not in ENDED:
                self._advance(tx, batch, run, visit)
        return _known(tx, run_id).version != before.version

    def _advance(self, tx: Transaction, batch: Batch, run: Run, visit: Visit) -> None:
        now_ms = self.clock_changes.now_millis()
        late = visit.due_ms is not None and visit.due_ms <= now_ms
        if visit.work_id is None or visit.open_ms is not None:
            if late:
                self._end(tx, batch, run, visit, _no_peer(run, visit), None)
            elif (visit.open_ms or 0) <= now_ms:
                self._open(tx, batch, run, visit, None)
            return
        found = self._followed(tx, run, visit)
        if found is None:
            self._end(tx, batch, run, visit, result_of(visit, "failed", _WORK_GONE), None)
        elif found.last_seq > visit.seen_seq:
            self._on_work_changed(tx, batch, run, visit, found)
        elif late and not found.work.is_terminal:
            self._time_out(tx, batch, run, visit, found)

    def answer(self, tx: Transaction, batch: Batch, run_id: str, node: str | None, text: str) -> None:
        """Send `text` as the answer to the question of `node` (None: of the only node that asks).

        Raises NotFound, or Refused when there is no such question.
        """
        run = _known(tx, run_id)
        self.clock_changes.now_after_clock_check(tx)
        visit = asking_node(tx, run, node)
        found = self._followed(tx, run, visit)
        if found is None or found.work.is_terminal:
            raise Refused(f"the work of node {visit.node} has ended meanwhile", code="work_closed")
        sent = self.opener.answer(batch, run, found, text)
        self._resume(tx, run, visit, "working", sent.seq, None)

    def cancel(self, tx: Transaction, batch: Batch, run_id: str) -> None:
        """Cancel a run and its open works. Raises NotFound, or Refused when it has ended."""
        run = _known(tx, run_id)
        if run.state in ENDED:
            raise Refused(f"run {run_id} is already {run.state}", code="conflict")
        self._close(tx, batch, run, "canceled", None, "the run was canceled")

    def fail_internal(self, tx: Transaction, run_id: str) -> None:
        """Fail a run after an internal error, instead of stopping the daemon. Its works are not canceled."""
        run = chains.load(tx, run_id)
        if run is not None and run.state not in ENDED:
            self._fail(tx, None, run, "internal error: see the log of the daemon")

    # following a work

    def _followed(self, tx: Transaction, run: Run, visit: Visit) -> Followed | None:
        return chains.followed(tx, self.identity.workspace, run.channel, visit.work_id) if visit.work_id else None

    def _on_work_changed(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, found: Followed) -> None:
        work = found.work
        envelope = parse_stored(found.raw) if found.raw is not None else None
        if not work.is_terminal and work.state != "needs_input":
            body = None if envelope is None else envelope.body
            progress = body.message if isinstance(body, Trace) and body.state == "working" else None
            progress = body.text if isinstance(body, Say) else progress
            self._resume(tx, run, visit, work.state, found.last_seq, progress)
            return
        if work.is_terminal and is_busy(work, envelope):
            self._retry_later(tx, run, visit, found)
            return
        result = self.results.read(tx, visit, work, envelope)
        visit = chains.change_visit(tx, visit, seen_seq=found.last_seq)
        if work.is_terminal:
            self._end(tx, batch, run, visit, result, None if envelope is None else envelope.id)
        else:
            self._ask(tx, batch, run, visit, result, found.seq)

    def _retry_later(self, tx: Transaction, run: Run, visit: Visit, found: Followed) -> None:
        """The peer refused the work as busy: the node retries, with another one after a pause, until its timeout."""
        retries = visit.retries + 1
        chains.change_visit(
            tx,
            visit,
            work_state="waiting",
            message=f"{found.work.target} is busy",
            seen_seq=found.last_seq,
            retries=retries,
            open_ms=self.clock_changes.now_millis() + int(retry_pause(retries) * 1000),
        )
        self._show(tx, run)

    def _ask(
        self, tx: Transaction, batch: Batch, run: Run, visit: Visit, result: Result, question_seq: int | None
    ) -> None:
        """The node asks: the question goes to the inbox, and the time for the answer begins. What it wrote is applied."""
        node = _chain(run).nodes[visit.node]
        asked_already = visit.work_state == "needs_input"
        due_ms = visit.due_ms if asked_already else self.clock_changes.now_millis() + int(node.answer_timeout * 1000)
        self.questions.put(tx, visit, question_seq)
        self._record(tx, visit, result, due_ms=due_ms, question_seq=question_seq)
        run = self._show(tx, run)
        if question_seq not in (None, visit.question_seq) and kind_of(result.response) == "output":
            self._apply_asked(tx, batch, run, visit, question_seq)

    def _apply_asked(self, tx: Transaction, batch: Batch, run: Run, asking: Visit, seq: int) -> None:
        """Visit the nodes that apply what the question `seq` carries. If one fails, the run fails. Raises FilesNotWritten."""
        chain = _chain(run)
        for name in chain.applied_with_question(asking.node):
            if limit := over_limit(chain, run.step, name):
                self._fail(tx, batch, run, limit.error)
                return
            run, visit = self._add_visit(tx, run, name, asking.branch, asking.step)
            result = self._applied(tx, run, visit, (run.run_id, asking.step, seq, name))
            self._record(tx, visit, result, ended_ms=visit.started_ms, due_ms=None)
            if result.state != "completed":
                self._fail(tx, batch, run, f"node {name} failed: {result.work['message']}")
                return

    def _resume(
        self, tx: Transaction, run: Run, visit: Visit, state: State, seen_seq: int, progress: str | None
    ) -> None:
        """The work is in progress (again). After a question its timeout restarts."""
        due_ms = visit.due_ms
        if visit.work_state == "needs_input":
            self.questions.remove(tx, visit)
            due_ms = self._due_ms(run, visit.node)
        values = {"seen_seq": seen_seq, "due_ms": due_ms, "question_seq": None}
        chains.change_visit(tx, visit, work_state=state, message=progress, **values)
        self._show(tx, run)

    def _time_out(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, found: Followed) -> None:
        node = _chain(run).nodes[visit.node]
        asks = visit.work_state == "needs_input"
        why = f"no answer within {node.answer_timeout:g} s" if asks else f"no result within {node.timeout:g} s"
        self.opener.cancel(tx, batch, found.work, why)
        self._end(tx, batch, run, visit, result_of(visit, "canceled", why), None)

    # next step

    def _end(
        self, tx: Transaction, batch: Batch, run: Run, visit: Visit, result: Result, causation_id: str | None
    ) -> None:
        """Record the result of a visit, and take the decision that follows from it."""
        self.questions.remove(tx, visit)
        self._record(tx, visit, result, ended_ms=self.clock_changes.now_millis(), due_ms=None, question_seq=None)
        chain = _chain(run)
        wanted = {
            path.root for edge in chain.edges_of(visit.node) if edge.when for path in read_condition(edge.when).paths()
        }
        responses = chains.responses(tx, run.run_id, wanted)
        scope = scope_of(json.loads(run.input), self.opener.run_value(tx, visit), responses, result)
        match decide(chain, run.step, result, scope):
            case Next(node):
                self._visit(tx, batch, run, node, visit.branch, visit.step, causation_id)
            case Finish():
                self._end_branch(tx, batch, run, visit, causation_id)
            case Fail(error):
                self._fail(tx, batch, run, error)

    def _record(self, tx: Transaction, visit: Visit, result: Result, **values: Any) -> None:
        chains.change_visit(
            tx,
            visit,
            work_state=result.state,
            message=result.work["message"],
            work=_encoded(result.work),
            response=_encoded(result.response),
            **values,
        )

    def _end_branch(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, causation_id: str | None) -> None:
        """Begin the branches that needed this one. The run is completed when no other is in progress."""
        begun = chains.branches(tx, run.run_id)
        new = ready(_chain(run).nodes, begun, [branch for branch, ended in begun.items() if ended])
        if new:
            self._begin_branches(tx, batch, run, new, visit.step, causation_id)
        elif all(begun.values()):
            self._close(tx, batch, run, "completed", None, "")
        else:
            self._show(tx, run)

    def _begin_branches(
        self,
        tx: Transaction,
        batch: Batch,
        run: Run,
        names: Iterable[str],
        previous: int | None,
        causation_id: str | None,
    ) -> None:
        chain = _chain(run)
        for name in names:
            run = _known(tx, run.run_id)
            if run.state in ENDED:
                return
            if limit := over_limit(chain, run.step, name):
                self._fail(tx, batch, run, limit.error)
                return
            before = previous if len(chain.nodes[name].needs) == 1 else None
            self._visit(tx, batch, run, name, name, before, causation_id)

    def _visit(
        self,
        tx: Transaction,
        batch: Batch,
        run: Run,
        node: str,
        branch: str,
        previous: int | None,
        causation_id: str | None,
    ) -> None:
        run, visit = self._add_visit(tx, run, node, branch, previous)
        with contextlib.suppress(
            ArtifactNotFetched, FilesNotWritten
        ):  # the next round retries, once the visit is committed
            self._open(tx, batch, run, visit, causation_id)

    def _add_visit(self, tx: Transaction, run: Run, node: str, branch: str, previous: int | None) -> tuple[Run, Visit]:
        step = run.step + 1
        visit = Visit(
            run_id=run.run_id,
            step=step,
            node=node,
            branch=branch,
            previous=previous,
            work_state="waiting" if _chain(run).nodes[node].apply is None else "working",  # for a peer
            due_ms=self._due_ms(run, node),
            started_ms=self.clock_changes.now_millis(),
        )
        chains.add_visit(tx, visit)
        return self._show(tx, msgspec.structs.replace(run, step=step), node), visit

    def _open(self, tx: Transaction, batch: Batch, run: Run, visit: Visit, causation_id: str | None) -> None:
        """Open the work of a visit, if a peer for it is present."""
        node = _chain(run).nodes[visit.node]
        if node.apply is not None:
            self._end(tx, batch, run, visit, self._applied(tx, run, visit, (run.run_id, visit.step)), None)
            return
        try:
            opened = self.opener.open(tx, batch, run, visit, node, causation_id)
        except (ChainError, InvalidRequest, Refused) as error:
            now_ms = self.clock_changes.now_millis()
            ended = {"work_state": "failed", "message": error.message, "ended_ms": now_ms, "due_ms": None}
            chains.change_visit(tx, visit, peer=node.peer, **ended)
            self._fail(tx, batch, run, f"the input of node {visit.node}: {error.message}")
            return
        if opened is not None:
            peer, sent = opened
            chains.change_visit(
                tx, visit, peer=peer, work_id=sent.work_id, work_state="submitted", seen_seq=sent.seq, open_ms=None
            )
            chains.change(tx, run)

    def _applied(self, tx: Transaction, run: Run, visit: Visit, key: Key) -> Result:
        """The result of a visit that writes files. Raises FilesNotWritten when they are not written yet."""
        node = _chain(run).nodes[visit.node]
        try:
            files = self.files.applied(key, node, self.opener.input_scope(tx, run, visit, node))
        except ChainError as error:
            return result_of(visit, "failed", error.message)
        return result_of(visit, "completed", f"{len(files)} files written", {"files": files})

    def _show(self, tx: Transaction, run: Run, node: str | None = None) -> Run:
        """The state of a run in progress, from its visits: it waits while a node asks."""
        now = {"step": run.step, "updated_ms": self.clock_changes.now_millis()}
        asked = asking(tx, run)
        if not asked:
            return chains.change(tx, run, state="running", node=node or run.node, question=None, **now)
        return chains.change(tx, run, state="waiting", node=asked[0].node, question=asked[0].message or "", **now)

    def _fail(self, tx: Transaction, batch: Batch | None, run: Run, error: str) -> None:
        self._close(tx, batch, run, "failed", error, "the run failed")

    def _close(
        self, tx: Transaction, batch: Batch | None, run: Run, state: RunState, error: str | None, why: str
    ) -> None:
        """End a run. With a `batch` its open works are canceled, with the reason `why`."""
        now_ms = self.clock_changes.now_millis()
        for visit in chains.open_visits(tx, run.run_id):
            found = None if batch is None else self._followed(tx, run, visit)
            if batch is not None and found is not None and not found.work.is_terminal:
                self.opener.cancel(tx, batch, found.work, why)
            self.questions.remove(tx, visit)
            chains.change_visit(
                tx, visit, work_state="canceled", message=why, ended_ms=now_ms, due_ms=None, question_seq=None
            )
        chains.change(tx, run, state=state, error=error, question=None, updated_ms=now_ms)
        age_ms = self.settings.current.store.retention_age * 1000
        chains.forget(tx, self.clock_changes.retention_now_ms() - age_ms)

    def _due_ms(self, run: Run, node: str) -> int:
        return self.clock_changes.now_millis() + int(_chain(run).nodes[node].timeout * 1000)


def _known(tx: Transaction, run_id: str) -> Run:
    run = chains.load(tx, run_id)
    if run is None:
        raise NotFound(f"no run {run_id} is known here", hint="`aghctl chain list` shows the runs")
    return run


def _no_peer(run: Run, visit: Visit) -> Result:
    node = _chain(run).nodes[visit.node]
    why = f"{visit.peer} is busy for" if visit.retries else f"no peer with capability {node.capability} within"
    return result_of(visit, "failed", f"{why} {node.timeout:g} s")


def _chain(run: Run) -> Chain:
    """The chain as validated when the run was started."""
    return msgspec.json.decode(run.chain, type=Chain)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
