"""Deciding received messages: the protocol's effects are applied in one transaction for a batch.

The daemon adds limits of receipts, the capacity of the inbox, quarantine rows with their audit rows, deadlines of works, and
leases for waiting agents. A job may be rerun, so it changes state only through the transaction.
"""

from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import msgspec

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.receive.inbox_admission import InboxAdmission
from aghbus.daemon.receive.receipts import Receipts
from aghbus.daemon.receive.received import EARLY, Outcome, ReceivedMessage
from aghbus.daemon.receive.refused import RefusedMessages, note_conflict
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.standing import SHARES, Standing, Standings, allowance
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.delivery.acks import ack_of
from aghbus.protocol.agh.delivery.order import Predecessor
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.effects import (
    Advance,
    Bind,
    Conflict,
    Deliver,
    Early,
    Effect,
    Effects,
    Hold,
    Open,
    Quarantine,
    RecordId,
    StoreEnvelope,
)
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.agh.limits import MAX_LIFETIME, REPLAY_AGE
from aghbus.protocol.agh.receive import ReceiptTarget, Receiver, decide, refuse
from aghbus.protocol.agh.trust.trust import Trust, Verifier
from aghbus.store.apply_effects import Applied, apply, deliver, load_receipt_state, load_state
from aghbus.store.engine.log.dedup import DedupWindow
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.envelopes import received_ack

_NONE: Final[tuple[Envelope, ...]] = ()
_STORED: Final[frozenset[type[Effect]]] = frozenset({RecordId, StoreEnvelope, Bind, Open, Advance, Deliver, Hold})
"""Effects that the store applies completely."""
_LONGEST: Final = MAX_LIFETIME + 2 * REPLAY_AGE  # seconds; no id is kept for so long


class _Shape(NamedTuple):
    """What the types of effects tell: `stored_only` as in Outcome; `plain`: they are those of `deliver`; `delivers`: one is
    Deliver; `bounded`: one is Hold or Early."""

    stored_only: bool
    plain: bool
    delivers: bool
    bounded: bool


_shapes: Final[dict[tuple[type[Effect], ...], _Shape]] = {}


def _shape_of(effects: Effects) -> _Shape:
    types = tuple(map(type, effects))
    shape = _shapes.get(types)
    if shape is None:
        plain, bounded = types == (RecordId, StoreEnvelope, Deliver), Hold in types or Early in types
        shape = _shapes[types] = _Shape(_STORED.issuperset(types), plain, Deliver in types, bounded)
    return shape


@dataclass(frozen=True, slots=True, eq=False)
class Receivers:
    """The protocol's view of us, for messages to each of our peer ids. `restored` is the epoch of the store, if it was restored."""

    identity: Identity
    settings: LiveSettings
    clock: Clock
    trust: LivePolicy
    restored: Restored | None

    def of(self, own_id: str, verifier: Verifier, tx: Transaction | None = None) -> Receiver:
        """The protocol's view of us as `own_id`; as our present id, if that one has retired meanwhile or is not ours.

        With `tx` it knows which envelopes were processed.
        """
        identity, settings = self.identity, self.settings.current
        present = own_id == identity.self_id or own_id not in identity.signers
        if present:
            own_id = identity.self_id
        view = Receiver(
            self_id=own_id,
            now=self.clock.millis() // 1000,
            mint=self.clock.mint,
            channels=identity.joined,
            observe=settings.observe,
            receipt_ttl=settings.defaults.directed_ttl,
            verifier=verifier,
            policy=self.trust.now,
            signer=identity.signers[own_id],
            successor=None if present else identity.self_id,
            restored=self.restored,
        )
        return (
            view
            if tx is None
            else msgspec.structs.replace(
                view, processed=partial(_is_processed, tx), predecessor=partial(_predecessor, tx, own_id)
            )
        )


class Decider:
    """Decides batches of received messages inside a write job."""

    def __init__(
        self,
        settings: LiveSettings,
        standings: Standings,
        receivers: Receivers,
        receipts: Receipts,
        refused: RefusedMessages,
        trust: LivePolicy,
        closer: WorkCloser,
        deadlines: Deadlines,
        waiters: InboxWaiters,
        admission: InboxAdmission,
    ) -> None:
        self._settings = settings
        self._standings = standings
        self._receivers = receivers
        self._receipts = receipts
        self._refused = refused
        self._trust = trust
        self._closer = closer
        self._deadlines = deadlines
        self._waiters = waiters
        self._admission = admission
        self._latest_effects: Effects = ()
        self._latest_shape = _shape_of(())

    def standing(self, envelope: Envelope, effects: Effects) -> Standing:
        """The standing of a sender by what was decided about its envelope."""
        refused = next((each for each in effects if type(each) is Quarantine), None)
        trust: Trust | None = "verified" if "@" in envelope.sender else "unverified"
        return self._standings.of(envelope.sender, trust if refused is None else refused.trust)

    def admits_id(self, window: DedupWindow, remaining: int, standing: Standing, pending: int = 0) -> bool:
        """Whether the dedup window has room for an id that is kept for `remaining` seconds; `pending` ids are not in it yet."""
        return window.admits(remaining, allowance(self._settings.current.receive.remembered, standing) - pending)

    def decide_all(self, tx: Transaction, batch: list[ReceivedMessage], verifier: Verifier) -> list[Outcome]:
        """A write job: decide and apply each message in turn, and lease delivered ones to waiting agents.

        `verifier` knows the result for each proof of the batch: it spends nothing.
        """
        receivers: dict[str, Receiver] = {}
        outcomes: list[Outcome] = []
        # Whether window and inbox have room for all of them, even from one unknown sender: then none has to be compared with the
        # bounds.
        count, size = len(batch), sum([len(message.raw) for message in batch])
        ids = int(self._settings.current.receive.remembered * SHARES["unknown"])
        has_room = tx.memory.dedup.admits(_LONGEST, ids, count) and self._admission.has_room(tx, count, size)
        for message in batch:
            receiver = receivers.get(message.own_id)
            if receiver is None:
                receiver = receivers[message.own_id] = self._receivers.of(message.own_id, verifier, tx)
            outcomes.append(self._decide(tx, message, receiver, has_room))
        if self._waiters.waiting:
            self._offer(tx, outcomes)
        return outcomes

    def _offer(self, tx: Transaction, outcomes: list[Outcome]) -> None:
        """Lease delivered messages to waiting agents, in the same transaction."""
        delivered = [
            (outcome.applied.seq, outcome.message.envelope.work_id)
            for outcome in outcomes
            if outcome.applied is not None and outcome.applied.delivered and outcome.message.envelope is not None
        ]
        self._waiters.offer(tx, [(seq, work_id) for seq, work_id in delivered if seq is not None])

    def _decide(self, tx: Transaction, message: ReceivedMessage, receiver: Receiver, has_room: bool) -> Outcome:
        envelope, settings, ack = message.envelope, self._settings.current, None
        if envelope is None:
            return self._refuse(tx, message, receiver)
        key = tx.memory.log.ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
        state = load_state(tx, envelope, receiver.self_id, key, message.settled)
        effects = decide(envelope, state, receiver)
        if effects is not self._latest_effects:  # plain messages share theirs
            self._latest_effects, self._latest_shape = effects, _shape_of(effects)
        shape = self._latest_shape
        if shape.delivers and envelope.kind not in OPENING_KINDS and not self._admission.admits_reaction(tx, envelope):
            effects = tuple(effect for effect in effects if type(effect) is not Deliver)
        if message.reply and envelope.to is not None:  # of a duplicate: what became of the first copy
            ack = received_ack(tx, envelope) if state.duplicate else ack_of(envelope, effects)
        if (not has_room or shape.bounded) and (
            limit := self._over_limit(tx, envelope, effects, receiver.now, settings)
        ):
            return Outcome(message, (), rejected=limit)
        receipts = _NONE
        if not shape.stored_only:
            effects, receipts = self._record(tx, message, effects, self.standing(envelope, effects))
        if shape.plain and envelope.work_id is None:
            record, stored, _ = effects
            assert type(record) is RecordId and type(stored) is StoreEnvelope
            applied = deliver(tx, envelope, record, stored, message.received_ms, key)
        else:
            applied = apply(
                tx,
                envelope,
                effects,
                self_id=receiver.self_id,
                received_ms=message.received_ms,
                inbox_capacity=settings.inbox.capacity,
                key=key,
            )
        if applied.after is not None or applied.refused is not None or "@" in envelope.sender:
            self._note(tx, envelope, effects, applied)
        if ARMED:
            failpoint("receive.decided")
        return Outcome(message, effects, applied, "", shape.stored_only, ack, receipts)

    def _over_limit(self, tx: Transaction, envelope: Envelope, effects: Effects, now: int, settings: Settings) -> str:
        """Why the message is rejected, as `Outcome.rejected`; empty if it is not."""
        memory = tx.memory
        for effect in effects:
            if type(effect) is RecordId:
                window, remaining = memory.dedup, effect.until - now
                for_everybody = window.admits(remaining, int(settings.receive.remembered * SHARES["unknown"]))
                if not for_everybody and not self.admits_id(window, remaining, self.standing(envelope, effects)):
                    return "memory"
            elif type(effect) is Deliver:
                if rejection := self._admission.rejection(tx, envelope, effects):
                    return rejection
            elif type(effect) is Hold:
                if rejection := self._admission.rejection_of_held(tx):
                    return rejection
            elif type(effect) is Early:
                return EARLY
        return ""

    def _refuse(self, tx: Transaction, message: ReceivedMessage, receiver: Receiver) -> Outcome:
        """The result of a message that is no valid envelope."""
        assert message.error is not None
        effects = refuse(message.error, message.target, load_receipt_state(tx, message.target), receiver)
        effects, receipts = self._record(tx, message, effects, "unknown")
        applied = apply(tx, None, effects, self_id=receiver.self_id, received_ms=message.received_ms)
        if ARMED:
            failpoint("receive.decided")
        return Outcome(message, effects, applied, receipts=receipts)

    def _note(self, tx: Transaction, envelope: Envelope, effects: Effects, applied: Applied) -> None:
        if applied.after is not None:
            self._deadlines.note(tx, envelope, applied)
        if applied.refused is not None:
            applied.outgoing += tuple(self._closer.after_failure(tx, applied.refused))
            tx.after_commit(self._waiters.wake_all)
        if "@" in envelope.sender:
            self._trust.observe(tx, envelope, effects)

    def _record(
        self, tx: Transaction, message: ReceivedMessage, effects: Effects, standing: Standing
    ) -> tuple[Effects, tuple[Envelope, ...]]:
        """Apply the effects that the daemon adds to the store's. Returns as `Receipts.separate`."""
        effects, receipts = self._receipts.separate(tx, message.envelope, effects, standing, message.received_ms)
        for effect in effects:
            if isinstance(effect, Quarantine):
                if message.keep and (message.envelope is None or self._refused.may_keep_in(tx, standing)):
                    self._refused.keep(tx, message, effect)
                else:
                    tx.after_commit(self._refused.skip)
            elif isinstance(effect, Conflict):
                note_conflict(tx, effect.envelope, message.received_ms)
        return effects, receipts


def _predecessor(tx: Transaction, own_id: str, target: ReceiptTarget) -> Predecessor | None:
    return tx.memory.streams.predecessor((target.workspace_id, target.channel, own_id, target.sender, target.container))


def _is_processed(tx: Transaction, workspace_id: str, sender: str, message_id: str) -> bool:
    return tx.memory.log.ids.dedup_key(workspace_id, sender, message_id) in tx.memory.dedup.keys
