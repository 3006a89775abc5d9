"""AgentOS: every type as an envelope, answers on their works, native envelopes as valid messages."""

from typing import Any

import msgspec
import pytest

from aghbus.protocol.adapters.agentos.adapter import AgentOsOptions
from aghbus.protocol.adapters.agentos.agents import identity_of, peer_of
from aghbus.protocol.adapters.agentos.message import AgentIdentifier
from aghbus.protocol.adapters.agentos.native import native_id
from aghbus.protocol.adapters.agentos.rules import check
from aghbus.protocol.adapters.derived_ids import thread_id
from aghbus.protocol.adapters.model import AgentMap, Finding
from aghbus.protocol.bodies import Say, Trace
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.limits import DIRECTED_TTL
from aghbus.protocol.send import Draft
from tests.support.agentos_peers import (
    ANALYST,
    ASKER,
    ERROR,
    GAP,
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

OLD = [("/id", "uuid_version", "warning"), ("/timestamp", "clock_skew", "warning")]  # what every example deserves


def on_work(draft: Draft, question: Envelope) -> Draft:
    """The draft on the work that `question` opened."""
    return msgspec.structs.replace(draft, work_id=question.work_id, container=question.container)


# the schema's own examples


def test_a_query_opens_work_and_its_response_completes_it() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    assert rules(asker.plan(QUERY).findings) == OLD
    sent = question.document()
    assert (sent["kind"], sent["from"], sent["to"]) == ("say", ASKER, ANALYST)
    assert sent["body"]["intent"] == "query"
    assert sent["body"]["text"].startswith('{"question":"What is Yemen\'s current GDP?"')
    assert sent["thread_id"] == thread_id("agentos", "session", "sess-abc123")
    assert sent["trace_id"] == "req-789"
    assert sent["expires_at"] == NOW + 30
    assert "reply_to" not in sent
    delivered = analyst.receive(question)
    assert delivered.message == QUERY
    assert rules(delivered.findings) == OLD
    assert not delivered.native

    answer = analyst.send(RESPONSE)
    report = answer.document()
    assert (report["kind"], report["to"], report["reply_to"]) == ("trace", ASKER, question.id)
    assert report["work_id"] == question.work_id
    assert report["body"] == {
        "state": "completed",
        "result": {"content": RESPONSE["payload"]["content"], "evidence": RESPONSE["evidence"]},
    }
    assert report["expires_at"] == NOW + DIRECTED_TTL  # the ttl is the message's: a report must arrive
    back = asker.receive(answer)
    assert back.message == RESPONSE
    assert rules(back.findings) == OLD
    assert asker.works[question.work_id or ""].state == "completed"


def test_an_error_without_a_work_is_a_say() -> None:
    connector, asker = AgentOsPeer("data-connector-wb.dc-wb-001"), AgentOsPeer(ASKER)
    assert rules(connector.plan(ERROR).findings) == OLD
    sent = connector.send(ERROR)
    assert isinstance(sent.body, Say)
    assert (sent.body.intent, sent.work_id, sent.expires_at) == ("error", None, NOW + 60)
    delivered = asker.receive(sent)
    assert delivered.message == ERROR
    assert rules(delivered.findings) == OLD


def test_an_error_that_answers_a_query_fails_its_work() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    failure = varied(ERROR, replyTo=QUERY["id"], to=agent(ASKER), sender=agent(ANALYST))
    sent = analyst.send(failure).document()
    assert sent["body"] == {
        "state": "failed",
        "message": "World Bank API returned 404 for requested indicator",
        "result": {
            "error": {
                "code": "DATA_UNAVAILABLE",
                "details": {"indicator": "NY.GDP.MKTP.CD", "country": "YE", "year": 2025},
                "recoverable": True,
            }
        },
    }
    assert sent["work_id"] == question.work_id


def test_an_error_fails_the_work_that_the_caller_names() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    failure = varied(ERROR, to=agent(ASKER), sender=agent(ANALYST))
    sent = analyst.send(failure, work_id=question.work_id)
    assert isinstance(sent.body, Trace)
    assert (sent.body.state, sent.work_id) == ("failed", question.work_id)
    assert asker.receive(sent).message == failure


def test_a_gap_is_a_say_without_work() -> None:
    creator, monitor = AgentOsPeer("gap-ticket-creator.gtc-001"), AgentOsPeer("admin-monitor.am-001")
    assert rules(creator.plan(GAP).findings) == OLD
    sent = creator.send(GAP)
    assert isinstance(sent.body, Say)
    assert (sent.body.intent, sent.work_id) == ("gap", None)
    delivered = monitor.receive(sent)
    assert delivered.message == GAP
    assert rules(delivered.findings) == OLD


@pytest.mark.parametrize("message", [QUERY, RESPONSE, ERROR, GAP])
def test_strict_mode_refuses_every_example(message: dict[str, Any]) -> None:
    plan = AgentOsPeer("x", options=AgentOsOptions(strict=True)).plan(message)
    assert plan.refused
    assert not plan.drafts
    assert ("/id", "uuid_version", "error") in rules(plan.findings)


# types


@pytest.mark.parametrize("type", ["query", "command", "validation", "correction"])
def test_types_that_ask_open_work(type: str) -> None:
    asker, _ = pair()
    sent = asker.send(varied(QUERY, type=type))
    assert isinstance(sent.body, Say)
    assert sent.body.intent == type
    assert asker.works[sent.work_id or ""].target == ANALYST


@pytest.mark.parametrize("type", ["event", "gap", "evidence", "error"])
def test_types_that_do_not_ask_open_no_work(type: str) -> None:
    asker, _ = pair()
    sent = asker.send(varied(QUERY, type=type))
    assert isinstance(sent.body, Say)
    assert (sent.body.intent, sent.work_id) == (type, None)


def test_a_validation_result_completes_the_validation() -> None:
    asker, analyst = pair()
    asked = asker.send(varied(QUERY, type="validation"))
    analyst.receive(asked)
    sent = analyst.send(varied(RESPONSE, type="validation"))
    assert isinstance(sent.body, Trace)
    assert (sent.body.state, sent.work_id, sent.reply_to) == ("completed", asked.work_id, asked.id)


def test_a_correction_opens_its_own_work_and_names_the_corrected_message() -> None:
    asker, analyst = pair()
    analyst.receive(asker.send(QUERY))
    answer = analyst.send(RESPONSE)
    asker.receive(answer)
    correction = varied(QUERY, id="msg-523e4567-e89b-42d3-a456-426614174005", type="correction", replyTo=RESPONSE["id"])
    sent = asker.send(correction)
    assert (sent.reply_to, sent.causation_id) == (answer.id, answer.id)
    assert sent.work_id not in (None, answer.work_id)
    assert analyst.receive(sent).message == correction


def test_an_unknown_reply_target_is_unchanged_or_becomes_a_hash() -> None:
    asker, _ = pair()
    assert asker.send(varied(QUERY, type="event", replyTo="msg-unknown")).reply_to == "msg-unknown"
    illegal = varied(GAP, sender=agent(ASKER), replyTo=" no id ")
    hashed = asker.send(illegal).reply_to or ""
    assert hashed.startswith("sha256_")


def test_a_request_id_that_is_not_a_valid_trace_id_becomes_a_hash() -> None:
    asker, analyst = pair()
    message = varied(QUERY, context=QUERY["context"] | {"requestId": "r\n1"})
    sent = asker.send(message)
    assert (sent.trace_id or "").startswith("sha256_")
    assert analyst.receive(sent).message == message


def test_a_conversation_gets_its_own_thread() -> None:
    asker, _ = pair()
    in_session = asker.send(QUERY)
    talk = varied(QUERY, id="msg-623e4567-e89b-42d3-a456-426614174006")
    talk["context"]["conversationId"] = "sess-abc123"
    in_conversation = asker.send(talk)
    assert in_conversation.container == thread_id("agentos", "conversation", "sess-abc123")
    assert in_conversation.container != in_session.container


@pytest.mark.parametrize(
    ("ttl", "life"), [(30, 30), (30.2, 31), (0.001, 1), (604_800, 604_800), (604_801, 604_800), (1e300, 604_800)]
)
def test_the_ttl_is_the_life_of_a_say(ttl: float, life: int) -> None:
    asker, _ = pair()
    message = varied(QUERY, ttl=ttl)
    assert ((("/ttl", "ttl_cut", "warning")) in rules(asker.plan(message).findings)) == (ttl > 604_800)
    sent = asker.send(message)
    assert sent.expires_at == NOW + life
    assert sent.extensions()["agentos.message"]["ttl"] == ttl


# answers and their work


def test_a_response_to_an_unknown_message_is_refused() -> None:
    _, analyst = pair()
    for message in (RESPONSE, varied(RESPONSE, replyTo=...)):
        assert rules(analyst.plan(message).findings)[-1] == ("/replyTo", "no_work", "error")


def test_a_response_after_the_end_is_refused_and_the_same_one_again_is_a_repetition() -> None:
    asker, analyst = pair()
    analyst.receive(asker.send(QUERY))
    sent = analyst.send(RESPONSE)
    again = analyst.plan(RESPONSE)
    assert again.repeats
    assert [draft.id for draft in again.drafts] == [sent.id]
    late = varied(RESPONSE, id="msg-723e4567-e89b-42d3-a456-426614174007")
    plan = analyst.plan(late)
    assert rules(plan.findings)[-1] == ("/replyTo", "work_closed", "error")
    assert not plan.drafts


def test_a_query_submitted_twice_is_sent_once_and_other_content_is_a_conflict() -> None:
    asker, _ = pair()
    sent = asker.send(QUERY)
    again = asker.plan(QUERY, now=NOW + 5)
    assert again.repeats
    assert again.drafts[0].id == sent.id
    other = asker.plan(varied(QUERY, priority="high"))
    assert rules(other.findings)[-1] == ("/id", "id_conflict", "error")


def test_an_unknown_peer_gets_no_answer_by_reusing_an_id() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    mallory = AgentOsPeer("mallory.m-1")
    analyst.receive(mallory.send(varied(QUERY, sender=agent("mallory.m-1"), type="event")))
    assert analyst.send(RESPONSE).work_id == question.work_id


def test_an_answer_to_another_peer_than_the_asker_is_refused() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    plan = analyst.plan(varied(RESPONSE, to=agent("admin-monitor.am-001"), replyTo=...), work_id=question.work_id)
    assert rules(plan.findings)[-1] == ("/to", "reply_target", "error")


def test_the_named_work_and_the_answered_one_must_agree() -> None:
    asker, analyst = pair()
    analyst.receive(asker.send(QUERY))
    plan = analyst.plan(RESPONSE, work_id="work_other")
    assert rules(plan.findings)[-1] == ("/replyTo", "work_mismatch", "error")
    unknown = analyst.plan(varied(RESPONSE, replyTo=...), work_id="work_other")
    assert rules(unknown.findings)[-1] == ("", "unknown_work", "error")


def test_an_answer_on_our_own_work_requires_a_question() -> None:
    """The target asks back; the response to that is said within the work and puts it back to working."""
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    back = native(ANALYST, ASKER, "trace", {"state": "needs_input", "message": "Which year?"})
    back = on_work(back, question)
    delivered = asker.receive(analyst.say(back))
    assert delivered.native
    assert message_of(delivered)["type"] == "query"
    assert message_of(delivered)["payload"]["content"] == "Which year?"
    assert message_of(delivered)["replyTo"] == QUERY["id"]
    reply = varied(RESPONSE, sender=agent(ASKER), to=agent(ANALYST), replyTo=message_of(delivered)["id"])
    sent = asker.send(reply)
    assert (sent.kind, sent.work_id, sent.reply_to) == ("say", question.work_id, back.id)
    assert analyst.receive(sent).message == reply
    assert analyst.works[question.work_id or ""].state == "working"


# offline: lines before may be missing


def test_offline_an_answer_is_for_the_assigned_work() -> None:
    asker, _ = pair()
    question = asker.send(QUERY)
    alone = AgentOsPeer(ANALYST, whole=False)
    alone.works = {question.work_id or "": asker.works[question.work_id or ""]}
    sent = alone.send(RESPONSE)
    assert (sent.work_id, sent.to) == (question.work_id, ASKER)
    assert rules(AgentOsPeer(ANALYST, whole=False).plan(RESPONSE).findings)[-1] == ("/replyTo", "no_work", "error")


def test_offline_an_error_without_an_answered_message_is_a_say() -> None:
    alone = AgentOsPeer("data-connector-wb.dc-wb-001", whole=False)
    assert alone.send(ERROR).kind == "say"


# agents


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


# what arrives is judged again


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
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
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


# native envelopes


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


def test_the_answer_to_a_native_query_finds_its_work_without_the_memory_of_the_message() -> None:
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
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
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
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
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
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    body = body if kind == "trace" else {"for_id": question.id, **body}
    assert asker.receive(analyst.say(on_work(native(ANALYST, ASKER, kind, body), question))).message is None
