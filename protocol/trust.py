"""The door between body and routing (spec section 5 step 6, section 8): how far an envelope's sender can be believed.

A signature can only be checked by somebody who has a verifier; without one nothing signed under a handle gets in.
"""

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import VerificationFailed
from aghbus.protocol.identifiers import is_handle

Trust = Literal["verified", "unverified"]
Verifier = Callable[[Envelope], None]  # raises VerificationFailed when the proof does not hold

PROFILE: Final = "agh-network.trust.ed25519-jcs/v1"


def assess(envelope: Envelope, verifier: Verifier | None = None) -> Trust:
    """`verified` or `unverified`; raises VerificationFailed for what must be rejected.

    Rules of spec section 8: no proof is fine for a plain peer id and proof stripping for a handle; a proof needs a string
    `profile`; another profile is unverified for a plain id, rejected for a handle.
    """
    handle = is_handle(envelope.sender)
    if envelope.proof is None:
        if handle:
            raise VerificationFailed("a verified handle sends no envelope without a proof", "proof")
        return "unverified"
    profile = msgspec.json.decode(envelope.proof).get("profile")
    if not isinstance(profile, str):
        raise VerificationFailed("must name its profile", "proof.profile")
    if profile != PROFILE:
        if handle:
            raise VerificationFailed(f"a verified handle needs profile {PROFILE}", "proof.profile")
        return "unverified"
    if not handle:
        raise VerificationFailed("is not the handle of the key that signed", "from")
    if verifier is None:
        raise VerificationFailed("this peer cannot verify signatures", "proof")
    verifier(envelope)
    return "verified"
