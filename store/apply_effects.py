"""Carrying out what the protocol decided: the effects of one envelope, in the caller's transaction (spec section 5
step 10).

Nothing is written before everything that can refuse has been asked, so a job that raises has changed nothing.
"""

from typing import Final, Literal

import msgspec

from aghbus.protocol.api.works import Role
from aghbus.protocol.bodies import Receipt
from aghbus.protocol.effects import (
    Advance,
    Bind,
    Deliver,
    Direction,
    Effect,
    Effects,
    Open,
    Queue,
    RecordId,
    Requeue,
    StoreEnvelope,
)
from aghbus.protocol.envelope import WORK_KINDS, Envelope
from aghbus.protocol.lifecycle import State, Step, WorkView
from aghbus.protocol.receive import ReceiptTarget, StoredState
from aghbus.protocol.rooms import Binding
from aghbus.store.audit import events as audit
from aghbus.store.engine.audit_chain import AuditEvent
from aghbus.store.engine.dedup import dedup_key, key_of
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import envelopes, events, inbox, outbox, rooms, works

_EVENTS: Final[dict[Direction, AuditEvent]] = {"in": "receive", "observed": "receive", "out": "send"}


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What the store did. `seq` of the envelope itself (None when it was not kept), `outgoing` what is to be
    published, in order, what goes out again included; `before` and `after` the work, where the envelope opened or
    moved one."""

    seq: int | None
    outgoing: list[outbox.Outgoing]
    delivered: bool
    before: WorkView | None
    after: WorkView | None

    @property
    def queued(self) -> tuple[int, ...]:
        """The sequences of what is to be published."""
        return tuple(row.seq for row in self.outgoing)

    @property
    def last_seq(self) -> int:
        """The highest of these sequences, 0 when there is none."""
        seq = self.seq or 0
        return max(seq, *self.queued) if self.outgoing else seq


def load_view(tx: Transaction, envelope: Envelope, us: str, key: bytes | None = None) -> StoredState:
    """What the store knows that bears on `envelope`; `us` is our peer id, `key` its `key_of`, where that is known."""
    known = tx.memory.dedup.contains(key_of(envelope) if key is None else key)
    ours = envelope.sender == us and envelopes.was_sent(tx, envelope.workspace_id, envelope.id)
    return StoredState(known, ours, *load_own(tx, envelope))


def load_own(tx: Transaction, envelope: Envelope) -> tuple[WorkView | None, Binding | None]:
    """What bears on sending `envelope`: its work, and the pair that its direct room stands for."""
    work = None
    if envelope.work_id is not None:
        work = works.load(tx, envelope.workspace_id, envelope.channel, envelope.work_id)
    room = None
    if envelope.surface == "direct" and envelope.container is not None:
        room = rooms.bound(tx, envelope.workspace_id, envelope.channel, envelope.container)
    return work, room


def load_source_view(tx: Transaction, source: ReceiptTarget | None) -> StoredState:
    """The same for an envelope that failed validation, as far as it could be read: what `receiving.refuse` asks for."""
    if source is None:
        return StoredState()
    return StoredState(
        duplicate=tx.memory.dedup.contains(dedup_key(source.workspace_id, source.sender, source.id)),
        work=works.load(tx, source.workspace_id, source.channel, source.work_id),
        room=rooms.bound(tx, source.workspace_id, source.channel, source.container)
        if source.surface == "direct"
        else None,
    )


def apply(
    tx: Transaction,
    envelope: Envelope | None,
    effects: Effects,
    *,
    us: str,
    received_ms: int,
    inbox_capacity: int = inbox.CAPACITY,
    key: bytes | None = None,
) -> Applied:
    """Carries out the store's part of `effects`, those of queued envelopes included; the others are the caller's.

    `envelope` is None for one that failed validation (its effects store nothing of it), `key` its `key_of` where
    that is known. Raises InboxFull, before anything is written, when the agent's inbox has no room: it counts as
    not received then.
    """
    if tx.memory.inbox_waiting >= inbox_capacity and any(type(effect) is Deliver for effect in effects):
        inbox.require_room(tx, inbox_capacity)
    run = _Run(tx, us, received_ms)
    if envelope is None:
        for effect in effects:
            run.detached(effect)
    else:
        run.carry_out(envelope, effects, key)
    before, after = run.change
    return Applied(seq=run.seq, outgoing=run.outgoing, delivered=run.delivered, before=before, after=after)


def send(tx: Transaction, envelope: Envelope, effects: Effects, *, us: str, now_ms: int) -> Applied:
    """Keeps and queues an envelope of our own agent: `effects` are those of `sending.apply_own`."""
    run = _Run(tx, us, now_ms)
    seq = run.queue(Queue(envelope, effects, automatic=False))
    before, after = (None, None) if envelope.work_id is None else _work_change(effects)
    return Applied(seq=seq, outgoing=run.outgoing, delivered=False, before=before, after=after)


class _Run:
    """The effects of one envelope being carried out, and what came of it."""

    def __init__(self, tx: Transaction, us: str, now_ms: int) -> None:
        self.tx = tx
        self.us = us
        self.now_ms = now_ms
        self.seq: int | None = None
        self.outgoing: list[outbox.Outgoing] = []
        self.delivered = False
        self.change: tuple[WorkView | None, WorkView | None] = (None, None)

    def carry_out(self, envelope: Envelope, effects: Effects, key: bytes | None) -> None:
        """The usual effects first, and by plain comparison: every message passes here."""
        if envelope.work_id is not None:
            self.change = _work_change(effects)
        tx = self.tx
        for effect in effects:
            if type(effect) is RecordId:
                tx.memory.dedup.remember(tx, key_of(envelope) if key is None else key, effect.until)
            elif type(effect) is StoreEnvelope:
                self.seq = self._store(envelope, effect, effects, self.change[0])
                if effect.direction == "in" and envelope.kind in WORK_KINDS:
                    self._note_arrival(envelope)
            elif type(effect) is Deliver:
                inbox.add(tx, _stored(self.seq))
                self.delivered = True
            elif type(effect) is Bind or type(effect) is Open or type(effect) is Advance:
                self._change(envelope, effect, effects, self.seq)
            else:
                self.detached(effect)

    def detached(self, effect: Effect) -> None:
        """Effects that need nothing of the received envelope."""
        match effect:
            case Queue():
                self.queue(effect)
            case Requeue(workspace_id, message_id):
                row = outbox.requeue(self.tx, workspace_id, message_id)
                if row is not None:
                    self.outgoing.append(row)
                    audit.note_outgoing(self.tx, self.now_ms, row.seq, "again", "somebody spoke of a work that is over")

    def queue(self, effect: Queue) -> int:
        envelope, effects = effect.envelope, effect.effects
        seq: int | None = None
        for own in effects:
            if type(own) is StoreEnvelope:
                before = None if envelope.work_id is None else _work_change(effects)[0]
                seq = self._store(envelope, own, effects, before)
            elif type(own) is Bind or type(own) is Open or type(own) is Advance:
                self._change(envelope, own, effects, seq)
        stored = _stored(seq)
        self.outgoing.append(outbox.add(self.tx, stored, envelope))
        return stored

    def _store(self, envelope: Envelope, effect: StoreEnvelope, effects: Effects, before: WorkView | None) -> int:
        state = None if effect.verdict is None else _state_before(effect.verdict, before)
        seq = envelopes.insert(self.tx, envelope, effect, state, self.now_ms)
        rooms.touch(self.tx, envelope, effect.pair, seq, self.now_ms)
        self._audit(envelope, effect)
        if self.tx.memory.events.has_subscribers:
            self._tell(seq, envelope, effect, effects, state)
        return seq

    def _tell(
        self, seq: int, envelope: Envelope, effect: StoreEnvelope, effects: Effects, before: State | None
    ) -> None:
        """Those who follow, once it is committed."""
        delivery: Literal["queued", "ready"] | None = "queued" if effect.direction == "out" else None
        role: Role | None = None
        for other in effects:
            if type(other) is Deliver:
                delivery = "ready"
            elif type(other) is Open:
                role = works.role_of(other.work, self.us)  # it is written after its envelope
        if role is None and effect.verdict is not None and envelope.work_id is not None:
            role = works.role(self.tx, envelope.workspace_id, envelope.channel, envelope.work_id)
        event = events.new_event(
            envelope,
            effect,
            before,
            seq=seq,
            received_ms=self.now_ms,
            delivery=delivery,
            role=role,
        )
        self.tx.memory.events.pending.append(event)

    def _audit(self, envelope: Envelope, effect: StoreEnvelope) -> None:
        verdict, event = effect.verdict, _EVENTS[effect.direction]
        if verdict is None:
            audit.note_envelope(self.tx, self.now_ms, event, envelope, "kept", None, effect.trust)
        else:
            event = "reject" if verdict.outcome == "rejected" else event
            audit.note_envelope(self.tx, self.now_ms, event, envelope, verdict.outcome, verdict.reason, effect.trust)

    def _change(self, envelope: Envelope, effect: Bind | Open | Advance, effects: Effects, seq: int | None) -> None:
        match effect:
            case Bind(binding):
                container = envelope.container or ""
                rooms.bind(self.tx, envelope.workspace_id, envelope.channel, container, binding)
            case Open():
                trust = next(other.trust for other in effects if isinstance(other, StoreEnvelope))
                works.open_work(self.tx, effect.work, envelope, _stored(seq), trust, self.us, self.now_ms)
            case Advance():
                works.advance(self.tx, effect.after, envelope, _stored(seq), self.now_ms)

    def _note_arrival(self, envelope: Envelope) -> None:
        """Receipts and traces show that what they answer arrived: the message they name, and the opening of their work.

        They say nothing of later messages of the same work, which may still be on their way.
        """
        body = envelope.body
        answered = {body.for_id if isinstance(body, Receipt) else None, envelope.reply_to, envelope.causation_id}
        before, _ = self.change
        if before is not None and before.initiator == self.us:
            answered.add(before.opening_id)
        for message_id in answered - {None}:
            outbox.mark_receipted(self.tx, envelope.workspace_id, str(message_id), by=envelope.sender)


def _state_before(verdict: Step, before: WorkView | None) -> State | None:
    if before is not None:
        return before.state
    return verdict.state if verdict.outcome in ("ignored", "rejected") else None


def _work_change(effects: Effects) -> tuple[WorkView | None, WorkView | None]:
    for effect in effects:
        if type(effect) is Advance:
            return effect.before, effect.after
        if type(effect) is Open:
            return None, effect.work
    return None, None


def _stored(seq: int | None) -> int:
    if seq is None:
        raise ValueError("effects name a stored envelope before they store it")
    return seq
