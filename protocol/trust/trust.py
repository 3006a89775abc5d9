"""The door between body and routing (spec section 5 step 6, section 8): how far an envelope's sender can be believed.

A signature can only be checked by somebody who has a verifier; without one nothing signed under a handle gets in.
Nothing here needs cryptography: proofs are made and checked in `trust_proof`.
"""

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import VerificationFailed
from aghbus.protocol.identifiers import is_handle

Trust = Literal["verified", "unverified"]
Verifier = Callable[[Envelope], None]  # raises VerificationFailed when the proof does not hold
Signer = Callable[[dict[str, Any]], dict[str, Any]]  # a wire document → the same with a proof; raises InvalidRequest

PROFILE: Final = "agh-network.trust.ed25519-jcs/v1"


class Claims(msgspec.Struct, frozen=True, gc=False):
    """What a proof says of itself, whatever that is; None where it does not."""

    profile: Any = None
    key_id: Any = None


claims_of: Final = msgspec.json.Decoder(Claims).decode
"""The claims of a proof, whose bytes are those of a JSON object."""


def assess(envelope: Envelope, verifier: Verifier | None = None) -> Trust:
    """`verified` or `unverified`; raises VerificationFailed for what must be rejected."""
    if envelope.proof is None and "@" not in envelope.sender:
        return "unverified"  # the usual case of what `claims_profile` says
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
    """True when the proof claims our profile and has to be verified, False for an unverified plain peer.

    Raises VerificationFailed by the rules of spec section 8: no proof is fine for a plain peer id and proof stripping for
    a handle; a proof needs a string `profile`; another profile is unverified for a plain id, rejected for a handle.
    """
    handle = "@" in sender  # no plain peer id has one: what only looks like a handle is none the safer for it
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
