"""Applies what the protocol decided: the effects of one envelope, in the caller's transaction (spec section 5 step 10).

Everything that can refuse is checked before anything is written: a job that raises has changed nothing. Effects store an
envelope before others of them name it.
"""

from typing import Final, Literal

import msgspec

from aghbus.protocol.agh.bodies import Receipt
from aghbus.protocol.agh.delivery.acks import refusal_in, why_refused
from aghbus.protocol.agh.effects import (
    Advance,
    Bind,
    Deliver,
    Effect,
    Effects,
    Hold,
    Open,
    Queue,
    RecordId,
    Requeue,
    StoreEnvelope,
)
from aghbus.protocol.agh.envelope import OPENING_KINDS, WORK_KINDS, Envelope
from aghbus.protocol.agh.lifecycle import (
    REFUSING_OUTCOMES,
    TERMINAL_STATES,
    TRANSITIONS,
    Transition,
    WorkView,
    event_of,
)
from aghbus.protocol.agh.receipt_target import ReceiptTarget
from aghbus.protocol.agh.receive import StoredState
from aghbus.protocol.agh.rooms import Binding
from aghbus.protocol.api.works import Role
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.memory.events import Appended
from aghbus.store.engine.sql import INTACT_RAW
from aghbus.store.errors import InboxFull
from aghbus.store.tables import envelopes, inbox, outbox, retry, rooms
from aghbus.store.tables.retry import Failed
from aghbus.store.tables.works import lifecycle

_Delivery = Literal["queued", "ready", "dead"] | None
_UNKNOWN: Final = StoredState()
"""Nothing concerns the envelope."""


class Applied(msgspec.Struct):
    """The result: `seq` of the envelope itself (None when it was not kept); `outgoing` envelopes to publish, in order;
    `before` and `after` of the work, where the envelope opened or moved one; `refused`, the envelope of ours that it
    refused; `may_be_due`, whether a work that moved may have a deadline."""

    seq: int | None = None
    outgoing: tuple[outbox.Outgoing, ...] = ()
    delivered: bool = False
    before: WorkView | None = None
    after: WorkView | None = None
    refused: Failed | None = None
    may_be_due: bool = False

    @property
    def queued(self) -> tuple[int, ...]:
        """The sequences of the envelopes to publish."""
        return tuple(row.seq for row in self.outgoing)

    @property
    def last_seq(self) -> int:
        """The highest of these sequences, 0 when there is none."""
        seq = self.seq or 0
        return max(seq, *self.queued) if self.outgoing else seq


def load_state(
    tx: Transaction, envelope: Envelope, self_id: str, key: int | None = None, settled: str = ""
) -> StoredState:
    """The stored state that a decision on a received `envelope` needs; `key` is its `dedup_key`, where that is known,
    `settled` the header with which it came."""
    if key is None:
        key = tx.memory.log.ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
    dedup = tx.memory.dedup
    known = key in dedup.keys or key in dedup.pending
    ours = envelope.sender == self_id and envelopes.was_sent(tx, envelope.workspace_id, envelope.id)
    if not (known or ours or settled) and envelope.work_id is None and envelope.surface != "direct":
        return _UNKNOWN
    return StoredState(known, ours, *load_own(tx, envelope), settled)


def load_own(tx: Transaction, envelope: Envelope) -> tuple[WorkView | None, Binding | None]:
    """The stored state that sending `envelope` needs: its work, and the pair of its direct room."""
    work = None
    if envelope.work_id is not None:
        work = lifecycle.load(tx, envelope.workspace_id, envelope.channel, envelope.work_id)
    room = None
    if envelope.surface == "direct" and envelope.container is not None:
        room = rooms.bound(tx, envelope.workspace_id, envelope.channel, envelope.container)
    return work, room


def load_end(tx: Transaction, envelope: Envelope, work: WorkView | None, self_id: str) -> bytes:
    """Our terminal envelope of the `work` that conversation `envelope` continues; empty if we did not end it, or do not have it."""
    if work is None or work.terminal_sender != self_id or envelope.kind not in OPENING_KINDS:
        return b""
    row = envelopes.find_by_id(tx, INTACT_RAW, work.terminal_id or "", envelopes.OURS, work.workspace_id)
    return b"" if row is None else row[0] or b""


def load_receipt_state(tx: Transaction, target: ReceiptTarget | None) -> StoredState:
    """As `load_state`, for an envelope that failed validation: the state that `protocol.receive.refuse` needs."""
    if target is None:
        return StoredState()
    return StoredState(
        duplicate=tx.memory.log.ids.dedup_key(target.workspace_id, target.sender, target.id) in tx.memory.dedup.keys,
        work=lifecycle.load(tx, target.workspace_id, target.channel, target.work_id),
        room=rooms.bound(tx, target.workspace_id, target.channel, target.container)
        if target.surface == "direct"
        else None,
    )


class Application(msgspec.Struct):
    """Applies the effects of one envelope on the store: `receive`, `refuse` or `send` is called once, and returns the result.

    Those of queued envelopes are applied, too; effects that concern no table are the caller's.
    """

    tx: Transaction
    self_id: str
    now_ms: int
    result: Applied = msgspec.field(default_factory=Applied)

    def refuse(self, effects: Effects) -> Applied:
        """The effects of an envelope that failed validation: nothing of it is stored."""
        for effect in effects:
            self._apply_detached(effect)
        return self.result

    def send(self, envelope: Envelope, effects: Effects) -> Applied:
        """Keeps and queues an envelope of our own agent: `effects` are those of `protocol.send.apply_own`."""
        result = self.result
        if envelope.work_id is not None:
            result.before, result.after = _work_change(effects)
        result.seq = self._queue(envelope, effects, result.before, result.after)
        return result

    def receive(
        self,
        envelope: Envelope,
        effects: Effects,
        key: int | None = None,
        inbox_capacity: int = inbox.CAPACITY,
        *,
        by_other: bool = False,
    ) -> Applied:
        """The effects of a valid envelope; `key` is its `dedup_key` where that is known. `by_other`: a work that it opens is one
        of others.

        Raises InboxFull, before anything is written, when the agent's inbox has no room: the envelope then counts as not
        received. Compares types, the most frequent first: every message passes here.
        """
        tx, result, types = self.tx, self.result, {*map(type, effects)}
        full = tx.memory.inbox.messages.count >= inbox_capacity
        if full and Deliver in types and envelope.kind in OPENING_KINDS:
            raise InboxFull(inbox_capacity)
        delivery: _Delivery = "ready" if Deliver in types else "dead" if Hold in types else None
        if envelope.work_id is not None:
            result.before, result.after = _work_change(effects)
        remembered: tuple[int, int] | None = None
        for effect in effects:
            if type(effect) is RecordId:
                if key is None:
                    key = tx.memory.log.ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
                remembered = key, effect.until
            elif type(effect) is StoreEnvelope:
                result.seq = self._store(envelope, effect, delivery, result.before, result.after, remembered)
                if effect.direction == "in" and envelope.kind in WORK_KINDS:
                    self._record_arrival(envelope, effect.verdict)
            elif type(effect) is Deliver:
                assert result.seq is not None
                group = envelope.channel, envelope.sender, envelope.container, envelope.work_id
                tx.memory.inbox.add(tx, result.seq, envelope.kind, len(envelope.raw), group)
                result.delivered = True
            elif type(effect) is Advance:
                assert result.seq is not None
                result.may_be_due |= lifecycle.advance(self.tx, effect.after, envelope, result.seq, self.now_ms)
                if effect.after.state in TERMINAL_STATES:
                    self._settle_opening(effect.after)
            elif type(effect) is Open or type(effect) is Bind:
                self._begin(envelope, effect, effects, result.seq, by_other=by_other)
            else:
                self._apply_detached(effect)
        return result

    def remember(self, envelope: Envelope, effects: Effects, key: int) -> Applied:
        """The effects of a valid envelope that changes nothing, and is not stored: its id is kept, and what it says of the arrival
        of our own messages. Answers are queued."""
        for effect in effects:
            if type(effect) is RecordId:
                self.tx.memory.dedup.remember(self.tx, key, effect.until)
            elif type(effect) is not StoreEnvelope:
                self._apply_detached(effect)
            elif effect.direction == "in" and envelope.kind in WORK_KINDS:
                self._record_arrival(envelope, effect.verdict)
        return self.result

    def _apply_detached(self, effect: Effect) -> None:
        """Applies an effect that needs at most the sequence of the received envelope."""
        match effect:
            case Hold(restored_ms):
                assert self.result.seq is not None
                inbox.hold(self.tx, self.result.seq, restored_ms)
                audit.note_delivery(self.tx, self.now_ms, self.result.seq, "held")
            case Queue():
                self._queue(effect.envelope, effect.effects, *_work_change(effect.effects))
            case Requeue(workspace_id, message_id, missed):
                row = outbox.requeue(self.tx, workspace_id, message_id, only_failed=missed)
                if row is not None:
                    self.result.outgoing += (row,)
                    audit.note_outgoing(
                        self.tx, self.now_ms, row.seq, "again", "the peer referred to a work that has ended"
                    )

    def _queue(self, envelope: Envelope, effects: Effects, before: WorkView | None, after: WorkView | None) -> int:
        """Stores an own envelope and puts it into the outbox; `before` and `after` are its work. Returns its sequence."""
        seq: int | None = None
        for effect in effects:
            if type(effect) is StoreEnvelope:
                seq = self._store(envelope, effect, "queued", before, after)
            elif type(effect) is Advance:
                assert seq is not None
                self.result.may_be_due |= lifecycle.advance(self.tx, effect.after, envelope, seq, self.now_ms)
                if effect.after.state in TERMINAL_STATES:
                    self._settle_opening(effect.after)
            elif type(effect) is Open or type(effect) is Bind:
                self._begin(envelope, effect, effects, seq)
        assert seq is not None
        self.result.outgoing += (outbox.add(self.tx, seq, envelope),)
        return seq

    def _store(
        self,
        envelope: Envelope,
        effect: StoreEnvelope,
        delivery: _Delivery,
        before: WorkView | None,
        after: WorkView | None,
        remembered: tuple[int, int] | None = None,
    ) -> int:
        verdict, state = effect.verdict, None
        if verdict is not None and before is not None:
            state = before.state
        elif verdict is not None and verdict.outcome in REFUSING_OUTCOMES:
            state = verdict.state
        delivered = delivery == "ready"
        seq = envelopes.insert(
            self.tx, envelope, effect, state, self.now_ms, delivered=delivered, remembered=remembered
        )
        if self.tx.memory.events.subscribers:  # the event for them, once it is committed
            role: Role | None = None
            if before is None and after is not None:
                role = lifecycle.role_of(after, self.self_id)  # the work is written after its envelope
            elif verdict is not None and envelope.work_id is not None:
                role = lifecycle.role(self.tx, envelope.workspace_id, envelope.channel, envelope.work_id)
            row = Appended(seq, envelope, effect, state, self.now_ms, delivery, role)
            self.tx.memory.events.add(self.tx, row)
        return seq

    def _settle_opening(self, work: WorkView) -> None:
        """Our agent need not read the opening of a work that has ended."""
        tx, held = self.tx, self.tx.memory.inbox
        if work.target == self.self_id and (held.waiting or held.holding):
            opening = lifecycle.opened_seq(tx, work)
            if opening is not None and inbox.settle(tx, opening):
                audit.note_delivery(tx, self.now_ms, opening, "acked")

    def _begin(
        self, envelope: Envelope, effect: Bind | Open, effects: Effects, seq: int | None, *, by_other: bool = False
    ) -> None:
        if type(effect) is Bind:
            container = envelope.container or ""
            rooms.bind(self.tx, envelope.workspace_id, envelope.channel, container, effect.binding)
        elif type(effect) is Open:
            assert seq is not None
            stored = effects[[*map(type, effects)].index(StoreEnvelope)]
            assert type(stored) is StoreEnvelope
            trust, now_ms = stored.trust, self.now_ms
            lifecycle.open_work(self.tx, effect.work, envelope, seq, trust, self.self_id, now_ms, by_other=by_other)

    def _record_arrival(self, envelope: Envelope, verdict: Transition | None) -> None:
        """A receipt or trace shows that own messages arrived: the message that it names, and the opening of its
        work. One that refuses a message shows nothing else.

        It says nothing of later messages of the same work, which may not have arrived yet.
        """
        tx, body, workspace_id = self.tx, envelope.body, envelope.workspace_id
        work, answered = self.result.before, {envelope.reply_to, envelope.causation_id}
        if verdict is not None and verdict.reason == "work_closed":
            work = lifecycle.load(tx, workspace_id, envelope.channel, envelope.work_id or "")
        if isinstance(body, Receipt):
            if body.status == "duplicate" and tx.memory.acknowledging.get(envelope.sender):
                return  # the acknowledgement says what became of the first copy, and whether it was this message
            reason = refusal_in(body, work)
            if reason is not None:
                self.result.refused = retry.refuse(
                    tx, workspace_id, body.for_id, envelope.sender, f"by a receipt: {reason}", reason
                )
                return
            answered.add(body.for_id)
        if work is not None and work.initiator == self.self_id:
            answered.add(work.opening_id)
        if work is not None and work.is_terminal:
            self._refuse_own_end(envelope, work)
        for message_id in answered - {None}:
            outbox.mark_receipted(tx, workspace_id, str(message_id), by=envelope.sender)

    def _refuse_own_end(self, envelope: Envelope, work: WorkView) -> None:
        """Both sides ended the work, and in different states: ours came too late for the other participant."""
        state = TRANSITIONS.get(("working", event_of(envelope)))
        if state not in TERMINAL_STATES or state == work.state or work.terminal_sender != self.self_id:
            return
        why, ours = why_refused("work_closed", state), work.terminal_id or ""
        self.result.refused = retry.refuse(self.tx, work.workspace_id, ours, envelope.sender, why, "work_closed")


def _work_change(effects: Effects) -> tuple[WorkView | None, WorkView | None]:
    for effect in effects:
        if type(effect) is Advance:
            return effect.before, effect.after
        if type(effect) is Open:
            return None, effect.work
    return None, None
