"""AgentOS: the message log, and properties of any message."""

import json
import re
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.protocol.agh.send import build
from aghbus.protocol.formats.agentos.log import answered, lifetime_of, timed_out
from aghbus.protocol.formats.agentos.message import TYPES
from aghbus.protocol.formats.agentos.rules import RECOVERABLE, check
from aghbus.protocol.formats.derived_ids import same_json
from tests.support.agentos_peers import (
    ANALYST,
    ANSWERED,
    ASKED,
    ASKER,
    FAILED,
    NOW,
    QUERY,
    RESPONSE,
    STAMP,
    V4,
    AgentOsPeer,
    agent,
    changed,
    message_of,
    native,
    pair,
    queried,
    rules,
    varied,
)


def test_a_query_and_its_answer_are_rows_on_both_sides() -> None:
    asker, analyst = pair()
    sent = asker.plan(QUERY)
    asked = {
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
    }
    assert (sent.record, sent.answers, sent.waits) == (asked, None, 30)
    question = asker.send(QUERY)
    received = analyst.receive(question, NOW + 1)
    assert (received.record, received.waits) == (asked | {"direction": "received"}, 30)

    given = analyst.plan(RESPONSE, NOW + 5)
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
    assert (given.record, given.answers, given.waits) == (row, QUERY["id"], None)
    arrived = asker.receive(analyst.send(RESPONSE, NOW + 5), NOW + 7)
    later = row | {"direction": "received", "latencyMs": 7000}
    assert (arrived.record, arrived.answers, arrived.waits) == (later, QUERY["id"], None)
    assert analyst.plan(RESPONSE, NOW + 9).record is None  # a repetition is no second row


def test_an_error_is_a_row_of_status_error() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    rejected = native(ANALYST, ASKER, "receipt", {"for_id": question.id, "status": "rejected", "reason_code": "busy"})
    analyst.receive(question)
    rejected = msgspec.structs.replace(rejected, work_id=question.work_id, container=question.container)
    kept = asker.receive(analyst.say(rejected), NOW + 2)
    assert kept.record is not None
    assert (kept.record["status"], kept.record["latencyMs"], kept.answers) == ("error", 2000, QUERY["id"])


def test_the_row_of_a_timeout() -> None:
    row = AgentOsPeer(ASKER).plan(QUERY).record
    assert row is not None
    assert timed_out(row, 30) == {**row, "status": "timeout", "latencyMs": 30_000}


def test_the_latency_of_an_answer_counts_milliseconds() -> None:
    row = AgentOsPeer(ASKER).plan(QUERY).record or {}
    assert answered(row, 650)["latencyMs"] == 650
    assert answered(row, -650)["latencyMs"] == 0  # the clock was set back in between


def test_events_await_no_answer() -> None:
    assert AgentOsPeer(ASKER).plan(varied(QUERY, type="event")).waits is None


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
def test_arbitrary_message_is_rejected_or_yields_a_valid_envelope(data: st.DataObject, message: dict[str, Any]) -> None:
    asker, analyst, _ = queried()
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
def test_any_peer_result_and_extension_yields_a_valid_message(result: Any, carried: Any) -> None:
    asker, analyst, question = queried()
    body = {"state": "completed", "result": result}
    done = native(ANALYST, ASKER, "trace", body, ext={"agentos.message": carried})
    done = msgspec.structs.replace(done, work_id=question.work_id, container=question.container)
    delivered = asker.receive(analyst.say(done))
    assert delivered.native
    assert same_json(message_of(delivered)["payload"]["content"], result)
    assert not [finding for finding in check(delivered.message, NOW, strict=True) if finding.severity == "error"]


def test_a_result_too_deep_for_the_format_becomes_text() -> None:
    asker, analyst, question = queried()
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


def test_docs_page_lists_all_rules_and_errors_with_valid_example() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "adapters" / "agentos.md").read_text("utf-8")
    room = Path(__file__).parent.parent.parent / "protocol" / "formats"
    sources = "".join(path.read_text("utf-8") for path in [*(room / "agentos").glob("*.py"), room / "common.py"])
    named = set(re.findall(r'\b(?:error|warning|made)\(\s*[^,]+, "(\w+)"', sources))
    assert len(named) > 20
    # where several works are open, this format is message_of by `replyTo`: the work in hand is never guessed
    assert named - {"ambiguous_work"} <= set(re.findall(r"`(\w+)`", page))
    table = dict(re.findall(r"^\| `([A-Z_]+)` \| (yes|no) \|", page, re.MULTILINE))
    assert {code: says == "yes" for code, says in table.items()} == RECOVERABLE
    example = json.loads(page.partition("```json\n")[2].partition("```")[0])
    assert rules(check(example, NOW, strict=True)) == [("/timestamp", "clock_skew", "warning")]
