"""Deciding received messages: the protocol's effects are applied in one transaction for a batch.

The daemon adds limits of receipts, the capacity of the inbox, quarantine rows with their audit rows, deadlines of works, and
leases for waiting agents. A job may be rerun, so it changes state only through the transaction.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec

from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.receive.inbox_admission import InboxAdmission
from aghbus.daemon.receive.receipt_policy import ReceiptPolicy
from aghbus.daemon.receive.received import EARLY, Outcome, ReceivedMessage
from aghbus.daemon.receive.refused import RefusedMessages, note_conflict
from aghbus.daemon.send.closing import AUTOMATIC
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.lanes import PARTS, Lane, Lanes, allowance
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.delivery.acks import ack_of, may_answer
from aghbus.protocol.agh.delivery.order import Predecessor
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.effects import (
    Advance,
    Bind,
    Deliver,
    Early,
    Effect,
    Effects,
    Hold,
    Open,
    PeerIdConflict,
    Quarantine,
    RecordId,
    StoreEnvelope,
)
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.agh.lifecycle import REFUSING_OUTCOMES
from aghbus.protocol.agh.limits import MAX_LIFETIME, REPLAY_AGE
from aghbus.protocol.agh.receipt_target import ReceiptTarget
from aghbus.protocol.agh.receive import Receiver, decide, refuse, turn_away
from aghbus.protocol.agh.trust.trust import Trust, Verifier
from aghbus.store.apply_effects import Application, Applied, load_end, load_receipt_state, load_state
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.dedup import DedupWindow
from aghbus.store.tables.envelopes import received_ack
from aghbus.store.tables.outbox import Outgoing

_NONE: Final[tuple[Envelope, ...]] = ()
_STORED: Final[frozenset[type[Effect]]] = frozenset({RecordId, StoreEnvelope, Bind, Open, Advance, Deliver, Hold})
"""Effects that the store applies completely."""
_LONGEST: Final = MAX_LIFETIME + 2 * REPLAY_AGE  # seconds; no id is kept for so long


class Receivers:
    """Makes the receiver of messages to one of our peer ids, as of now."""

    def __init__(self, context: DaemonContext, lanes: Lanes, trust: LivePolicy, restored: Restored | None) -> None:
        """`restored` is the epoch of the store, if it was restored."""
        self._lanes = lanes
        self._identity = context.identity
        self._settings = context.settings
        self._clock = context.clock
        self._trust = trust
        self._restored = restored

    def of(self, own_id: str, verifier: Verifier, tx: Transaction | None = None) -> Receiver:
        """The protocol's view of us as `own_id`; as our present id, if that one has retired meanwhile or is not ours.

        With `tx` it knows which envelopes were processed.
        """
        identity, settings = self._identity, self._settings.current
        present = own_id == identity.self_id or own_id not in identity.signers
        if present:
            own_id = identity.self_id
        view = Receiver(
            self_id=own_id,
            now=self._clock.millis() // 1000,
            mint=partial(self._clock.mint, AUTOMATIC),
            channels=identity.joined,
            observe=settings.observe,
            receipt_ttl=settings.defaults.directed_ttl,
            verifier=verifier,
            policy=self._trust.now,
            signer=identity.signers[own_id],
            successor=None if present else identity.self_id,
            restored=self._restored,
        )
        return (
            view
            if tx is None
            else msgspec.structs.replace(
                view, processed=partial(_is_processed, tx), predecessor=partial(self._predecessor, tx, own_id)
            )
        )

    def _predecessor(self, tx: Transaction, own_id: str, to: ReceiptTarget) -> Predecessor | None:
        if not self._lanes.is_contact(to.sender):  # the receipt is not stored
            return None
        return tx.memory.flows.predecessor((to.workspace_id, to.channel, own_id, to.sender, to.container))


Enqueue = Callable[[Sequence[Outgoing]], object]
"""Publishes the rows that a commit has queued."""


class Decider:
    """Decides batches of received messages inside a write job."""

    def __init__(
        self,
        settings: LiveSettings,
        lanes: Lanes,
        receivers: Receivers,
        receipts: ReceiptPolicy,
        refused: RefusedMessages,
        trust: LivePolicy,
        publisher: Publisher,
        deadlines: Deadlines,
        waiters: InboxWaiters,
        admission: InboxAdmission,
    ) -> None:
        self._settings = settings
        self._lanes = lanes
        self._receivers = receivers
        self._receipt_policy = receipts
        self._refused = refused
        self._trust = trust
        self._publisher = publisher
        self._deadlines = deadlines
        self._waiters = waiters
        self._admission = admission

    def lane(self, envelope: Envelope, effects: Effects) -> Lane:
        """The lane of a sender by what was decided about its envelope."""
        refused = next((each for each in effects if type(each) is Quarantine), None)
        trust: Trust | None = "verified" if "@" in envelope.sender else "unverified"
        return self._lanes.of(envelope.sender, trust if refused is None else refused.trust)

    def admits_id(self, window: DedupWindow, remaining: int, lane: Lane, pending: int = 0) -> bool:
        """Whether the dedup window has room for an id that is kept for `remaining` seconds; `pending` ids are not in it yet."""
        return window.admits(remaining, allowance(self._settings.current.receive.remembered, lane) - pending)

    def decide_all(
        self, tx: Transaction, batch: list[ReceivedMessage], verifier: Verifier, enqueue: Enqueue
    ) -> list[Outcome]:
        """A write job: decide and apply each message in turn, and lease delivered ones to waiting agents.

        `verifier` knows the result for each proof of the batch: it spends nothing. `enqueue` gets what each message has queued, in
        the order of the transaction.
        """
        receivers: dict[str, Receiver] = {}
        outcomes: list[Outcome] = []
        # Whether window and inbox have room for all of them, even from one of the others: then none has to be compared with the
        # bounds.
        count, size = len(batch), sum([len(message.raw) for message in batch])
        ids = int(self._settings.current.receive.remembered * PARTS["other"])
        has_room = tx.memory.dedup.admits(_LONGEST, ids, count) and self._admission.has_room(tx, count, size)
        for message in batch:
            receiver = receivers.get(message.own_id)
            if receiver is None:
                receiver = receivers[message.own_id] = self._receivers.of(message.own_id, verifier, tx)
            outcome = self._decide(tx, message, receiver, has_room)
            outcomes.append(outcome)
            if outcome.applied is not None and outcome.applied.outgoing:
                tx.after_commit(partial(enqueue, outcome.applied.outgoing))
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
        state = load_state(tx, envelope, receiver.self_id, message.key, message.settled)
        if state.work is not None and not _is_of_this_project(tx, message):
            state = msgspec.structs.replace(state, end=load_end(tx, envelope, state.work, receiver.self_id))
        effects = decide(envelope, state, receiver)
        types = {*map(type, effects)}
        if Early in types and not _is_of_this_project(tx, message):
            effects = decide(envelope, state, msgspec.structs.replace(receiver, processed=_always))
            types = {*map(type, effects)}
        stored_only = _STORED.issuperset(types)
        if (
            Deliver in types
            and envelope.kind not in OPENING_KINDS
            and not self._admission.admits_reaction(tx, envelope)
        ):
            effects = tuple(effect for effect in effects if type(effect) is not Deliver)
        by_other = Open in types and self.lane(envelope, effects) == "other"
        if by_other and not has_room and (why := self._admission.why_busy(tx, envelope)):
            effects = turn_away(envelope, why, receiver)
            types, stored_only, by_other = {*map(type, effects)}, False, False
        if message.reply and envelope.to is not None:  # of a duplicate: what became of the first copy
            ack = received_ack(tx, envelope, state.work) if state.duplicate else ack_of(envelope, effects)
        if (not has_room or Hold in types or Early in types) and (
            limit := self._over_limit(tx, envelope, effects, receiver.now, settings)
        ):
            return Outcome(message, (), rejected=limit, lane=self.lane(envelope, effects))
        receipts = _NONE
        if not stored_only:
            effects, receipts = self._record(tx, message, effects, self.lane(envelope, effects))
        application = Application(tx, receiver.self_id, message.received_ms)
        if envelope.work_id is not None and Advance not in types and self._is_void(envelope, effects):
            applied = application.remember(envelope, effects, message.key)
        else:
            applied = application.receive(envelope, effects, message.key, settings.inbox.capacity, by_other=by_other)
        if applied.after is not None or applied.refused is not None or "@" in envelope.sender:
            self._note(tx, envelope, effects, applied, by_other)
        if ARMED:
            failpoint("receive.decided")
        return Outcome(message, effects, applied, "", stored_only, ack, receipts)

    def _is_void(self, envelope: Envelope, effects: Effects) -> bool:
        """Whether one of others sends what changes no work: it would be kept in the place of what others do."""
        stored = next((each for each in effects if type(each) is StoreEnvelope), None)
        if stored is None or stored.verdict is None or stored.verdict.outcome not in REFUSING_OUTCOMES:
            return False
        return self.lane(envelope, effects) == "other"

    def _over_limit(self, tx: Transaction, envelope: Envelope, effects: Effects, now: int, settings: Settings) -> str:
        """Why the message is rejected, as `Outcome.rejected`; empty if it is not."""
        memory = tx.memory
        for effect in effects:
            if type(effect) is RecordId:
                window, remaining = memory.dedup, effect.until - now
                for_everybody = window.admits(remaining, int(settings.receive.remembered * PARTS["other"]))
                if not for_everybody and not self.admits_id(window, remaining, self.lane(envelope, effects)):
                    return "memory"
            elif type(effect) is Deliver and envelope.kind in OPENING_KINDS:
                if rejection := self._admission.rejection(tx, envelope, effects):
                    return rejection
            elif type(effect) is Advance:
                if rejection := self._admission.rejection_in_work(tx, envelope, effects, effect):
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
        effects, receipts = self._record(tx, message, effects, "other")
        applied = Application(tx, receiver.self_id, message.received_ms).refuse(effects)
        if ARMED:
            failpoint("receive.decided")
        return Outcome(message, effects, applied, receipts=receipts)

    def _note(self, tx: Transaction, envelope: Envelope, effects: Effects, applied: Applied, by_other: bool) -> None:
        if applied.after is not None:
            self._deadlines.note(tx, envelope, applied, by_other=by_other)
        if applied.refused is not None:
            applied.outgoing += tuple(self._publisher.after_failure(tx, applied.refused))
            tx.after_commit(self._waiters.wake_all)
        if "@" in envelope.sender:
            self._trust.observe(tx, envelope, effects)

    def _record(
        self, tx: Transaction, message: ReceivedMessage, effects: Effects, lane: Lane
    ) -> tuple[Effects, tuple[Envelope, ...]]:
        """Apply the effects that the daemon adds to the store's. Returns as `ReceiptPolicy.separate`."""
        effects, receipts = self._receipt_policy.separate(tx, message.envelope, effects, lane, message.received_ms)
        for effect in effects:
            if isinstance(effect, Quarantine):
                if message.keep and (message.envelope is None or self._refused.may_keep_in(tx, lane)):
                    self._refused.keep(tx, message, effect)
                else:
                    tx.after_commit(self._refused.skip)
            elif isinstance(effect, PeerIdConflict):
                note_conflict(tx, effect.envelope, message.received_ms)
        return effects, receipts


def _is_of_this_project(tx: Transaction, message: ReceivedMessage) -> bool:
    """Whether it is known to be a daemon of this project that sent the message. One of another implementation may have copied
    our `ext`, and ignores our end of a work that it has forgotten, but not its id."""
    return tx.memory.acknowledging.get(message.sender) is True or may_answer(message.reply)


def _always(_workspace_id: str, _sender: str, _message_id: str) -> bool:
    return True


def _is_processed(tx: Transaction, workspace_id: str, sender: str, message_id: str) -> bool:
    return tx.memory.log.ids.dedup_key(workspace_id, sender, message_id) in tx.memory.dedup.keys
