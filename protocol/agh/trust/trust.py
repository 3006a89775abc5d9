"""The trust state of an envelope: verified, unverified or refused (spec section 5 step 6, section 8).

This module needs no cryptography: the caller hands in the verifier (`trust.proof`). Without a verifier every envelope that
claims our trust profile is refused.
"""

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.agh.decoding import decoder
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.errors import VerificationFailed
from aghbus.protocol.agh.identifiers import is_handle

Trust = Literal["verified", "unverified"]
Verifier = Callable[[Envelope], None]  # raises VerificationFailed unless the proof is valid
Signer = Callable[[dict[str, Any]], dict[str, Any]]  # a wire document → the same with a proof; raises InvalidRequest

PROFILE: Final = "agh-network.trust.ed25519-jcs/v1"


class Claims(msgspec.Struct, frozen=True, gc=False):
    """The members of a proof that say what it claims, of any type; None where absent."""

    profile: Any = None
    key_id: Any = None
    pubkey: Any = None


claims_of: Final = decoder(Claims)
"""The claims of a proof, from the bytes of a JSON object."""


def assess(envelope: Envelope, verifier: Verifier | None = None) -> Trust:
    """`verified` or `unverified`. Raises VerificationFailed for an envelope that must be refused."""
    if not claims_profile(envelope.sender, None if envelope.proof is None else claims_of(envelope.proof)):
        return "unverified"
    if verifier is not None:
        verifier(envelope)
    if not is_handle(envelope.sender):
        raise VerificationFailed("is not the handle of the key that signed", "from")
    if verifier is None:
        raise VerificationFailed("this peer cannot verify signatures", "proof")
    return "verified"


def claims_profile(sender: str, proof: Claims | None) -> bool:
    """Whether the proof claims our profile, so that it must be verified; False for an unverified plain peer.

    Raises VerificationFailed by the rules of spec section 8: a handle without a proof, a proof without a string `profile`, a
    handle with a proof of another profile.
    """
    handle = "@" in sender  # plain peer ids have no `@`; a malformed handle is treated like a handle
    if proof is None:
        if handle:
            raise VerificationFailed("a verified handle sends no envelope without a proof", "proof")
        return False
    profile = proof.profile
    if not isinstance(profile, str):
        raise VerificationFailed("must name its profile", "proof.profile")
    if profile != PROFILE and handle:
        raise VerificationFailed(f"a verified handle needs profile {PROFILE}", "proof.profile")
    return profile == PROFILE
