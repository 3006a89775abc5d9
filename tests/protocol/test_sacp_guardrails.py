"""SACP: patterns of guardrails, matched in linear time, and the effects of a match (seed section 9.1)."""

import re
import warnings
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.base.errors import InvalidRequest
from aghbus.protocol.formats.sacp.guardrails import (
    MAX_SCANNED_CHARACTERS,
    REDACTED,
    Guardrail,
    GuardrailSet,
    read_guardrails,
)
from aghbus.protocol.formats.sacp.matching import Matcher
from aghbus.protocol.formats.sacp.patterns import MAX_STATES, check_pattern

CARD: Final = Guardrail("card", r"\b(?:\d{4}[- ]?){3}\d{4}\b")
NUMBER: Final = "4111-1111-1111-1111"


def response(status: str, message: str = "m", thought: str = "t", **data: Any) -> dict[str, Any]:
    return {"thought": thought, "status": status, "data": data, "message": message}


_PLACES: Final = ["^", "$", r"\b", r"\A", r"\Z"]
_ONES: Final = [
    "a",
    "b",
    "é",
    ".",
    r"\d",
    r"\w",
    r"\W",
    r"\s",
    "[ab]",
    "[^a]",
    "[]a]",
    r"[\]\-b]",
    r"\.",
    r"\n",
    r"\x61",
]
_units: Final = st.sampled_from([*_ONES, *_PLACES, "{", "-", "", "K", "ß"])
_counts: Final = st.sampled_from(["", "*", "+", "?", "{2}", "{1,2}", "{,2}", "{1,}", "*?", "+?", "??", "{0}"])
_patterns: Final = st.recursive(
    st.builds(lambda unit, count: unit + (count if unit and unit not in _PLACES else ""), _units, _counts),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join),
        st.builds(
            lambda opening, part, count: f"{opening}{part}){count}",
            st.sampled_from(["(", "(?:", "(?P<n1>"]),
            inner,
            _counts,
        ),
    ),
    max_leaves=8,
)
_flags: Final = st.sampled_from(["", "", "(?i)", "(?m)", "(?s)", "(?a)", "(?ims)"])
_texts: Final = st.text(st.sampled_from("abAB1é \n.-{_kKsSß\u212a"), max_size=12)


@given(_flags, _patterns, st.lists(_texts, min_size=1, max_size=6))
def test_a_pattern_matches_as_in_the_re_module(flags: str, pattern: str, texts: list[str]) -> None:
    source = flags + pattern
    try:
        expected = re.compile(source)
    except re.error:  # the same group name twice
        with pytest.raises(InvalidRequest):
            check_pattern(source)
        return
    matcher = Matcher(source)
    for text in texts:
        assert matcher.found_in(text) == (expected.search(text) is not None), (source, text)


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        ("a$", "ba\n", True),
        ("a$", "a\nb", False),
        ("a$", "a\n\n", False),
        (r"a\Z", "a\n", False),
        ("(?m)a$", "a\nb", True),
        ("^b", "a\nb", False),
        ("(?m)^b", "a\nb", True),
        (r"\bcat\b", "a cat.", True),
        (r"\bcat\b", "concat", False),
        (r"a\B", "a", False),
        (r"a\B", "ab", True),
        ("", "", True),
        ("a.c", "abc", True),
    ],
)
def test_places_between_characters_are_pythons_own(pattern: str, text: str, found: bool) -> None:
    assert Matcher(pattern).found_in(text) is found
    assert (re.search(pattern, text) is not None) is found


REFUSED: Final = [
    ("(", "not a regular expression"),
    ("a{2,1}", "not a regular expression"),
    ("[b-a]", "not a regular expression"),
    (r"(a)\1", "backreference"),
    (r"(?P<n>a)(?P=n)", "look-around"),
    ("(?=a)", "look-around"),
    ("(?!a)b", "look-around"),
    ("(?<=a)b", "look-around"),
    ("(?>a+)b", "look-around"),
    ("(a)?(?(1)b|c)", "look-around"),
    ("a++", "possessive"),
    ("(?x) a", "look-around"),
    ("a(?i:b)", "look-around"),
    ("a" * 1_001, "characters"),
    ("(" * 21 + ")" * 21, "groups within groups"),
    ("(" * 450 + ")" * 450, "pattern"),
    ("(?:a{1000}){1000}", "repeats too much"),
    ("(?:(?:(?:){1000}){1000}){1000}", "repeats too much"),
]


@pytest.mark.parametrize(("pattern", "cause"), REFUSED)
def test_an_unsupported_pattern_is_refused_with_cause_and_hint(pattern: str, cause: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_pattern(pattern)
    assert cause in refused.value.message
    assert refused.value.hint
    with pytest.raises(InvalidRequest):
        GuardrailSet((Guardrail("g", pattern),))


def test_counts_up_to_the_limit_are_accepted() -> None:
    matcher = Matcher(f"a{{{MAX_STATES}}}b")
    assert matcher.found_in("x" + "a" * (MAX_STATES + 5) + "b")
    assert not matcher.found_in("a" * (MAX_STATES - 1) + "b")


@pytest.mark.timeout(60)  # linear: some seconds at most; `re` itself needs longer than the universe has for the first
@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "(a|aa)+$",
        ".*.*.*=.*b",
        r"(\w+\s?)+:",
        "(?:a?){200}c",
        "(?:a|b){0,150}c.{100}d",
        "^(a?a?)*$!",
    ],
)
def test_catastrophic_patterns_take_linear_time(pattern: str) -> None:
    matcher = Matcher(pattern)
    for text in (
        "a" * (MAX_SCANNED_CHARACTERS - 1) + "!",
        "a =" * (MAX_SCANNED_CHARACTERS // 3),
        "aab" * (MAX_SCANNED_CHARACTERS // 3),
    ):
        assert matcher.found_in(text) in (True, False)
    assert not matcher.found_in("a" * 5_000 + "!")


@pytest.mark.timeout(60)
def test_text_that_exceeds_the_transition_cache_is_still_matched() -> None:
    matcher = Matcher(r"[\u4e00-\u9fff]{3}x\d")
    text = "".join(chr(0x4E00 + step * 7 % 20_000) for step in range(120_000))
    assert not matcher.found_in(text)
    assert matcher.found_in(text + "x1")


def test_without_guardrails_nothing_is_touched() -> None:
    given_response = response("failure", NUMBER, card=NUMBER)
    assert GuardrailSet(()).apply(given_response) == (given_response, ())


@pytest.mark.parametrize(
    "data",
    [
        {"card": NUMBER},
        {"deep": [{"x": f"no. {NUMBER}!"}]},
        {NUMBER: 1},
        {"n": 4111111111111111},
        {"a": ["b", NUMBER, None]},
    ],
    ids=["value", "nested", "key", "number", "list"],
)
def test_a_match_in_the_data_of_a_failure_redacts_the_message_only(data: dict[str, Any]) -> None:
    guarded, findings = GuardrailSet((CARD,)).apply(response("failure", "could not charge it", **data))
    assert guarded == response("failure", REDACTED, **data)
    assert [(finding.path, finding.rule, finding.severity) for finding in findings] == [
        ("/data", "guardrail", "warning")
    ]
    assert "card" in findings[0].message


def test_strings_of_the_data_are_searched_unescaped_too() -> None:
    guarded, _ = GuardrailSet((Guardrail("plan", '^the "plan"\n$'),)).apply(response("failure", x='the "plan"\n'))
    assert guarded["message"] == REDACTED


def test_a_pattern_may_span_a_key_and_its_value() -> None:
    guarded, _ = GuardrailSet((Guardrail("ssn", r'"ssn":"\d'),)).apply(response("failure", ssn="078"))
    assert guarded["message"] == REDACTED


@pytest.mark.parametrize("status", ["success", "completed", "clarification_needed"])
def test_data_is_free_where_nothing_failed(status: str) -> None:
    given_response = response(status, card=NUMBER)
    assert GuardrailSet((CARD,)).apply(given_response) == (given_response, ())


@pytest.mark.parametrize("status", ["success", "completed", "clarification_needed", "failure"])
def test_a_hit_in_the_message_forces_failure_and_withholds_the_message(status: str) -> None:
    guarded, findings = GuardrailSet((CARD,)).apply(response(status, f"charged {NUMBER}", a=1))
    assert guarded == response("failure", REDACTED, a=1)
    assert [finding.path for finding in findings] == ["/message"]


def test_data_is_judged_by_the_status_that_the_message_forced() -> None:
    _, findings = GuardrailSet((CARD,)).apply(response("success", NUMBER, card=NUMBER))
    assert [finding.path for finding in findings] == ["/message", "/data"]


def test_with_the_message_the_other_visible_texts_are_redacted() -> None:
    given_response = {**response("failure", "m", f"it is {NUMBER}", card=NUMBER), "next_step_hint": f"try {NUMBER}"}
    guarded, findings = GuardrailSet((CARD,)).apply(given_response)
    assert (guarded["thought"], guarded["next_step_hint"], guarded["message"]) == ("", "", REDACTED)
    assert [finding.path for finding in findings] == ["/data", "/thought", "/next_step_hint"]


def test_a_thought_alone_sets_nothing_off() -> None:
    given_response = response("failure", thought=NUMBER)
    assert GuardrailSet((CARD,)).apply(given_response) == (given_response, ())


def test_a_text_too_long_to_scan_counts_as_a_match() -> None:
    guarded, findings = GuardrailSet((CARD,)).apply(response("success", "x" * (MAX_SCANNED_CHARACTERS + 1)))
    assert (guarded["status"], guarded["message"]) == ("failure", REDACTED)
    assert str(MAX_SCANNED_CHARACTERS) in findings[0].message
    guarded, _ = GuardrailSet((CARD,)).apply(response("failure", big="x" * MAX_SCANNED_CHARACTERS))
    assert guarded["message"] == REDACTED
    untouched = response("success", "x" * MAX_SCANNED_CHARACTERS, big="x" * MAX_SCANNED_CHARACTERS)
    assert GuardrailSet((CARD,)).apply(untouched) == (untouched, ())


@given(st.text(max_size=30), st.text(max_size=30), st.sampled_from(["success", "failure"]))
def test_a_redacted_message_is_in_no_readable_text_and_no_finding(before: str, after: str, status: str) -> None:
    secret = f"{before} {NUMBER} {after}"
    given_response = {**response(status, secret, secret), "next_step_hint": secret}
    guarded, findings = GuardrailSet((CARD,)).apply(given_response)
    assert NUMBER not in str(guarded) and NUMBER not in str(findings)
    assert given_response["message"] == secret, "the original is for the audit table"


def test_a_file_of_guardrails_is_read_line_by_line() -> None:
    text = "# what must not be shown\n\ncard: \\b(?:\\d{4}[- ]?){3}\\d{4}\\b\r\n  url : https?://internal\\.\n"
    assert read_guardrails(text) == (CARD, Guardrail("url", r"https?://internal\."))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("card", "line 1: is not `name: pattern`"),
        ("\n: x", "line 2: is not `name: pattern`"),
        ("a:", "line 1: is not `name: pattern`"),
        ("a: x\na: y", "line 2: the name a is used twice"),
        ("a: x\n#\nb: (", "line 3: the pattern is not a regular expression"),
        (r"a: (x)\1", "line 1: the pattern contains a backreference"),
    ],
)
def test_a_faulty_line_is_named(text: str, cause: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_guardrails(text)
    assert refused.value.message.startswith(cause)
    assert refused.value.hint


@given(st.text(st.sampled_from("ab(){}[]|*+?\\^$.,12-:P<>=!dwbi\n"), max_size=15), _texts)
def test_any_pattern_is_accepted_or_refused_consistently(source: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Python warns of sets within sets, which it may give a meaning
        try:
            matcher = Matcher(source)
        except InvalidRequest:
            return
        assert matcher.found_in(text) == (re.search(source, text) is not None)
