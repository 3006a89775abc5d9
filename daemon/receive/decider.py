"""What an envelope comes to: the protocol's verdict carried out in the transaction of its batch, with what the daemon adds to it.

It adds the budgets of receipts, room in the inbox, the quarantine and its rows of the audit log, deadlines of works, and leases for
agents that wait. Jobs may run twice and ahead of a commit: nothing outside the transaction is changed but through it.
"""

from typing import Final

import msgspec

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.state.context import Core
from aghbus.daemon.state.trust_policy import denied_as
from aghbus.protocol.effects import (
    Advance,
    Bind,
    Conflict,
    Deliver,
    Effect,
    Effects,
    Open,
    Quarantine,
    Queue,
    Remember,
    Requeue,
    Store,
)
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import ProtocolError
from aghbus.protocol.partial_parse import identity, is_private_to_others
from aghbus.protocol.receive import Receiver, Source, decide, refuse
from aghbus.store.apply_effects import Applied, apply, load_source_view, load_view
from aghbus.store.audit import events as audit
from aghbus.store.engine.dedup import key_of
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import quarantine

_STORED: Final[frozenset[type[Effect]]] = frozenset({Remember, Store, Bind, Open, Advance, Deliver})
"""Effects with which the store does all that there is to do."""


class Arrived(msgspec.Struct, frozen=True):
    """One message off the wire: a valid envelope, or the error and what could be read of it."""

    subject: str
    raw: bytes
    received_ms: int
    envelope: Envelope | None = None
    error: ProtocolError | None = None
    source: Source | None = None
    reply: str = ""
    settlement: Settlement | None = None
    us: str = ""  # which of our ids it concerns
    sender: str = ""  # empty where there is no valid envelope


class Done(msgspec.Struct, frozen=True):
    """What became of one message in the transaction; `applied` None when it was held off, for the reason `held`: `inbox` where
    that has no room, `memory` where the ids to be remembered are too many for one of so long a life (store/engine/dedup.py).

    `usual`: all effects are those that the store carries out (`_STORED`). `known`: it had come before, and is committed whatever
    is said of this copy.
    """

    arrived: Arrived
    effects: Effects
    applied: Applied | None = None
    held: str = ""
    usual: bool = False
    known: bool = False


class Decider:
    """The middle of the intake, between what has arrived and what is done about it after the commit."""

    def __init__(self, core: Core, deadlines: Deadlines) -> None:
        self._core = core
        self._deadlines = deadlines
        self._skipped = 0  # refused and not kept since the last that was

    def skip(self) -> None:
        """One more was refused and is not kept."""
        self._skipped += 1

    def decide_all(self, tx: Transaction, batch: list[Arrived]) -> list[Done]:
        """A write job: each of `batch` decided and carried out in turn, and what was delivered leased to agents that wait."""
        receivers = {us: self.receiver(us) for us in {arrived.us for arrived in batch}}
        room = self._core.settings.inbox.capacity - tx.memory.inbox_waiting.value
        results: list[Done] = []
        for arrived in batch:
            done = self._decide(tx, arrived, receivers[arrived.us], room > 0)
            room -= done.applied is not None and done.applied.delivered
            results.append(done)
        if self._core.consumers.count:
            self._offer(tx, results)
        return results

    def _offer(self, tx: Transaction, results: list[Done]) -> None:
        """Lease what was delivered to agents that wait for it, in the same transaction."""
        delivered = [
            (done.applied.seq, done.arrived.envelope.work_id)
            for done in results
            if done.applied is not None and done.applied.delivered and done.arrived.envelope is not None
        ]
        self._core.consumers.offer(tx, [(seq, work_id) for seq, work_id in delivered if seq is not None])

    def receiver(self, peer_id: str) -> Receiver:
        """Who receives as `peer_id`: that one of ours (it may have retired while the envelope waited), else the present one."""
        core = self._core
        return core.receiver(peer_id if peer_id in core.identities else core.us)

    def _decide(self, tx: Transaction, arrived: Arrived, receiver: Receiver, room: bool) -> Done:
        core = self._core
        envelope, key, known = arrived.envelope, None, False
        if envelope is None:
            assert arrived.error is not None
            effects = refuse(arrived.error, arrived.source, load_source_view(tx, arrived.source), receiver)
        else:
            if (doubt := core.flood.doubt(envelope)) is not None:
                return Done(arrived, (), held=doubt)
            key = key_of(envelope)
            view = load_view(tx, envelope, receiver.us, key)
            known, effects = view.duplicate, decide(envelope, view, receiver)
        usual = True
        for effect in effects:
            if type(effect) is Remember:
                if not tx.memory.dedup.admits(effect.until - receiver.now, core.settings.receive.remembered):
                    return Done(arrived, (), held="memory")
            elif type(effect) is Deliver:
                if not room:
                    return Done(arrived, (), held="inbox")
            elif type(effect) not in _STORED:
                usual = False
        if not usual:
            effects = self._note(tx, arrived, effects)
        capacity = core.settings.inbox.capacity
        applied = apply(
            tx, envelope, effects, us=receiver.us, received_ms=arrived.received_ms, inbox_capacity=capacity, key=key
        )
        if envelope is not None:
            self._deadlines.note(tx, envelope, applied)
            core.trust.heard(tx, envelope, effects)
        failpoint("receive.decided")
        return Done(arrived, effects, applied, "", usual, known)

    def _note(self, tx: Transaction, arrived: Arrived, effects: Effects) -> Effects:
        """What the daemon does about effects that the store knows nothing of; those that are left to be carried out."""
        envelope = arrived.envelope
        if any(isinstance(effect, Queue) and self._suppressed(effect, arrived, effects) for effect in effects):
            effects = tuple(effect for effect in effects if not isinstance(effect, Queue | Requeue))
            audit.note_policy(tx, arrived.received_ms, "receipt_suppressed", "the peer's budget", envelope=envelope)
        for effect in effects:
            if isinstance(effect, Quarantine):
                self.quarantine(tx, arrived, effect)
            elif isinstance(effect, Conflict):
                self.note_conflict(tx, effect.envelope, arrived.received_ms)
        return effects

    def _suppressed(self, effect: Queue, arrived: Arrived, effects: Effects) -> bool:
        """Whether the peer's budget has no room for this receipt. One that was not believed has another than the peer's own."""
        if not effect.automatic or arrived.envelope is None:
            return False  # what could not be read has spent its budget on arriving
        peer, flood = effect.envelope.to or "", self._core.flood
        refused = next((each for each in effects if isinstance(each, Quarantine)), None)
        if flood.may_acknowledge(peer) if refused is None else flood.may_deny(denied_as(peer, refused.trust)):
            return False
        self._core.counters.add("receipts.suppressed")
        return True

    def quarantine(self, tx: Transaction, arrived: Arrived, effect: Quarantine) -> None:
        """Keeps what was refused, with its row of the audit log; of a private message of others not what it says."""
        message_id, sender = identity(arrived.raw)
        ours = (self._core.us, *self._core.identities.former)
        private = all(is_private_to_others(arrived.raw, arrived.subject, us) for us in ours)
        limits = self._core.settings.quarantine
        quarantine.add(
            tx,
            subject=arrived.subject,
            message_id=message_id,
            sender=sender,
            reason=effect.reason,
            detail=effect.detail,
            raw=b"" if private else arrived.raw,
            received_ms=arrived.received_ms,
            max_rows=limits.max_rows,
            max_bytes=limits.max_bytes,
        )
        self._note_skipped(tx, arrived.received_ms)
        if private:
            return  # not even that two others spoke (docs/audit.md, Rows)
        audit.note_refused(
            tx,
            arrived.received_ms,
            arrived.raw,
            effect.reason,
            envelope=arrived.envelope,
            msg_id=message_id,
            sender=sender,
        )

    def _note_skipped(self, tx: Transaction, at_ms: int) -> None:
        """A flood of refused bytes must not push everything else out of the log: one row for all that were not kept."""
        skipped, self._skipped = self._skipped, 0
        if skipped:
            tx.after_rollback(lambda: self._unskip(skipped))
            audit.note_policy(tx, at_ms, "not_kept", f"{skipped} refused before, beyond what is kept in a second")

    def _unskip(self, skipped: int) -> None:
        self._skipped += skipped

    def note_conflict(self, tx: Transaction, envelope: Envelope, at_ms: int) -> None:
        """A row of the audit log: somebody else bears our name."""
        audit.note_policy(tx, at_ms, "peer_id_conflict", "another daemon sends under our peer id", envelope=envelope)
