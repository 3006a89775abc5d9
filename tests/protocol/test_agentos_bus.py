"""AgentOS: every type as an envelope, answers on their works, native envelopes as valid messages."""

from typing import Any

import pytest

from aghbus.protocol.agh.bodies import Say, Trace
from aghbus.protocol.agh.limits import DIRECTED_TTL
from aghbus.protocol.formats.agentos.adapter import AgentOsOptions
from aghbus.protocol.formats.derived_ids import thread_id
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
    changed,
    message_of,
    native,
    on_work,
    pair,
    queried,
    rules,
    varied,
)

OLD = [("/id", "uuid_version", "warning"), ("/timestamp", "clock_skew", "warning")]  # what every example deserves


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
    _asker, analyst, question = queried()
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
    asker, analyst, question = queried()
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
    asker, analyst, _ = queried()
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


def test_a_response_to_an_unknown_message_is_refused() -> None:
    _, analyst = pair()
    for message in (RESPONSE, varied(RESPONSE, replyTo=...)):
        assert rules(analyst.plan(message).findings)[-1] == ("/replyTo", "no_work", "error")


def test_a_response_without_reply_to_answers_the_only_open_query() -> None:
    asker, analyst, question = queried()
    answer = varied(RESPONSE, replyTo=...)
    sent = analyst.send(answer)
    assert (sent.work_id, sent.kind, sent.reply_to) == (question.work_id, "trace", question.id)
    assert analyst.plan(answer).repeats
    asker.receive(sent)
    for number in (1, 2):
        analyst.receive(asker.send(varied(QUERY, id=f"msg-123e4567-e89b-42d3-a456-42661417400{number}")))
    ambiguous = varied(answer, id="msg-123e4567-e89b-42d3-a456-426614174009")
    assert rules(analyst.plan(ambiguous).findings)[-1] == ("/replyTo", "no_work", "error")


def test_a_failure_for_an_arabic_query_is_arabic() -> None:
    asker, analyst = pair()
    question = asker.send(changed(QUERY, "payload.language", "ar"))
    analyst.receive(question)
    failed = native(ANALYST, ASKER, "trace", {"state": "failed", "message": "m"})
    delivered = asker.receive(analyst.say(on_work(failed, question)))
    assert message_of(delivered)["payload"]["language"] == "ar"


@pytest.mark.parametrize(
    ("name", "known"), [("Mars/Olympus", False), ("utc", False), ("UTC", True), ("Asia/Aden", True)]
)
def test_the_time_zone_is_one_of_iana(name: str, known: bool) -> None:
    found = rules(pair()[0].plan(changed(QUERY, "context.timezone", name)).findings)
    assert (("/context/timezone", "timezone", "warning") in found) is not known


def test_response_after_end_is_refused_and_same_one_is_duplicate() -> None:
    _asker, analyst, _ = queried()
    sent = analyst.send(RESPONSE)
    again = analyst.plan(RESPONSE)
    assert again.repeats
    assert [draft.id for draft in again.drafts] == [sent.id]
    late = varied(RESPONSE, id="msg-723e4567-e89b-42d3-a456-426614174007")
    plan = analyst.plan(late)
    assert rules(plan.findings)[-1] == ("/replyTo", "work_closed", "error")
    assert not plan.drafts


def test_resubmitted_query_is_sent_once_and_changed_one_conflicts() -> None:
    asker, _ = pair()
    sent = asker.send(QUERY)
    again = asker.plan(QUERY, now=NOW + 5)
    assert again.repeats
    assert again.drafts[0].id == sent.id
    other = asker.plan(varied(QUERY, priority="high"))
    assert rules(other.findings)[-1] == ("/id", "id_conflict", "error")


def test_an_unknown_peer_gets_no_answer_by_reusing_an_id() -> None:
    _asker, analyst, question = queried()
    mallory = AgentOsPeer("mallory.m-1")
    analyst.receive(mallory.send(varied(QUERY, sender=agent("mallory.m-1"), type="event")))
    assert analyst.send(RESPONSE).work_id == question.work_id


def test_an_answer_to_another_peer_than_the_asker_is_refused() -> None:
    _asker, analyst, question = queried()
    plan = analyst.plan(varied(RESPONSE, to=agent("admin-monitor.am-001"), replyTo=...), work_id=question.work_id)
    assert rules(plan.findings)[-1] == ("/to", "reply_target", "error")


def test_the_named_work_and_the_answered_one_must_agree() -> None:
    _asker, analyst, _ = queried()
    plan = analyst.plan(RESPONSE, work_id="work_other")
    assert rules(plan.findings)[-1] == ("/replyTo", "work_mismatch", "error")
    unknown = analyst.plan(varied(RESPONSE, replyTo=...), work_id="work_other")
    assert rules(unknown.findings)[-1] == ("", "unknown_work", "error")


def test_an_answer_on_our_own_work_requires_a_question() -> None:
    """The target asks back; the response to that is said within the work and puts it back to working."""
    asker, analyst, question = queried()
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
