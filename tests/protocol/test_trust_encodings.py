"""Canonical JSON, proofs from hostile peers, names, keys and rotation statements."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest
import rfc8785
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import example, given
from hypothesis import strategies as st

from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import VerificationFailed
from aghbus.protocol.agh.identifiers import is_handle
from aghbus.protocol.agh.trust.canonical_json import (
    MAX_INTEGER,
    Received,
    Unfaithful,
    _as_written,
    _read_slowly,
    canonical_bytes,
    read_strict,
)
from aghbus.protocol.agh.trust.keys import (
    PublicKey,
    PublicKeys,
    SigningKey,
    decode_base64url,
    encode_base64url,
    fingerprint,
    handle_of,
    nickname_of,
)
from aghbus.protocol.agh.trust.proof import PROOF_BYTES, EnvelopeSigner, sign, verify, verify_envelope
from aghbus.protocol.agh.trust.rotation import STATEMENT, read_rotation, rotation_statement
from aghbus.protocol.agh.trust.trust import PROFILE, assess
from tests.support.proof_cases import KEY, KINDS, OTHER, Document, document_of, other_value, signed, without
from tests.support.wire import NOW, dump, json_values, texts

SMALL_ORDER: Final = [  # points of order 1, 2, 4 and 8, and an encoding of the first that is not canonical
    "01" + "00" * 31,
    "ec" + "ff" * 30 + "7f",
    "00" * 32,
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "ee" + "ff" * 30 + "7f",
]
PIECES: Final = [
    b"",
    b'"',
    b",",
    b":",
    b"{",
    b"}",
    b"[",
    b"]",
    b"0",
    b"-",
    b".5",
    b"e9",
    b"\\",
    b"\\u00",
    b" ",
    b"\xf0",
    b"\xff",
]


def _holds_by_openssl(public: bytes, signature: bytes, message: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, message)
    except InvalidSignature:
        return False
    return True


class TestCanonicalForm:
    @given(st.dictionaries(texts | st.text(), json_values, max_size=4))
    def test_the_fast_encoder_gives_the_bytes_of_the_library(self, value: Document) -> None:
        try:
            raw = json.dumps(value, ensure_ascii=False).encode()
            received = read_strict(raw)
        except (UnicodeEncodeError, Unfaithful):
            return
        assert canonical_bytes(received) == rfc8785.dumps(received.value)

    @given(st.text(st.characters(codec="utf-8"), max_size=8), st.text(st.characters(codec="utf-8"), max_size=8))
    def test_names_and_strings_may_have_any_unicode_character(self, one: str, other: str) -> None:
        for ascii_only in (True, False):
            raw = json.dumps({one: other, other: one}, ensure_ascii=ascii_only).encode()
            received = read_strict(raw)
            assert canonical_bytes(received) == rfc8785.dumps(received.value)

    @given(st.lists(st.floats(allow_nan=False, allow_infinity=False)), st.integers(-330, 310), st.integers(1, 10**17))
    @example(
        [-0.0, 5e-324, 1e-7, 9.999999999999999e-7, 1e-6, 1e-5, 2.0**53, 1e16, 1e20, 9.99e20, 1e21, 1e22, 1e308], 0, 1
    )
    def test_every_double_is_written_as_by_the_library(self, values: list[float], exponent: int, digits: int) -> None:
        received = read_strict(json.dumps({"n": [*values, digits * 10.0 ** min(exponent, 290)]}).encode())
        assert canonical_bytes(received) == rfc8785.dumps(received.value)

    def test_every_control_character_is_escaped_as_in_the_library(self) -> None:
        value = {chr(code): chr(code) for code in (*range(0x80), 0x85, 0x2028, 0x2029, 0xFEFF)}
        received = read_strict(json.dumps(value).encode())
        assert received.plain
        assert canonical_bytes(received) == rfc8785.dumps(value)

    def test_the_fast_encoder_would_be_wrong_for_documents_that_are_not_plain(self) -> None:
        for text in ('{"\U0001f600":1,"\ufb33":2}', '{"\\ud83d\\ude00":1,"\\ufb33":2}', '{"n":1e3}', '{"n":-0.0}'):
            received = read_strict(text.encode())
            assert not received.plain
            assert canonical_bytes(received) != canonical_bytes(Received(received.value, plain=True))

    @pytest.mark.parametrize(
        "text",
        [
            '{"a":1,"a":1}',
            '{"a":{"b":1,"\\u0062":1}}',
            '[{"a":1}]',
            '"a"',
            '{"n":9007199254740992}',
            '{"n":-9007199254740992}',
            '{"n":' + "9" * 5000 + "}",
            '{"n":1e309}',
            '{"n":-1e309}',
            '{"n":NaN}',
            '{"n":Infinity}',
            '{"n":-Infinity}',
            '{"a":"\x01"}',
            '{"a":1}{"b":2}',
            '\ufeff{"a":1}',
            '{"a":' * 100_000,
            "",
        ],
    )
    def test_unfaithful_json_is_refused(self, text: str) -> None:
        with pytest.raises(Unfaithful):
            read_strict(text.encode())

    def test_other_encodings_are_refused(self) -> None:
        for raw in (b"\xff{}", b'{"a":"\xed\xa0\x80"}', '{"a":1}'.encode("utf-16"), '{"a":1}'.encode("utf-32")):
            with pytest.raises(Unfaithful):
                read_strict(raw)

    @pytest.mark.parametrize("text", ['{"a":"\\ud800"}', '{"\\udfff":1}', '{"a":["\\udc00\\ud800"]}'])
    def test_lone_surrogates_have_no_canonical_form(self, text: str) -> None:
        with pytest.raises(Unfaithful):
            canonical_bytes(read_strict(text.encode()))


class TestFastDecoder:
    """`_as_written` says what the slow way says, or nothing."""

    @given(st.dictionaries(texts | st.text(), json_values, max_size=4))
    def test_compact_documents_are_decoded_as_by_the_strict_decoder(self, value: Document) -> None:
        try:
            raw = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
        except UnicodeEncodeError:
            return
        self.agree(raw)

    @given(st.dictionaries(texts, json_values, max_size=3), st.data())
    def test_mutated_documents_are_decoded_as_by_the_strict_decoder(self, value: Document, data: st.DataObject) -> None:
        raw = bytearray(msgspec.json.encode({"a": 1, **value}))
        for _ in range(data.draw(st.integers(1, 3))):
            at = data.draw(st.integers(0, len(raw) - 1))
            raw[at : at + data.draw(st.integers(0, 2))] = data.draw(st.sampled_from(PIECES))
        self.agree(bytes(raw))

    @given(
        st.integers(-(2**65), 2**65) | st.sampled_from([MAX_INTEGER, -MAX_INTEGER]).map(lambda n: n + 1) | st.floats()
    )
    def test_numbers_at_any_depth_are_decoded_as_by_the_strict_decoder(self, number: float) -> None:
        self.agree(json.dumps({"a": [{"b": [number]}]}, separators=(",", ":")).encode())

    @pytest.mark.parametrize(
        "text",
        [
            '{"a":1,"a":1}',
            '{"a":-0}',
            '{"a":-0.0}',
            '{"a":1.0}',
            '{"a":1e3}',
            '{"a":9007199254740992}',
            '{"a":[[-9007199254740992]]}',
            '{"a": 1}',
            '{"a":"\\u0061"}',
            '{"a":"\\ud800"}',
            '{"a":"\\ud83d\\ude00"}',
            '{"a":"😀"}',
            '{"😀":1,"דּ":2}',
            '{"a":"\\/"}',
            '{"a":NaN}',
            '["a"]',
            "1",
            "",
            '﻿{"a":1}',
            '{"a":' * 100_000,
            '{"a":' + "9" * 5_000 + "}",
        ],
    )
    def test_the_fast_decoder_declines_ambiguous_documents(self, text: str) -> None:
        assert _as_written(text.encode()) is None

    def test_the_fast_decoder_declines_other_encodings(self) -> None:
        for raw in (b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}', '{"a":1}'.encode("utf-16")):
            assert _as_written(raw) is None

    @pytest.mark.parametrize("kind", KINDS)
    def test_the_fast_decoder_accepts_compact_documents(self, kind: str) -> None:
        document = document_of(kind)
        document["ext"].pop("half")  # a double
        assert _as_written(msgspec.json.encode(sign(document, KEY))) is not None

    def agree(self, raw: bytes) -> None:
        if (found := _as_written(raw)) is None:
            return
        slow = _read_slowly(raw)
        assert slow.plain
        assert msgspec.json.encode(found) == msgspec.json.encode(
            slow.value
        )  # the same names in the same order, 1 and True apart
        assert canonical_bytes(read_strict(raw)) == rfc8785.dumps(slow.value)


class TestHostileProofs:
    @given(
        st.none()
        | json_values
        | st.dictionaries(st.sampled_from(["profile", "alg", "key_id", "pubkey", "sig"]), json_values)
    )
    def test_any_proof_gets_a_verdict(self, proof: Any) -> None:
        assert verify(dump({**document_of("say"), "proof": proof})).state == "rejected"

    @given(st.sampled_from(["profile", "alg", "key_id", "pubkey", "sig"]), json_values)
    def test_any_member_gets_a_verdict(self, member: str, value: Any) -> None:
        document = signed()
        if value != document["proof"][member]:
            document["proof"][member] = value
            assert verify(dump(document)).state == "rejected"

    @given(st.binary(max_size=200))
    def test_any_bytes_get_a_verdict(self, raw: bytes) -> None:
        assert verify(raw).state in ("rejected", "unverified")

    @given(json_values)
    def test_any_sender_gets_a_verdict(self, sender: Any) -> None:
        proof = signed()["proof"]
        assert verify(dump({**document_of("say"), "from": sender, "proof": proof})).state == "rejected"

    def test_a_malformed_handle_is_never_unverified(self) -> None:
        for sender in ("Ops@" + KEY.fingerprint, "ops@", "@", "ops@" + KEY.fingerprint.upper()):
            assert verify(dump({**document_of("say"), "from": sender, "proof": None})).state == "rejected"

    def test_a_plain_peer_is_never_verified_even_if_the_verifier_accepts_it(self) -> None:
        envelope = parse(dump({**document_of("say"), "from": "ops", "proof": {"profile": PROFILE}}), NOW)
        with pytest.raises(VerificationFailed, match="from"):
            assess(envelope, lambda _: None)


class TestVerifier:
    """Asked directly, without the door before it, it takes nothing for granted."""

    def test_the_verifier_refuses_another_profile(self) -> None:
        document = signed()
        document["proof"]["profile"] = "acme/v1"
        with pytest.raises(VerificationFailed, match=r"proof\.profile"):
            verify_envelope(parse(dump(document), NOW))

    def test_the_verifier_refuses_a_missing_proof(self) -> None:
        with pytest.raises(VerificationFailed, match="proof"):
            verify_envelope(parse(dump(document_of("say")), NOW))

    def test_the_verifier_accepts_a_valid_proof(self) -> None:
        verify_envelope(parse(dump(signed()), NOW))


class TestNames:
    @given(st.binary(min_size=32, max_size=32) | st.binary(min_size=64, max_size=64))
    def test_base64url_has_exactly_one_encoding(self, raw: bytes) -> None:
        text = encode_base64url(raw)
        assert decode_base64url(text, len(raw)) == raw
        last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        same = [c for c in last if decode_base64url(text[:-1] + c, len(raw)) == raw]
        assert same == [text[-1]]

    @given(st.text(max_size=50))
    def test_only_the_canonical_text_decodes(self, text: str) -> None:
        raw = decode_base64url(text, 32)
        assert raw is None or encode_base64url(raw) == text

    @pytest.mark.parametrize(
        "bad", ["", "A" * 42, "A" * 44, "A" * 42 + "=", "A" * 42 + "+", "A" * 42 + "/", "A" * 42 + " ", "A" * 42 + "é"]
    )
    def test_other_alphabets_and_padding_are_refused(self, bad: str) -> None:
        assert decode_base64url(bad, 32) is None

    @pytest.mark.parametrize(
        ("name", "nickname"),
        [
            ("ops", "ops"),
            ("Patch.Worker 1", "patch-worker-1"),
            ("Ünï", "-n-"),
            ("a" * 40, "a" * 32),
            ("-_", "-_"),
            ("İ", "i-"),
        ],
    )
    def test_a_nickname_is_derived_from_the_name(self, name: str, nickname: str) -> None:
        assert nickname_of(name) == nickname

    @given(st.text(min_size=1))
    def test_every_name_gives_a_handle(self, name: str) -> None:
        assert is_handle(handle_of(name, KEY.public))

    def test_an_empty_name_gives_no_handle(self) -> None:
        with pytest.raises(ValueError, match="name"):
            nickname_of("")


class TestPublicKeys:
    def test_the_key_cache_decodes_once_and_is_bounded(self) -> None:
        keys = PublicKeys(most=3)
        texts_of = [encode_base64url(SigningKey(bytes([n]) * 32).public) for n in range(7)]
        for text in texts_of:
            read = keys.read(text)
            assert read is not None
            assert keys.read(text) is read
            assert len(keys) <= 3
        again = keys.read(texts_of[0])
        assert again is not None
        assert again.key_id == SigningKey(bytes(32)).key_id

    def test_invalid_keys_are_not_cached(self) -> None:
        keys = PublicKeys()
        for text in ("", "A" * 42, "A" * 44, "A" * 42 + "=", "B" * 1_000_000):
            assert keys.read(text) is None
        assert len(keys) == 0

    def test_a_point_off_the_curve_verifies_nothing(self) -> None:
        key = PublicKey(b"\xff" * 32)
        assert not key.has_signed(b"", bytes(64))
        assert not PublicKey(KEY.public).has_signed(b"", KEY.sign(b"")[:63])
        assert PublicKey(KEY.public).has_signed(b"", KEY.sign(b""))

    @pytest.mark.parametrize("encoding", SMALL_ORDER)
    def test_a_key_of_small_order_verifies_nothing(self, encoding: str) -> None:
        public = bytes.fromhex(encoding)
        signature = bytes.fromhex(SMALL_ORDER[0]) + bytes(32)  # R the neutral element, S zero
        messages = [bytes([number]) for number in range(32)]
        assert any(_holds_by_openssl(public, signature, message) for message in messages)
        assert not any(PublicKey(public).has_signed(message, signature) for message in messages)

    @given(st.binary(max_size=300), st.binary(min_size=32, max_size=32), st.integers(0, 1 << 16), st.integers(0, 7))
    def test_both_libraries_agree_on_generated_keys(self, message: bytes, seed: bytes, at: int, bit: int) -> None:
        key = SigningKey(seed)
        signature = bytearray(key.sign(message))
        assert PublicKey(key.public).has_signed(message, bytes(signature))
        assert _holds_by_openssl(key.public, bytes(signature), message)
        signature[at % 64] ^= 1 << bit
        assert not PublicKey(key.public).has_signed(message, bytes(signature))
        assert not _holds_by_openssl(key.public, bytes(signature), message)


class TestSigningKey:
    def test_no_text_form_shows_the_secret(self) -> None:
        seed = b"0123456789abcdef0123456789abcdef"
        key = SigningKey(seed)
        signer = EnvelopeSigner(key, "ops")
        for shown in (repr(key), str(key), repr(signer), f"{key} {signer}", repr([key]), repr({"k": signer})):
            assert "0123456789abcdef" not in shown
            assert seed.hex() not in shown
        assert key.key_id in repr(key)
        assert signer.handle in repr(signer)

    @pytest.mark.parametrize("leak", [pickle.dumps, copy.deepcopy, copy.copy])
    def test_a_signing_key_cannot_be_copied_or_pickled(self, leak: Callable[[object], object]) -> None:
        with pytest.raises(TypeError, match="not pickled"):
            leak(SigningKey(bytes(32)))

    @pytest.mark.parametrize("length", [0, 31, 33, 64])
    def test_the_error_of_an_invalid_seed_does_not_contain_it(self, length: int) -> None:
        with pytest.raises(ValueError, match=f"not {length}$"):
            SigningKey(b"s" * length)

    def test_a_signature_of_another_length_is_invalid(self) -> None:
        assert not PublicKey(KEY.public[:31]).has_signed(b"", bytes(64))
        assert not PublicKey(KEY.public).has_signed(b"", KEY.sign(b"more") + b"more")


class TestRotation:
    def test_a_rotation_statement_is_signed_by_the_old_key(self) -> None:
        raw = rotation_statement(KEY, OTHER.public, "ops", NOW)
        rotation = read_rotation(raw)
        assert rotation is not None
        assert (rotation.old_key_id, rotation.new_key_id, rotation.ts) == (KEY.key_id, OTHER.key_id, NOW)
        assert fingerprint(OTHER.public) == OTHER.fingerprint
        assert json.loads(raw)["statement"] == STATEMENT
        assert "protocol" not in json.loads(raw)

    def test_no_field_of_a_statement_can_be_changed_dropped_or_added(self) -> None:
        document = json.loads(rotation_statement(KEY, OTHER.public, "ops", NOW))
        assert read_rotation(dump(document)) is not None
        for field, value in document.items():
            assert read_rotation(dump({**document, field: other_value(value)})) is None
            assert read_rotation(dump(without(document, (field,)))) is None
            assert read_rotation(dump({**document, field: None})) is None
        longer = without({**document, "more": 1}, ("sig",))
        longer["sig"] = encode_base64url(KEY.sign(canonical_bytes(read_strict(dump(longer)))))
        assert read_rotation(dump(longer)) is None

    def test_the_new_key_cannot_sign_the_statement(self) -> None:
        document = json.loads(rotation_statement(OTHER, OTHER.public, "ops", NOW))
        forged = {**document, "old_pubkey": encode_base64url(KEY.public)}
        assert read_rotation(dump(forged)) is None

    @given(st.binary(max_size=100))
    def test_any_bytes_get_a_verdict(self, raw: bytes) -> None:
        assert read_rotation(raw) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_proof_adds_a_fixed_number_of_bytes(kind: str) -> None:
    plain = {**document_of(kind), "proof": None}
    for key in (KEY, OTHER):
        assert len(msgspec.json.encode(sign(plain, key))) - len(msgspec.json.encode(plain)) == PROOF_BYTES
