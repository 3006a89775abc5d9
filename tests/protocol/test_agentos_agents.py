"""AgentOS: names of agents, carried messages that are judged again, native envelopes as messages."""

from typing import Any

import pytest

from aghbus.protocol.formats.agentos.adapter import AgentOsOptions
from aghbus.protocol.formats.agentos.agents import identity_of, peer_of
from aghbus.protocol.formats.agentos.message import AgentIdentifier
from aghbus.protocol.formats.agentos.native import native_id
from aghbus.protocol.formats.agentos.rules import check
from aghbus.protocol.formats.model import AgentMap, Finding
from tests.support.agentos_peers import (
    ANALYST,
    ASKER,
    NOW,
    QUERY,
    RESPONSE,
    AgentOsPeer,
    agent,
    message_of,
    native,
    on_work,
    pair,
    queried,
    rules,
    varied,
)


@pytest.mark.parametrize(
    ("agent_id", "instance_id", "peer"),
    [
        ("one-brain", "ob-001", "one-brain.ob-001"),
        ("one-brain", "ob.001", "one-brain.ob.001"),
        ("mapped", "1", "first"),
        ("mapped", "2", "second"),
        ("dotted.name", "1", "third"),
        ("ops", "", "ops"),
        ("ops@0123456789abcdef0123456789abcdef", "", "ops@0123456789abcdef0123456789abcdef"),
    ],
)
def test_an_agent_is_its_configured_peer_or_a_peer_id_as_written(agent_id: str, instance_id: str, peer: str) -> None:
    agents = AgentMap(names={"mapped/1": "first", "mapped": "second", "dotted.name": "third"})
    assert peer_of(AgentIdentifier(agent_id, instance_id), agents, "/from") == peer


@pytest.mark.parametrize(
    ("agent_id", "instance_id"),
    [
        ("one.brain", "ob-001"),
        ("One-Brain", "ob-001"),
        ("one-brain", "OB-001"),
        ("", "ob-001"),
        ("a b", "c"),
        ("a.b", ""),
    ],
)
def test_nothing_is_reshaped_into_a_peer_id(agent_id: str, instance_id: str) -> None:
    found = peer_of(AgentIdentifier(agent_id, instance_id), AgentMap(), "/from")
    assert isinstance(found, Finding)
    assert (found.path, found.rule) == ("/from", "agent_map")


def test_looked_up_names_must_be_unambiguous() -> None:
    agents = AgentMap(found={"Brain": ("b1",), "Twins": ("t1", "t2")})
    assert peer_of(AgentIdentifier("Brain", "1"), agents, "/to") == "b1"
    assert isinstance(peer_of(AgentIdentifier("Twins", "1"), agents, "/to"), Finding)


@pytest.mark.parametrize(
    "peer", ["ops", "one-brain.ob-001", "a.b.c", "x.x", "ops@0123456789abcdef0123456789abcdef", "mapped"]
)
def test_a_peer_written_as_an_agent_leads_back_to_it(peer: str) -> None:
    for names in ({}, {"Brain": "mapped"}, {"Brain/7": "mapped"}):
        agents = AgentMap(names=names)
        assert peer_of(identity_of(peer, agents), agents, "/to") == peer


def test_the_message_must_be_from_us_and_to_another_peer() -> None:
    assert rules(AgentOsPeer(ANALYST).plan(QUERY).findings)[2:] == [
        ("/from", "agent_map", "error"),
        ("/to", "to_self", "error"),
    ]
    unmapped = varied(QUERY, to={"agentId": "Macro", "instanceId": "1"})
    assert rules(AgentOsPeer(ASKER).plan(unmapped).findings)[2:] == [("/to", "agent_map", "error")]


@pytest.mark.parametrize(
    "changed",
    [
        {"sender": agent("admin-monitor.am-001")},
        {"type": "response"},
        {"version": "2.0.0"},
        {"id": "one"},
    ],
)
def test_an_inconsistent_carried_message_is_not_used(changed: dict[str, Any]) -> None:
    asker, analyst = pair()
    forged = native(
        ASKER, ANALYST, "say", {"text": "hello"}, work_id=None, ext={"agentos.message": varied(QUERY, **changed)}
    )
    delivered = analyst.receive(asker.say(forged))
    assert delivered.native
    assert message_of(delivered)["type"] == "event"
    assert message_of(delivered)["payload"]["content"] == "hello"
    assert delivered.findings[0].rule == "carried_message"
    assert delivered.findings[0].severity == "warning"


def test_a_response_cannot_pose_as_the_answer_to_another_question() -> None:
    asker, _ = pair()
    asker.send(QUERY)
    mallory = AgentOsPeer("mallory.m-1")
    other = asker.send(varied(QUERY, id="msg-823e4567-e89b-42d3-a456-426614174008", to=agent("mallory.m-1")))
    mallory.receive(other)
    posing = varied(RESPONSE, sender=agent("mallory.m-1"))
    body = {"state": "completed", "result": {"content": 1}}
    draft = native("mallory.m-1", ASKER, "trace", body, ext={"agentos.message": posing})
    delivered = asker.receive(mallory.say(on_work(draft, other)))
    assert delivered.native
    assert message_of(delivered)["replyTo"] == "msg-823e4567-e89b-42d3-a456-426614174008"
    assert delivered.findings[0].rule == "carried_message"


def test_messages_after_the_end_of_a_work_are_not_delivered() -> None:
    asker, analyst, question = queried()
    cancel = native(ASKER, ANALYST, "receipt", {"for_id": question.id, "status": "canceled"})
    asker.say(on_work(cancel, question))
    assert asker.receive(analyst.send(RESPONSE)).message is None


def test_the_manifest_of_the_receiver_counts() -> None:
    asker = AgentOsPeer(ASKER)
    sent = asker.send(QUERY)
    wary = AgentOsPeer(ANALYST, options=AgentOsOptions(manifest=frozenset({"macro-analyst"})))
    delivered = wary.receive(sent)
    assert delivered.native
    assert ("/from/agentId", "manifest", "warning") in rules(delivered.findings)


def valid(message: Any) -> list[tuple[str, str, str]]:
    found = rules(check(message, NOW, strict=True))
    assert not [finding for finding in found if finding[2] == "error"], found
    return found


def test_a_native_say_that_opens_work_is_a_query_with_an_answer() -> None:
    ops, analyst = AgentOsPeer("ops"), AgentOsPeer(ANALYST)
    opened = ops.say(native("ops", ANALYST, "say", {"text": "GDP?"}, work_id="work_1", trace_id="req-1"))
    delivered = analyst.receive(opened)
    assert delivered.native
    assert delivered.message == {
        "id": native_id("ops", "msg_say_1"),
        "timestamp": "2026-01-21T12:53:20Z",
        "version": "1.0.0",
        "from": {"agentId": "ops", "instanceId": ""},
        "to": {"agentId": "macro-analyst", "instanceId": "ma-001"},
        "type": "query",
        "payload": {"content": "GDP?", "format": "text", "language": "en", "encoding": "utf-8"},
        "context": {"sessionId": "thread_release_check", "requestId": "req-1", "locale": "und", "timezone": "UTC"},
        "evidence": {"sources": [], "confidence": 0, "citations": [], "provenance": []},
        "priority": "normal",
        "ttl": 600,
        "retryCount": 0,
    }
    assert valid(delivered.message) == []
    assert rules(delivered.findings) == [("/payload/language", "assumed", "warning")]
    reply = varied(RESPONSE, to=message_of(delivered)["from"], replyTo=message_of(delivered)["id"])
    sent = analyst.send(reply)
    assert (sent.to, sent.work_id, sent.reply_to) == ("ops", "work_1", "msg_say_1")


def test_answer_to_native_query_finds_work_without_stored_message() -> None:
    ops, analyst = AgentOsPeer("ops"), AgentOsPeer(ANALYST)
    opened = ops.say(native("ops", ANALYST, "say", {"text": "GDP?"}, work_id="work_1"))
    delivered = analyst.receive(opened)
    forgetful = AgentOsPeer(ANALYST)
    forgetful.works = analyst.works
    reply = varied(RESPONSE, to=message_of(delivered)["from"], replyTo=message_of(delivered)["id"])
    assert forgetful.send(reply).work_id == "work_1"
    assert forgetful.plan(reply).repeats


def test_a_native_say_without_work_is_an_event() -> None:
    ops, analyst = AgentOsPeer("ops"), AgentOsPeer(ANALYST)
    delivered = analyst.receive(ops.say(native("ops", None, "say", {"text": "hi", "artifacts": [{"uri": "x"}]})))
    assert message_of(delivered)["type"] == "event"
    assert message_of(delivered)["payload"]["content"] == {"text": "hi", "artifacts": [{"uri": "x"}]}
    assert message_of(delivered)["payload"]["format"] == "json"
    assert valid(delivered.message) == []


@pytest.mark.parametrize(
    ("body", "content", "format"),
    [
        ({"result": {"gdp": 17}}, {"gdp": 17}, "json"),
        ({"message": "done"}, "done", "text"),
        ({"message": "done", "result": [1]}, {"message": "done", "result": [1]}, "json"),
        ({"artifact_refs": [{"uri": "x"}]}, {"artifactRefs": [{"uri": "x"}]}, "json"),
        ({}, None, "json"),
        ({"result": 2**60}, "1152921504606846976", "text"),
    ],
)
def test_a_native_completion_is_a_response_without_evidence(body: dict[str, Any], content: Any, format: str) -> None:
    asker, analyst, question = queried()
    done = native(ANALYST, ASKER, "trace", {"state": "completed", **body})
    delivered = asker.receive(analyst.say(on_work(done, question)))
    assert (message_of(delivered)["type"], message_of(delivered)["replyTo"]) == ("response", QUERY["id"])
    assert message_of(delivered)["payload"]["content"] == content
    assert message_of(delivered)["payload"]["format"] == format
    assert message_of(delivered)["evidence"]["confidence"] == 0
    assert valid(delivered.message) == [("/evidence", "evidence_empty", "warning")]
    assert ("/evidence", "evidence_empty", "warning") in rules(delivered.findings)


@pytest.mark.parametrize(
    ("kind", "body", "code", "recoverable"),
    [
        ("trace", {"state": "failed", "message": "no"}, "SOURCE_ERROR", True),
        ("trace", {"state": "canceled"}, "SOURCE_ERROR", True),
        ("trace", {"state": "failed", "result": {"error": {"code": "UNAUTHORIZED"}}}, "UNAUTHORIZED", False),
        ("trace", {"state": "failed", "result": {"error": {"code": "E17"}}}, "SOURCE_ERROR", True),
        ("receipt", {"status": "rejected", "reason_code": "busy"}, "SOURCE_ERROR", True),
        ("receipt", {"status": "rejected", "reason_code": "verification_failed"}, "UNAUTHORIZED", False),
        ("receipt", {"status": "rejected", "reason_code": "malformed"}, "VALIDATION_FAILED", False),
        ("receipt", {"status": "expired", "reason_code": "expired"}, "TIMEOUT", True),
        ("receipt", {"status": "unsupported", "reason_code": "unsupported_kind"}, "VALIDATION_FAILED", False),
        ("receipt", {"status": "canceled"}, "SOURCE_ERROR", True),
    ],
)
def test_a_native_failure_is_an_error_of_the_table(
    kind: str, body: dict[str, Any], code: str, recoverable: bool
) -> None:
    asker, analyst, question = queried()
    body = body if kind == "trace" else {"for_id": question.id, **body}
    delivered = asker.receive(analyst.say(on_work(native(ANALYST, ASKER, kind, body), question)))
    assert (message_of(delivered)["type"], message_of(delivered)["replyTo"]) == ("error", QUERY["id"])
    content = message_of(delivered)["payload"]["content"]
    assert (content["code"], content["recoverable"]) == (code, recoverable)
    assert valid(delivered.message) == []


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("trace", {"state": "working"}),
        ("receipt", {"status": "accepted"}),
        ("receipt", {"status": "duplicate", "reason_code": "duplicate"}),
    ],
)
def test_progress_and_acknowledgements_are_not_for_agents(kind: str, body: dict[str, Any]) -> None:
    asker, analyst, question = queried()
    body = body if kind == "trace" else {"for_id": question.id, **body}
    assert asker.receive(analyst.say(on_work(native(ANALYST, ASKER, kind, body), question))).message is None
