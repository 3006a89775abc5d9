"""Whether an automatic receipt is sent, and whether it is stored and repeated (docs/limits.md, Answers).

Its status and reason code are decided in protocol/agh/receive.py.
"""

from functools import partial
from typing import Final

from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import Lane, Lanes
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.trust_policy import LivePolicy, denial_budget_key
from aghbus.protocol.agh.bodies import Receipt
from aghbus.protocol.agh.effects import Effects, Quarantine, Queue, Requeue
from aghbus.protocol.agh.envelope import Envelope
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction

_NOTED_MS: Final = 60_000  # between two audit rows about receipts that were not sent


class ReceiptPolicy:
    """Separates the receipts of a decision: stored, published once, or not sent."""

    def __init__(
        self,
        context: DaemonContext,
        limits: RateLimits,
        lanes: Lanes,
        limited: LimitedPeers,
        trust: LivePolicy,
    ) -> None:
        self._limits = limits
        self._lanes = lanes
        self._limited = limited
        self._trust = trust
        self._clock = context.clock
        self._counters = context.counters
        self._suppressed = 0  # receipts that were not sent since the last audit row about them
        self._noted_ms = 0

    def separate(
        self, tx: Transaction, envelope: Envelope | None, effects: Effects, lane: Lane, at_ms: int
    ) -> tuple[Effects, tuple[Envelope, ...]]:
        """The effects to apply, and the envelopes to publish without storing them.

        Those are receipts, and ends under a new id, to peers that are not known, and the answers to copies. `envelope` is None
        for bytes that are no valid envelope, whose receipt was within its limits when they came.
        """
        answer = next((each for each in effects if type(each) is Queue and each.automatic), None)
        if answer is None:
            return effects, ()
        if not self._may_answer(tx, answer.envelope, envelope, effects, lane):
            self._note_suppressed(tx, answer.envelope.to or "", lane, at_ms)
            return tuple([effect for effect in effects if type(effect) not in (Queue, Requeue)]), ()
        if not self._lanes.is_contact(answer.envelope.to or ""):
            queued = tuple([effect.envelope for effect in effects if type(effect) is Queue])
            return tuple([effect for effect in effects if type(effect) is not Queue]), queued
        if _is_duplicate(answer.envelope):
            return tuple([effect for effect in effects if effect is not answer]), (answer.envelope,)
        return effects, ()

    def _may_answer(
        self, tx: Transaction, receipt: Envelope, envelope: Envelope | None, effects: Effects, lane: Lane
    ) -> bool:
        """Whether a receipt is within its rate limits. Refused senders have another limit than accepted ones."""
        peer, limits = receipt.to or "", self._limits
        refused = next((each for each in effects if type(each) is Quarantine), None)
        if self._trust.now.mode == "require" and _is_unverified(envelope, refused):
            return False
        if _is_duplicate(receipt) and not limits.allow_repeat(tx, f"{receipt.workspace_id} {peer} {receipt.reply_to}"):
            return False
        if envelope is None:
            return True
        if refused is None:
            return limits.allow_receipt(tx, peer, lane)
        return limits.allow_denial(tx, denial_budget_key(peer, refused.trust), lane)

    def may_refuse(self, sender: str) -> bool:
        """Whether a receipt may go to `sender`, the apparent one of bytes that are no valid envelope; counted if not. Asked before
        their job."""
        if self._trust.now.mode == "require":
            return False
        lane = self._lanes.of(sender, None)
        allowed = self._limits.allow_refusal(sender, lane)
        if not allowed:
            self._count_suppressed(sender, lane)
        return allowed

    def _note_suppressed(self, tx: Transaction, peer: str, lane: Lane, at_ms: int) -> None:
        """Count a receipt that is not sent; one audit row a minute tells of all of them."""
        tx.after_commit(partial(self._count_suppressed, peer, lane))
        tx.undo.append(partial(self._restore, self._suppressed, self._noted_ms))
        self._suppressed += 1
        if at_ms - self._noted_ms >= _NOTED_MS:
            detail = f"{self._suppressed} automatic receipts not sent: rate limits"
            self._suppressed, self._noted_ms = 0, at_ms
            audit.note_policy(tx, at_ms, "receipts_suppressed", detail)

    def _count_suppressed(self, peer: str, lane: Lane) -> None:
        self._counters.add("receipts.suppressed")
        self._limited.note("receipts", peer, lane, self._clock.monotonic())

    def _restore(self, suppressed: int, noted_ms: int) -> None:
        self._suppressed, self._noted_ms = suppressed, noted_ms


def _is_unverified(envelope: Envelope | None, refused: Quarantine | None) -> bool:
    if envelope is None:
        return True
    return "@" not in envelope.sender if refused is None else refused.trust != "verified"


def _is_duplicate(receipt: Envelope) -> bool:
    return type(receipt.body) is Receipt and receipt.body.status == "duplicate"
