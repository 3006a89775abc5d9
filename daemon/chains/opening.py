"""The envelope that opens the work of a node's visit: its receiver, body and derived ids."""

from typing import Any

from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.context import Core
from aghbus.protocol.adapters.derived_ids import digest
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.chains.chain import ChainNode
from aghbus.protocol.chains.templates import input_text
from aghbus.protocol.send import Draft
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.chain_runs import Run


def peer_of(core: Core, channel: str, node: ChainNode) -> str | None:
    """The node's peer; for a capability the first active peer that claims it, in order of ids, or None."""
    if node.capability is None:
        return node.peer
    now_ms = core.clock.millis()
    able = (
        peer.peer_id
        for peer in core.roster.all()
        if (peer.workspace_id, peer.channel) == (core.workspace, channel)
        and node.capability in peer.card.capabilities
        and peer.peer_id != core.us
        and core.roster.of(peer, now_ms) == "active"
    )
    return min(able, default=None)


def run_thread(core: Core, run: Run) -> str:
    """The thread of all works of a run."""
    return "thread_" + digest("chain.thread", core.workspace, run.channel, core.us, run.run_id)


def open_work(
    tx: Transaction,
    batch: Batch,
    messages: ChainMessages,
    core: Core,
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
        return batch.send(_say(core, run, node, step, peer, input_text(value), causation_id))
    plan, draft = messages.opening(tx, node.opening_format, value, run.channel, peer, f"{run.run_id}/{step}")
    sent = batch.send(draft)
    messages.remember(tx, node.opening_format, plan, draft, sent)
    return sent


def _say(core: Core, run: Run, node: ChainNode, step: int, peer: str, text: str, causation_id: str | None) -> Draft:
    now = core.clock.seconds()
    life: float = core.settings.defaults.directed_ttl
    if node.timeout is not None:
        life = min(life, max(1.0, node.timeout))  # nobody waits for a result after the timeout
    identity = (core.workspace, run.channel, core.us, run.run_id, str(step))
    return Draft(
        id="msg_" + digest("chain.message", *identity),
        workspace_id=core.workspace,
        channel=run.channel,
        kind="say",
        sender=core.us,
        to=peer,
        ts=now,
        expires_at=core.clock.expiry(life),
        surface="thread",
        container=run_thread(core, run),
        work_id="work_" + digest("chain.work", *identity),
        trace_id=run.run_id,
        causation_id=causation_id,
        body={"text": text, "intent": node.intent or "request"},
    )
