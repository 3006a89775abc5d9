"""Rate limits by peer (docs/delivery.md), checked before a message costs a signature or a transaction.

A message over a limit is rejected: counted, neither stored nor acknowledged, so that the sender's retry brings it again.
"""

from collections.abc import Callable, Iterable
from itertools import compress
from typing import Final, Literal

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import LimitsSettings, Settings
from aghbus.protocol.base.rate_limit import TokenBuckets, VerificationBudget
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import ProtocolError
from aghbus.protocol.trust.trust import Verifier

Rejection = Literal["sender", "signatures"]

# A failed verification costs a token for the signature, and one for each BYTES_PER_TOKEN. Most of the time goes into the
# canonical form: a microsecond a byte with doubles or characters beyond the basic plane, else a tenth of that.
_VERIFICATION_COST: Final = 1.0
BYTES_PER_TOKEN: Final = 128.0
# The bucket of a name that was verified before.
_OWN_FAILURES: Final = 300.0
_OWN_FAILURES_PER_SECOND: Final = 25.0
# All other names share these: at a tenth of a millisecond a token, a flood costs at most a twentieth of a core. The largest
# envelope costs 8,193.
_FAILURES: Final = 10_000.0
_FAILURES_PER_SECOND: Final = 500.0
_DENIALS_PER_SECOND: Final = 1 / 60  # one receipt a minute to a refused sender (docs/trust.md)


def verification_budget() -> VerificationBudget:
    """The budget of failed verifications with its default sizes."""
    return VerificationBudget(
        TokenBuckets(_OWN_FAILURES, _OWN_FAILURES_PER_SECOND), TokenBuckets(_FAILURES, _FAILURES_PER_SECOND, keys=1)
    )


class RateLimits:
    """The budgets of one daemon by peer. A check spends, unless it says otherwise."""

    def __init__(
        self,
        settings: LiveSettings,
        now: Callable[[], float],
        verifier: Verifier,
        signatures: VerificationBudget | None = None,
    ) -> None:
        """`now` is the monotonic clock in seconds, `verifier` checks a proof, `signatures` is the budget of failed ones."""
        self._now = now
        self._verifier = verifier
        self._signatures = signatures or verification_budget()
        self._denials = TokenBuckets(1.0, _DENIALS_PER_SECOND)
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

    def check(self, envelope: Envelope) -> Rejection | None:
        """Why a new message is rejected: its sender's budget, or that of failed signatures; None when it is accepted.

        A plain name spends for each message. A handle spends only for messages that are verified (`verify`), so that nobody
        else can use up its budget.
        """
        now, sender = self._now(), envelope.sender
        if "@" not in sender:
            if not self._messages.spend(sender, now):
                return "sender"
            return None if envelope.proof is None else self.check_signature(envelope)
        if not self._messages.has(sender, now):
            return "sender"
        cost = _cost(envelope)
        if not self._signatures.may_try(sender, now, cost):
            return "signatures"
        if envelope.proof is None:  # proof stripping: fails without a verification
            self._signatures.failed(sender, now, cost)
        return None

    def check_signature(self, envelope: Envelope) -> Rejection | None:
        """`signatures` when too many proofs failed recently to verify this one; None for one that may be verified, or has none.

        Nothing is spent.
        """
        if envelope.proof is None and "@" not in envelope.sender:
            return None
        return None if self._signatures.may_try(envelope.sender, self._now(), _cost(envelope)) else "signatures"

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
            raise
        self._signatures.proved(envelope.sender)
        self._messages.spend(envelope.sender, self._now())

    def allow_receipt(self, peer: str) -> bool:
        """Whether an automatic receipt may go to the sender of an accepted envelope."""
        return self._receipts.spend(peer, self._now())

    def allow_refusal(self, peer: str) -> bool:
        """Whether an automatic receipt may go to the apparent sender of an unreadable envelope."""
        return self._refusals.spend(peer, self._now())

    def allow_denial(self, key: str) -> bool:
        """Whether a receipt may go to the claimed sender of an envelope that failed verification or trust: one a minute."""
        return self._denials.spend(key, self._now())

    def allow_reply(self, peer: str) -> bool:
        """Whether a whois of this peer may be answered."""
        return self._answers.spend(peer, self._now())


def _cost(envelope: Envelope) -> float:
    """The cost in tokens of finding this proof wrong; a missing proof does not depend on the size."""
    return _VERIFICATION_COST if envelope.proof is None else _VERIFICATION_COST + len(envelope.raw) / BYTES_PER_TOKEN


def _per_minute(count: int) -> TokenBuckets:
    return TokenBuckets(capacity=float(count), per_second=count / 60)
