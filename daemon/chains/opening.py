"""The envelope that opens the work of a node's visit: its receiver, body and derived ids."""

from dataclasses import dataclass
from typing import Any

from aghbus.daemon.base.clock import Clock, expiry
from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.adapters.derived_ids import digest
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.chains.chain import ChainNode
from aghbus.protocol.chains.templates import input_text
from aghbus.protocol.send import Draft
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.chain_runs import Run


@dataclass(frozen=True, slots=True, eq=False)
class WorkOpener:
    """Opens the works of a run, one for each visit of a node."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    presence: PresenceTable
    messages: ChainMessages

    def peer_of(self, channel: str, node: ChainNode) -> str | None:
        """The node's peer; for a capability the first active peer that claims it, in order of ids, or None."""
        if node.capability is None:
            return node.peer
        now_ms = self.clock.millis()
        able = (
            peer.peer_id
            for peer in self.presence.all()
            if (peer.workspace_id, peer.channel) == (self.identity.workspace, channel)
            and node.capability in peer.card.capabilities
            and peer.peer_id != self.identity.self_id
            and self.presence.of(peer, now_ms) == "active"
        )
        return min(able, default=None)

    def _thread(self, run: Run) -> str:
        """The thread of all works of a run."""
        return "thread_" + digest(
            "chain.thread", self.identity.workspace, run.channel, self.identity.self_id, run.run_id
        )

    def open(
        self,
        tx: Transaction,
        batch: Batch,
        run: Run,
        node: ChainNode,
        *,
        step: int,
        peer: str,
        value: Any,
        causation_id: str | None,
    ) -> SendResponse:
        """Send the rendered input `value` to `peer` as the work of step number `step`.

        The ids are derived from run and step, so nothing is sent twice. Raises ChainError, InvalidRequest or Refused when it
        cannot be sent; nothing is written then.
        """
        if node.opening_format is None:
            say = self._say(run, node, step, peer, input_text(value), causation_id)
            return batch.send(say, replace_secrets=True)
        plan, draft = self.messages.opening(tx, node.opening_format, value, run.channel, peer, f"{run.run_id}/{step}")
        sent = batch.send(draft, replace_secrets=True)
        self.messages.remember(tx, node.opening_format, plan, draft, sent)
        return sent

    def _say(self, run: Run, node: ChainNode, step: int, peer: str, text: str, causation_id: str | None) -> Draft:
        now = self.clock.seconds()
        life: float = self.settings.current.defaults.directed_ttl
        if node.timeout is not None:
            life = min(life, max(1.0, node.timeout))  # no result is expected after the timeout
        identity = (self.identity.workspace, run.channel, self.identity.self_id, run.run_id, str(step))
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
            body={"text": text, "intent": node.intent or "request"},
        )
