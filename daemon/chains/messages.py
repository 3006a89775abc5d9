"""What chains need of the foreign formats: the opening message of a node, and the message that a result carries."""

import json
from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.bridge.adapters import agents
from aghbus.daemon.bridge.large_messages import fetch_large, is_too_large, store_large, with_reference
from aghbus.daemon.state.context import Core
from aghbus.protocol.adapters.attachments import Reference, reference_in
from aghbus.protocol.adapters.attachments import carried_message as message_in
from aghbus.protocol.adapters.model import Adapter, BridgeContext, BridgedEnvelope, SubmitPlan
from aghbus.protocol.adapters.registry import FORMATS
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import InvalidRequest
from aghbus.protocol.send import Draft
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import works
from aghbus.store.tables.bridge_messages import StoredMessageHistory

Remember = Callable[[Transaction, str, SubmitPlan, list[Draft], list[SendResponse]], None]
"""Keeps what the bridge keeps of a message that was handed over, within its transaction: memory and the format's log."""

_OPENS: Final = frozenset({"say", "capability"})


class ArtifactNotFetched(Exception):
    """A transaction needs the artifact store first: for the message of `what`, an opening that fits no envelope or a result
    that refers to its message. Nothing was written; `ChainMessages.transfer` and try again."""

    def __init__(self, name: str, what: Draft | Envelope) -> None:
        super().__init__(f"the {name} message of {what.id} is in the artifact store, or has to be")
        self.name = name
        self.what = what

    @property
    def key(self) -> str:
        """Names them: ids are unique for each sender, and an envelope may refer to messages of several formats."""
        return _draft_key(self.name, self.what)


class ChainMessages:
    """The adapters as the daemon's settings have them, over the bridge's memory."""

    def __init__(
        self, core: Core, adapter_of: Callable[[str], Adapter], remember: Remember, artifacts: Artifacts
    ) -> None:
        """`adapter_of` a name gives the adapter with the options of now; `remember` notes what was handed over."""
        self._core = core
        self._adapter_of = adapter_of
        self._remember = remember
        self._artifacts = artifacts
        self._stored: dict[str, Reference | InvalidRequest] = {}
        self._fetched: dict[str, Any] = {}

    async def transfer(self, needed: ArtifactNotFetched) -> None:
        """Put an opening's message into the artifact store, or fetch a result's; what cannot be done is known then, too.

        A result whose message cannot be had counts as native, as everywhere. Raises Unreachable: nothing is known.
        """
        if isinstance(needed.what, Envelope):
            message, _ = await fetch_large(self._artifacts, needed.name, needed.what.extensions())
            self._fetched[needed.key] = message
            return
        try:
            self._stored[needed.key] = await store_large(self._artifacts, needed.name, needed.what)
        except InvalidRequest as error:
            self._stored[needed.key] = error

    def forget(self, transferred: Iterable[ArtifactNotFetched]) -> None:
        """The transaction that needed them is through."""
        for needed in transferred:
            self._stored.pop(needed.key, None)
            self._fetched.pop(needed.key, None)

    def opening(
        self, tx: Transaction, name: str, message: Any, channel: str, peer: str, key: str
    ) -> tuple[SubmitPlan, Draft]:
        """What the message of format `name` becomes, and the one envelope that opens work for `peer`.

        `key` tells equal openings apart. Raises ChainError when the format refuses it, or it does anything else, Elsewhere when
        it fits no envelope.
        """
        text = json.dumps(message, ensure_ascii=False).encode()
        context = self._place(channel, peer, key)
        plan = self._adapter_of(name).submit(text, context, self._memory(tx, name, channel))
        for finding in plan.findings:
            if finding.severity == "error":
                raise ChainError("refused", f"no valid {name} message: {finding.path or 'it'}: {finding.message}")
        if plan.repeats or len(plan.drafts) != 1:
            raise ChainError("refused", f"the {name} message does not open one new work")
        draft = plan.drafts[0]
        if draft.kind not in _OPENS or draft.work_id is None or draft.to != peer:
            raise ChainError("refused", f"the {name} message opens no work for {peer} (but goes to {draft.to})")
        if works.load(tx, draft.workspace_id, draft.channel, draft.work_id) is not None:
            raise ChainError("refused", f"the {name} message continues work {draft.work_id}")
        return plan, self._fit(name, draft)

    def remember(self, tx: Transaction, name: str, plan: SubmitPlan, draft: Draft, sent: SendResponse) -> None:
        """The opening went out: the format's answers refer to it, and its log has it."""
        self._remember(tx, name, plan, [draft], [sent])

    def carried_message(self, tx: Transaction, arrival: BridgedEnvelope) -> Any | None:
        """The foreign message that a result carries and that holds; None: the result counts as native.

        Raises Elsewhere when it lies in the artifact store.
        """
        envelope = arrival.envelope
        for name in FORMATS:
            told = self._with_message(name, arrival)
            message, _ = message_in(name, told)
            if message is None:
                continue
            context = self._place(envelope.channel, None, None)
            delivered = self._adapter_of(name).deliver(told, context, self._memory(tx, name, envelope.channel))
            if (
                not delivered.native
            ):  # None too: agents of some formats are not handed results, which are valid all the same
                return message if delivered.message is None else delivered.message
        return None

    def _fit(self, name: str, draft: Draft) -> Draft:
        """The draft as it fits an envelope."""
        put = self._stored.get(_draft_key(name, draft))
        if isinstance(put, InvalidRequest):
            raise put
        fitting = draft if put is None else with_reference(name, draft, {draft.id: put})
        signed = self._core.identities.signer_of(fitting.sender) is not None
        if is_too_large(name, fitting, self._core.link.max_payload, signed=signed):
            raise ArtifactNotFetched(name, fitting)
        return fitting

    def _with_message(self, name: str, arrival: BridgedEnvelope) -> BridgedEnvelope:
        """The arrival with the message that it refers to, where it does."""
        envelope = arrival.envelope
        if not isinstance(reference_in(name, envelope.extensions()), Reference):
            return arrival
        if _draft_key(name, envelope) not in self._fetched:
            raise ArtifactNotFetched(name, envelope)
        return msgspec.structs.replace(arrival, carried=self._fetched[_draft_key(name, envelope)])

    def _memory(self, tx: Transaction, name: str, channel: str) -> StoredMessageHistory:
        return StoredMessageHistory(tx, name, self._core.workspace, channel, self._core.us)

    def _place(self, channel: str, peer: str | None, key: str | None) -> BridgeContext:
        core = self._core
        return BridgeContext(
            us=core.us,
            workspace_id=core.workspace,
            channel=channel,
            now=core.clock.seconds(),
            ttl=core.settings.defaults.directed_ttl,
            agents=agents(core, channel),
            target=peer,
            key=key,
        )


def _draft_key(name: str, what: Draft | Envelope) -> str:
    return f"{name} {what.sender} {what.id}"
