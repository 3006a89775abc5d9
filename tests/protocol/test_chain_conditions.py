"""Conditions of edges: the seed's own, the grammar, false conditions, and hostile text."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.chains.conditions import MAX_DEPTH, MAX_LENGTH, read_condition
from aghbus.protocol.chains.errors import ChainError

SCOPE: Final[dict[str, Any]] = {
    "response": {
        "thought": "",
        "status": "success",
        "message": 'say "hi"',
        "data": {
            "score": 0.9,
            "count": 3,
            "ok": True,
            "nothing": None,
            "empty": "",
            "list": [{"x": 1}, {"x": "two"}],
            "other list": [{"x": 1.0}, {"x": "two"}],
            "käse": 1,
            "a-b": 7,
            "1st": "first",
        },
    },
    "node_A": {"data": {"score": 0.2}, "message": "m"},
    "work": {"id": "work_1", "state": "completed", "message": None, "result": {"exit_code": 0}},
    "input": 5,
}

# Condition and what it is, each by hand from seed 004 section 4.1 and adapters.md, Chains.
TABLE: Final = [
    ('response.status == "success"', True),
    ('response.status == "failure"', False),
    ("response.data.score > 0.8", True),
    ("response.data.score > 0.9", False),
    ("response.data.score >= 0.9", True),
    ("response.data.count < 3", False),
    ("response.data.count <= 3", True),
    ("response.data.count == 3.0", True),
    ("response.data.count != 4", True),
    ("response.status != 'success'", False),
    ('work.state == "completed"', True),
    ("work.result.exit_code == 0", True),
    ("node_A.data.score < response.data.score", True),
    ("input == 5", True),
    ("response.data.list[0].x == 1", True),
    ("response.data.list[1].x == 'two'", True),
    ('response.data.list == response.data["other list"]', True),
    ("response.data.list[0] == response.data.list[1]", False),
    ("response.data.käse == 1", True),
    ("response.data.a-b == 7", True),
    ("response.data.1st == 'first'", True),
    ("-1e2 < response.data.count", True),
    ("'a' < 'b'", True),
    ('response.message == "say \\"hi\\""', True),
    ("response.message == 'say \"hi\"'", True),
    ("'it\\'s' == \"it's\"", True),
    ("response.data.ok", True),
    ("response.data.count", False),
    ("response.data.käse", False),
    ("response.data.ok == true", True),
    ("true", True),
    ("false", False),
    # nothing there, and types that clash
    ("response.data.none == 1", False),
    ("response.data.none != 1", False),
    ("not response.data.none == 1", True),
    ("response.data.none == response.data.none", False),
    ("response.data.none", False),
    ("not response.data.none", True),
    ("response.data.list[2].x == 1", False),
    ("response.data.list.x == 1", False),
    ("response.data[0] == 1", False),
    ("response.status.deeper == 1", False),
    ("nobody.data == 1", False),
    ("response.data.score > '0.8'", False),
    ("not response.data.score > '0.8'", True),
    ("response.data.score != 'x'", False),
    ("response.data.ok == 1", False),
    ("response.data.ok > false", False),
    ("response.data.list > 1", False),
    ("response.data.empty < 1", False),
    # null is a value, and asking for it is no clash
    ("response.data.nothing == null", True),
    ("response.data.count != null", True),
    ("response.data.nothing != null", False),
    ("response.data.none == null", False),
    ("response.data.none != null", False),
    ("response.data.nothing < 1", False),
    # and, or, not, parentheses
    ("true and false or true", True),
    ("true or true and false", True),
    ("(true or true) and false", False),
    ("not true or true", True),
    ("not (true or true)", False),
    ("not not true", True),
    ("!false && !(false || false)", True),
    ("not response.status == 'failure' and response.data.score > 0.8", True),
    ("! response.status == 'success'", False),
    ("\tresponse.status\n==\r'success' ", True),
]


@pytest.mark.parametrize(("text", "expected"), TABLE)
def test_conditions_of_the_seed(text: str, expected: bool) -> None:
    assert read_condition(text).holds(SCOPE) is expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "response.status = 'success'",
        "response.status ==",
        "== 1",
        "1",
        "'text'",
        "null",
        "a == b == c",
        "a and",
        "and a",
        "a b",
        "true not false",
        "(a",
        "a)",
        "not",
        "a..b == 1",
        "a. b == 1",
        "response . status == 1",
        "a[-1] == 1",
        "a[01] == 1",
        "a[x] == 1",
        'a["x] == 1',
        "true.x == 1",
        "and.x == 1",
        "1.2.3 == 1",
        "01 == 1",
        "1e999 == 1",
        "9" * 4000 + "e5000 == 1",
        "'unfinished == 1",
        '"bad \\q escape" == a',
        "'new\nline' == a",
        "a === 1",
        "a <> 1",
        "a & b",
        "a | b",
        "__import__('os').system('true')",
        "a == {}",
        "{{a}} == 1",
        "é == 1",
        "a\u00a0== 1",
    ],
)
def test_an_invalid_condition_is_an_error(text: str) -> None:
    with pytest.raises(ChainError) as caught:
        read_condition(text)
    assert caught.value.message


def test_depth_and_length_are_bounded() -> None:
    deepest = "(" * MAX_DEPTH + "true" + ")" * MAX_DEPTH
    assert read_condition(deepest).holds({})
    for deeper in (f"({deepest})", f"not {deepest}", "(" * 2000, "not " * 1000 + "true"):
        with pytest.raises(ChainError, match="deeper"):
            read_condition(deeper)
    longest = " and ".join(["true"] * 400)
    assert read_condition(longest).holds({})
    with pytest.raises(ChainError, match="at most"):
        read_condition("true" + " " * MAX_LENGTH)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("response.status = 1", r"character 17 \(equality is `==`\)$"),
        ("a & b", "character 3$"),
        ("a == 1 b", "instead of 'b', character 8$"),
        ("a == '\\q'", "not a valid string, character 6$"),
        ("a == 1e999", "out of range, character 6$"),
        ("(" * (MAX_DEPTH + 1) + "a", f"at character {MAX_DEPTH + 2}$"),
        ("response.status ==", "instead of the end$"),
    ],
)
def test_an_error_names_the_character(text: str, words: str) -> None:
    with pytest.raises(ChainError, match=words):
        read_condition(text)


def test_paths_are_listed_for_the_check_of_a_file() -> None:
    condition = read_condition("not (a.b == 1 or c and d < e[0]) && true")
    assert [path.text for path in condition.paths()] == ["a.b", "c", "d", "e[0]"]


_pieces = st.sampled_from(
    [
        "response",
        ".data",
        "[0]",
        '["k"]',
        " ",
        "==",
        "!=",
        "<",
        ">=",
        "and",
        "or",
        "not",
        "(",
        ")",
        "1",
        "-2.5",
        "'s'",
        "true",
        "null",
        "&&",
        "!",
        "work.state",
        "{{",
        "\\",
        '"',
        "\u202e",
    ]
) | st.sampled_from(["||", "\ud800", "9" * 30])


@given(st.lists(_pieces, max_size=30).map("".join) | st.text(max_size=60))
def test_no_text_does_anything_but_be_read_or_refused(text: str) -> None:
    try:
        condition = read_condition(text)
    except ChainError:
        return
    assert condition.holds(SCOPE) in (True, False)
    assert condition.holds({}) in (True, False)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)
_signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


@given(_json, _signs, _json)
def test_a_comparison_and_its_negation_are_opposites_whatever_the_values(left: Any, operator: str, right: Any) -> None:
    scope = {"input": left, "response": right}
    assert read_condition(f"input {operator} response").holds(scope) is not (
        read_condition(f"not input {operator} response").holds(scope)
    )


@given(st.integers() | st.floats(allow_nan=False), st.integers() | st.floats(allow_nan=False))
def test_numbers_compare_as_numbers(left: float, right: float) -> None:
    scope = {"input": left, "response": right}
    facts = {"==": left == right, "!=": left != right, "<": left < right, "<=": left <= right, ">": left > right}
    for operator, fact in facts.items():
        assert read_condition(f"input {operator} response").holds(scope) is fact
