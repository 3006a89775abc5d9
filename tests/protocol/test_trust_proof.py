"""Signing and verification: every change is detected, and no input of a peer raises."""

import copy
import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.send import Draft, apply_own, build
from aghbus.protocol.agh.trust.canonical_json import MAX_INTEGER
from aghbus.protocol.agh.trust.keys import handle_of
from aghbus.protocol.agh.trust.proof import EnvelopeSigner, sign, verify, verify_envelope
from aghbus.protocol.agh.trust.trust import assess
from aghbus.protocol.base.errors import InvalidRequest
from tests.support.proof_cases import (
    KEY,
    KINDS,
    OPS,
    OTHER,
    Document,
    Path,
    at,
    document_of,
    other_value,
    signed,
    without,
)
from tests.support.wire import NOW, dump, json_values, texts


def leaves(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a document, containers included, from the top down."""
    if path:
        yield path
    if isinstance(value, dict):
        for name, item in value.items():
            yield from leaves(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))


def with_value(document: Document, path: Path, value: Any) -> Document:
    changed = copy.deepcopy(document)
    at(changed, path[:-1])[path[-1]] = value
    return changed


class TestTampering:
    @pytest.mark.parametrize("kind", KINDS)
    def test_an_unchanged_envelope_is_verified_in_any_layout(self, kind: str) -> None:
        document = signed(kind)
        shuffled = dict(reversed(document.items()))
        for raw in (dump(document), json.dumps(document, indent=1).encode(), json.dumps(shuffled).encode()):
            assert verify(raw).state == "verified"
            assert assess(parse(raw, NOW), verify_envelope) == "verified"

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_value_can_be_changed(self, kind: str) -> None:
        document = signed(kind)
        for path in leaves(document):
            changed = with_value(document, path, other_value(at(document, path)))
            assert verify(dump(changed)).state == "rejected", path

    @pytest.mark.parametrize("kind", KINDS)
    def test_no_member_can_be_removed(self, kind: str) -> None:
        document = signed(kind)
        for path in leaves(document):
            assert verify(dump(without(document, path))).state == "rejected", path

    @pytest.mark.parametrize("kind", KINDS)
    def test_null_and_absent_are_different_under_a_signature(self, kind: str) -> None:
        document = signed(kind)
        for path in [(), *leaves(document)]:
            container = at(document, path)
            if isinstance(container, dict):
                assert verify(dump(with_value(document, (*path, "reply"), None))).state == "rejected", path

    def test_a_proof_is_invalid_for_another_envelope(self) -> None:
        first, second = signed(), signed(id="msg_2")
        assert verify(dump({**second, "proof": first["proof"]})).state == "rejected"

    def test_another_key_cannot_sign_for_the_handle(self) -> None:
        forged = sign(document_of("say"), OTHER)
        assert verify(dump(forged)).detail.startswith("from: ")

    def test_the_key_of_a_signature_cannot_be_replaced(self) -> None:
        document = signed()
        claims = sign(document_of("say"), OTHER)["proof"]
        document["from"] = handle_of("ops", OTHER.public)
        document["proof"] = {**claims, "sig": document["proof"]["sig"]}
        assert verify(dump(document)).detail.startswith("proof.sig: ")


class TestSigning:
    def test_signing_changes_no_other_field(self) -> None:
        document = document_of("say")
        done = sign(document, KEY)
        assert list(done) == list(document)
        assert {name: value for name, value in done.items() if name != "proof"} == {
            name: value for name, value in document.items() if name != "proof"
        }
        assert list(done["proof"]) == ["profile", "alg", "key_id", "pubkey", "sig"]

    def test_signing_refuses_a_document_without_a_faithful_form(self) -> None:
        for value in (MAX_INTEGER + 1, -MAX_INTEGER - 1):
            with pytest.raises(InvalidRequest, match="beyond 2"):
                sign({**document_of("say"), "ext": {"n": value}}, KEY)
        assert verify(dump(signed(ext={"n": [MAX_INTEGER, -MAX_INTEGER]}))).state == "verified"

    def test_a_built_envelope_is_signed_and_valid(self) -> None:
        draft = Draft(
            id="msg_1", workspace_id="ws_alpha", channel="builders", kind="say", sender=OPS, ts=NOW, body={"text": "hi"},
            surface="thread", container="thread_release_check",
        )  # fmt: skip
        envelope = build(draft, NOW, EnvelopeSigner(KEY, "Ops"))
        assert assess(envelope, verify_envelope) == "verified"
        assert envelope.document()["to"] is None
        assert [getattr(effect, "trust", None) for effect in apply_own(envelope, None, None)] == ["verified"]
        with pytest.raises(InvalidRequest, match="from"):
            build(msgspec.structs.replace(draft, sender="ops"), NOW, EnvelopeSigner(KEY, "Ops"))
        assert build(msgspec.structs.replace(draft, sender="ops"), NOW).proof is None

    @given(st.dictionaries(texts, json_values, max_size=3))
    def test_a_second_verifier_accepts_our_signatures(self, ext: Document) -> None:
        document = {**document_of("say"), "ext": ext}
        try:
            done = sign(document, KEY)
        except InvalidRequest as error:
            assert "2^53" in str(error) or "double" in str(error)
            return
        assert verify(msgspec.json.encode(done)).state == "verified"
        assert verify(json.dumps(done, indent=2).encode()).state == "verified"
