"""SACP: extraction of the response, the schema, the fallback and the prompt (seed 0 to 7)."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.formats.sacp.prompt import RESPONSE_FORMAT
from aghbus.protocol.formats.sacp.schema import REQUIRED, STATE_OF, fallback, response_faults
from aghbus.protocol.formats.sacp.text import extract

GOOD: Final = {"thought": "t", "status": "success", "data": {"a": {"b": [1, 2]}}, "message": "m"}
OTHER: Final = {"thought": "", "status": "completed", "data": {}, "message": "another one, also long enough"}
TEXT: Final = json.dumps(GOOD)
PRETTY: Final = json.dumps(GOOD, indent=2)
TICKS: Final = {**GOOD, "message": "run ```json\n{}\n``` and }} {{ then ``` again"}


def without(name: str) -> str:
    return json.dumps({key: value for key, value in GOOD.items() if key != name})


def having(**changes: Any) -> str:
    return json.dumps({**GOOD, **changes})


FOUND: Final = [
    ("bare", TEXT, "whole", GOOD),
    ("white space around", f"\n\t {PRETTY} \r\n", "whole", GOOD),
    ("json block", f"```json\n{PRETTY}\n```", "fence", GOOD),
    ("JSON block", f"```JSON\n{PRETTY}\n```", "fence", GOOD),
    ("Json block with attributes", f"``` Json title=x\n{PRETTY}\n```", "fence", GOOD),
    ("block without language", f"```\n{PRETTY}\n```", "fence", GOOD),
    ("four backticks, as the seed writes", f"````json\n{PRETTY}\n````", "fence", GOOD),
    ("tildes", f"~~~json\n{PRETTY}\n~~~", "fence", GOOD),
    ("carriage returns", f"```json\r\n{TEXT}\r\n```\r\n", "fence", GOOD),
    ("indented block", f"- here:\n  ```json\n  {TEXT}\n  ```", "fence", GOOD),
    ("block never closed", f"Sure!\n```json\n{PRETTY}", "fence", GOOD),
    ("block on one line", f"Sure: ```json {TEXT} ``` there {{you}} go", "fence", GOOD),
    ("two blocks on one line", f"``` {{}} ``` or ```json{TEXT}``` {{", "fence", GOOD),
    ("object beside the opening fence", f"```json {PRETTY}\n``` {{x}}", "fence", GOOD),
    ("filler around a block", f"Of course {{sir}}!\n```json\n{TEXT}\n```\nAnything {{else}}?", "fence", GOOD),
    ("first block that fits", f"```json\n{without('data')}\n```\n```json\n{TEXT}\n```", "fence", GOOD),
    ("first of two that fit", f"```\n{json.dumps(OTHER)}\n```\n```json\n{TEXT}\n```", "fence", OTHER),
    ("block of another language first", f"```python\n{json.dumps(OTHER)}\n```\n```json\n{TEXT}\n```", "fence", GOOD),
    ("inline block before a proper one", f"so ```json {{}}``` no:\n```json\n{TEXT}\n```", "fence", GOOD),
    ("a shorter fence closes nothing", f"~~~~text\n~~~\n~~~~\n{TEXT}", "braces", GOOD),
    ("words between backticks open nothing", f"``` a ``` b\n~~~json\n{TEXT}\n~~~", "fence", GOOD),
    ("fence inside a string", f"```json\n{json.dumps(TICKS)}\n```", "fence", TICKS),
    ("fence inside a string, longer fence", f"````json\n{json.dumps(TICKS)}\n````", "fence", TICKS),
    ("fence inside a string, bare", json.dumps(TICKS), "whole", TICKS),
    ("conversational filler", f"Here is my answer: {TEXT} Hope it helps.", "braces", GOOD),
    ("byte order mark", f"\ufeff{TEXT}", "braces", GOOD),
    ("block of another language only", f"```python\n{TEXT}\n```", "braces", GOOD),
    ("without next_step_hint or with", having(next_step_hint="n"), "whole", {**GOOD, "next_step_hint": "n"}),
    ("unknown keys", having(x={"y": None}), "whole", {**GOOD, "x": {"y": None}}),
    (
        "empty strings and data",
        having(thought="", message="", data={}),
        "whole",
        {**OTHER, "status": "success", "message": ""},
    ),
    ("escaped keys", TEXT.replace("thought", "\\u0074hought"), "whole", GOOD),
]


@pytest.mark.parametrize(("text", "stage", "response"), [case[1:] for case in FOUND], ids=[case[0] for case in FOUND])
def test_the_first_candidate_that_fits_is_the_response(text: str, stage: str, response: dict[str, Any]) -> None:
    found = extract(text)
    assert (found.stage, found.response, found.faults) == (stage, response, ())


NOT_FOUND: Final = [
    ("nothing", "", "", "not_json"),
    ("prose", "I cannot do that.", "", "not_json"),
    ("a list", f"[{TEXT}, {TEXT}]", "", "type"),
    ("a string", json.dumps(TEXT), "", "type"),
    ("no thought", without("thought"), "/thought", "required"),
    ("no status", without("status"), "/status", "required"),
    ("no data", without("data"), "/data", "required"),
    ("no message", without("message"), "/message", "required"),
    ("unknown status", having(status="done"), "/status", "enum"),
    ("status in capitals", having(status="SUCCESS"), "/status", "enum"),
    ("status of another type", having(status=None), "/status", "type"),
    ("needs_input, which section 1 names and the schema does not", having(status="needs_input"), "/status", "enum"),
    ("data is a list", having(data=[1]), "/data", "type"),
    ("data is null", having(data=None), "/data", "type"),
    ("thought is null", having(thought=None), "/thought", "type"),
    ("message is a number", having(message=5), "/message", "type"),
    ("next_step_hint is null", having(next_step_hint=None), "/next_step_hint", "type"),
    ("duplicate keys", TEXT[:-1] + ', "status": "failure"}', "/status", "duplicate_key"),
    ("NaN", TEXT.replace("[1", "[NaN"), "/data/a/b/0", "not_finite"),
    ("huge integer", TEXT.replace("[1", f"[{2**53}"), "/data/a/b/0", "integer_range"),
    ("overflow", TEXT.replace("[1", "[1e999"), "/data/a/b/0", "number_range"),
    ("lone surrogate", TEXT.replace('"m"', '"\\ud800"'), "/message", "lone_surrogate"),
    ("too deep", TEXT.replace("[1", "[" * 65 + "1" + "]" * 65), "", "too_deep"),
    ("trailing comma: nothing is repaired", TEXT[:-1] + ",}", "", "not_json"),
    ("single quotes: nothing is repaired", TEXT.replace('"', "'"), "", "not_json"),
    ("cut off: nothing is repaired", TEXT[:-1], "", "not_json"),
    ("two objects", TEXT + TEXT, "", "not_json"),
]


@pytest.mark.parametrize(
    ("text", "path", "rule"), [case[1:] for case in NOT_FOUND], ids=[case[0] for case in NOT_FOUND]
)
def test_a_text_without_a_response_has_the_reasons(text: str, path: str, rule: str) -> None:
    found = extract(text)
    assert (found.stage, found.response) == ("fallback", None)
    assert (path, rule) in [(fault.path, fault.rule) for fault in found.faults]


def test_faults_cover_the_object_not_the_surrounding_text() -> None:
    found = extract(f"Here:\n```json\n{having(status='done')}\n```\nBye.")
    assert [(fault.path, fault.rule) for fault in found.faults] == [("/status", "enum")]


HOSTILE: Final = {
    "fence openers": "```json\n" * 100_000,
    "backticks": "`" * 1_000_000,
    "spaced runs": "``` {" * 200_000,
    "runs of growing length": " ".join("`" * size for size in range(3, 1_400)),
    "opening braces": "{" * 1_000_000,
    "closing then opening braces": "}" * 500_000 + "{" * 500_000,
    "string without end": '{"a":"' + "\\" * 900_001,
    "quotes": '"' * 1_000_000,
    "tilde lines": "~~~\n" * 250_000,
    "spaces before fences": (" " * 1_000 + "``\n") * 1_000,
    "white space": " \t" * 500_000,
    "many small objects": "{}\n```\n" * 100_000,
}


@pytest.mark.timeout(30)  # linear: each takes around a second; quadratic ones would take hours
@pytest.mark.parametrize("text", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_text_takes_linear_time(text: str) -> None:
    assert extract(text).response is None
    assert extract(f"{text}\n").stage == "fallback"


@given(st.text(st.sampled_from('`~{}"\\ \n\tjsonJSON:a0,[]'), max_size=60), st.text(max_size=20))
def test_a_block_is_found_after_any_text_without_fences_and_braces(before: str, after: str) -> None:
    clean = before.translate(dict.fromkeys(map(ord, "`~{}")))
    found = extract(f"{clean}\n```json\n{TEXT}\n```\n{after.translate(dict.fromkeys(map(ord, '`~{}')))}")
    assert (found.stage, found.response) == ("fence", GOOD)


@given(st.text())
def test_any_text_is_accepted_and_an_extracted_response_is_valid(text: str) -> None:
    found = extract(text)
    assert found.response is None or response_faults(found.response) == ()


def test_the_fallback_is_the_seeds_own_object_and_fits_the_schema() -> None:
    assert fallback("The actual raw text from the LLM...") == {
        "thought": "System Note: LLM failed to provide structured JSON output.",
        "status": "failure",
        "data": {"raw_output": "The actual raw text from the LLM..."},
        "message": "The LLM returned an invalid response format.",
    }
    assert response_faults(fallback("x")) == ()


def test_every_status_of_the_schema_has_a_state() -> None:
    assert STATE_OF == {
        "success": "completed",
        "failure": "failed",
        "clarification_needed": "needs_input",
        "completed": "completed",
    }


def test_prompt_names_all_required_fields_and_a_valid_example() -> None:
    assert RESPONSE_FORMAT.startswith(
        "### SYSTEM PROTOCOL: RESPONSE FORMAT INSTRUCTIONS\nYou are a highly organized AI agent"
    )
    assert RESPONSE_FORMAT.endswith('"message": "The result is 10."\n}\n')
    schema = RESPONSE_FORMAT.partition("Your response schema is:\n")[2].partition("Example:\n")[0]
    assert all(f'"{name}": ' in schema for name in REQUIRED)
    example = extract(RESPONSE_FORMAT.partition("Example:\n")[2])
    assert example.stage == "whole"
    assert example.response == {
        "thought": "I need to calculate the sum. 5+5 is 10.",
        "status": "success",
        "data": {"result": 10},
        "message": "The result is 10.",
    }


def test_a_model_that_repeats_the_prompt_has_not_answered() -> None:
    assert extract(RESPONSE_FORMAT).stage == "fallback"
