"""The envelopes that a run sends: the opening of a visit's work, with its receiver, rendered input and derived ids; the answer
to a question; and the receipt that cancels a work."""

import json
from dataclasses import dataclass
from typing import Any

import msgspec

from aghbus.daemon.base.clock import Clock, expiry
from aghbus.daemon.bridge.inbound import parse_stored
from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.handovers import Handovers
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.bodies import receipt_body
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.chains.chain import ChainNode
from aghbus.protocol.chains.run import Result, opening_key, run_value, scope_of
from aghbus.protocol.chains.templates import input_text, references, render
from aghbus.protocol.formats.derived_ids import digest
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import chain_runs as chains
from aghbus.store.tables.chain_runs import Followed, Run, Visit


@dataclass(frozen=True, slots=True, eq=False)
class WorkOpener:
    """Opens the works of a run, one for each visit of a node, answers their questions, and cancels them."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    handovers: Handovers
    closer: WorkCloser
    messages: ChainMessages

    def _peer_of(self, tx: Transaction, channel: str, node: ChainNode, visit: Visit) -> str | None:
        """The node's peer; for a capability the present peer that is least busy, or None.

        If a peer refused the visit's last work as busy, it comes last.
        """
        if node.capability is None:
            return node.peer
        able = [one.peer_id for one in self.handovers.candidates(tx, channel, node.capability)]
        return min(able, key=lambda peer: bool(visit.retries) and peer == visit.peer, default=None)

    def _thread(self, run: Run) -> str:
        """The thread of all works of a run."""
        return "thread_" + digest(
            "chain.thread", self.identity.workspace, run.channel, self.identity.self_id, run.run_id
        )

    def open(
        self, tx: Transaction, batch: Batch, run: Run, visit: Visit, node: ChainNode, causation_id: str | None
    ) -> tuple[str, SendResponse] | None:
        """Send the node's rendered input as the work of the visit. Returns its peer and the answer; None while no peer is present.

        The ids are derived from run and step, so nothing is sent twice. Raises ChainError, InvalidRequest or Refused when it
        cannot be sent; nothing is written then.
        """
        value = render(node.input, self.input_scope(tx, run, visit, node))
        peer = self._peer_of(tx, run.channel, node, visit)
        if peer is None:
            return None
        if node.opening_format is None:
            say = self._say(run, node, visit, peer, input_text(value), causation_id)
            return peer, batch.send(say, replace_secrets=True)
        key = f"{run.run_id}/{opening_key(visit.step, visit.retries)}"
        plan, draft = self.messages.opening(tx, node.opening_format, value, run.channel, peer, key)
        if node.capability is not None and draft.kind == "say":  # its format's own message is in `ext`
            draft = msgspec.structs.replace(draft, body={**draft.body, "intent": node.capability})
        sent = batch.send(draft, replace_secrets=True)
        self.messages.remember(tx, node.opening_format, plan, draft, sent)
        return peer, sent

    def answer(self, batch: Batch, run: Run, found: Followed, text: str) -> SendResponse:
        """Send the answer to a question, as a say within the work that asked."""
        work = found.work
        now = self.clock.seconds()
        question = parse_stored(found.raw) if found.raw is not None else None
        asked = None if question is None else question.id
        return batch.send(
            Draft(
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
            ),
            replace_secrets=True,
        )

    def cancel(self, tx: Transaction, batch: Batch, work: WorkView, why: str) -> None:
        """Cancel a work that is in progress."""
        body = receipt_body(work.opening_id, "canceled", detail=why)
        batch.add("receipt", self.closer.close(tx, work, "receipt", body))

    def run_value(self, tx: Transaction, visit: Visit) -> dict[str, Any]:
        """`run` for the conditions and templates of a visit."""
        number = chains.visits_of(tx, visit)
        return run_value(
            self.identity.self_id, visit.run_id, visit.step, number, visit.started_ms // 1000, visit.retries
        )

    def input_scope(self, tx: Transaction, run: Run, visit: Visit, node: ChainNode) -> dict[str, Any]:
        """The scope for the templates of a visit: `response` and `work` are those of the previous visit."""
        before = None if visit.previous is None else chains.visit(tx, run.run_id, visit.previous)
        result = None
        if before is not None and before.response is not None and before.work is not None:
            work = json.loads(before.work)
            result = Result(node=before.node, state=work["state"], response=json.loads(before.response), work=work)
        wanted = {reference.path.root for reference in references(node.templates)} | {node.apply or ""}
        return scope_of(
            json.loads(run.input), self.run_value(tx, visit), chains.responses(tx, run.run_id, wanted), result
        )

    def _say(self, run: Run, node: ChainNode, visit: Visit, peer: str, text: str, causation_id: str | None) -> Draft:
        now = self.clock.seconds()
        life = min(self.settings.current.defaults.directed_ttl, max(1.0, node.timeout))  # no result is expected later
        key = opening_key(visit.step, visit.retries)
        identity = (self.identity.workspace, run.channel, self.identity.self_id, run.run_id, key)
        return Draft(
            id="msg_" + digest("chain.message", *identity),
            workspace_id=self.identity.workspace,
            channel=run.channel,
            kind="say",
            sender=self.identity.self_id,
            to=peer,
            ts=now,
            expires_at=expiry(self.clock.millis(), life),
            surface="thread",
            container=self._thread(run),
            work_id="work_" + digest("chain.work", *identity),
            trace_id=run.run_id,
            causation_id=causation_id,
            body={"text": text, "intent": node.capability or node.intent or "request"},
        )
