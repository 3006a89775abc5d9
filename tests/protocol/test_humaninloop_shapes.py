"""ADR-007: required members, refused values, and unknown members."""

import json
from typing import Any

import pytest

from aghbus.protocol.formats.derived_ids import same_json
from tests.support.humaninloop_peers import (
    SEED_INPUT,
    SEED_OUTPUT,
    opened,
    output,
    pair,
    rules,
    say_of,
)

# shapes


def without(message: dict[str, Any], *path: str) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(message))
    inner = copy
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    return copy


def changed(message: dict[str, Any], value: Any, *path: str | int) -> dict[str, Any]:
    copy: dict[str, Any] = json.loads(json.dumps(message))
    inner: Any = copy
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return copy


@pytest.mark.parametrize("name", ["context", "paths", "task"])
def test_an_input_without_a_required_member_is_refused(name: str) -> None:
    flow, checker = pair()
    plan, _ = flow.submit(without(SEED_INPUT, name), checker, target="checker")
    assert rules(plan) == [("error", "required", f"/{name}")]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("context", "feature_id"), "specify: validate, iteration 1"),
        (("context", "workflow"), "validate 005-user-auth, iteration 1"),
        (("context", "iteration"), "specify: validate 005-user-auth"),
        (("task", "action"), "specify: 005-user-auth, iteration 1"),
    ],
)
def test_contents_of_an_input_can_vary(path: tuple[str, ...], text: str) -> None:
    flow, checker = pair()
    message = without(SEED_INPUT, *path)
    plan, delivered = flow.submit(message, checker, target="checker")
    assert rules(plan) == [("warning", "missing", "/" + "/".join(path))]
    assert (plan.drafts[0].body["text"], "intent" in plan.drafts[0].body) == (text, path != ("task", "action"))
    assert delivered[0].message == message
    assert not delivered[0].native


def test_inputs_without_context_do_not_share_a_thread() -> None:
    flow, checker = pair()
    bare: dict[str, Any] = {"context": {}, "paths": {}, "task": {}}
    plans = [flow.submit({**bare, "prior_context": [note]}, checker, target="checker")[0] for note in "ab"]
    first, second = (plan.drafts[0] for plan in plans)
    assert first.body["text"] == "(no text)"
    assert first.container != second.container


@pytest.mark.parametrize("name", ["success", "summary", "artifacts", "recommendation"])
def test_an_output_without_a_required_member_is_refused(name: str) -> None:
    flow, checker, _ = opened()
    plan, _ = checker.submit(without(SEED_OUTPUT, name), flow)
    assert rules(plan) == [("error", "required", f"/{name}")]


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        (("context",), [], "type"),
        (("context", "feature_id"), 5, "type"),
        (("context", "feature_id"), " \t", "blank"),
        (("context", "workflow"), None, "type"),
        (("context", "iteration"), 0, "range"),
        (("context", "iteration"), -1, "range"),
        (("context", "iteration"), True, "type"),
        (("context", "iteration"), 1.0, "type"),
        (("context", "iteration"), "1", "type"),
        (("paths",), ["spec.md"], "type"),
        (("paths", "spec"), None, "type"),
        (("paths", "spec"), "a\nb", "path_characters"),
        (("paths", "a/b~c"), 1, "type"),
        (("task",), "validate", "type"),
        (("task", "action"), "", "blank"),
        (("task", "params"), [], "type"),
        (("prior_context",), "Spec complete", "type"),
        (("prior_context", 1), 3, "type"),
    ],
)
def test_an_input_with_a_wrong_value_is_refused(path: tuple[str | int, ...], value: Any, rule: str) -> None:
    flow, checker = pair()
    plan, _ = flow.submit(changed(SEED_INPUT, value, *path), checker, target="checker")
    pointer = "".join("/" + str(key).replace("~", "~0").replace("/", "~1") for key in path)
    assert rules(plan) == [("error", rule, pointer)]


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        (("success",), 1, "type"),
        (("success",), "true", "type"),
        (("summary",), None, "type"),
        (("artifacts",), {}, "type"),
        (("artifacts",), None, "type"),
        (("artifacts", 0), "spec.md", "type"),
        (("artifacts", 0, "path"), 1, "type"),
        (("artifacts", 0, "operation"), "delete", "enum"),
        (("artifacts", 0, "operation"), "Update", "enum"),
        (("artifacts", 0, "operation"), ["update"], "enum"),
        (("artifacts", 0, "content"), None, "type"),
        (("notes",), "Ready", "type"),
        (("notes", 0), {}, "type"),
        (("recommendation",), "skip", "enum"),
        (("recommendation",), None, "enum"),
        (("recommendation",), {}, "enum"),
    ],
)
def test_an_output_with_a_wrong_value_is_refused(path: tuple[str | int, ...], value: Any, rule: str) -> None:
    flow, checker, _ = opened()
    plan, _ = checker.submit(changed(SEED_OUTPUT, value, *path), flow)
    assert rules(plan) == [("error", rule, "/" + "/".join(map(str, path)))]


@pytest.mark.parametrize(
    ("message", "rule"),
    [
        ({}, "unknown_envelope"),
        ([], "type"),
        (None, "type"),
        ("hello", "type"),
        ({"context": {}, "success": True}, "unknown_envelope"),
        ({**SEED_INPUT, **SEED_OUTPUT}, "ambiguous_envelope"),
    ],
)
def test_neither_or_both_is_refused(message: Any, rule: str) -> None:
    flow, checker = pair()
    assert rules(flow.submit(message, checker, target="checker")[0]) == [("error", rule, "")]


def test_members_of_the_other_envelope_do_not_change_the_kind() -> None:
    flow, checker, _ = opened({**SEED_INPUT, "summary": "for people", "team": {"a": [1, 2.5, None]}})
    message = {**output(), "context": {"kept": True}, "paths": 1}
    _, (delivered,) = checker.submit(message, flow)
    assert same_json(delivered.message, message)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (b"", "not_json"),
        (b"\xff", "not_utf8"),
        (b'{"success":true,"success":false}', "duplicate_key"),
        (b'{"success":NaN}', "not_finite"),
        (b"[" * 100, "too_deep"),
    ],
)
def test_unreadable_text_is_refused(text: bytes, rule: str) -> None:
    flow, checker = pair()
    assert rule in [finding.rule for finding in flow.submit(text, checker, target="checker")[0].findings]


def test_a_secret_like_value_is_a_warning_that_does_not_quote_it() -> None:
    flow, checker = pair()
    message = changed(SEED_INPUT, {"api_key": "abc-very-secret"}, "task", "params")
    plan, (delivered,) = flow.submit(message, checker, target="checker")
    assert rules(plan) == rules(delivered) == [("warning", "secret_like", "/task/params/api_key")]
    assert "abc-very" not in plan.findings[0].message


def test_hostile_names_stay_on_one_line() -> None:
    flow, checker = pair()
    message = changed(SEED_INPUT, "x\n[ERROR] forged\u202e\x1b[31m", "context", "feature_id")
    plan, (delivered,) = flow.submit(message, checker, target="checker")
    text = say_of(plan).text
    assert text.isprintable()
    assert same_json(delivered.message, message)


def test_nesting_up_to_the_limit_crosses_and_beyond_is_refused() -> None:
    for levels, crosses in ((62, True), (63, False)):  # the envelope and `task` are two of the 64
        nested: dict[str, Any] = {}
        for _ in range(levels - 1):
            nested = {"in": nested}
        flow, checker = pair()
        message = changed(SEED_INPUT, nested, "task", "params")
        plan, delivered = flow.submit(message, checker, target="checker")
        assert plan.refused is not crosses
        assert [same_json(one.message, message) for one in delivered] == [True] * crosses
