"""A message of our own agent on its way to the bus: judged, turned into envelopes and committed in one transaction."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.bridge import sentient_chain as chains
from aghbus.daemon.bridge.adapters import Formats, agents
from aghbus.daemon.bridge.format_log import LOGS_REFUSED, judged_by_log, keep_record
from aghbus.daemon.bridge.large_messages import is_too_large, moved, put_away
from aghbus.daemon.bridge.refused import MessageRefused
from aghbus.daemon.bridge.sentient_log import SentientLog
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.state.context import Core
from aghbus.protocol.adapters.attachments import MAX_MESSAGE_BYTES, Reference
from aghbus.protocol.adapters.common import OTHER_CHANNEL
from aghbus.protocol.adapters.model import Agents, Finding, Place, Plan
from aghbus.protocol.api.bridge import BridgeSubmitRequest, BridgeSubmitResponse
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.errors import InvalidRequest
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.send import Draft
from aghbus.protocol.text import shorten
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import bridge_messages as bridge
from aghbus.store.tables import quarantine, works
from aghbus.store.tables.bridge_messages import StoreMemory

REASON: Final = "message_refused"  # in quarantine, beside the wire's reason codes
_UNKNOWN: Final = frozenset({"no_work", "parent_unknown", OTHER_CHANNEL})  # on this channel: another one may know more
_DETAIL_CHARS: Final = 512  # ours, of the findings as quarantine keeps them


class Outcome(NamedTuple):
    """What became of a message in its transaction. `bulky` is a draft that fits no envelope: nothing was written then."""

    plan: Plan
    sent: list[SendResponse]
    bulky: Draft | None = None


class HandOver:
    """The way in of all formats."""

    def __init__(self, core: Core, sender: Sender, formats: Formats, artifacts: Artifacts, log: SentientLog) -> None:
        self._core = core
        self._sender = sender
        self._formats = formats
        self._artifacts = artifacts
        self._log = log

    async def take(self, name: str, ask: BridgeSubmitRequest) -> BridgeSubmitResponse:
        """Carry out `ask` for format `name`.

        Raises MessageRefused for a message that breaks rules of its format, Refused when our own copy of a work forbids it,
        InvalidRequest (also `too_large`) and Unavailable.
        """
        self._formats.of(name)
        text = _text(ask)
        if len(text) > MAX_MESSAGE_BYTES:
            raise InvalidRequest(
                f"the message has {len(text)} bytes, of at most {MAX_MESSAGE_BYTES}",
                hint="put large content into the artifact store and send a reference to it",
                code="too_large",
            )
        references: dict[str, Reference] = {}
        while True:
            outcome = await self._sender.send_all(lambda tx, batch: self._job(tx, batch, name, ask, text, references))
            if outcome.bulky is None:
                break
            references[outcome.bulky.id] = await put_away(self._artifacts, name, outcome.bulky)
        return self._answer(name, outcome)

    def _answer(self, name: str, outcome: Outcome) -> BridgeSubmitResponse:
        plan, counters = outcome.plan, self._core.counters
        if plan.refused:
            counters.add("bridge.refused")
            counters.add(f"bridge.refused.{name}")
            raise MessageRefused(name, plan.findings)
        counters.add(f"bridge.{'repeated' if plan.repeats else 'handed_over'}.{name}")
        return BridgeSubmitResponse(
            message=plan.message, findings=list(plan.findings), sent=outcome.sent, repeated=plan.repeats
        )

    def _job(
        self,
        tx: Transaction,
        batch: Batch,
        name: str,
        ask: BridgeSubmitRequest,
        text: bytes,
        references: Mapping[str, Reference],
    ) -> Outcome:
        place, memory, plan = self._planned(tx, name, ask, text)
        if not plan.drafts:
            plan = judged_by_log(tx, name, plan)
        if plan.refused:
            self._refuse(tx, name, text, plan)
            return Outcome(plan, [])
        if plan.repeats:
            return Outcome(plan, _sent_before(batch, place, plan, memory))
        chain = chains.of(tx, self._core, place, plan) if name == chains.NAME else None
        drafts = [moved(name, draft, references) for draft in (chain.drafts if chain is not None else plan.drafts)]
        max_payload = self._core.link.max_payload
        signed = self._core.identities.signer_of(place.us) is not None
        bulky = next((draft for draft in drafts if is_too_large(name, draft, max_payload, signed=signed)), None)
        if bulky is not None:
            return Outcome(plan, [], bulky)
        sent = [batch.send(draft, allow_secrets=True) for draft in drafts]
        self.remember(tx, name, plan, drafts, sent)
        if chain is not None:
            chain.link(tx)
        return Outcome(plan, sent)

    def _planned(
        self, tx: Transaction, name: str, ask: BridgeSubmitRequest, text: bytes
    ) -> tuple[Place, StoreMemory, Plan]:
        """The plan under our id of now, or under an earlier one where it reports on a work of that (spec section 8).

        Where the caller named neither channel nor work: for the first joined channel on which it continues something, else
        the first on which it can be sent.
        """
        core, adapter = self._core, self._formats.of(name)
        channels = _channels(tx, core, ask)
        for us in (*core.identities.former, core.us):
            target = None if ask.target is None else _target(agents(core, channels[0], us), ask.target)
            in_hand = {
                channel: StoreMemory(tx, name, core.workspace, channel, us).in_hand()
                for channel in (channels if len(channels) > 1 else ())
            }
            tried: list[tuple[Place, StoreMemory, Plan]] = []
            for channel in channels:
                elsewhere = tuple(work for other, works in in_hand.items() if other != channel for work in works)
                place = self._place(ask, us, channel, target, elsewhere)
                memory = StoreMemory(tx, name, place.workspace_id, channel, us)
                plan = adapter.hand_over(text, place, memory)
                if not plan.refused and (_continues(plan, memory) or (us == core.us and _answers(plan, memory))):
                    return place, memory, plan
                tried.append((place, memory, plan))
        return min(tried, key=lambda one: _fault(one[2]))

    def _place(
        self, ask: BridgeSubmitRequest, us: str, channel: str, target: str | None, elsewhere: tuple[WorkView, ...]
    ) -> Place:
        core = self._core
        return Place(
            us=us,
            workspace_id=core.workspace,
            channel=channel,
            now=core.clock.seconds(),
            ttl=core.settings.defaults.directed_ttl,
            agents=agents(core, channel, us),
            target=target,
            work_id=ask.work_id,
            key=ask.key,
            elsewhere=elsewhere,
        )

    def _refuse(self, tx: Transaction, name: str, text: bytes, plan: Plan) -> None:
        """Nothing is sent; the message is kept in quarantine with its findings, and in the format's log if that wants it."""
        core = self._core
        limits = core.settings.quarantine
        errors = [f"{found.path} {found.rule}: {found.message}" for found in plan.findings if found.severity == "error"]
        quarantine.add(
            tx,
            raw=text,
            subject=f"bridge/{name}",
            message_id=plan.foreign_id or "",
            sender=core.us,
            reason=REASON,
            detail=shorten("; ".join(errors), _DETAIL_CHARS),
            received_ms=core.clock.millis(),
            max_rows=limits.max_rows,
            max_bytes=limits.max_bytes,
        )
        if plan.record is not None and name in LOGS_REFUSED:
            keep_record(tx, name, "out", plan.record, at_ms=core.clock.millis())

    def remember(self, tx: Transaction, name: str, plan: Plan, drafts: list[Draft], sent: list[SendResponse]) -> None:
        """Note, in the transaction that sent `drafts`, which envelope carried the message, and keep the format's log row.

        It is the envelope that has the message in `ext`, else the last.
        """
        at = next((index for index, draft in enumerate(drafts) if _carries(name, draft)), len(drafts) - 1)
        seq = sent[at].seq if sent else 0
        kept = bridge.kept(tx, seq) if sent else None
        if kept is not None:
            bridge.remember(tx, kept, name, "out", message=plan.message, foreign_id=plan.foreign_id, scope=plan.scope)
        if plan.record is not None:
            wants_file = name == chains.NAME and self._core.settings.sentient.log_root is not None
            keep_record(
                tx,
                name,
                "out",
                plan.record,
                at_ms=self._core.clock.millis(),
                seq=seq,
                message_id=plan.foreign_id,
                unwritten=wants_file,
            )
            if wants_file:
                self._log.note(tx)


def _text(ask: BridgeSubmitRequest) -> bytes:
    """The message as bytes: exactly what the agent wrote, or the value that the request held."""
    if ask.text is not None and ask.message is not None:
        raise InvalidRequest(
            "text: goes without message", hint="`text` is what the agent wrote, `message` its JSON value"
        )
    if ask.text is not None:
        return ask.text.encode()
    if ask.message is None:
        raise InvalidRequest("message: is required (or text)")
    return msgspec.json.encode(ask.message)


def _continues(plan: Plan, memory: StoreMemory) -> bool:
    """Whether something of it belongs to a work that is there already."""
    return any(draft.work_id is not None and memory.work(draft.work_id) is not None for draft in plan.drafts)


def _answers(plan: Plan, memory: StoreMemory) -> bool:
    """Whether something of it answers an envelope that is there already."""
    return any(draft.reply_to is not None and memory.holds(draft.reply_to) for draft in plan.drafts)


def _fault(plan: Plan) -> int:
    """How little a refusal says about what the message is: 0 when there is none, 2 when nothing that it is about is known."""
    errors = {found.rule for found in plan.findings if found.severity == "error"}
    return 0 if not errors else 2 if errors & _UNKNOWN else 1


def _channels(tx: Transaction, core: Core, ask: BridgeSubmitRequest) -> tuple[str, ...]:
    """The channel that the caller named, else that of the work it named, else all that are joined."""
    channels = core.settings.channels
    if ask.channel is not None:
        if ask.channel not in channels:
            raise InvalidRequest(f"channel: {ask.channel} is not joined here", hint=f"joined: {', '.join(channels)}")
        return (ask.channel,)
    if ask.work_id is None:
        return tuple(channels)
    known = [channel for channel in channels if works.load(tx, core.workspace, channel, ask.work_id) is not None]
    return (known[0] if known else channels[0],)


def _target(known: Agents, target: str) -> str:
    peer = known.peer_of(target, "/target")
    if isinstance(peer, Finding):
        raise InvalidRequest(f"target: {peer.message}", hint="name a peer id, or an agent of bridge.agents")
    return peer


def _sent_before(batch: Batch, place: Place, plan: Plan, memory: StoreMemory) -> list[SendResponse]:
    """What was sent when the same message was handed over first."""
    ids = [draft.id for draft in plan.drafts]
    if not ids and plan.foreign_id is not None:
        earlier = memory.find(plan.foreign_id, plan.scope, "out")
        ids = [earlier.envelope_id] if earlier is not None else []
    found = (batch.sent_before(place.workspace_id, message_id) for message_id in ids)
    return [sent for sent in found if sent is not None]


def _carries(name: str, draft: Draft) -> bool:
    ext: Mapping[str, Any] = draft.ext or {}
    return f"{name}.message" in ext or f"{name}.message_ref" in ext
