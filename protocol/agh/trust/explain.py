"""Why an envelope was accepted or refused: the checks of spec section 5 steps 1 to 6, one by one."""

from collections.abc import Container
from typing import Final, Literal

import msgspec

from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.trust.policy import TrustPolicy
from aghbus.protocol.agh.trust.proof import verify
from aghbus.protocol.agh.trust.trust import Trust

# How details of `proof.verify` about the signature begin; all others are about the claims of the proof.
_SIGNATURE: Final = ("proof.sig: does not", "the envelope")


class TrustCheck(msgspec.Struct, frozen=True):
    """One check: envelope, proof, signature, own, or a rule of local policy. `detail` is its result in words."""

    check: str
    passed: bool
    detail: str


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """The checks in order, up to the first that failed. `key_id` is that of the signing key; None without a valid signature."""

    verdict: Trust | Literal["rejected"]
    key_id: str | None
    checks: tuple[TrustCheck, ...]

    @property
    def decided_by(self) -> str | None:
        """The check that failed; None when all passed."""
        return next((check.check for check in self.checks if not check.passed), None)


def explain(raw: bytes, at: int, policy: TrustPolicy, ours: Container[str], *, opens_work: bool) -> Explanation:
    """The checks of an envelope received at Unix second `at`, under `policy`. Never raises.

    `ours` are our own peer ids; `opens_work` says whether the envelope would have opened a work with us.
    """
    try:
        envelope = parse(raw, at)
    except ProtocolError as error:
        failed = TrustCheck("envelope", passed=False, detail=f"{error.reason}: {error.detail}")
        return Explanation(verdict="rejected", key_id=None, checks=(failed,))
    checks = [TrustCheck("envelope", passed=True, detail="valid, and fresh when it was received")]
    found = verify(raw)
    if found.state == "rejected":
        checks.extend(_rejected(found.detail))
        return Explanation(verdict="rejected", key_id=None, checks=tuple(checks))
    if found.state == "verified":
        checks.append(TrustCheck("proof", passed=True, detail="the handle is that of the key in the proof"))
        checks.append(TrustCheck("signature", passed=True, detail=f"signed by {found.key_id}"))
    else:
        checks.append(
            TrustCheck("proof", passed=True, detail=f"a plain peer, {found.detail}: its name is not authenticated")
        )
    checks.extend(_judged(envelope, found.state, policy, ours, opens_work=opens_work))
    return Explanation(verdict=found.state, key_id=found.key_id, checks=tuple(checks))


def _rejected(detail: str) -> tuple[TrustCheck, ...]:
    if detail.startswith(_SIGNATURE):
        claims = TrustCheck("proof", passed=True, detail="the handle is that of the key in the proof")
        return claims, TrustCheck("signature", passed=False, detail=detail)
    return (TrustCheck("proof", passed=False, detail=detail),)


def _judged(
    envelope: Envelope, trust: Trust, policy: TrustPolicy, ours: Container[str], *, opens_work: bool
) -> tuple[TrustCheck, ...]:
    if envelope.sender in ours:
        return (TrustCheck("own", passed=True, detail="our own messages are not judged"),)
    checks = []
    for check in policy.checks(envelope, trust, opens_work=opens_work):
        if check.error is None:
            checks.append(TrustCheck(check.rule, passed=True, detail=check.detail))
        else:
            reason = f"{check.error.reason}: {check.error.detail}"
            detail = f"{reason} ({check.detail})" if check.detail else reason
            checks.append(TrustCheck(check.rule, passed=False, detail=detail))
            break
    return tuple(checks)
