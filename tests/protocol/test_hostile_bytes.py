"""Hostile input for the parser: the result is always a valid envelope or a protocol error."""

import json
from time import process_time
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aghbus.protocol.agh.decoding import processing_cost
from aghbus.protocol.agh.envelope import decode_document, parse
from aghbus.protocol.agh.errors import Malformed, ProtocolError, Undecodable
from aghbus.protocol.agh.limits import MAX_CONTAINERS, MAX_DEPTH, MAX_DOUBLES, MAX_ENVELOPE_BYTES, MAX_NUMBERS
from aghbus.protocol.agh.partial_parse import identity, partial_parse
from aghbus.protocol.agh.receive import Receiver, StoredState, decide
from aghbus.protocol.agh.replay import Replay, check
from tests.support.wire import (
    BODIES,
    JOINED,
    NOW,
    B,
    documents,
    dump,
    json_values,
    judged,
    legible,
    wire,
    with_unknown_member,
)


def read(raw: bytes) -> str | None:
    """Everything the protocol does with received bytes; the reason of refusal, or None. Anything else escapes."""
    partial_parse(legible(raw), B, JOINED)
    identity(legible(raw))
    check(raw, NOW)
    Replay().feed(raw, NOW)
    try:
        envelope = parse(raw, NOW)
    except ProtocolError as error:
        return error.reason
    assert isinstance(envelope.document(), dict)
    assert isinstance(envelope.extensions(), dict)
    decide(envelope, StoredState(), Receiver(self_id=B, now=NOW, mint=lambda: "msg_minted", channels=JOINED))
    return None


def with_field(text: str, kind: str = "say") -> bytes:
    """A valid envelope with one more top-level member, given as JSON text."""
    return dump(wire(kind))[:-1] + f", {text}}}".encode("utf-8", "surrogatepass")


def with_body_field(text: str) -> bytes:
    """A valid say whose body has one more member."""
    return dump(wire("say", body={"text": "x"})).replace(
        b'"text": "x"', b'"text": "x", ' + text.encode("utf-8", "surrogatepass")
    )


@given(st.binary(max_size=300))
def test_arbitrary_bytes_raise_only_protocol_errors(raw: bytes) -> None:
    assert read(raw) is not None


@given(st.data())
def test_mutated_envelopes_raise_only_protocol_errors(data: st.DataObject) -> None:
    raw = bytearray(dump(data.draw(documents())))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(raw)))
        end = min(len(raw), start + data.draw(st.integers(0, 6)))
        raw[start:end] = data.draw(
            st.binary(max_size=6) | st.sampled_from([b'"', b"\\", b"{", b"[", b"1e999", b"\\ud800", b"null"])
        )
    read(bytes(raw))


@given(st.data())
@example(None)
def test_any_json_value_in_any_field_raises_only_protocol_errors(data: st.DataObject | None) -> None:
    if data is None:  # the example: a value that cannot be a key of a set
        for field in ("workspace_id", "channel", "from", "id", "kind", "to"):
            assert read(dump(wire("say", **{field: ["x"]}))) is not None
        return
    document: dict[str, Any] = data.draw(documents())
    field = data.draw(st.sampled_from([*document, "proof", "work_id", "surface", "interaction_id"]))
    document[field] = data.draw(json_values)
    read(dump(document))


@given(st.data())
def test_the_quick_decoder_judges_every_envelope_like_the_complete_one(data: st.DataObject) -> None:
    document: dict[str, Any] = data.draw(documents())
    if data.draw(st.booleans()):
        field = data.draw(st.sampled_from([*document, "work_id", "surface", "expires_at", "reply_to"]))
        document[field] = data.draw(json_values | st.sampled_from(["say", "direct", 0, NOW]))
    if data.draw(st.booleans()) and isinstance(document["body"], dict):
        document["body"][data.draw(st.sampled_from(["text", "state", "for_id", "intent"]))] = data.draw(json_values)
    raw = dump(document)
    assert judged(raw) == judged(with_unknown_member(raw))


_FIELDS = st.sampled_from(["body", "ext", "proof", "kind", "ts", r"b\u006fdy", r"k\u0069nd"])
_VALUES = st.sampled_from(["1e999", '{"n": [1e999]}', "[" * MAX_DEPTH + "]" * MAX_DEPTH, "null", "{}", '"say"'])


@given(st.sampled_from(list(BODIES)), st.lists(st.tuples(_FIELDS, _VALUES, st.booleans()), min_size=1, max_size=3))
def test_the_quick_decoder_judges_repeated_members_like_the_complete_one(
    kind: str, more: list[tuple[str, str, bool]]
) -> None:
    text = json.dumps(wire(kind, ext=None))[1:-1]
    for field, value, first in more:
        text = f'"{field}": {value}, {text}' if first else f'{text}, "{field}": {value}'
    raw = f"{{{text}}}".encode()
    assert judged(raw) == judged(with_unknown_member(raw))


@pytest.mark.parametrize(
    "first", ["1e999", '{"n": 1e999}', "[" * MAX_DEPTH + "]" * MAX_DEPTH, f"[0{',0' * MAX_NUMBERS}]"]
)
@pytest.mark.parametrize("field", ["body", "ext", "proof", r"b\u006fdy", r"e\u0078t"])
@pytest.mark.parametrize("kind", BODIES)
def test_the_first_value_of_a_repeated_member_is_checked_too(kind: str, field: str, first: str) -> None:
    raw = dump(wire(kind, ext=None))
    assert read(f'{{"{field}": {{"n": 1.5}}, '.encode() + raw[1:]) is None
    with pytest.raises(Undecodable):
        parse(f'{{"{field}": {first}, '.encode() + raw[1:], NOW)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 5000, "1" * 400 + ".5", "1" * 250 + "e60"])
@pytest.mark.parametrize(
    "place", ['"x_new": %s', '"ext": {"a": %s}', '"proof": {"profile": "p", "n": [%s]}', '"ts": %s']
)
def test_a_number_out_of_range_is_malformed(place: str, number: str) -> None:
    assert read(with_field(place % number)) == "malformed"
    assert read(with_body_field(f'"n": {number}')) == "malformed"


@pytest.mark.parametrize(
    ("seconds", "reason"), [(2**63 - 1, None), (2**63, "malformed"), (10**30, "malformed"), (-(10**30), "expired")]
)
def test_expires_at_fits_64_bits(seconds: int, reason: str | None) -> None:
    assert read(dump(wire("say", expires_at=seconds))) == reason


def test_a_whole_number_beyond_64_bits_in_an_ignored_field_is_kept() -> None:
    parsed = parse(with_field('"x_new": 123456789012345678901234567890'), NOW)
    assert parsed.document()["x_new"] == 123456789012345678901234567890


@pytest.mark.parametrize(
    "text",
    [
        r'"x_new": "\ud800"',
        r'"x_new": "\udc00\ud800"',
        r'"\uDBFF": 1',
        r'"x_new": {"a": [{"\udfff": 1}]}',
        r'"ext": {"a": "\uD800x"}',
        r'"id": "\ud800"',
        r'"work_id": "w\udc00"',
        r'"x_new": "\ud800", "x_new": "fine"',
        r'"x_new": "\\\ud800"',
    ],
)
def test_a_lone_surrogate_anywhere_is_malformed(text: str) -> None:
    assert read(with_field(text)) == "malformed"
    assert read(with_body_field(text)) == "malformed"


@pytest.mark.parametrize("text", [r'"x_new": "\ud83d\ude00"', r'"x_new": "\\ud800"', '"x_new": "😀"'])
def test_a_surrogate_pair_or_an_escaped_backslash_is_valid(text: str) -> None:
    assert read(with_field(text)) is None


@given(st.data())
def test_invalid_utf8_anywhere_in_a_string_is_malformed(data: st.DataObject) -> None:
    raw = dump(data.draw(documents()))
    quotes = [index for index in range(len(raw)) if raw[index : index + 1] == b'"' and raw[index - 1 : index] != b"\\"]
    at = data.draw(st.sampled_from(quotes)) + 1
    bad = data.draw(st.sampled_from([b"\xff", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe2\x82"]))
    with pytest.raises(Malformed, match="UTF-8"):
        parse(raw[:at] + bad + raw[at:], NOW)


def nested(depth: int, opening: str, closing: str, core: str) -> bytes:
    """A valid envelope (depth 1) with an unknown member that brings the whole to `depth`."""
    return with_field(f'"x_new": {opening * (depth - 1)}{core}{closing * (depth - 1)}')


@pytest.mark.parametrize(
    ("opening", "closing", "core"), [("[", "]", ""), ('{"a": ', "}", "1"), ('{"}]": ', "}", '"[[\\"{"')]
)
def test_depth_at_the_limit_passes_and_one_more_fails(opening: str, closing: str, core: str) -> None:
    assert read(nested(MAX_DEPTH, opening, closing, core)) is None
    with pytest.raises(Malformed, match="deeper"):
        parse(nested(MAX_DEPTH + 1, opening, closing, core), NOW)


def test_many_brackets_side_by_side_or_inside_strings_are_not_depth() -> None:
    assert read(with_field('"x_new": [' + ",".join(["[]"] * 500) + "]")) is None
    assert read(with_field('"x_new": "' + "[" * 500 + '\\""')) is None


def test_size_at_the_limit_passes_and_one_more_byte_fails() -> None:
    padding = MAX_ENVELOPE_BYTES - len(with_field('"x_new": ""'))
    assert read(with_field(f'"x_new": "{"x" * padding}"')) is None
    with pytest.raises(Malformed, match="larger"):
        parse(with_field(f'"x_new": "{"x" * (padding + 1)}"'), NOW)
    with pytest.raises(Malformed, match="larger"):  # bytes count, not characters
        parse(with_field(f'"x_new": "{"é" * (padding // 2 + 1)}"'), NOW)


@pytest.mark.parametrize(
    "raw",
    [
        b'{"a": "' + b"[" * 200 + b'", "b": "' + b'\\"' * 500_000,  # a string that never ends, full of escaped quotes
        b'{"a": "' + b"[" * 200 + b'", "b": "' + b"\\" * 500_000,
        b'{"a": ' + b"[" * 500_000,
        b'{"a": ' * 150_000,
        b'"' * 1_000_000 + b"[" * 200,
        b'{"\\ud800": ' * 90_000,
        with_field('"x_new": [' + '"\\ud83d\\ude00",' * 60_000 + "1]"),
        with_field('"x_new": ' + "1" * 1_000_000),
        with_field('"id": 1, ' * 100_000 + '"id": "msg_1"'),
    ],
    ids=["quotes", "backslashes", "arrays", "objects", "strings", "surrogates", "pairs", "digits", "repeated"],
)
def test_any_megabyte_is_parsed_quickly(raw: bytes) -> None:
    """A hostile publisher must not stop the daemon: work stays linear in the size. The bound is generous for slow machines."""
    start = process_time()
    read(raw[:MAX_ENVELOPE_BYTES])
    assert process_time() - start < 5


def test_the_last_of_duplicate_keys_wins_even_after_one_of_a_wrong_type() -> None:
    assert parse(with_field('"id": "msg_last"'), NOW).id == "msg_last"
    assert parse(b'{"id": 5, "kind": {}, "ts": "x", "body": 1, ' + dump(wire("say"))[1:], NOW).id == "msg_1"
    assert parse(with_body_field('"text": 5, "text": "last"'), NOW).document()["body"]["text"] == "last"
    assert getattr(parse(with_body_field('"text": 5, "text": "last"'), NOW).body, "text", "") == "last"


def test_an_invalid_last_value_is_refused_after_a_valid_one() -> None:
    assert read(with_field('"ts": "late"')) == "malformed"
    assert read(with_field('"kind": "direct"')) == "unsupported_kind"
    assert read(with_field('"surface": "room"')) == "invalid_surface"


def test_interaction_id_is_refused_before_all_other_errors() -> None:
    assert read(b'{"interaction_id": null}') == "legacy_field_rejected"
    assert read(dump(wire("say", interaction_id="i", kind=7, ts="x"))) == "legacy_field_rejected"
    assert read(with_body_field('"interaction_id": 1')) is None  # only the envelope's own field is the legacy one


@pytest.mark.parametrize("field", ["protocol", "kind", "surface", "thread_id", "from"])
def test_escaped_and_plain_strings_are_equal(field: str) -> None:
    document = wire("say")
    spelled = "".join(f"\\u{ord(char):04x}" for char in document[field])
    raw = dump(document).replace(json.dumps(document[field]).encode(), f'"{spelled}"'.encode())
    assert raw != dump(document)
    assert parse(raw, NOW).document() == document
    assert parse(raw, NOW).surface == "thread"


@pytest.mark.parametrize(
    "raw", [b"", b" ", b"null", b"5", b'"x"', b"[]", b"{}", b"{} {}", b"\xef\xbb\xbf{}", b"{'a':1}", b'{"a":NaN}']
)
def test_anything_but_a_non_empty_json_object_is_malformed(raw: bytes) -> None:
    assert read(raw) == "malformed"


def test_white_space_around_the_object_is_accepted() -> None:
    assert read(b" \r\n\t" + dump(wire("say")) + b"\n ") is None


def test_decode_document_reads_any_object_and_keeps_the_last_duplicate() -> None:
    assert decode_document(b'{"a": 1, "a": {"b": []}}') == {"a": {"b": []}}
    with pytest.raises(Malformed):
        decode_document(b"[1]")


@given(documents())
def test_the_error_of_a_body_contains_no_text_of_the_peer(document: dict[str, Any]) -> None:
    document["body"] = {
        "text": ["SECRET\x1b[31m"],
        "peer_card": "SECRET\x1b",
        "type": "SECRET\x1b",
        "state": "SECRET\x1b",
    }
    with pytest.raises(ProtocolError) as caught:
        parse(msgspec.json.encode(document), NOW)
    assert "SECRET" not in caught.value.detail


def repeated(unit: str, count: int) -> str:
    return "[" + ",".join([unit] * count) + "]"


@pytest.mark.parametrize(
    ("unit", "most", "rule"),
    [
        ("[]", MAX_CONTAINERS, "arrays and objects"),
        ('{"a":[]}', MAX_CONTAINERS, "arrays and objects"),
        ("17", MAX_NUMBERS, "numbers"),
        ("0.5", MAX_DOUBLES, "fractions and exponents"),
        ("5e-324", MAX_DOUBLES, "fractions and exponents"),
        ("1E308", MAX_DOUBLES, "fractions and exponents"),
    ],
)
def test_structure_at_a_limit_passes_and_more_fails(unit: str, most: int, rule: str) -> None:
    # The envelope around them has four containers, and `ts`.
    count = (most - 4) // (unit.count("[") + unit.count("{")) if "[" in unit else most - 1
    for place in ('"x_new": %s', '"ext": {"a": %s}', '"proof": {"profile": "p", "n": %s}'):
        assert read(with_field(place % repeated(unit, count))) is None
    with pytest.raises(Undecodable, match=rule):
        parse(with_field(f'"x_new": {repeated(unit, count + 4)}'), NOW)


@pytest.mark.parametrize("text", ["[", "{}", "0.5,", "1,", "5e-324,", "e9 ", '\\"[1.5],', "\\\\", "\\u005b1"])
def test_any_text_of_a_megabyte_passes(text: str) -> None:
    """What looks like structure inside a string is none."""
    raw = dump(wire("say", body={"text": "@"})).replace(b"@", (text * (1_000_000 // len(text))).encode())
    assert read(raw) is None
    assert read(raw[:-1] + b', "x_new": {"a": [1.5]}}') is None


def test_refused_envelope_error_keeps_document_until_released() -> None:
    with pytest.raises(Malformed) as caught:
        parse(with_field('"ts": "late"'), NOW)
    error = caught.value
    assert error.document is not None
    assert error.document["ts"] == "late"
    error.release()
    assert all(held is None for held in (error.document, error.__traceback__, error.__context__))


@pytest.mark.parametrize("unit", ["[]", '{"a":1}', "1", "0.5", "5e-324", "1E+308"])
def test_the_estimated_cost_grows_with_the_structure_that_must_be_decoded(unit: str) -> None:
    raw = with_field(f'"x_new": {repeated(unit, 10_000)}')
    text = with_field(f'"x_new": "{"x" * len(repeated(unit, 10_000))}"')
    assert processing_cost(raw, signed=False) > processing_cost(text, signed=False) > 0
    assert processing_cost(raw, signed=True) - processing_cost(raw, signed=False) > processing_cost(
        text, signed=True
    ) - processing_cost(text, signed=False)
