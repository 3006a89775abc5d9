"""AgentOS: the six rules, the interface and the error table; the message log; properties of any message."""

import json
from typing import Any

import pytest

from aghbus.protocol.formats.agentos.adapter import AgentOsOptions
from aghbus.protocol.formats.agentos.rules import RECOVERABLE, check
from aghbus.protocol.formats.strict_json import pointer
from tests.support.agentos_peers import (
    ANALYST,
    ANSWERED,
    ASKED,
    ASKER,
    FAILED,
    NOW,
    STAMP,
    V4,
    AgentOsPeer,
    agent,
    changed,
    pair,
    rules,
    varied,
)


@pytest.mark.parametrize("message", [ASKED, ANSWERED, FAILED])
def test_a_message_with_a_random_uuid_and_the_right_time_is_faultless(message: dict[str, Any]) -> None:
    assert check(message, NOW, strict=True, manifest=None) == ()


@pytest.mark.parametrize("path", ["id", "timestamp", "version", "from", "to", "type", "payload"])
def test_rule_1_required_fields(path: str) -> None:
    for value in (..., None):
        assert rules(check(changed(ASKED, path, value), NOW)) == [(f"/{path}", "required", "error")]


@pytest.mark.parametrize("path", ["from.agentId", "from.instanceId", "to.agentId", "to.instanceId"])
def test_an_agent_needs_both_its_names(path: str) -> None:
    assert rules(check(changed(ASKED, path, ...), NOW)) == [(pointer(*path.split(".")), "required", "error")]


INTERFACE = (
    "payload.content",
    "payload.format",
    "payload.language",
    "payload.encoding",
    "context",
    "context.sessionId",
    "context.requestId",
    "context.locale",
    "context.timezone",
    "evidence",
    "evidence.sources",
    "evidence.confidence",
    "evidence.citations",
    "evidence.provenance",
    "priority",
    "ttl",
    "retryCount",
)


@pytest.mark.parametrize("path", INTERFACE)
def test_members_required_only_by_the_interface_are_a_warning(path: str) -> None:
    assert rules(check(changed(ASKED, path, ...), NOW)) == [(pointer(*path.split(".")), "missing", "warning")]


# payload.content is any value
@pytest.mark.parametrize(
    "path", [*INTERFACE[1:], "id", "timestamp", "version", "from", "to", "type", "payload", "replyTo"]
)
def test_a_wrong_type_is_an_error(path: str) -> None:
    for value in (True, {"a": 1} if path not in ("from", "to", "payload", "context", "evidence") else "text"):
        found = rules(check(changed(ASKED, path, value), NOW))
        assert (pointer(*path.split(".")), "type", "error") in found


@pytest.mark.parametrize("path", ["replyTo", "context.userId", "context.conversationId"])
def test_null_in_an_optional_member_is_a_warning(path: str) -> None:
    assert rules(check(changed(ASKED, path, None), NOW)) == [(pointer(*path.split(".")), "type", "warning")]


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("version", ["1.0.0"]),
        ("type", ["query", "command", "event", "validation", "evidence", "gap", "correction"]),
        ("priority", ["high", "normal", "low"]),
        ("payload.format", ["json", "text", "markdown"]),
        ("payload.language", ["en", "ar"]),
        ("payload.encoding", ["utf-8"]),
    ],
)
def test_words_of_the_enums(path: str, words: list[str]) -> None:
    for word in words:
        assert check(changed(ASKED, path, word), NOW) == ()
        assert rules(check(changed(ASKED, path, word.upper() + "x"), NOW)) == [
            (pointer(*path.split(".")), "enum", "error")
        ]


@pytest.mark.parametrize(
    ("identifier", "rule"),
    [
        (V4, None),
        (f"msg-{V4}", None),
        (V4.upper(), None),
        ("123e4567-e89b-12d3-a456-426614174000", "uuid_version"),
        ("123e4567-e89b-42d3-c456-426614174000", "uuid_version"),
        ("00000000-0000-0000-0000-000000000000", "uuid_version"),
        (f"evt-{V4}", "uuid"),
        (f"msg-msg-{V4}", "uuid"),
        (V4 + "\n", "uuid"),
        (V4.replace("-", ""), "uuid"),
        (f"{{{V4}}}", "uuid"),
        ("", "uuid"),
    ],
)
def test_rule_2_uuid(identifier: str, rule: str | None) -> None:
    loose = rules(check(changed(ASKED, "id", identifier), NOW))
    strict = rules(check(changed(ASKED, "id", identifier), NOW, strict=True))
    if rule is None:
        assert loose == strict == []
    else:
        assert loose == [("/id", rule, "warning" if rule == "uuid_version" else "error")]
        assert strict == [("/id", rule, "error")]


@pytest.mark.parametrize(
    ("stamp", "rule"),
    [
        (STAMP, None),
        ("2026-01-21T13:53:20.125+01:00", None),
        ("2026-01-21T12:53:20", "timestamp"),
        ("2026-01-21", "timestamp"),
        ("2026-02-30T12:53:20Z", "timestamp"),
        ("yesterday", "timestamp"),
        ("2026-01-21T12:58:21Z", "clock_skew"),
        ("2026-01-21T12:58:20Z", None),
    ],
)
def test_rule_3_timestamp(stamp: str, rule: str | None) -> None:
    found = rules(check(changed(ASKED, "timestamp", stamp), NOW))
    severity = "warning" if rule == "clock_skew" else "error"
    assert found == ([] if rule is None else [("/timestamp", rule, severity)])


def test_rule_4_manifest() -> None:
    assert check(ASKED, NOW, manifest=frozenset({"one-brain", "macro-analyst"})) == ()
    assert rules(check(ASKED, NOW, manifest=frozenset({"one-brain"}))) == [("/to/agentId", "manifest", "error")]
    assert len(check(ASKED, NOW, manifest=frozenset())) == 2
    plan = AgentOsPeer(ASKER, options=AgentOsOptions(manifest=frozenset({"one-brain"}))).plan(ASKED)
    assert plan.refused
    assert plan.drafts == ()


def test_rule_5_evidence_on_responses() -> None:
    assert rules(check(changed(ANSWERED, "evidence", ...), NOW)) == [("/evidence", "evidence_required", "error")]
    assert rules(check(changed(ANSWERED, "evidence", None), NOW)) == [("/evidence", "type", "error")]
    empty = changed(ANSWERED, "evidence", ASKED["evidence"])
    assert rules(check(empty, NOW)) == [("/evidence", "evidence_empty", "warning")]
    validated = changed(changed(ANSWERED, "type", "validation"), "evidence", ...)
    assert rules(check(validated, NOW)) == [("/evidence", "missing", "warning")]


@pytest.mark.parametrize(
    ("confidence", "fits"), [(0, True), (100, True), (99.5, True), (-0.1, False), (101, False), (1e300, False)]
)
def test_rule_6_confidence(confidence: float, fits: bool) -> None:
    found = rules(check(changed(ASKED, "evidence.confidence", confidence), NOW))
    assert found == ([] if fits else [("/evidence/confidence", "confidence_range", "error")])


@pytest.mark.parametrize(("ttl", "fits"), [(30, True), (0.5, True), (0, False), (-1, False), (-1e300, False)])
def test_a_ttl_is_above_zero(ttl: float, fits: bool) -> None:
    assert rules(check(changed(ASKED, "ttl", ttl), NOW)) == ([] if fits else [("/ttl", "ttl", "error")])


@pytest.mark.parametrize("count", [-1, 1.5, 1e300 + 0.5])
def test_a_retry_count_counts(count: float) -> None:
    found = rules(check(changed(ASKED, "retryCount", count), NOW))
    assert found == ([] if count == 1e300 else [("/retryCount", "retry_count", "warning")])


def test_the_error_table_is_the_schemas() -> None:
    printed = {
        "DATA_UNAVAILABLE": "Yes",
        "SOURCE_ERROR": "Yes",
        "VALIDATION_FAILED": "No",
        "TIMEOUT": "Yes",
        "FABRICATION_DETECTED": "No",
        "SAFETY_VIOLATION": "No",
        "UNAUTHORIZED": "No",
    }
    assert {code: says == "Yes" for code, says in printed.items()} == RECOVERABLE


@pytest.mark.parametrize("code", sorted(RECOVERABLE))
def test_a_recoverable_flag_against_the_table_is_a_warning(code: str) -> None:
    for flag in (True, False):
        message = changed(changed(FAILED, "payload.content.code", code), "payload.content.recoverable", flag)
        expected = [] if flag == RECOVERABLE[code] else [("/payload/content/recoverable", "recoverable", "warning")]
        assert rules(check(message, NOW)) == expected


def test_unknown_codes_and_shapes_of_errors_are_warnings() -> None:
    unknown = changed(FAILED, "payload.content.code", "E17")
    assert rules(check(unknown, NOW)) == [("/payload/content/code", "error_code", "warning")]
    bare = changed(FAILED, "payload.content", {})
    names = ("code", "message", "recoverable")
    assert rules(check(bare, NOW)) == [(f"/payload/content/{name}", "error_content", "warning") for name in names]
    text = changed(FAILED, "payload.content", "it broke")
    assert rules(check(text, NOW)) == [("/payload/content", "error_content", "warning")]


def test_a_failure_without_a_flag_takes_the_tables() -> None:
    asker, analyst = pair()
    question = asker.send(ASKED)
    analyst.receive(question)
    content = {"code": "UNAUTHORIZED"}
    silent = varied(FAILED, id="msg-" + V4, sender=agent(ANALYST), to=agent(ASKER), replyTo=V4)
    silent["payload"]["content"] = content
    body = analyst.send(silent).document()["body"]
    assert body["result"]["error"] == {"code": "UNAUTHORIZED", "details": None, "recoverable": False}
    assert body["message"] == "UNAUTHORIZED"


def test_a_secret_is_a_warning_that_does_not_quote_it() -> None:
    message = changed(ASKED, "payload.content", {"api_key": "sesame-open"})
    plan = AgentOsPeer(ASKER).plan(message)
    assert rules(plan.findings) == [("/payload/content/api_key", "secret_like", "warning")]
    assert "sesame" not in plan.findings[0].message
    assert plan.drafts[0].ext is not None
    assert plan.drafts[0].ext["agentos.findings"][0]["rule"] == "secret_like"


def test_findings_quote_little_of_a_message() -> None:
    found = check(changed(ASKED, "priority", "x" * 100_000), NOW)
    assert len(found[0].message) < 120


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (json.dumps(ASKED).encode()[:-1] + b', "id": "x"}', "duplicate_key"),
        (json.dumps(ASKED).replace('"ttl": 30', '"ttl": NaN').encode(), "not_finite"),
        (json.dumps(ASKED).replace('"ttl": 30', '"ttl": 1e999').encode(), "number_range"),
        (json.dumps(ASKED).replace('"ttl": 30', '"ttl": 9007199254740993').encode(), "integer_range"),
        (json.dumps(ASKED).replace("any", "\\ud800").encode(), "lone_surrogate"),
        (b"[" * 100_000, "too_deep"),
        (b"\xff", "not_utf8"),
        (b"", "not_json"),
        (b"[]", "type"),
    ],
)
def test_json_that_readers_would_not_agree_on_is_refused(text: bytes, rule: str) -> None:
    plan = AgentOsPeer(ASKER).plan(text)
    assert [finding.rule for finding in plan.findings] == [rule]
    assert plan.refused
    assert plan.drafts == ()
