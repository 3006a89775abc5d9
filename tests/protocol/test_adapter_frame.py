"""The parts that all formats share: strict JSON, timestamps, derived ids, text of a say, credentials."""

import datetime
import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.identifiers import is_emitted_work_id, is_message_id, is_thread_id
from aghbus.protocol.base.secret_patterns import secret_paths
from aghbus.protocol.formats import attachments as carried
from aghbus.protocol.formats import derived_ids as derived
from aghbus.protocol.formats.model import AgentMap, Finding
from aghbus.protocol.formats.strict_json import MAX_DEPTH, check_value, pointer, read_json
from aghbus.protocol.formats.timestamps import read_timestamp, skew, utc

SCALARS: Final = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
)
JSON: Final = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)

# Text, the rule that it breaks and the pointer to where (adapters.md, Findings).
BAD: Final = [
    (b'{"a":1,"a":2}', "duplicate_key", "/a"),
    (b'{"x":{"~/":1,"~/":1}}', "duplicate_key", "/x/~0~1"),
    (b'{"a":NaN}', "not_finite", "/a"),
    (b"[-Infinity]", "not_finite", "/0"),
    (b'{"a":1e400}', "number_range", "/a"),
    (b'{"a":9007199254740992}', "integer_range", "/a"),
    (b'{"a":-9007199254740992}', "integer_range", "/a"),
    (b'{"a":' + b"9" * 5000 + b"}", "integer_range", "/a"),
    (b'{"a":"\\ud800"}', "lone_surrogate", "/a"),
    (b'{"\\udfff":1}', "lone_surrogate", ""),
    (b'"\xff"', "not_utf8", ""),
    (b"{", "not_json", ""),
    (b"", "not_json", ""),
    (b"[" * 65 + b"]" * 65, "too_deep", ""),
    (b"[" * 1_000_000, "too_deep", ""),
    (b"[" + b"[]," * 70_000 + b"1]", "too_many", ""),
    (b"[" + b"0.5," * 70_000 + b"1]", "too_many", ""),
]


@pytest.mark.parametrize(
    ("text", "rule", "path"), BAD, ids=[f"{rule}-{index}" for index, (_, rule, _p) in enumerate(BAD)]
)
def test_ambiguous_json_is_an_error(text: bytes, rule: str, path: str) -> None:
    value, findings = read_json(text)
    assert value is None
    assert [(finding.rule, finding.path, finding.severity) for finding in findings] == [(rule, path, "error")]


def test_bounds_are_inclusive() -> None:
    assert read_json(b"[9007199254740991,-9007199254740991]") == ([2**53 - 1, -(2**53) + 1], ())
    deep = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
    assert read_json(deep)[1] == ()
    assert read_json(b'"' + b"[" * 200 + b'"')[1] == ()  # brackets in a string nest nothing
    assert read_json(b'"\\ud83d\\ude00"')[0] == "\U0001f600"


@given(JSON)
def test_every_valid_value_is_read_unchanged(value: Any) -> None:
    read, findings = read_json(json.dumps(value, ensure_ascii=False).encode())
    assert findings == ()
    assert derived.same_json(read, value)
    assert check_value(value) == ()


@given(st.binary(max_size=60))
def test_no_bytes_raise(text: bytes) -> None:
    value, findings = read_json(text)
    assert value is None or findings == ()


def test_an_error_shows_the_first_forty_digits_of_a_number() -> None:
    for text, shown in ((b"9" * 40, "9" * 40), (b"9" * 41, "9" * 40 + "…")):
        (finding,) = read_json(text)[1]
        assert f"the number {shown} cannot" in finding.message


def test_pointers_escape_as_rfc_6901_says() -> None:
    assert pointer("a/b", 0, "m~n") == "/a~1b/0/m~0n"
    assert pointer() == ""


@given(st.datetimes(datetime.datetime(1, 1, 3), datetime.datetime(9999, 12, 29)), st.integers(-23 * 60, 23 * 60))
def test_timestamps_agree_with_the_calendar(moment: datetime.datetime, offset: int) -> None:
    zone = datetime.timezone(datetime.timedelta(minutes=offset))
    aware = moment.replace(tzinfo=zone, microsecond=0)
    stamp = read_timestamp(aware.isoformat())
    assert stamp is not None
    assert stamp.day == f"{aware.year:04d}{aware.month:02d}{aware.day:02d}"
    assert stamp.clock == f"{aware.hour:02d}:{aware.minute:02d}:{aware.second:02d}"
    assert stamp.seconds == int((aware - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)).total_seconds())
    back = aware.astimezone(datetime.UTC)
    assert utc(stamp.seconds) == f"{back.year:04d}-" + back.strftime("%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    "text",
    ["", "2026-02-30T00:00:00Z", "2025-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z", "2026-01-01",
     "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00Z\n", "２０２６-01-01T00:00:00Z", " 2026-01-01T00:00:00Z"],
)  # fmt: skip
def test_an_invalid_timestamp_is_none(text: str) -> None:
    assert read_timestamp(text) is None


def test_a_time_without_an_offset_has_no_unix_second() -> None:
    stamp = read_timestamp("2026-01-27T14:30:52")
    assert stamp is not None
    assert stamp.seconds is None
    assert skew(stamp, 0, "/t") == ()


def test_skew_begins_beyond_the_replay_age() -> None:
    stamp = read_timestamp("1970-01-01T00:10:00Z")
    assert stamp is not None
    assert skew(stamp, 900, "/t") == ()
    (finding,) = skew(stamp, 901, "/t")
    assert (finding.rule, finding.message) == ("clock_skew", "is 301 s away from the time of submission")


def test_a_leap_second_is_the_first_second_of_the_next_minute() -> None:
    leap, next_minute = map(read_timestamp, ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"))
    assert leap is not None
    assert next_minute is not None
    assert leap.seconds == next_minute.seconds


@given(JSON, JSON)
def test_ids_are_the_same_for_the_same_value_and_legal(left: Any, right: Any) -> None:
    def of(value: Any) -> str:
        return derived.envelope_id("f", "say", "a", "b", None, derived.canonical(value))

    assert (of(left) == of(right)) == derived.same_json(left, right)
    assert is_message_id(of(left))
    assert is_emitted_work_id(derived.work_id(of(left)))


def test_parts_of_a_hash_are_separated() -> None:
    assert (
        len({derived.digest(*parts) for parts in (("ab", "c"), ("a", "bc"), ("abc",), ("abc", None), ("abc", ""))}) == 5
    )
    assert is_thread_id(derived.thread_id("f", "x"))
    assert derived.same_json({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert not derived.same_json(1, True)
    assert not derived.same_json(1, 1.0)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_an_id_is_kept_or_replaced_by_a_legal_one(value: str) -> None:
    made = derived.legal_id(value)
    assert is_message_id(made)
    assert (made == value) == is_message_id(value)


@pytest.mark.parametrize(
    ("content", "summary", "text"),
    [
        ("words", "s", "words"),
        (["a", "b"], None, "a\nb"),
        ({"a": 1}, None, '{"a":1}'),
        ([1, "b"], None, '[1,"b"]'),
        ([], None, "[]"),
        (None, "summary", "summary"),
        (" \n", "summary", "summary"),
        ("", " ", "(no text)"),
        (None, None, "(no text)"),
        (["", " "], "s", "s"),
    ],
)
def test_the_text_of_a_say(content: Any, summary: str | None, text: str) -> None:
    assert carried.say_text(content, summary) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1).map(lambda text: text * 70_000))
def test_text_is_truncated_by_bytes_between_characters(text: str) -> None:
    cut = carried.cut_text(text)
    size = len(cut.encode())
    assert size <= 65_536
    if len(text.encode()) > 65_536:
        assert size > 65_536 - 8
        assert cut.endswith("…")
        assert text.startswith(cut[:-1])
    else:
        assert cut == text


@given(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 90_000).map(lambda n: '\n"é'[n % 3] * n), max_size=4))
def test_results_are_truncated_and_list_the_truncated_members(result: dict[str, Any]) -> None:
    cut = carried.cut_result(result)
    assert len(json.dumps(cut, ensure_ascii=False, separators=(",", ":")).encode()) <= 65_536
    for name, value in result.items():
        assert cut[name] == value or name in cut["truncated"]


def test_the_agent_map_reshapes_nothing() -> None:
    agents = AgentMap(names={"Planner": "p-1"}, found={"Twin": ("a", "b"), "Known As": ("c",)})
    assert agents.peer_of("Planner", "/x") == "p-1"
    assert agents.peer_of("goal_agent", "/x") == "goal_agent"
    assert agents.peer_of("Known As", "/x") == "c"
    for name in ("planner!", "PLANNER", "Twin", ""):
        found = agents.peer_of(name, "/x")
        assert isinstance(found, Finding)
        assert (found.path, found.rule, found.severity) == ("/x", "agent_map", "error")
    assert agents.name_of("p-1") == "Planner"
    assert agents.name_of("other") == "other"


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ({"token": "x"}, [("token",)]),
        ({"a": [{"apiKey": "k"}]}, [("a", 0, "apiKey")]),
        ({"Access-Token": "x", "db_password": "y"}, [("Access-Token",), ("db_password",)]),
        ({"tokens": 5, "max_tokens": 9, "tokenizer": "bpe", "secretary": "Ann"}, []),
        ({"password": None, "secret": ""}, []),
        ({"note": "Authorization: Bearer abcdefghijklmnop0123"}, [("note",)]),
        ({"note": "the bearer of this letter"}, []),
        ("-----BEGIN RSA PRIVATE KEY-----", [()]),
    ],
)
def test_credentials_are_noticed(value: Any, found: list[tuple[str | int, ...]]) -> None:
    assert list(secret_paths(value)) == found
