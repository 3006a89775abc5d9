"""Rate limits by peer and over all peers (docs/limits.md), checked before a message costs a signature or a transaction.

A message over a limit is rejected: counted, neither stored nor acknowledged, so that the sender's retry brings it again.
"""

from collections.abc import Callable, Iterable
from itertools import compress
from typing import Final, Literal

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import LimitsSettings, Settings
from aghbus.daemon.nats.events import InboundMessage
from aghbus.daemon.state.lanes import PARTS, Lane, Lanes
from aghbus.daemon.state.processing_budget import BYTE, MESSAGE, ProcessingBudget, claimed_id, claimed_sender
from aghbus.daemon.state.tags import Tags
from aghbus.protocol.agh.decoding import SMALL_BYTES
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.identifiers import BROADCAST
from aghbus.protocol.agh.trust.tags import TAG
from aghbus.protocol.agh.trust.trust import Verifier
from aghbus.protocol.base.rate_limit import SharedBucket, TokenBuckets, VerificationBudget
from aghbus.store.engine.commit.transaction import Transaction

Rejection = Literal["sender", "signatures", "processing"]

# A failed verification costs a token for the signature, and one for each BYTES_PER_TOKEN. Most of the time goes into the
# canonical form: up to 0.3 microseconds a byte with doubles, else a tenth of that.
_VERIFICATION_COST: Final = 1.0
BYTES_PER_TOKEN: Final = 128.0
# The bucket of a name that was verified before.
OWN_FAILURES: Final = 300.0
OWN_FAILURES_PER_SECOND: Final = 25.0
# All other names share these: at a tenth of a millisecond a token, a flood costs at most a twentieth of a core. The largest
# envelope costs 8,193.
FAILURES: Final = 10_000.0
FAILURES_PER_SECOND: Final = 500.0
_PARSED_BYTES_PER_TOKEN: Final = 5_000.0  # of an envelope without a proof, which is parsed and no more
_DENIALS_PER_SECOND: Final = 1 / 60  # one receipt a minute to a refused sender (docs/trust.md)
_LEFT_BY_OTHERS: Final = 1.0 - PARTS["other"]  # of the processing budget: down to there everybody is let in
_LEAST_ANSWER: Final = 1_000.0  # bytes of a small answer to a whois
_REPEATS_PER_SECOND: Final = 1 / 60  # one receipt a minute for the copies of one message


def verification_budget() -> VerificationBudget:
    """The budget of failed verifications with its default sizes."""
    return VerificationBudget(
        TokenBuckets(OWN_FAILURES, OWN_FAILURES_PER_SECOND), TokenBuckets(FAILURES, FAILURES_PER_SECOND, keys=1)
    )


class RateLimits:
    """The budgets of one daemon by peer. A check spends, unless it says otherwise."""

    def __init__(
        self,
        settings: LiveSettings,
        now: Callable[[], float],
        verifier: Verifier,
        lanes: Lanes,
        tags: Tags,
        signatures: VerificationBudget | None = None,
    ) -> None:
        """`now` is the monotonic clock in seconds, `verifier` checks a proof, `signatures` is the budget of failed ones."""
        self.processing = ProcessingBudget(settings)
        self._lanes = lanes
        self._tags = tags
        self._now = now
        self._verifier = verifier
        self._signatures = signatures or verification_budget()
        self._denials = TokenBuckets(1.0, _DENIALS_PER_SECOND)
        self._repeats = TokenBuckets(1.0, _REPEATS_PER_SECOND)
        self._limits = settings.current.limits
        self._fill(self._limits)
        settings.on_change(self._configure)

    def _configure(self, settings: Settings) -> None:
        if settings.limits != self._limits:
            self._limits = settings.limits
            self._fill(settings.limits)

    def _fill(self, limits: LimitsSettings) -> None:
        self._messages = _per_minute(limits.messages_per_minute)
        self._receipts = _per_minute(limits.receipts_per_minute)
        self._refusals = _per_minute(limits.receipts_per_minute)
        self._answers = _per_minute(limits.answers_per_minute)
        self._all_receipts = _shared_per_minute(limits.all_receipts_per_minute)
        self._answer_bytes = _shared_per_minute(limits.answer_bytes_per_minute)

    def lane(
        self,
        sender: str,
        raw: bytes,
        tag: str,
        *,
        to_us: bool,
        signed: bool,
        copy: bool,
        cost: float = _VERIFICATION_COST,
    ) -> Lane:
        """The lane of a message before its signature is verified. A `copy` of a processed message is in the lane of others.

        A message in a contact's name has the contact's lane if its tag is authentic. If this contact sends tags, a message `to_us`
        without one is in the lane of others, and a broadcast in that of names that anybody can use; the messages of other contacts
        have their lane. Without an authentic tag, the tokens for wrong signatures under this name must cover it.
        """
        if copy:
            return "other"
        lane = self._lanes.of(sender, "verified" if signed else None)
        if lane != "contact" or (tag and self._tags.is_authentic(sender, raw, tag)):
            return lane
        if self._tags.sends(sender):
            if to_us:
                return "other"
            lane = "plain"
        return lane if self._signatures.may_try(sender, self._now(), cost) else "other"

    def refusal(
        self,
        message: InboundMessage,
        is_copy: Callable[[str, str], bool],
        has_room: Callable[[str, int, Lane], bool],
        waiting: int,
    ) -> tuple[str, str, Lane] | None:
        """None if bytes are worth parsing, else why they are rejected, the sender that they seem to name, and its lane.

        `is_copy` tells whether the message of a sender with an id was processed, `has_room` whether the queue takes a directed
        message of this sender, size and lane. The tokens for wrong signatures must cover as many as `waiting` messages, too.
        """
        raw, headers, now = message.data, message.headers, self._now()
        sender, tag = claimed_sender(raw), "" if headers is None else headers.get(TAG, "")
        to_us, cost = not message.subject.endswith(BROADCAST), _VERIFICATION_COST + len(raw) / BYTES_PER_TOKEN
        lane = self.lane(sender, raw, tag, to_us=to_us, signed=True, copy=False, cost=cost)
        is_unproven = lane == "other" and "@" in sender
        if lane != "other" and is_copy(sender, claimed_id(raw)):
            lane = "other"
        if is_unproven and not self._may_try(sender, now, cost * (1 + waiting), to_us=to_us):
            reason = "signatures"
        elif to_us and not has_room(sender, len(raw), lane):
            reason = "queue"
        elif not self.processing.admits(raw, lane, now):
            reason = "processing"
        else:
            return None
        self.processing.spend_dropped(now)
        return reason, sender, lane

    def spend_refused(self, raw: bytes) -> bool:
        """Spend the processing of bytes that are no valid envelope; whether it is left for as many."""
        return self.processing.spend_refused(raw, self._now())

    def check(self, envelope: Envelope, tag: str = "", *, copy: bool) -> Rejection | None:
        """Why a new message is rejected: its sender's budget, that of failed signatures or of processing; None when it is
        accepted.

        A plain name spends for each message. A handle spends only for messages that are verified (`verify`), so that nobody
        else can use up its budget. A `copy` of a processed message spends what everybody may use, whatever its name.
        """
        now, sender = self._now(), envelope.sender
        if copy:
            return None if self._spend_processing(envelope, tag, now, copy=True) else "processing"
        if "@" not in sender:
            if not self._messages.spend(sender, now):
                return "sender"
            if envelope.proof is not None and self.check_signature(envelope) is not None:
                return "signatures"
            size = len(envelope.raw)
            if envelope.proof is None and size <= SMALL_BYTES:  # as `processing.spend_as_other`, without the call
                processing = self.processing
                bucket, cost = processing.bucket, processing.scale * (MESSAGE + BYTE * size)
                left = min(bucket.capacity, bucket.left + (now - bucket.since) * bucket.per_second) - cost
                if left >= bucket.capacity * _LEFT_BY_OTHERS:
                    bucket.left, bucket.since = left, now
                    processing.estimated += cost
                    return None
            return None if self._spend_processing(envelope, tag, now) else "processing"
        if not self._messages.has(sender, now):
            return "sender"
        if self.check_signature(envelope, tag) is not None:
            self.processing.spend(envelope, "other", now)
            return "signatures"
        if envelope.proof is None:  # proof stripping: fails without a verification
            self._signatures.failed(sender, now, _cost(envelope))
            return None if self._spend_processing(envelope, tag, now, copy=True) else "processing"
        return None if self._spend_processing(envelope, tag, now) else "processing"

    def _spend_processing(self, envelope: Envelope, tag: str, now: float, *, copy: bool = False) -> bool:
        if self.processing.spend_as_other(envelope, now):
            return True
        sender, to_us, signed = envelope.sender, envelope.to is not None, envelope.proof is not None
        lane = self.lane(sender, envelope.raw, tag, to_us=to_us, signed=signed, copy=copy, cost=_cost(envelope))
        return self.processing.spend(envelope, lane, now)

    def check_signature(self, envelope: Envelope, tag: str = "") -> Rejection | None:
        """`signatures` when too many proofs failed recently to verify this one; None for one that may be verified, or has none.

        A contact's message with an authentic `tag` may always be verified. Nothing is spent.
        """
        sender = envelope.sender
        if envelope.proof is None and "@" not in sender:
            return None
        may_try = self._may_try(sender, self._now(), _cost(envelope), to_us=envelope.to is not None)
        return None if may_try or self._is_authentic(envelope, tag) else "signatures"

    def _may_try(self, sender: str, now: float, cost: float, *, to_us: bool) -> bool:
        """Whether the tokens for wrong signatures cover a message without an authentic tag. What is sent `to_us` in the name of
        a contact that sends tags is most likely forged: it has the tokens of that name only."""
        if to_us and self._tags.sends(sender):
            return self._signatures.may_try_alone(sender, now, cost)
        return self._signatures.may_try(sender, now, cost)

    def learn(self, envelope: Envelope, tag: str, *, verified: bool) -> None:
        """The signature of a message was verified, or is wrong: from now on this contact is known to send tags, or its tags
        do not count any more."""
        if tag and self._lanes.is_contact(envelope.sender):
            self._tags.learn(envelope.sender, envelope.raw, tag, verified=verified)

    def _is_authentic(self, envelope: Envelope, tag: str) -> bool:
        sender = envelope.sender
        return bool(tag) and self._lanes.is_contact(sender) and self._tags.is_authentic(sender, envelope.raw, tag)

    def verifiable(self, envelopes: Iterable[Envelope]) -> list[Envelope]:
        """The signed envelopes that may be verified in advance: even if all fail, no budget is overdrawn. Nothing is spent."""
        signed = [each for each in envelopes if each.proof is not None and "@" in each.sender]
        now, size = self._now(), sum([len(each.raw) for each in signed])
        if self._signatures.may_try_together(len(signed) * _VERIFICATION_COST + size / BYTES_PER_TOKEN, now):
            return signed
        claims = [(each.sender, _cost(each)) for each in signed]
        return list(compress(signed, self._signatures.may_try_all(claims, now)))

    def verify(self, envelope: Envelope) -> None:
        """Verify, and spend by the result. Raises VerificationFailed."""
        try:
            self._verifier(envelope)
        except ProtocolError:
            self._signatures.failed(envelope.sender, self._now(), _cost(envelope))
            self.processing.charge_others(envelope, self._now())
            raise
        self._signatures.proved(envelope.sender)
        self._messages.spend(envelope.sender, self._now())

    def allow_receipt(self, tx: Transaction, peer: str, lane: Lane) -> bool:
        """Whether an automatic receipt may go to the sender of an accepted envelope, in `tx`."""
        return self._spend(tx, self._receipts, peer) and self._spend_receipt(tx, lane)

    def allow_repeat(self, tx: Transaction, key: str) -> bool:
        """Whether a copy of the message with this key may be answered in `tx`: one a minute."""
        return self._spend(tx, self._repeats, key)

    def allow_denial(self, tx: Transaction, key: str, lane: Lane) -> bool:
        """Whether a receipt may go, in `tx`, to the claimed sender of an envelope that failed verification or trust: one a
        minute."""
        return self._spend(tx, self._denials, key) and self._spend_receipt(tx, lane)

    def allow_refusal(self, peer: str, lane: Lane) -> bool:
        """Whether an automatic receipt may go to the apparent sender of an unreadable envelope."""
        now = self._now()
        return self._refusals.spend(peer, now) and self._all_receipts.spend(1.0, now, PARTS[lane])

    def allow_reply(self, peer: str, lane: Lane) -> bool:
        """Whether a whois of this peer may be answered. Report the size of the answer to `replied`."""
        now = self._now()
        return self._answer_bytes.affords(_LEAST_ANSWER, now, PARTS[lane]) and self._answers.spend(peer, now)

    def is_last_reply(self, peer: str, lane: Lane) -> bool:
        """Whether the next whois of this peer would not be answered now."""
        now = self._now()
        return not (self._answer_bytes.affords(_LEAST_ANSWER, now, PARTS[lane]) and self._answers.has(peer, now))

    def replied(self, size: int, lane: Lane) -> None:
        """A whois of a peer of this lane was answered with `size` bytes."""
        self._answer_bytes.drain(size, self._now(), PARTS[lane])

    def _spend(self, tx: Transaction, buckets: TokenBuckets, key: str) -> bool:
        """Spend a token of `key`, which a rollback gives back."""
        spent = buckets.spend(key, self._now())
        if spent:
            tx.undo.append(lambda: buckets.give_back(key, self._now()))
        return spent

    def _spend_receipt(self, tx: Transaction, lane: Lane) -> bool:
        return spend_within(tx, self._all_receipts, self._now, lane)


def spend_within(tx: Transaction, bucket: SharedBucket, now: Callable[[], float], lane: Lane) -> bool:
    """Spend one token of the share of this lane, which a rollback of `tx` gives back."""
    spent = bucket.spend(1.0, now(), PARTS[lane])
    if spent:
        tx.undo.append(lambda: bucket.give_back(1.0, now()))
    return spent


def _cost(envelope: Envelope) -> float:
    """The cost in tokens of finding this proof wrong; a missing proof costs no canonical form."""
    return (
        _parsing_cost(envelope.raw)
        if envelope.proof is None
        else _VERIFICATION_COST + len(envelope.raw) / BYTES_PER_TOKEN
    )


def _parsing_cost(raw: bytes) -> float:
    """The cost in tokens of parsing an envelope whose proof then turns out to be missing or wrong."""
    return _VERIFICATION_COST + len(raw) / _PARSED_BYTES_PER_TOKEN


def _shared_per_minute(amount: int) -> SharedBucket:
    return SharedBucket(float(amount), amount / 60)


def _per_minute(count: int) -> TokenBuckets:
    return TokenBuckets(capacity=float(count), per_second=count / 60)
