"""Capability digests, trimming, escaping for terminals, generated and derived identifiers."""

import hashlib
import json
import sys
import unicodedata
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.capability_digest import canonical_bytes, capability_digest
from aghbus.protocol.agh.errors import Malformed, ProtocolError, VerificationFailed
from aghbus.protocol.agh.identifiers import (
    channel_of_subject,
    direct_id,
    is_channel,
    is_emitted_work_id,
    is_handle,
    is_message_id,
    is_peer,
    is_thread_id,
    is_workspace_id,
    pair_of,
    route_token,
    subject_for,
    uuid7_hex,
)
from aghbus.protocol.agh.limits import MAX_WORKSPACE_BYTES
from aghbus.protocol.base.text import byte_length, escape, has_control, is_blank, shorten, trim
from tests.support.wire import RECORD, A, B, capability_records, channels, json_values, peers, workspaces

SPACES: Final = [0x9, 0xA, 0xB, 0xC, 0xD, 0x20, 0x85, 0xA0] + [
    code
    for code in range(sys.maxunicode + 1)
    if unicodedata.category(chr(code)).startswith("Z") and code not in (0x20, 0xA0)
]


class TestTrim:
    def test_exactly_the_white_space_of_the_spec_is_trimmed(self) -> None:
        trimmed = [code for code in range(sys.maxunicode + 1) if trim(chr(code) + "x" + chr(code)) == "x"]
        assert trimmed == sorted(SPACES)  # spec section 3: U+001C-U+001F are not among them

    @given(st.text(), st.text("".join(map(chr, SPACES))), st.text("".join(map(chr, SPACES))))
    def test_trimming_removes_ends_only(self, text: str, left: str, right: str) -> None:
        assert trim(left + "x" + text + "x" + right) == "x" + text + "x"
        assert is_blank(left + right)


class TestEscape:
    @given(st.text() | st.text(st.characters(categories=["Cc", "Cf", "Cs", "Zl", "Zp"])))
    def test_escaped_text_cannot_move_the_cursor_or_reorder_text(self, text: str) -> None:
        for char in escape(text):
            assert unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp")
            assert unicodedata.bidirectional(char) not in (
                "LRE",
                "RLE",
                "LRO",
                "RLO",
                "PDF",
                "LRI",
                "RLI",
                "FSI",
                "PDI",
            )
            assert char not in "\u200b\u200c\u200d\u200e\u200f\u061c\ufeff\xad"

    def test_every_dangerous_code_point_is_escaped(self) -> None:
        for code in range(sys.maxunicode + 1):
            char = chr(code)
            if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp"):
                assert escape(char).isascii(), hex(code)

    @pytest.mark.parametrize(
        ("text", "shown"),
        [
            ("\x1b[31mred", "\\x1b[31mred"),
            ("a\nb\tc\rd", "a\\nb\\tc\\rd"),
            ("\u202egpj", "\\u202egpj"),
            ("\x9b", "\\x9b"),
            ("\ud800", "\\ud800"),
            ("\U000e0041", "\\U000e0041"),
            ("日本 ü 😀", "日本 ü 😀"),
            ("a\nb\rc\x1b", "a\\nb\\rc\\x1b"),
            ("a\ufe01\u034fb", "a\\ufe01\\u034fb"),
            ("\u26a0\ufe0f", "\u26a0\ufe0f"),  # a symbol in emoji style
            ("a\ufe0f\u26a0\ufe0f\ufe0f", "a\\ufe0f\u26a0\ufe0f\\ufe0f"),
        ],
    )
    def test_escapes_have_the_documented_form(self, text: str, shown: str) -> None:
        assert escape(text) == shown

    @given(st.text(), st.integers(1, 20))
    def test_shortening_keeps_the_limit(self, text: str, limit: int) -> None:
        short = shorten(text, limit)
        assert len(short) <= limit
        assert short == text or (short.endswith("…") and text.startswith(short[:-1]))

    @given(st.text(st.characters()))
    def test_lengths_are_in_utf8_bytes(self, text: str) -> None:
        assert byte_length(text) == len(text.encode("utf-8", "surrogatepass"))
        assert has_control(text) == any(unicodedata.category(char) == "Cc" for char in text)


class TestDigest:
    @given(capability_records(), st.randoms(use_true_random=False))
    def test_digest_ignores_key_order_requirement_order_and_whitespace(
        self, record: dict[str, Any], random: Any
    ) -> None:
        keys = list(record)
        random.shuffle(keys)
        other: dict[str, Any] = {}
        for key in keys:
            value = record[key]
            if isinstance(value, str):
                value = f"\u2003{value}\t"
            elif isinstance(value, list) and key == "requirements":
                value = random.sample(value, len(value))
            elif isinstance(value, list):
                value = ["", *value, " \u3000"]
            other[key] = value
        other |= {"workspace_id": "ws", "digest": "sha256:0", "future": [1]}
        assert capability_digest(other) == capability_digest(record)

    @given(capability_records())
    def test_the_canonical_bytes_decode_to_the_normalized_record(self, record: dict[str, Any]) -> None:
        order = ["id", "summary", "outcome", "version", "context_needed", "artifacts_expected", "execution_outline"]
        order += ["constraints", "examples", "requirements"]
        document = json.loads(canonical_bytes(record))
        assert list(document) == [key for key in order if key in document]
        assert document["id"] == trim(record["id"])
        assert document.get("requirements", []) == sorted(map(trim, record.get("requirements") or []))
        assert document.get("examples", []) == [
            trim(text) for text in record.get("examples") or [] if not is_blank(text)
        ]
        assert all(document.values())

    @given(capability_records(), st.sampled_from(["id", "summary", "outcome"]))
    def test_any_change_of_text_changes_the_digest(self, record: dict[str, Any], field: str) -> None:
        assert capability_digest({**record, field: record[field] + "!"}) != capability_digest(record)

    @pytest.mark.parametrize(
        ("char", "written"),
        [
            ('"', '\\"'),
            ("\\", "\\\\"),
            ("\n", "\\n"),
            ("\r", "\\r"),
            ("\t", "\\t"),
            ("\b", "\\b"),
            ("\f", "\\f"),
            ("\x00", "\\u0000"),
            ("\x0b", "\\u000b"),
            ("\x1f", "\\u001f"),
            ("<", "\\u003c"),
            (">", "\\u003e"),
            ("&", "\\u0026"),
            ("\u2028", "\\u2028"),
            ("\u2029", "\\u2029"),
            ("\x7f", "\x7f"),
            ("\x80", "\x80"),
            ("/", "/"),
            ("'", "'"),
            ("é", "é"),
            ("\ufffd", "\ufffd"),
            ("😀", "😀"),
        ],
    )
    def test_strings_are_escaped_as_gos_encoder_does(self, char: str, written: str) -> None:
        text = canonical_bytes({**RECORD, "summary": f"a{char}b"}).decode()
        assert f'"summary":"a{written}b"' in text
        assert (
            capability_digest({**RECORD, "summary": f"a{char}b"})
            == "sha256:" + hashlib.sha256(text.encode()).hexdigest()
        )

    def test_requirements_are_sorted_by_code_point_and_validated(self) -> None:
        document = json.loads(
            canonical_bytes({**RECORD, "requirements": [" é", "Z", "a", "_", "\U00010000", "\uffff"]})
        )
        assert document["requirements"] == ["Z", "_", "a", "é", "\uffff", "\U00010000"]
        for bad in (["a", " a"], ["a", " "]):
            with pytest.raises(VerificationFailed):
                capability_digest({**RECORD, "requirements": bad})

    @given(st.dictionaries(st.sampled_from([*RECORD, "version", "examples", "requirements"]), json_values))
    def test_any_record_gives_a_digest_or_the_protocols_error(self, record: dict[str, Any]) -> None:
        try:
            assert len(capability_digest(record)) == 71
        except ProtocolError as error:
            assert error.field.startswith("capability.")

    @pytest.mark.parametrize(
        "bad",
        [
            {"summary": "\ud800"},
            {"version": "\udfff"},
            {"examples": ["\udfff"]},
            {"id": " "},
            {"outcome": 1},
            {"examples": "x"},
        ],
    )
    def test_malformed_records_are_refused(self, bad: dict[str, Any]) -> None:
        with pytest.raises(Malformed):
            capability_digest({**RECORD, **bad})


class TestUuid7:
    @given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
    def test_version_variant_and_time_are_where_rfc_9562_puts_them(self, now_ms: int, entropy: bytes) -> None:
        text = uuid7_hex(now_ms, entropy)
        assert len(text) == 32
        assert (text[12], text[16] in "89ab") == ("7", True)
        assert int(text[:12], 16) == now_ms
        assert is_message_id("msg_" + text)
        assert is_emitted_work_id("work_" + text)

    @given(st.integers(0, 2**48 - 2), st.binary(min_size=10, max_size=10), st.binary(min_size=10, max_size=10))
    def test_a_later_millisecond_sorts_later(self, now_ms: int, first: bytes, second: bytes) -> None:
        assert uuid7_hex(now_ms, first) < uuid7_hex(now_ms + 1, second)

    @given(st.binary(min_size=10, max_size=10), st.integers(0, 73))
    def test_all_entropy_bits_but_six_are_kept(self, entropy: bytes, bit: int) -> None:
        """74 bits are free (RFC 9562 section 5.7): the top 12 and the lowest 62 of the 80 given."""
        position = bit if bit < 62 else bit + 6
        flipped = (int.from_bytes(entropy, "big") ^ (1 << position)).to_bytes(10, "big")
        assert uuid7_hex(1, entropy) != uuid7_hex(1, flipped)

    @pytest.mark.parametrize("size", [0, 9, 11])
    def test_ten_bytes_of_entropy_are_needed(self, size: int) -> None:
        with pytest.raises(ValueError, match="10 bytes"):
            uuid7_hex(0, bytes(size))


class TestDerivedIds:
    @given(workspaces, channels, peers, peers)
    def test_direct_id_is_symmetric_and_differs_for_other_pairs(
        self, workspace: str, channel: str, a: str, b: str
    ) -> None:
        if a == b:
            with pytest.raises(ValueError, match="two different"):
                direct_id(workspace, channel, a, b)
            return
        room = direct_id(workspace, channel, a, b)
        text = f"agh-network/direct-room/v0\0{workspace}\0{channel}\0{min(a, b)}\0{max(a, b)}"
        assert room == "direct_" + hashlib.sha256(text.encode()).hexdigest()[:32]
        assert room == direct_id(workspace, channel, b, a)
        assert room != direct_id(workspace, channel, a, b + a)
        assert pair_of(b, a) == pair_of(a, b)

    def test_the_token_of_a_handle_is_its_fingerprint(self) -> None:
        fingerprint = "56475aa75463474c0285df5dbf2bcab7"
        assert route_token(f"ops@{fingerprint}") == fingerprint

    @given(workspaces, channels, st.none() | peers)
    def test_a_subject_gives_its_workspace_and_channel(self, workspace: str, channel: str, to: str | None) -> None:
        subject = subject_for(workspace, channel, to)
        tail = "broadcast" if to is None else f"peer.{hashlib.sha256(to.encode()).hexdigest()[:32]}"
        assert subject == f"agh.network.v0.{workspace}.{channel}.{tail}"
        assert channel_of_subject(subject) == (workspace, channel)

    @pytest.mark.parametrize(
        "subject", ["", "agh.network.v0", "agh.network.v1.w.c.broadcast", "x.agh.network.v0.w.c.broadcast"]
    )
    def test_subjects_of_other_protocols_have_no_channel(self, subject: str) -> None:
        assert channel_of_subject(subject) is None

    def test_grammars_accept_and_refuse_at_their_limits(self) -> None:
        assert [is_channel("c" * size) for size in (0, 1, 64, 65)] == [False, True, True, False]
        assert [is_peer("p" * size) for size in (0, 1, 128, 129)] == [False, True, True, False]
        assert [is_message_id("m" * size) for size in (0, 1, 256, 257)] == [False, True, True, False]
        assert [is_workspace_id("w" * size) for size in (0, 1, MAX_WORKSPACE_BYTES, MAX_WORKSPACE_BYTES + 1)] == [
            False,
            True,
            True,
            False,
        ]
        assert [is_emitted_work_id("work_" + "w" * size) for size in (0, 1, 64, 65)] == [False, True, True, False]
        assert [is_handle("n" * size + "@" + "a" * 32) for size in (0, 1, 32, 33)] == [False, True, True, False]
        assert is_message_id("msg_\ue000\U0001f600")
        assert not any(is_peer(text) for text in (A + "\n", "Ops", B + "@", "a.b@" + "a" * 32))


@pytest.mark.parametrize("check", [is_channel, is_peer, is_thread_id, is_workspace_id])
def test_invalid_names_are_not_cached(check: Callable[[str], bool]) -> None:
    name = "A" * 100_000  # an outsider may send any number of those
    before = sys.getrefcount(name)
    assert not check(name)
    assert sys.getrefcount(name) == before
