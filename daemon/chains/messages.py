"""Foreign messages in chains: the opening message of a node, and the message that a result carries."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.bridge.adapters import AgentDirectory
from aghbus.daemon.bridge.format_log import keep_record
from aghbus.daemon.bridge.large_messages import fetch_large, is_too_large, store_large, with_reference
from aghbus.daemon.nats.link import Link
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.run import Result
from aghbus.protocol.formats.attachments import Reference, reference_in
from aghbus.protocol.formats.attachments import carried_message as message_in
from aghbus.protocol.formats.model import Adapter, BridgedEnvelope, Delivered, SubmitPlan
from aghbus.protocol.formats.registry import FORMATS
from aghbus.protocol.formats.sacp.guardrails import is_withheld
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.bridge.messages import StoredMessageHistory, envelope_by_id
from aghbus.store.tables.works import lifecycle

Remember = Callable[[Transaction, str, SubmitPlan, list[Draft], list[SendResponse]], None]
"""Records a submitted message in the bridge's history and the format's log, within its transaction."""

GUARDED: Final = "sacp"
"""The format whose guardrails judge results, and whose audit table has them."""
_OPENS: Final = frozenset({"say", "capability"})


class ArtifactNotFetched(Exception):
    """The artifact store is needed before the transaction can continue: to store the message of an opening that does not fit
    an envelope, or to fetch the message of a result (`what`). Nothing was written: call `ChainMessages.transfer` and retry."""

    def __init__(self, name: str, what: Draft | Envelope) -> None:
        super().__init__(f"the {name} message of {what.id} has to be stored in, or fetched from, the artifact store")
        self.name = name
        self.what = what

    @property
    def key(self) -> str:
        """Identifies the message: ids are unique per sender, and an envelope may refer to messages of several formats."""
        return _draft_key(self.name, self.what)


@dataclass(slots=True, eq=False)
class ChainMessages:
    """The adapters of the daemon, with the bridge's history.

    `adapter_of` returns the current adapter of a format; `record` records a submitted message.
    """

    identity: Identity
    link: Link
    agents: AgentDirectory
    adapter_of: Callable[[str], Adapter]
    record: Remember
    artifacts: Artifacts
    _stored: dict[str, Reference | InvalidRequest] = field(default_factory=dict, init=False)
    _fetched: dict[str, Any] = field(default_factory=dict, init=False)

    async def transfer(self, needed: ArtifactNotFetched) -> None:
        """Store the message of an opening, or fetch that of a result; a permanent failure is kept as the outcome.

        A result whose message cannot be fetched counts as native. Raises Unreachable, which is not an outcome: retry.
        """
        if isinstance(needed.what, Envelope):
            message, _ = await fetch_large(self.artifacts, needed.name, needed.what.extensions())
            self._fetched[needed.key] = message
            return
        try:
            self._stored[needed.key] = await store_large(self.artifacts, needed.name, needed.what)
        except InvalidRequest as error:
            self._stored[needed.key] = error

    def forget(self, transferred: Iterable[ArtifactNotFetched]) -> None:
        """Drop the outcomes after the transaction that needed them."""
        for needed in transferred:
            self._stored.pop(needed.key, None)
            self._fetched.pop(needed.key, None)

    def opening(
        self, tx: Transaction, name: str, message: Any, channel: str, peer: str, key: str
    ) -> tuple[SubmitPlan, Draft]:
        """The plan for a message of format `name`, and its one draft, which opens work for `peer`.

        `key` distinguishes equal openings. Raises ChainError when the format refuses the message or it does not open exactly
        one new work, and ArtifactNotFetched when it does not fit an envelope.
        """
        text = json.dumps(message, ensure_ascii=False).encode()
        context = msgspec.structs.replace(self.agents.context(channel), target=peer, key=key)
        plan = self.adapter_of(name).submit(text, context, self._history(tx, name, channel))
        for finding in plan.findings:
            if finding.severity == "error":
                raise ChainError("refused", f"not a valid {name} message: {finding.path or 'it'}: {finding.message}")
        if plan.repeats or len(plan.drafts) != 1:
            raise ChainError("refused", f"the {name} message does not open one new work")
        draft = plan.drafts[0]
        if draft.kind not in _OPENS or draft.work_id is None or draft.to != peer:
            raise ChainError("refused", f"the {name} message does not open work for {peer} (it goes to {draft.to})")
        if lifecycle.load(tx, draft.workspace_id, draft.channel, draft.work_id) is not None:
            raise ChainError("refused", f"the {name} message continues work {draft.work_id}")
        return plan, self._fit(name, draft)

    def remember(self, tx: Transaction, name: str, plan: SubmitPlan, draft: Draft, sent: SendResponse) -> None:
        """Record the opening that was sent: answers in the format refer to it."""
        self.record(tx, name, plan, [draft], [sent])

    def judge(self, tx: Transaction, arrival: BridgedEnvelope, result: Result) -> Result:
        """`result` with the valid foreign message that its envelope carries as response, after the guardrails of sacp.

        A match in a native result has the same effects. A completed result whose response the guardrails made a failure is
        failed (seed 004, section 9.1). Raises ArtifactNotFetched when the message is in the artifact store.
        """
        for name in FORMATS:
            bridged = self._with_message(name, arrival)
            message, _ = message_in(name, bridged)
            if message is None:
                continue
            delivered = self._deliver(tx, name, bridged)
            if not delivered.native:  # some formats do not deliver results to agents, but the carried message is valid
                response = message if delivered.message is None else delivered.message
                result = msgspec.structs.replace(result, response=response)
                break
        guarded = self._deliver(tx, GUARDED, self._with_message(GUARDED, arrival))
        if is_withheld(guarded) or not guarded.native:
            self._record(tx, arrival, guarded)
        return _withheld(result, guarded) if is_withheld(guarded) else result

    def _deliver(self, tx: Transaction, name: str, arrival: BridgedEnvelope) -> Delivered:
        channel = arrival.envelope.channel
        return self.adapter_of(name).deliver(arrival, self.agents.context(channel), self._history(tx, name, channel))

    def _record(self, tx: Transaction, arrival: BridgedEnvelope, guarded: Delivered) -> None:
        """Add the row of the audit table for a result."""
        envelope = arrival.envelope
        kept = envelope_by_id(tx, envelope.workspace_id, envelope.id, envelope.sender)
        if kept is not None:
            keep_record(tx, GUARDED, "in", guarded, at_ms=kept.received_ms, seq=kept.seq)

    def _fit(self, name: str, draft: Draft) -> Draft:
        """The draft, with a stored message replaced by a reference. Raises ArtifactNotFetched."""
        stored = self._stored.get(_draft_key(name, draft))
        if isinstance(stored, InvalidRequest):
            raise stored
        fitting = draft if stored is None else with_reference(name, draft, {draft.id: stored})
        signed = self.identity.signer_of(fitting.sender) is not None
        if is_too_large(name, fitting, self.link.max_payload, signed=signed):
            raise ArtifactNotFetched(name, fitting)
        return fitting

    def _with_message(self, name: str, arrival: BridgedEnvelope) -> BridgedEnvelope:
        """The envelope with its fetched message, if it refers to one. Raises ArtifactNotFetched."""
        envelope = arrival.envelope
        if not isinstance(reference_in(name, envelope.extensions()), Reference):
            return arrival
        if _draft_key(name, envelope) not in self._fetched:
            raise ArtifactNotFetched(name, envelope)
        return msgspec.structs.replace(arrival, carried=self._fetched[_draft_key(name, envelope)])

    def _history(self, tx: Transaction, name: str, channel: str) -> StoredMessageHistory:
        return StoredMessageHistory(tx, name, self.identity.workspace, channel, self.identity.self_id)


def _withheld(result: Result, guarded: Delivered) -> Result:
    """`result` with the response after guardrails: failed, if it was completed."""
    response: dict[str, Any] = guarded.message or {}
    state: State = "failed" if result.state == "completed" else result.state
    work = {**result.work, "state": state, "message": response["message"]}
    return msgspec.structs.replace(result, state=state, response=response, work=work)


def _draft_key(name: str, what: Draft | Envelope) -> str:
    return f"{name} {what.sender} {what.id}"
