"""The proofs of a batch of received messages, verified before its job: the job may run twice, and a verification spends tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.signature_pool import SignaturePool
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.trust.trust import assess


class Proofs:
    """A verifier that knows the result for each envelope of a batch, and spends nothing. `rejected` are the envelopes that the
    budget of failed verifications does not cover; they have no result."""

    def __init__(self) -> None:
        self.rejected: list[Envelope] = []
        self._errors: dict[bytes, Exception | None] = {}

    def __call__(self, envelope: Envelope) -> None:
        """Raises VerificationFailed, or the defect that the envelope triggered."""
        error = self._errors[envelope.raw]
        if error is not None:
            raise error

    def note(self, envelope: Envelope, error: Exception | None) -> None:
        """`error` is why `envelope` was refused, None if it was verified."""
        self._errors[envelope.raw] = error


@dataclass(frozen=True, slots=True, eq=False)
class ProofVerifier:
    """Verifies the proofs of batches, and spends the budgets by the results."""

    limits: RateLimits
    signatures: SignaturePool

    async def verify(self, claiming: Sequence[tuple[Envelope, str]], following: Iterable[Envelope]) -> Proofs:
        """Verify in turn the envelopes of a batch that claim a key, each with its tag. Those of the batch after it are begun in
        threads, as far as the budget covers the failure of all."""
        proofs, envelopes = Proofs(), [envelope for envelope, _ in claiming]
        own = self.limits.verifiable(envelopes)
        self.signatures.begin(own)
        self.signatures.begin(self.limits.verifiable([*envelopes, *following])[len(own) :])
        try:
            await self.signatures.ready(envelopes)
            for envelope, tag in claiming:
                if self.limits.check_signature(envelope, tag) is None:
                    error = self._error_of(envelope)
                    proofs.note(envelope, error)
                    self.limits.learn(envelope, tag, verified=error is None)
                else:
                    proofs.rejected.append(envelope)
        finally:
            self.signatures.forget(envelopes)
        return proofs

    def _error_of(self, envelope: Envelope) -> Exception | None:
        try:
            assess(envelope, self.limits.verify)
        except Exception as error:  # also a defect: the job of this envelope raises it again
            return error
        return None
