"""Signing and verifying the proof of an envelope: trust profile `agh-network.trust.ed25519-jcs/v1` (spec section 8).

The signature covers the canonical form of the envelope exactly as sent, without `proof.sig`. A receiver verifies the bytes
as received: it adds no defaults and drops no unknown fields.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.envelope import Envelope, decode_document
from aghbus.protocol.agh.errors import Malformed, VerificationFailed
from aghbus.protocol.agh.identifiers import NICKNAME
from aghbus.protocol.agh.trust.canonical_json import Unfaithful, canonical_bytes, read_strict
from aghbus.protocol.agh.trust.keys import (
    PUBLIC_BYTES,
    SIGNATURE_BYTES,
    PublicKey,
    PublicKeys,
    SigningKey,
    decode_base64url,
    encode_base64url,
    handle_of,
)
from aghbus.protocol.agh.trust.tags import pair_key
from aghbus.protocol.agh.trust.trust import PROFILE, Claims, Trust, claims_of, claims_profile
from aghbus.protocol.base.errors import InvalidRequest

ALGORITHM: Final = "Ed25519"

_encode: Final = msgspec.json.Encoder().encode
_keys: Final = PublicKeys()


class ProofVerdict(msgspec.Struct, frozen=True):
    """The result of verification, before local policy.

    `detail` is the field at fault and the rule, "" when verified; `key_id` is that of the signing key, only when verified.
    """

    state: Trust | Literal["rejected"]
    detail: str = ""
    key_id: str | None = None


PROOF_BYTES: Final = len(
    _encode(
        {
            "profile": PROFILE,
            "alg": ALGORITHM,
            "key_id": f"sha256:{'0' * 64}",
            "pubkey": encode_base64url(bytes(32)),
            "sig": encode_base64url(bytes(64)),
        }
    )
) - len("null")
"""The bytes that a proof adds to an envelope; all parts have fixed lengths."""


class EnvelopeSigner:
    """Signs the envelopes of one identity. A call with a wire document returns the document with its proof."""

    __slots__ = ("_key", "handle")

    def __init__(self, key: SigningKey, name: str) -> None:
        """`name` is the daemon's name; the nickname is derived from it."""
        self._key = key
        self.handle = handle_of(name, key.public)

    @property
    def key_id(self) -> str:
        """`sha256:` and 64 hex digits."""
        return self._key.key_id

    def pair_key(self, theirs: PublicKey, their_id: str) -> bytes | None:
        """The key of the tags between our handle and another one (`tags.pair_key`)."""
        return pair_key(self._key, self.handle, theirs, their_id)

    def __call__(self, document: dict[str, Any]) -> dict[str, Any]:
        """Raises InvalidRequest when `from` is not our handle, or when the document has no faithful canonical form."""
        if document.get("from") != self.handle:
            raise InvalidRequest("from: is not the handle of the key that signs")
        return sign(document, self._key)

    def __repr__(self) -> str:
        return f"EnvelopeSigner({self.handle})"


def sign(document: Mapping[str, Any], key: SigningKey) -> dict[str, Any]:
    """`document` with `proof` set; every other field is unchanged.

    Raises InvalidRequest if it has no faithful canonical form, for instance because of integers beyond 2^53-1.
    """
    proof = {
        "profile": PROFILE,
        "alg": ALGORITHM,
        "key_id": key.key_id,
        "pubkey": encode_base64url(key.public),
    }
    unsigned = {**document, "proof": proof}
    try:
        signed = canonical_bytes(read_strict(_encode(unsigned)))  # of the bytes, as any receiver will read them
    except Unfaithful as error:
        raise InvalidRequest(
            f"the envelope cannot be signed: it {error}", hint="write numbers of more than 53 bits as strings"
        ) from None
    return {**unsigned, "proof": {**proof, "sig": encode_base64url(key.sign(signed))}}


def verify(raw: bytes) -> ProofVerdict:
    """The verdict on the bytes of an envelope. Only `from` and `proof` are checked, not the other fields. Never raises."""
    try:
        document = decode_document(raw)
        sender, proof = document.get("from"), document.get("proof")
        if proof is not None and not isinstance(proof, dict):
            raise VerificationFailed("must be an object", "proof")
        if not isinstance(sender, str):
            raise VerificationFailed("must be a string", "from")
        if not claims_profile(sender, None if proof is None else Claims(proof.get("profile"))):
            return ProofVerdict("unverified", "proof: of another profile" if proof else "proof: there is none")
        assert proof is not None
        _check_proof(raw, sender, proof)
    except (Malformed, VerificationFailed) as error:
        return ProofVerdict("rejected", error.detail)
    return ProofVerdict("verified", key_id=proof["key_id"])


def verify_envelope(envelope: Envelope) -> None:
    """A `trust.Verifier`: raises VerificationFailed unless the proof is valid."""
    if envelope.proof is None:
        raise VerificationFailed("there is none", "proof")
    _check_proof(envelope.raw, envelope.sender, decode_json(envelope.proof))


def public_key_in(proof: bytes | None) -> PublicKey | None:
    """The public key that the bytes of a proof name; for a verified envelope the one that signed."""
    text = None if proof is None else claims_of(proof).pubkey
    return _keys.read(text) if isinstance(text, str) else None


def _check_proof(raw: bytes, sender: str, proof: dict[str, Any]) -> None:
    """All steps after "the proof is an object", in the order of spec section 8: cheap ones first."""
    public = _check_claims(proof)
    _check_sender(sender, public)
    text = proof.get("sig")
    signature = decode_base64url(text, SIGNATURE_BYTES) if isinstance(text, str) else None
    if signature is None:
        raise VerificationFailed(f"must be {SIGNATURE_BYTES} bytes in strict base64url", "proof.sig")
    if not public.has_signed(_signed_bytes(raw), signature):
        raise VerificationFailed("does not belong to this envelope and key", "proof.sig")


def _check_claims(proof: dict[str, Any]) -> PublicKey:
    """Checks profile, algorithm, public key and key id; returns the public key."""
    if proof.get("profile") != PROFILE:
        raise VerificationFailed(f"must be {PROFILE}", "proof.profile")
    if proof.get("alg") != ALGORITHM:
        raise VerificationFailed(f"must be {ALGORITHM}", "proof.alg")
    text = proof.get("pubkey")
    public = _keys.read(text) if isinstance(text, str) else None
    if public is None:
        raise VerificationFailed(f"must be {PUBLIC_BYTES} bytes in strict base64url", "proof.pubkey")
    if proof.get("key_id") != public.key_id:
        raise VerificationFailed("is not the SHA-256 of the public key", "proof.key_id")
    return public


def _check_sender(sender: str, public: PublicKey) -> None:
    """Checks form, nickname and fingerprint of the handle."""
    nickname, at, digits = sender.partition("@")
    if not at:
        raise VerificationFailed("is not the handle of the key that signed", "from")
    if not NICKNAME.fullmatch(nickname):
        raise VerificationFailed("has a nickname that does not match ^[a-z0-9_-]{1,32}$", "from")
    if digits != public.fingerprint:
        raise VerificationFailed("has another fingerprint than the key that signed", "from")


def _signed_bytes(raw: bytes) -> bytes:
    try:
        received = read_strict(raw)
        del received.value["proof"]["sig"]
        return canonical_bytes(received)
    except Unfaithful as error:
        raise VerificationFailed(f"the envelope {error}") from None
