"""AgentOS: the six rules, the interface and the error table; the message log; properties of any message."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.protocol.adapters.agentos.adapter import AgentOsOptions
from aghbus.protocol.adapters.agentos.log import answering, from_plain, lifetime_of, timed_out, to_plain
from aghbus.protocol.adapters.agentos.message import TYPES
from aghbus.protocol.adapters.agentos.rules import RECOVERABLE, check
from aghbus.protocol.adapters.derived_ids import same_json
from aghbus.protocol.adapters.strict_json import pointer
from aghbus.protocol.send import build
from tests.support.agentos_peers import (
    ANALYST,
    ASKER,
    ERROR,
    NOW,
    QUERY,
    RESPONSE,
    AgentOsPeer,
    agent,
    message_of,
    native,
    pair,
    rules,
    varied,
)

V4 = "123e4567-e89b-42d3-a456-426614174000"
STAMP = "2026-01-21T12:53:20Z"  # NOW
ASKED = varied(QUERY, id=V4, timestamp=STAMP)
ANSWERED = varied(RESPONSE, id=V4, timestamp=STAMP)
FAILED = varied(ERROR, id=V4, timestamp=STAMP)


def changed(message: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the member at `path` (keys joined by dots) replaced; `...` removes it."""
    made = varied(message)
    *outer, last = path.split(".")
    inner = made
    for key in outer:
        inner = inner[key]
    if value is ...:
        del inner[last]
    else:
        inner[last] = value
    return made


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


# the message log


def test_a_query_and_its_answer_are_rows_on_both_sides() -> None:
    asker, analyst = pair()
    sent = asker.plan(QUERY).record
    assert sent == {
        "row": {
            "messageId": "msg-123e4567-e89b-12d3-a456-426614174000",
            "timestamp": "2025-01-29T10:30:00Z",
            "direction": "sent",
            "fromAgent": "one-brain",
            "toAgent": "macro-analyst",
            "type": "query",
            "status": "success",
            "latencyMs": 0,
            "evidenceCount": 0,
            "confidenceScore": 0,
        },
        "answers": None,
        "waits": 30,
    }
    question = asker.send(QUERY)
    received = analyst.receive(question, NOW + 1).record
    assert received is not None
    assert received["waits"] == 30
    assert received["row"] == sent["row"] | {"direction": "received"}

    given = analyst.plan(RESPONSE, NOW + 5).record
    row = {
        "messageId": "msg-223e4567-e89b-12d3-a456-426614174001",
        "timestamp": "2025-01-29T10:30:05Z",
        "direction": "sent",
        "fromAgent": "macro-analyst",
        "toAgent": "one-brain",
        "type": "response",
        "status": "success",
        "latencyMs": 4000,
        "evidenceCount": 1,
        "confidenceScore": 85,
    }
    assert given == {"row": row, "answers": QUERY["id"], "waits": None}
    answered = asker.receive(analyst.send(RESPONSE, NOW + 5), NOW + 7).record
    later = row | {"direction": "received", "latencyMs": 7000}
    assert answered == {"row": later, "answers": QUERY["id"], "waits": None}
    assert analyst.plan(RESPONSE, NOW + 9).record is None  # a repetition is no second row


def test_an_error_is_a_row_of_status_error() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    rejected = native(ANALYST, ASKER, "receipt", {"for_id": question.id, "status": "rejected", "reason_code": "busy"})
    analyst.receive(question)
    rejected = msgspec.structs.replace(rejected, work_id=question.work_id, container=question.container)
    kept = asker.receive(analyst.say(rejected), NOW + 2).record
    assert kept is not None
    assert (kept["row"]["status"], kept["row"]["latencyMs"], kept["answers"]) == ("error", 2000, QUERY["id"])


def test_the_row_of_a_timeout() -> None:
    plain = AgentOsPeer(ASKER).plan(QUERY).record
    kept = from_plain(plain)
    assert plain is not None
    late = to_plain(timed_out(kept))
    assert late == {"row": plain["row"] | {"status": "timeout", "latencyMs": 30_000}, "answers": None, "waits": None}


def test_the_latency_of_an_answer_counts_milliseconds() -> None:
    kept = from_plain(AgentOsPeer(ASKER).plan(QUERY).record)
    assert answering(kept, 1_000_250, 1_000_900).row.latency_ms == 650
    assert answering(kept, 1_000_900, 1_000_250).row.latency_ms == 0  # the clock was set back in between


def test_events_await_no_answer() -> None:
    kept = AgentOsPeer(ASKER).plan(varied(QUERY, type="event")).record
    assert kept is not None
    assert kept["waits"] is None


# any message

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.integers(-(2**53) + 1, 2**53 - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT | st.sampled_from(["\n2026 forged", "\u202e", "{{x}}", "\x00\x1b[31m"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
LIST = st.lists(VALUE, max_size=3)


@st.composite
def messages(draw: st.DrawFn, sender: str, to: str, types: tuple[str, ...] = TYPES) -> dict[str, Any]:
    """A valid message between two dotted peers; unknown members, missing and optional ones included."""
    prefix = draw(st.sampled_from(["", "msg-"]))
    context = {
        "sessionId": draw(TEXT),
        "requestId": draw(TEXT),
        "locale": draw(TEXT),
        "timezone": draw(TEXT),
        **draw(st.fixed_dictionaries({}, optional={"userId": TEXT, "conversationId": TEXT})),
    }
    evidence = {
        "sources": draw(LIST),
        "confidence": draw(st.integers(0, 100) | st.floats(0, 100)),
        "citations": draw(LIST),
        "provenance": draw(LIST),
    }
    known = {
        "id": prefix + str(draw(st.uuids())),
        "timestamp": draw(st.sampled_from([STAMP, "2001-02-03T04:05:06.7+05:30", "2030-12-31T23:59:60Z"])),
        "version": "1.0.0",
        "from": agent(sender),
        "to": agent(to),
        "type": draw(st.sampled_from(types)),
        "payload": {
            "content": draw(VALUE),
            "format": draw(st.sampled_from(["json", "text", "markdown"])),
            "language": draw(st.sampled_from(["en", "ar"])),
            "encoding": "utf-8",
        },
        "context": context,
        "evidence": evidence,
        "priority": draw(st.sampled_from(["high", "normal", "low"])),
        "ttl": draw(st.integers(1, 2**53 - 1) | st.floats(0, exclude_min=True, allow_infinity=False)),
        "retryCount": draw(st.integers(0, 9)),
    }
    if known["type"] != "response" and draw(st.booleans()):
        del known[draw(st.sampled_from(["evidence", "context", "priority", "ttl", "retryCount"]))]
    return {**{f"x-{key}": value for key, value in draw(st.dictionaries(TEXT, VALUE, max_size=2)).items()}, **known}


@given(st.data())
def test_a_message_is_delivered_as_submitted(data: st.DataObject) -> None:
    """Every type, answers on the work that they answer: the same JSON value, and the same envelope for the same message."""
    asker, analyst = pair()
    question = data.draw(messages(ASKER, ANALYST, ("query", "command")))
    opened = asker.send(question)
    delivered = analyst.receive(opened)
    assert same_json(delivered.message, question)
    assert not delivered.native
    message = data.draw(messages(ANALYST, ASKER).filter(lambda made: made["id"] != question["id"]))
    if message["type"] == "response" or data.draw(st.booleans()):
        message["replyTo"] = question["id"]
    sent = analyst.send(message)
    back = asker.receive(sent)
    assert same_json(back.message, message)
    assert not back.native
    again = analyst.plan(message, NOW + 1)
    assert again.repeats
    assert [draft.id for draft in again.drafts] == [sent.id]


@given(st.binary(max_size=200) | VALUE.map(lambda value: json.dumps(value).encode()))
def test_no_text_raises_and_none_of_it_is_sent(text: bytes) -> None:
    plan = AgentOsPeer(ASKER).plan(text)
    assert plan.refused
    assert plan.drafts == ()


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, item in inner for found in _paths(item, (*path, key)))]


@settings(max_examples=300)
@given(st.data(), st.sampled_from([ASKED, ANSWERED, FAILED]))
def test_a_message_with_anything_anywhere_is_refused_or_makes_a_valid_envelope(
    data: st.DataObject, message: dict[str, Any]
) -> None:
    asker, analyst = pair()
    analyst.receive(asker.send(QUERY))
    made = varied(message, sender=agent(ANALYST), to=agent(ASKER), replyTo=QUERY["id"])
    path = data.draw(st.sampled_from([path for path in _paths(made) if path]))
    inner: Any = made
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = data.draw(VALUE)
    plan = analyst.plan(made)
    assert plan.refused == (not plan.drafts)
    for draft in plan.drafts:
        envelope = build(draft, NOW)
        assert same_json(envelope.extensions()["agentos.message"], made)
    # The same message as a peer would forge it into an envelope: the receiver's agent gets something valid.
    forged = native(ANALYST, ASKER, "say", {"text": "words"}, ext={"agentos.message": made})
    delivered = asker.receive(analyst.say(forged))
    assert not [finding for finding in check(delivered.message, NOW) if finding.severity == "error"]


@given(VALUE, VALUE)
def test_any_result_and_extension_of_a_peer_is_delivered_as_a_valid_message(result: Any, carried: Any) -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    body = {"state": "completed", "result": result}
    done = native(ANALYST, ASKER, "trace", body, ext={"agentos.message": carried})
    done = msgspec.structs.replace(done, work_id=question.work_id, container=question.container)
    delivered = asker.receive(analyst.say(done))
    assert delivered.native
    assert same_json(message_of(delivered)["payload"]["content"], result)
    assert not [finding for finding in check(delivered.message, NOW, strict=True) if finding.severity == "error"]


def test_a_result_too_deep_for_the_format_becomes_text() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    deep: Any = 1
    for _ in range(80):
        deep = [deep]
    done = native(ANALYST, ASKER, "trace", {"state": "completed", "result": deep})
    done = msgspec.structs.replace(done, work_id=question.work_id, container=question.container)
    delivered = asker.receive(analyst.say(done))
    assert message_of(delivered)["payload"]["content"] == "[" * 80 + "1" + "]" * 80
    assert ("/payload/content", "as_text", "warning") in rules(delivered.findings)


def test_content_beyond_64_kib_is_truncated_outside_of_the_message() -> None:
    asker, analyst = pair()
    long = changed(ASKED, "payload.content", "é" * 100_000)
    sent = asker.send(long)
    assert len(sent.document()["body"]["text"].encode()) <= 65_536
    assert analyst.receive(sent).message == long
    answer = varied(ANSWERED, id="msg-" + V4, replyTo=V4)
    answer["payload"]["content"] = "é" * 100_000
    done = analyst.send(answer)
    assert len(json.dumps(done.document()["body"]["result"], ensure_ascii=False).encode()) <= 65_600
    assert asker.receive(done).message == answer


@given(st.floats(0, exclude_min=True, allow_infinity=False) | st.integers(1, 2**53 - 1))
def test_a_life_is_whole_seconds_within_the_bounds(ttl: float) -> None:
    seconds = lifetime_of(ttl)
    assert 1 <= seconds <= 604_800
    assert seconds == 604_800 or seconds >= ttl
    assert seconds == 1 or seconds - 1 < ttl


# the page


def test_the_page_names_every_rule_and_the_error_table_and_its_example_holds() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "adapters" / "agentos.md").read_text("utf-8")
    room = Path(__file__).parent.parent.parent / "protocol" / "adapters"
    sources = "".join(path.read_text("utf-8") for path in [*(room / "agentos").glob("*.py"), room / "common.py"])
    named = set(re.findall(r'\b(?:error|warning|made)\(\s*[^,]+, "(\w+)"', sources))
    assert len(named) > 20
    # where several works are open, this format is message_of by `replyTo`: the work in hand is never guessed
    assert named - {"ambiguous_work"} <= set(re.findall(r"`(\w+)`", page))
    table = dict(re.findall(r"^\| `([A-Z_]+)` \| (yes|no) \|", page, re.MULTILINE))
    assert {code: says == "yes" for code, says in table.items()} == RECOVERABLE
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    assert rules(check(example, NOW, strict=True)) == [("/timestamp", "clock_skew", "warning")]
