"""Submits messages of our agent: validates each, translates it into envelopes and commits them in one transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, NoReturn

import msgspec

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.bridge import sentient_chain as sentient
from aghbus.daemon.bridge.adapters import AgentDirectory, FormatAdapters
from aghbus.daemon.bridge.format_log import FORMATS_LOGGING_REFUSED, check_log_duplicate
from aghbus.daemon.bridge.large_messages import is_too_large, store_large, with_reference
from aghbus.daemon.bridge.log_files import LogFiles
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.nats.link import Link
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.bridge import BridgeSubmitRequest, BridgeSubmitResponse, MessageRefused
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.protocol.base.text import shorten
from aghbus.protocol.formats.attachments import MAX_MESSAGE_BYTES, Reference
from aghbus.protocol.formats.common import OTHER_CHANNEL
from aghbus.protocol.formats.model import AgentMap, BridgeContext, Finding, SubmitPlan
from aghbus.protocol.formats.sentient.join import branches_in
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import quarantine
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.bridge.messages import StoredMessageHistory
from aghbus.store.tables.works import lifecycle

REASON: Final = "message_refused"  # in quarantine, in addition to the reason codes of the protocol
# Another channel may have the work.
_NOT_ON_THIS_CHANNEL: Final = frozenset({"no_work", "parent_unknown", OTHER_CHANNEL})
_DETAIL_CHARS: Final = 512  # of the findings as quarantine keeps them


class SubmitOutcome(NamedTuple):
    """The result of the transaction for one message."""

    plan: SubmitPlan
    sent: list[SendResponse]


class _Undone(Exception):
    """The transaction is rolled back: the message `index` is refused, or its draft `oversized` does not fit an envelope."""

    def __init__(self, plan: SubmitPlan, index: int, text: bytes, oversized: Draft | None = None) -> None:
        super().__init__()
        self.plan, self.index, self.text, self.oversized = plan, index, text, oversized


@dataclass(frozen=True, slots=True, eq=False)
class MessageSubmitter:
    """Submits messages of every format."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    link: Link
    counters: Counters
    agents: AgentDirectory
    sender: Sender
    formats: FormatAdapters
    artifacts: Artifacts
    log: LogFiles

    async def submit(self, name: str, ask: BridgeSubmitRequest) -> BridgeSubmitResponse:
        """Submit the message in `ask` in format `name`.

        An array of sentient messages is submitted in one transaction. Raises MessageRefused for a message that breaks rules
        of its format, Refused when the state of a work forbids it, InvalidRequest (also `too_large`) and Unavailable.
        """
        self.formats.get(name)
        text = _text(ask)
        if len(text) > MAX_MESSAGE_BYTES:
            raise InvalidRequest(
                f"the message has {len(text)} bytes, of at most {MAX_MESSAGE_BYTES}",
                hint="put large content into the artifact store and send a reference to it",
                code="too_large",
            )
        texts = branches_in(text) if name == sentient.NAME else (text,)
        references: dict[str, Reference] = {}
        while True:
            try:
                outcomes = await self.sender.send_all(
                    lambda tx, batch: self._submit_all(tx, batch, name, ask, texts, references)
                )
                return self._answer(name, outcomes)
            except _Undone as undone:
                if undone.oversized is None:
                    await self._refuse(name, undone, at=None if len(texts) == 1 else undone.index)
                else:
                    references[undone.oversized.id] = await store_large(self.artifacts, name, undone.oversized)

    def _answer(self, name: str, outcomes: list[SubmitOutcome]) -> BridgeSubmitResponse:
        single = len(outcomes) == 1
        plans = [outcome.plan for outcome in outcomes]
        for plan in plans:
            self.counters.add(f"bridge.{'repeated' if plan.repeats else 'submitted'}.{name}")
        return BridgeSubmitResponse(
            message=plans[0].message if single else [plan.message for plan in plans],
            findings=[one for index, plan in enumerate(plans) for one in _at(None if single else index, plan.findings)],
            sent=[sent for outcome in outcomes for sent in outcome.sent],
            repeated=all(plan.repeats for plan in plans),
        )

    def _submit_all(
        self,
        tx: Transaction,
        batch: Batch,
        name: str,
        ask: BridgeSubmitRequest,
        texts: tuple[bytes, ...],
        references: Mapping[str, Reference],
    ) -> list[SubmitOutcome]:
        """Submit messages in order. Raises _Undone, so that nothing is written, when one of them cannot be sent."""
        return [
            self._submit_in(tx, batch, name, ask, (index, text), references, branch=len(texts) > 1)
            for index, text in enumerate(texts)
        ]

    def _submit_in(
        self,
        tx: Transaction,
        batch: Batch,
        name: str,
        ask: BridgeSubmitRequest,
        part: tuple[int, bytes],
        references: Mapping[str, Reference],
        *,
        branch: bool,
    ) -> SubmitOutcome:
        context, history, plan = self._plan(tx, name, ask, part[1])
        if not plan.drafts:
            plan = check_log_duplicate(tx, name, plan)
        if plan.refused:
            raise _Undone(plan, *part)
        if plan.repeats:
            return SubmitOutcome(plan, _sent_before(batch, context, plan, history))
        chain = None
        if name == sentient.NAME:
            settings, self_id = self.settings.current.sentient, self.identity.self_id
            chain = sentient.of(tx, context, plan, self_id=self_id, settings=settings, branch=branch)
        drafts = [
            with_reference(name, draft, references) for draft in (chain.drafts if chain is not None else plan.drafts)
        ]
        max_payload = self.link.max_payload
        signed = self.identity.signer_of(context.us) is not None
        oversized = next((draft for draft in drafts if is_too_large(name, draft, max_payload, signed=signed)), None)
        if oversized is not None:
            raise _Undone(plan, *part, oversized)
        sent = [batch.send(draft, allow_secrets=True, replace_secrets=True) for draft in drafts]
        self.remember(tx, name, plan, drafts, sent)
        if chain is not None:
            chain.link(tx)
        return SubmitOutcome(plan, sent)

    def _plan(
        self, tx: Transaction, name: str, ask: BridgeSubmitRequest, text: bytes
    ) -> tuple[BridgeContext, StoredMessageHistory, SubmitPlan]:
        """The plan under our current id, or under a former one that the message continues a work of (spec section 8).

        Where the caller named neither channel nor work: on the first joined channel where the message continues a work, else
        on the first where it can be sent.
        """
        adapter = self.formats.get(name)
        channels = self._channels(tx, ask)
        for us in (*self.identity.former, self.identity.self_id):
            target = None if ask.target is None else _target(self.agents.on(channels[0], us), ask.target)
            assigned = {
                channel: StoredMessageHistory(tx, name, self.identity.workspace, channel, us).assigned_works()
                for channel in (channels if len(channels) > 1 else ())
            }
            tried: list[tuple[BridgeContext, StoredMessageHistory, SubmitPlan]] = []
            for channel in channels:
                other_channel_works = tuple(
                    work for other, works in assigned.items() if other != channel for work in works
                )
                context = msgspec.structs.replace(
                    self.agents.context(channel, us),
                    target=target,
                    work_id=ask.work_id,
                    key=ask.key,
                    other_channel_works=other_channel_works,
                )
                history = StoredMessageHistory(tx, name, context.workspace_id, channel, us)
                plan = adapter.submit(text, context, history)
                current = us == self.identity.self_id
                if not plan.refused and (_continues(plan, history) or (current and _answers(plan, history))):
                    return context, history, plan
                tried.append((context, history, plan))
        return min(tried, key=lambda one: _refusal_rank(one[2]))

    async def _refuse(self, name: str, undone: _Undone, *, at: int | None) -> NoReturn:
        """Put the message into quarantine with its findings, and into the format's log if that logs refused messages. Raises
        MessageRefused; `at` is the index of the message when several were submitted together."""
        plan, limits = undone.plan, self.settings.current.quarantine
        errors = [f"{found.path} {found.rule}: {found.message}" for found in plan.findings if found.severity == "error"]

        def job(tx: Transaction, _batch: Batch) -> None:
            quarantine.add(
                tx,
                raw=undone.text,
                subject=f"bridge/{name}",
                message_id=plan.foreign_id or "",
                sender=self.identity.self_id,
                reason=REASON,
                detail=shorten("; ".join(errors), _DETAIL_CHARS),
                received_ms=self.clock.millis(),
                max_rows=limits.max_rows,
                max_bytes=limits.max_bytes,
            )
            if name in FORMATS_LOGGING_REFUSED:
                self.log.keep_sent(tx, name, plan)

        await self.sender.send_all(job)
        self.counters.add("bridge.refused")
        self.counters.add(f"bridge.refused.{name}")
        raise MessageRefused(name, _at(at, plan.findings))

    def remember(
        self, tx: Transaction, name: str, plan: SubmitPlan, drafts: list[Draft], sent: list[SendResponse]
    ) -> None:
        """Record, in the transaction that sent `drafts`, which envelope carried the message, and add the format's log row.

        That is the envelope that has the message in `ext`, else the last one.
        """
        at = next((index for index, draft in enumerate(drafts) if _carries(name, draft)), len(drafts) - 1)
        seq = sent[at].seq if sent else 0
        kept = bridge.load_envelope(tx, seq) if sent else None
        if kept is not None:
            bridge.remember(tx, kept, name, "out", message=plan.message, foreign_id=plan.foreign_id, scope=plan.scope)
        self.log.keep_sent(tx, name, plan, seq)

    def _channels(self, tx: Transaction, ask: BridgeSubmitRequest) -> tuple[str, ...]:
        """The channel that the caller named, else that of the named work, else all joined channels."""
        channels = self.settings.current.channels
        if ask.channel is not None:
            if ask.channel not in channels:
                raise InvalidRequest(
                    f"channel: {ask.channel} is not joined here", hint=f"joined: {', '.join(channels)}"
                )
            return (ask.channel,)
        if ask.work_id is None:
            return tuple(channels)
        known = [
            channel
            for channel in channels
            if lifecycle.load(tx, self.identity.workspace, channel, ask.work_id) is not None
        ]
        return (known[0] if known else channels[0],)


def _at(index: int | None, findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings of one message, with paths into the array of messages when it has an index."""
    if index is None:
        return tuple(findings)
    return tuple(msgspec.structs.replace(found, path=f"/{index}{found.path}") for found in findings)


def _text(ask: BridgeSubmitRequest) -> bytes:
    """The message as bytes: `text` as written, else `message` as JSON."""
    if ask.text is not None and ask.message is not None:
        raise InvalidRequest(
            "text: excludes message", hint="`text` is the raw text of the agent, `message` its JSON value"
        )
    if ask.text is not None:
        return ask.text.encode()
    if ask.message is None:
        raise InvalidRequest("message: is required (or text)")
    return msgspec.json.encode(ask.message)


def _continues(plan: SubmitPlan, history: StoredMessageHistory) -> bool:
    """Whether any draft belongs to an existing work."""
    return any(draft.work_id is not None and history.work(draft.work_id) is not None for draft in plan.drafts)


def _answers(plan: SubmitPlan, history: StoredMessageHistory) -> bool:
    """Whether any draft replies to a stored envelope."""
    return any(draft.reply_to is not None and history.holds(draft.reply_to) for draft in plan.drafts)


def _refusal_rank(plan: SubmitPlan) -> int:
    """Rank of a plan when several channels were tried: 0 not refused, 1 refused, 2 refused since its work is not known here."""
    errors = {found.rule for found in plan.findings if found.severity == "error"}
    return 0 if not errors else 2 if errors & _NOT_ON_THIS_CHANNEL else 1


def _target(known: AgentMap, target: str) -> str:
    peer = known.peer_of(target, "/target")
    if isinstance(peer, Finding):
        raise InvalidRequest(f"target: {peer.message}", hint="name a peer id, or an agent of bridge.agents")
    return peer


def _sent_before(
    batch: Batch, context: BridgeContext, plan: SubmitPlan, history: StoredMessageHistory
) -> list[SendResponse]:
    """The envelopes sent when the same message was submitted first."""
    ids = [draft.id for draft in plan.drafts]
    if not ids and plan.foreign_id is not None:
        earlier = history.find(plan.foreign_id, plan.scope, "out")
        ids = [earlier.envelope_id] if earlier is not None else []
    found = (batch.sent_before(context.workspace_id, message_id) for message_id in ids)
    return [sent for sent in found if sent is not None]


def _carries(name: str, draft: Draft) -> bool:
    ext: Mapping[str, Any] = draft.ext or {}
    return f"{name}.message" in ext or f"{name}.message_ref" in ext
