"""How much of one peer we take and answer (docs/delivery.md): every budget of the daemon in one place, cheap to ask.

What is over is held off before it costs a signature or a transaction: counted, neither stored nor acknowledged, so that the
sender's retry brings it again.
"""

from collections.abc import Callable, Iterable
from itertools import compress
from typing import Final, Literal

from aghbus.daemon.config.settings import LimitsSettings
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import ProtocolError
from aghbus.protocol.rate_limit import Budgets, Doubts
from aghbus.protocol.trust.trust import Verifier

Held = Literal["sender", "doubt"]

# A failed verification spends by size, ours: a token for the signature, and one for so many bytes, most of which go into the
# canonical form. With doubles or characters beyond the basic plane that takes a microsecond a byte, else a tenth of it.
_LOOK: Final = 1.0
_BYTES: Final = 128.0
# A proved name that is never forged spends nothing; some failures are its sender's own accidents.
_OWN_FAILURES: Final = 300.0
_OWN_FAILURES_PER_SECOND: Final = 25.0
# All others share these: at a tenth of a millisecond for each, a flood of them costs at most a twentieth of a core. The largest
# envelope takes 8,193 of them.
_FAILURES: Final = 10_000.0
_FAILURES_PER_SECOND: Final = 500.0
_DENIALS_PER_SECOND: Final = 1 / 60  # one receipt a minute to a sender that is not believed (docs/trust.md)


class Flood:
    """The budgets of one daemon by peer. Asking spends."""

    def __init__(self, limits: LimitsSettings, now: Callable[[], float], verifier: Verifier) -> None:
        """`now` is the monotonic clock in seconds, `verifier` what checks a proof."""
        self._now = now
        self._verifier = verifier
        self._doubts = Doubts(
            Budgets(_OWN_FAILURES, _OWN_FAILURES_PER_SECOND), Budgets(_FAILURES, _FAILURES_PER_SECOND, keys=1)
        )
        self._denials = Budgets(1.0, _DENIALS_PER_SECOND)
        self.limit(limits)

    def limit(self, limits: LimitsSettings) -> None:
        """Begin anew with these limits."""
        self._messages = _per_minute(limits.messages_per_minute)
        self._receipts = _per_minute(limits.receipts_per_minute)
        self._refusals = _per_minute(limits.receipts_per_minute)
        self._answers = _per_minute(limits.answers_per_minute)

    def hold(self, envelope: Envelope) -> Held | None:
        """Why a message that has just come is held off, None when it is taken: its sender's budget, or doubt.

        A plain name spends for what it sends. A handle spends only for what it is proved to have sent (`verify`), so that
        nobody else can use its budget up.
        """
        now, sender = self._now(), envelope.sender
        if "@" not in sender:
            if not self._messages.spend(sender, now):
                return "sender"
            return None if envelope.proof is None else self.doubt(envelope)
        if not self._messages.has(sender, now):
            return "sender"
        cost = _cost(envelope)
        if not self._doubts.may_try(sender, now, cost):
            return "doubt"
        if envelope.proof is None:  # proof stripping: known to fail without a look
            self._doubts.failed(sender, now, cost)
        return None

    def doubt(self, envelope: Envelope) -> Held | None:
        """`doubt` when too many proofs were wrong lately to look at this one; None for one that can be looked at, or without."""
        if envelope.proof is None and "@" not in envelope.sender:
            return None
        return None if self._doubts.may_try(envelope.sender, self._now(), _cost(envelope)) else "doubt"

    def checkable(self, envelopes: Iterable[Envelope]) -> list[Envelope]:
        """Those of these with a proof that may be looked at before their turn: if each turns out wrong, no budget is
        overdrawn. Nothing is spent."""
        signed = [each for each in envelopes if each.proof is not None and "@" in each.sender]
        now, size = self._now(), sum([len(each.raw) for each in signed])
        if self._doubts.may_try_together(len(signed) * _LOOK + size / _BYTES, now):
            return signed
        claims = [(each.sender, _cost(each)) for each in signed]
        return list(compress(signed, self._doubts.may_try_all(claims, now)))

    def verify(self, envelope: Envelope) -> None:
        """The verifier, with what it finds noted. Raises VerificationFailed as that does."""
        try:
            self._verifier(envelope)
        except ProtocolError:
            self._doubts.failed(envelope.sender, self._now(), _cost(envelope))
            raise
        self._doubts.proved(envelope.sender)
        self._messages.spend(envelope.sender, self._now())

    def may_acknowledge(self, peer: str) -> bool:
        """An automatic receipt to a peer whose envelope we took."""
        return self._receipts.spend(peer, self._now())

    def may_refuse(self, peer: str) -> bool:
        """An automatic receipt to whoever an envelope that could not be read seems to be from."""
        return self._refusals.spend(peer, self._now())

    def may_deny(self, peer: str) -> bool:
        """An automatic receipt to whoever an envelope that we do not believe claims to be from: one a minute."""
        return self._denials.spend(peer, self._now())

    def may_tell(self, peer: str) -> bool:
        """An answer to a whois of this peer."""
        return self._answers.spend(peer, self._now())


def _cost(envelope: Envelope) -> float:
    """What it takes to find out that this proof is wrong, in tokens; without one that is known at once."""
    return _LOOK if envelope.proof is None else _LOOK + len(envelope.raw) / _BYTES


def _per_minute(count: int) -> Budgets:
    return Budgets(capacity=float(count), per_second=count / 60)
