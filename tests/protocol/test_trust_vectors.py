"""The trust profile against official test vectors and envelopes signed by a second implementation."""

import json
import struct
from pathlib import Path
from typing import Any, Final

import pytest

from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import ProtocolError, VerificationFailed
from aghbus.protocol.agh.identifiers import route_token
from aghbus.protocol.agh.replay import check
from aghbus.protocol.agh.trust.canonical_json import Received, canonical_bytes, read_strict
from aghbus.protocol.agh.trust.keys import PublicKey, SigningKey, decode_base64url, encode_base64url, handle_of, key_id
from aghbus.protocol.agh.trust.proof import sign, verify, verify_envelope
from aghbus.protocol.agh.trust.trust import assess

FOLDER: Final = Path(__file__).parent.parent / "vectors"
FIELDS: Final = {"from", "proof", "proof.profile", "proof.alg", "proof.pubkey", "proof.key_id", "proof.sig"}
KEY: Final = SigningKey(bytes(range(32)))  # the specification's test key (section 8)


def lines(name: str) -> list[Any]:
    # Not splitlines: the vectors hold U+2028, which is a line break to Python and none to JSON.
    cases = [json.loads(line) for line in (FOLDER / name).read_text("utf-8").split("\n") if line]
    assert cases
    return [pytest.param(case, id=str(case.get("name", number))) for number, case in enumerate(cases, 1)]


def test_a_known_key_has_the_expected_names() -> None:
    assert encode_base64url(KEY.public) == "A6EHv_POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg"
    assert handle_of("Ops", KEY.public) == "ops@56475aa75463474c0285df5dbf2bcab7"
    assert route_token(handle_of("ops", KEY.public)) == "56475aa75463474c0285df5dbf2bcab7"
    assert KEY.key_id == key_id(KEY.public) == "sha256:56475aa75463474c0285df5dbf2bcab73da651358839e9b77481b2eab107708c"


@pytest.mark.parametrize("case", lines("trust_ed25519.jsonl"))
def test_ed25519_matches_rfc_8032(case: dict[str, Any]) -> None:
    public, message = bytes.fromhex(case["public"]), bytes.fromhex(case["message"])
    signature = bytes.fromhex(case["signature"])
    key = SigningKey(bytes.fromhex(case["seed"]))
    assert key.public == public
    assert key.sign(message) == signature
    assert PublicKey(public).has_signed(message, signature)
    assert not PublicKey(public).has_signed(message + b"\0", signature)
    assert not PublicKey(public).has_signed(message, bytes([signature[0] ^ 1]) + signature[1:])


@pytest.mark.parametrize("case", lines("trust_jcs.jsonl"))
def test_the_canonical_form_matches_rfc_8785(case: dict[str, Any]) -> None:
    wrapped = read_strict(b'{"it":' + case["input"].encode() + b"}")  # one of the official inputs is an array
    assert canonical_bytes(wrapped) == b'{"it":' + case["output"].encode() + b"}"
    again = read_strict(b'{"it":' + case["output"].encode() + b"}")
    assert canonical_bytes(again) == canonical_bytes(wrapped)


@pytest.mark.parametrize("case", lines("trust_numbers.jsonl"))
def test_numbers_are_formatted_as_in_ecmascript(case: dict[str, str]) -> None:
    (double,) = struct.unpack(">d", bytes.fromhex(case["ieee"]))
    assert canonical_bytes(Received({"n": double}, plain=False)) == b'{"n":%s}' % case["text"].encode()
    if "." in case["text"] or "e" in case["text"]:
        assert read_strict(b'{"n":%s}' % case["text"].encode()).value == {"n": double}


@pytest.mark.parametrize("case", lines("trust_envelopes.jsonl"))
def test_envelopes_get_the_verdict_of_the_second_implementation(case: dict[str, Any]) -> None:
    raw = case["raw"].encode()
    verdict = verify(raw)
    assert verdict.state == case["state"], verdict.detail
    assert verdict.key_id == case.get("key_id")
    if verdict.state == "rejected":
        assert verdict.detail
        named = verdict.detail.partition(": ")[0]
        assert (named if named in FIELDS else "") == case["field"]


@pytest.mark.parametrize("case", lines("trust_envelopes.jsonl"))
def test_the_receiver_gives_the_same_verdict(case: dict[str, Any]) -> None:
    """The same verdicts through `parse` and `assess`; what parsing refuses already never gets to the door."""
    try:
        envelope = parse(case["raw"].encode(), case["now"])
    except ProtocolError as error:
        assert case["state"] == "rejected"
        assert error.reason == "malformed"
        return
    if case["state"] == "rejected":
        with pytest.raises(VerificationFailed):
            assess(envelope, verify_envelope)
        assert check(case["raw"].encode(), case["now"], verify_envelope).reason == "verification_failed"
    else:
        assert assess(envelope, verify_envelope) == case["state"]
        assert check(case["raw"].encode(), case["now"], verify_envelope).accept


GOOD: Final = [case for case in lines("trust_envelopes.jsonl") if case.values[0]["state"] == "verified"]


@pytest.mark.parametrize("case", GOOD)
def test_the_signed_bytes_match_the_recorded_ones(case: dict[str, Any]) -> None:
    received = read_strict(case["raw"].encode())
    del received.value["proof"]["sig"]
    assert canonical_bytes(received) == case["canonical"].encode()
    signature = decode_base64url(case["sig"], 64)
    assert signature is not None
    assert PublicKey(KEY.public).has_signed(case["canonical"].encode(), signature)


OURS: Final = [
    case for case in GOOD if case.id != "proof_member_of_a_later_version"
]  # our own proofs have no such member


@pytest.mark.parametrize("case", OURS)
def test_our_signature_matches_the_recorded_one(case: dict[str, Any]) -> None:
    document = json.loads(case["raw"])
    assert sign({**document, "proof": None}, KEY)["proof"] == document["proof"]
    assert case["sig"] == document["proof"]["sig"]


def test_the_fast_path_is_used_only_for_plain_documents() -> None:
    """Both ways must be among the vectors, or they would prove nothing about one of them."""
    plain = {case.id: read_strict(case.values[0]["raw"].encode()).plain for case in GOOD}
    assert plain["golden"]
    assert plain["unknown_fields"]
    assert not plain["numbers"]
    assert not plain["keys_beyond_the_basic_plane"]
    assert not plain["escaped_on_the_wire"]
