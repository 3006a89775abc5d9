"""Target `verify`: forged proofs are never valid, and our own always are."""

import base64
import copy
import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final

import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import ProtocolError, VerificationFailed
from aghbus.protocol.agh.receive import decide
from aghbus.protocol.agh.trust.canonical_json import Unfaithful, canonical_bytes, read_strict
from aghbus.protocol.agh.trust.keys import SigningKey, handle_of
from aghbus.protocol.agh.trust.proof import sign, verify, verify_envelope
from aghbus.protocol.agh.trust.rotation import read_rotation
from aghbus.protocol.agh.trust.trust import assess
from aghbus.protocol.base.errors import InvalidRequest
from tests.fuzz import fuzz_parse
from tests.fuzz.oracles import NOW, any_json, dump, reading, vector_lines

KEY: Final = SigningKey(bytes(range(32)))  # the known test key of spec section 8
HANDLE: Final = handle_of("ops", KEY.public)


def check(raw: bytes) -> None:
    """Check the invariants for any bytes. Raises AssertionError."""
    verdict = verify(raw)
    read_rotation(raw)
    _canonical_form_is_the_library_s(raw)
    document = reading(raw)
    if document is None:
        assert verdict.state == "rejected"
        return
    sender = document.get("from")
    if verdict.state == "verified":
        _holds_by_other_means(document)
    elif verdict.state == "unverified":
        assert isinstance(sender, str) and "@" not in sender, "a handle passed without a proof"
    _the_receiver_agrees(raw, verdict.state)
    _what_we_sign_holds(document)


def seeds() -> Iterator[bytes]:
    """Signed envelopes of a second implementation, the examples of RFC 8785, and unsigned envelopes."""
    for case in vector_lines("trust_envelopes"):
        yield case["raw"].encode()
    for case in vector_lines("trust_jcs"):
        yield case["input"].encode()
    for case in vector_lines("rules", "kind_examples"):
        yield dump(case["envelope"])


def _canonical_form_is_the_library_s(raw: bytes) -> None:
    try:
        received = read_strict(raw)
        ours = canonical_bytes(received)
    except Unfaithful:
        return
    assert ours == rfc8785.dumps(json.loads(raw.decode(), object_pairs_hook=_once))
    assert canonical_bytes(read_strict(ours)) == ours


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    assert len(set(names)) == len(names), "a name that comes twice has no canonical form"
    return dict(pairs)


def _holds_by_other_means(document: dict[str, Any]) -> None:
    """The steps of spec section 8 once more, by libraries alone."""
    unsigned = copy.deepcopy(document)
    proof = unsigned["proof"]
    public, signature = (_decode(text) for text in (proof["pubkey"], proof.pop("sig")))
    digest = hashlib.sha256(public).hexdigest()
    assert proof["key_id"] == "sha256:" + digest and document["from"].split("@")[1] == digest[:32]
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, rfc8785.dumps(unsigned))
    except InvalidSignature:
        raise AssertionError("an invalid proof was accepted") from None


def _the_receiver_agrees(raw: bytes, state: str) -> None:
    """The receiver and the verifier give the same verdict, and a rejected envelope has no effects but a receipt."""
    try:
        envelope = parse(raw, NOW)
    except ProtocolError:
        return
    try:
        found: str = assess(envelope, verify_envelope)
    except VerificationFailed:
        found = "rejected"
    assert found == state, "two ways to verify, two verdicts"
    if state == "rejected":
        receiver = fuzz_parse.receiver(envelope.to or "patch-worker", envelope)
        for view in fuzz_parse.views(envelope, receiver.self_id):
            effects = decide(envelope, view, receiver)
            assert type(effects[0]).__name__ == "Quarantine"
            fuzz_parse.check_refusals_come_last(effects)


def _what_we_sign_holds(document: dict[str, Any]) -> None:
    try:
        signed = sign({**document, "from": HANDLE}, KEY)
    except InvalidRequest:
        return
    assert verify(dump(signed)).state == "verified"
    assert verify(json.dumps(dict(reversed(signed.items())), indent=1).encode()).state == "verified"
    field = sorted(signed)[len(dump(document)) % len(signed)]  # one for each input: signatures are slow
    for other in (None, [signed[field]], f"{signed[field]}x"):
        changed = {**signed, field: other}
        assert any_json(dump(changed)) == signed or verify(dump(changed)).state != "verified", field
    assert verify(dump({**signed, "one more": 1})).state == ("verified" if signed.get("one more") == 1 else "rejected")


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
