"""Templates of inputs: types are kept, text is inserted, nothing is expanded twice."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.templates import input_text, references, render

SCOPE: Final[dict[str, Any]] = {
    "node_A": {
        "data": {"extracted_names": ["Alice", "Bob"], "score": 0.9, "ok": True, "nothing": None, "deep": {"a": [1, 2]}},
        "message": "I identified the CEO as John Doe.",
        "braces": "{{node_A.message}} {{nobody}} }}",
    },
    "input": "Find email...",
    "response": {"data": {"guesses": ["john.doe@acme.com", "jdoe@acme.com"]}},
    "work": {"id": "work_1", "state": "completed"},
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # seed 004, section 4.2 and the flow of section 6
        ("{{node_A.data.extracted_names}}", ["Alice", "Bob"]),
        ("{{node_A.message}}", "I identified the CEO as John Doe."),
        ("{{response.data.guesses}}", ["john.doe@acme.com", "jdoe@acme.com"]),
        ("{{input}}", "Find email..."),
        # the whole value keeps its type
        ("{{node_A.data.score}}", 0.9),
        ("{{ node_A.data.ok }}", True),
        ("{{node_A.data.nothing}}", None),
        ("{{node_A.data.deep.a[1]}}", 2),
        # inside of text: strings as they are, everything else as compact JSON
        ("Mail {{node_A.data.extracted_names}}!", 'Mail ["Alice","Bob"]!'),
        (" {{node_A.data.score}}", " 0.9"),
        ("{{node_A.data.ok}}{{node_A.data.nothing}}", "truenull"),
        ("<{{input}}> by {{work.id}}, {{node_A.data.deep}}", '<Find email...> by work_1, {"a":[1,2]}'),
        # what was put in stays as it is
        ("{{node_A.braces}}", "{{node_A.message}} {{nobody}} }}"),
        ("x {{node_A.braces}}", "x {{node_A.message}} {{nobody}} }}"),
        # values of any kind, filled in at every depth; keys are not
        (
            {"names": "{{node_A.data.extracted_names}}", "{{input}}": ["{{input}}", 1, None, {"t": "<{{input}}>"}]},
            {"names": ["Alice", "Bob"], "{{input}}": ["Find email...", 1, None, {"t": "<Find email...>"}]},
        ),
        (5, 5),
        ("plain { text } }} %s $x", "plain { text } }} %s $x"),
        ("", ""),
    ],
)
def test_templates_of_the_seed(template: Any, expected: Any) -> None:
    made = render(template, SCOPE)
    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # without a value, or with null, the default takes its place, with its type
        ("{{node_A.data.none | default: []}}", []),
        ("{{node_A.data.nothing|default:0}}", 0),
        ('{{ nobody.notes | default: {"a": {"b": [1]}} }}', {"a": {"b": [1]}}),
        ("<{{nobody | default: ''}}>", "<>"),
        ('<{{nobody | default: "}} {{input}}"}}>', "<}} {{input}}>"),
        ("<{{nobody | default: null}}>", "<null>"),
        ("{{node_A.data.score | default: 5}}", 0.9),
        ("{{node_A.data.ok | default: 5}}", True),
        # sums
        ("{{node_A.data.deep.a[0] + 1}}", 2),
        ("{{node_A.data.deep.a[0]+10}}", 11),
        ("round {{node_A.data.score + 1}}", "round 1.9"),
        # the default takes the place of the sum
        ("{{node_A.data.none + 1 | default: 1}}", 1),
        ("{{node_A.data.deep.a[1] + 1 | default: 1}}", 3),
    ],
)
def test_defaults_and_sums(template: str, expected: Any) -> None:
    made = render(template, SCOPE)
    assert made == expected
    assert type(made) is type(expected)


@pytest.mark.parametrize("value", ["1", True, [1], {}])
def test_a_sum_needs_a_number(value: Any) -> None:
    for template in ("{{a + 1}}", "{{a + 1 | default: 1}}", "x {{a + 1}}"):
        with pytest.raises(ChainError, match="not a number") as caught:
            render(template, {"a": value})
        assert caught.value.rule == "number"


@pytest.mark.parametrize(
    "template",
    [
        "{{a | default}}",
        "{{a | default: }}",
        "{{a | default: b}}",
        "{{a | default: 'b}}",
        "{{a | default: 1 2}}",
        "{{a | default: 1 + 1}}",
        "{{a | default: NaN}}",
        "{{a | default: 1e999}}",
        '{{a | default: {"b": 1, "b": 2}}}',
        '{{a | default: "\\ud800"}}',
        "{{a | upper}}",
        "{{a + }}",
        "{{a + b}}",
        "{{a + 1.5}}",
        "{{a + -1}}",
        "{{a - 1}}",
        "{{1 + a}}",
    ],
)
def test_invalid_defaults_and_sums_are_errors(template: str) -> None:
    with pytest.raises(ChainError) as caught:
        list(references(template))
    assert caught.value.rule == "template"


@pytest.mark.parametrize(
    "template",
    ["{{node_A.data.none}}", "x {{nobody.message}}", {"a": ["{{node_A.message.deeper}}"]}, "{{node_A.data.deep.a[2]}}"],
)
def test_a_reference_without_a_value_is_an_error_that_names_it(template: Any) -> None:
    with pytest.raises(ChainError, match="has no value") as caught:
        render(template, SCOPE)
    assert caught.value.rule == "missing"
    assert "{{" in caught.value.message


@pytest.mark.parametrize(
    "template",
    ["{{", "a {{ b", "{{}}", "{{a b}}", "{{a.}}", "{{ 1 }}", "{{true}}", "{{a|b}}", "{{{a}}}", '{{a["x}}', "{{a\n}}"],
)
def test_braces_that_begin_no_reference_are_an_error(template: str) -> None:
    with pytest.raises(ChainError):
        list(references(template))
    with pytest.raises(ChainError):
        render(template, {"a": 1})


def test_an_error_shows_the_text_from_the_braces_on() -> None:
    with pytest.raises(ChainError, match=r"'\{\{ b' is not a reference"):
        list(references("a {{ b"))


def test_references_are_listed_for_the_check_of_a_file() -> None:
    template = {"x": ["{{a.b}} and {{c}}", 1], "y": {"z": "{{ work.id }}"}}
    assert [reference.path.text for reference in references(template)] == ["a.b", "c", "work.id"]


def test_null_can_be_written() -> None:
    template = {"code": "{{null}}", "also": "{{ null }}", "text": "a {{null}}", "list": ["{{null}}"]}
    assert render(template, {"run": {"id": "r"}}) == {"code": None, "also": None, "text": "a null", "list": [None]}
    for invalid in ("{{null.a}}", "{{null + 1}}", "{{null | default: 1}}"):
        with pytest.raises(ChainError):
            render(invalid, {"run": {}})


def test_a_small_file_cannot_ask_for_gigabytes() -> None:
    half = "x" * (MAX_ENVELOPE_BYTES // 2)
    assert len(render("{{input}}{{input}}", {"input": half})) == MAX_ENVELOPE_BYTES
    for template in (
        "{{input}}{{input}}{{input}}",
        ["{{input}}"] * 3,
        {"a": "{{input}}", "b": ["{{input}} {{input}}"]},
    ):
        with pytest.raises(ChainError) as caught:
            render(template, {"input": half})
        assert caught.value.rule == "too_large"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("as it is\n", "as it is\n"),
        (["john.doe@acme.com"], '["john.doe@acme.com"]'),
        ({"b": 1, "a": "ä"}, '{"b":1,"a":"ä"}'),
        (7, "7"),
        (None, "null"),
        (" \n", "(no text)"),
    ],
)
def test_an_input_becomes_the_text_of_a_say(value: Any, text: str) -> None:
    assert input_text(value) == text


@given(st.text(), st.text(alphabet="{} ainput.", max_size=40))
def test_inserted_text_is_never_expanded_again(hostile: str, braces: str) -> None:
    for content in (hostile, braces, "{{input}}", "{{" + braces + "}}"):
        scope = {"input": content}
        assert render("{{input}}", scope) == content
        assert render("<{{input}}|{{input}}>", scope) == f"<{content}|{content}>"
        assert render(["{{input}}"], {"input": [content]}) == [[content]]
        inside = render("x{{input}}", {"input": {"k": content}})
        assert json.loads(inside[1:]) == {"k": content}


@given(st.text(alphabet='{}ab. [0]"\\\n', max_size=30) | st.text(max_size=30))
def test_no_template_does_anything_but_be_filled_in_or_refused(template: str) -> None:
    try:
        listed = list(references(template))
        made = render(template, {"a": {"b": [1]}, "b": "x"})
    except ChainError:
        return
    assert listed or made == template
