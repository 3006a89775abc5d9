"""Deciding received messages: the protocol's effects are applied in one transaction for a batch.

The daemon adds limits of receipts, the capacity of the inbox, quarantine rows with their audit rows, deadlines of works, and
leases for waiting agents. A job may be rerun, so it changes state only through the transaction.
"""

from functools import partial
from typing import Final

import msgspec

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.receive.inbox_admission import SENDER_PARTS, InboxAdmission
from aghbus.daemon.receive.receipts import Receipts
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.standing import SHARES, Standing, Standings, allowance
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.delivery.acks import Ack, ack_of
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
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.limits import MAX_LIFETIME, REPLAY_AGE
from aghbus.protocol.agh.partial_parse import Origin, origin_of
from aghbus.protocol.agh.receive import ReceiptTarget, Receiver, decide, refuse
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.protocol.base.rate_limit import SharedBucket
from aghbus.store.apply_effects import Applied, apply, load_receipt_state, load_state
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.dedup import DedupWindow
from aghbus.store.tables import inbox, quarantine
from aghbus.store.tables.envelopes import received_ack

_NONE: Final[tuple[Envelope, ...]] = ()
QUARANTINE_PER_SECOND: Final = 50.0  # rows; more refused messages are only counted

HELD: Final = "inbox.held"
"""Why an opening was not taken: too many are held since a restore."""
EARLY: Final = "early"
"""Why a message was not taken whose predecessor was not processed."""
_STORED: Final[frozenset[type[Effect]]] = frozenset({RecordId, StoreEnvelope, Bind, Open, Advance, Deliver, Hold})
"""Effects that the store applies completely."""
_LONGEST: Final = MAX_LIFETIME + 2 * REPLAY_AGE  # seconds; no id is kept for so long


class ReceivedMessage(msgspec.Struct, frozen=True):
    """One message from the broker: a valid envelope, or the error, its origin, and the parts that a receipt needs.

    `own_id` is our peer id it is addressed to, `sender` is empty without a valid envelope, `reply` is where to acknowledge,
    `settled` the header of that name (protocol/agh/delivery/order.py). `keep`: if it is no valid envelope, it goes to quarantine.
    """

    subject: str
    raw: bytes
    received_ms: int
    own_id: str
    settlement: Settlement | None = None
    envelope: Envelope | None = None
    sender: str = ""
    reply: str = ""
    settled: str = ""
    error: ProtocolError | None = None
    target: ReceiptTarget | None = None
    origin: Origin | None = None
    keep: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """The result of one message in the transaction.

    `applied` is None when the message was rejected, for the reason `rejected`: a rate limit, `inbox` or a
    reason of InboxAdmission when that has no room, `memory`
    when the dedup window has no room for an id of that lifetime (store/engine/log/dedup.py), `EARLY` when its predecessor was not
    processed. `stored_only`: the store has applied all effects, and nothing else is to be done about them. `ack` is the
    acknowledgement, for a message that asks for one. `receipts` are published once and not stored.
    """

    message: ReceivedMessage
    effects: Effects
    applied: Applied | None = None
    rejected: str = ""
    stored_only: bool = False
    ack: Ack | None = None
    receipts: tuple[Envelope, ...] = ()


class Decider:
    """Decides batches of received messages inside a write job."""

    def __init__(
        self,
        identity: Identity,
        settings: LiveSettings,
        clock: Clock,
        limits: RateLimits,
        standings: Standings,
        limited: LimitedPeers,
        trust: LivePolicy,
        closer: WorkCloser,
        deadlines: Deadlines,
        waiters: InboxWaiters,
        admission: InboxAdmission,
        counters: Counters,
        restored: Restored | None,
    ) -> None:
        """`restored` is the epoch of the store, if it was restored."""
        self._restored = restored
        self._identity = identity
        self._settings = settings
        self._clock = clock
        self._limits = limits
        self._standings = standings
        self._receipts = Receipts(limits, standings, limited, trust, clock, counters)
        self._trust = trust
        self._closer = closer
        self._deadlines = deadlines
        self._waiters = waiters
        self._admission = admission
        self._counters = counters
        self._skipped = 0  # refused messages without a quarantine row since the last one with a row
        self._quarantined = SharedBucket(4 * QUARANTINE_PER_SECOND, QUARANTINE_PER_SECOND)

    def may_quarantine(self, standing: Standing) -> bool:
        """Whether another refused message of a sender of this standing may be kept now."""
        return self._quarantined.spend(1.0, self._clock.monotonic(), SHARES[standing])

    def standing(self, envelope: Envelope, effects: Effects) -> Standing:
        """The standing of a sender by what was decided about its envelope."""
        refused = next((each for each in effects if type(each) is Quarantine), None)
        trust: Trust | None = "verified" if "@" in envelope.sender else "unverified"
        return self._standings.of(envelope.sender, trust if refused is None else refused.trust)

    def admits_id(self, window: DedupWindow, remaining: int, standing: Standing, pending: int = 0) -> bool:
        """Whether the dedup window has room for an id that is kept for `remaining` seconds; `pending` ids are not in it yet."""
        return window.admits(remaining, allowance(self._settings.current.receive.remembered, standing) - pending)

    def skip(self) -> None:
        """Count a refused message that gets no quarantine row."""
        self._skipped += 1

    def decide_all(self, tx: Transaction, batch: list[ReceivedMessage]) -> list[Outcome]:
        """A write job: decide and apply each message in turn, and lease delivered ones to waiting agents."""
        receivers: dict[str, Receiver] = {}
        outcomes: list[Outcome] = []
        has_room = self._has_room(tx, batch)
        for message in batch:
            receiver = receivers.get(message.own_id)
            if receiver is None:
                receiver = receivers[message.own_id] = self.receiver(message.own_id, tx)
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

    def receiver(self, own_id: str, tx: Transaction | None = None) -> Receiver:
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
            mint=self._clock.mint,
            channels=identity.joined,
            observe=settings.observe,
            receipt_ttl=settings.defaults.directed_ttl,
            verifier=self._limits.verify,
            policy=self._trust.now,
            signer=identity.signers[own_id],
            successor=None if present else identity.self_id,
            restored=self._restored,
        )
        return (
            view
            if tx is None
            else msgspec.structs.replace(
                view, processed=partial(_is_processed, tx), predecessor=partial(_predecessor, tx, own_id)
            )
        )

    def _has_room(self, tx: Transaction, batch: list[ReceivedMessage]) -> bool:
        """Whether the dedup window and the inbox have room for the whole batch, even from one unknown sender: then no message of it
        has to be compared with their bounds."""
        size = sum([len(message.raw) for message in batch])
        ids = int(self._settings.current.receive.remembered * SHARES["unknown"])
        return tx.memory.dedup.admits(_LONGEST, ids, len(batch)) and self._admission.has_room(tx, len(batch), size)

    def _decide(self, tx: Transaction, message: ReceivedMessage, receiver: Receiver, has_room: bool) -> Outcome:
        envelope, settings, ack = message.envelope, self._settings.current, None
        if envelope is None:
            return self._refuse(tx, message, receiver)
        claims_key = envelope.proof is not None or "@" in envelope.sender
        if claims_key and (rejection := self._limits.check_signature(envelope)) is not None:
            return Outcome(message, (), rejected=rejection)
        key = tx.memory.log.ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
        state = load_state(tx, envelope, receiver.self_id, key, message.settled)
        effects = decide(envelope, state, receiver)
        types = [type(effect) for effect in effects]
        stored_only = _STORED.issuperset(types)
        if (
            Deliver in types
            and envelope.kind not in OPENING_KINDS
            and not self._admission.admits_reaction(tx, envelope)
        ):
            effects = tuple(effect for effect in effects if type(effect) is not Deliver)
            self._counters.add("inbox.reactions_left_out")
        if message.reply and envelope.to is not None:  # of a duplicate: what became of the first copy
            ack = received_ack(tx, envelope) if state.duplicate else ack_of(envelope, effects)
        if (not has_room or Hold in types or Early in types) and (
            limit := self._over_limit(tx, envelope, effects, receiver.now, settings)
        ):
            return Outcome(message, (), rejected=limit)
        receipts = _NONE
        if not stored_only:
            effects, receipts = self._record(tx, message, effects, self.standing(envelope, effects))
        applied = apply(
            tx,
            envelope,
            effects,
            self_id=receiver.self_id,
            received_ms=message.received_ms,
            inbox_capacity=settings.inbox.capacity,
            key=key,
        )
        if applied.after is not None or applied.refused is not None or claims_key:
            self._note(tx, envelope, effects, applied)
        if ARMED:
            failpoint("receive.decided")
        return Outcome(message, effects, applied, "", stored_only, ack, receipts)

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
                if memory.excess or SENDER_PARTS * inbox.count_held(tx.db) >= settings.inbox.capacity:
                    return HELD
                self._counters.add("inbox.held")
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
            audit.note_outgoing(tx, self._clock.millis(), applied.refused.seq, "refused", applied.refused.detail)
            applied.outgoing += tuple(self._closer.after_failure(tx, applied.refused))
            self._counters.add("outbox.refused")
            self._counters.undelivered[applied.refused.kind, "refused"] += 1
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
                if message.keep and (message.envelope is None or self.may_quarantine(standing)):
                    self.quarantine(tx, message, effect)
                else:
                    self._counters.add("quarantine.skipped")
                    self.skip()
            elif isinstance(effect, Conflict):
                self.record_conflict(tx, effect.envelope, message.received_ms)
        return effects, receipts

    def quarantine(self, tx: Transaction, message: ReceivedMessage, effect: Quarantine) -> None:
        """Store a refused message with its audit row; without the content of a private message of other peers."""
        envelope, origin = message.envelope, message.origin
        if envelope is not None:
            origin = origin_of(envelope, self._identity.own_ids)
        assert origin is not None
        limits = self._settings.current.quarantine
        quarantine.add(
            tx,
            subject=message.subject,
            message_id=origin.message_id,
            sender=origin.sender,
            reason=effect.reason,
            detail=effect.detail,
            raw=b"" if origin.private else message.raw,
            received_ms=message.received_ms,
            max_rows=limits.max_rows,
            max_bytes=limits.max_bytes,
        )
        self._record_skipped(tx, message.received_ms)
        if origin.private:
            return  # the audit log does not name other peers' private messages (docs/audit.md, Rows)
        audit.note_refused(
            tx,
            message.received_ms,
            message.raw,
            effect.reason,
            envelope=envelope,
            msg_id=origin.message_id,
            sender=origin.sender,
        )

    def _record_skipped(self, tx: Transaction, at_ms: int) -> None:
        """One audit row for all skipped messages, so that a flood of them does not displace the other rows."""
        skipped, self._skipped = self._skipped, 0
        if skipped:
            tx.undo.append(lambda: self._unskip(skipped))
            audit.note_policy(
                tx, at_ms, "not_kept", f"{skipped} refused messages not recorded: quarantine rate exceeded"
            )

    def _unskip(self, skipped: int) -> None:
        self._skipped += skipped

    def record_conflict(self, tx: Transaction, envelope: Envelope, at_ms: int) -> None:
        """An audit row: another daemon uses our peer id."""
        audit.note_policy(tx, at_ms, "peer_id_conflict", "another daemon sends under our peer id", envelope=envelope)


def _predecessor(tx: Transaction, own_id: str, target: ReceiptTarget) -> Predecessor | None:
    return tx.memory.streams.predecessor((target.workspace_id, target.channel, own_id, target.sender, target.container))


def _is_processed(tx: Transaction, workspace_id: str, sender: str, message_id: str) -> bool:
    return tx.memory.log.ids.dedup_key(workspace_id, sender, message_id) in tx.memory.dedup.keys
