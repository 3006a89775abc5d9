"""AgentOS: a query back to the asker is a question in the asker's work."""

import msgspec

from tests.support.agentos_peers import (
    ANALYST,
    ASKER,
    GAP,
    NOW,
    QUERY,
    RESPONSE,
    agent,
    message_of,
    native,
    pair,
    queried,
    rules,
    varied,
)

BACK = varied(
    QUERY,
    id="msg-623e4567-e89b-42d3-a456-426614174006",
    sender=agent(ANALYST),
    to=agent(ASKER),
    replyTo=QUERY["id"],
    ttl=1,
)


def test_a_query_back_asks_in_the_work_and_its_answer_continues_it() -> None:
    asker, analyst, opening = queried()
    question = analyst.send(BACK)
    body = question.document()["body"]
    assert (question.kind, question.work_id, question.reply_to) == ("trace", opening.work_id, opening.id)
    assert (body["state"], body["result"]["content"]) == ("needs_input", BACK["payload"]["content"])
    assert body["message"].startswith('{"question":')
    delivered = asker.receive(question)
    assert (delivered.message, delivered.native) == (BACK, False)
    reply = varied(RESPONSE, sender=agent(ASKER), to=agent(ANALYST), replyTo=BACK["id"])
    said = asker.send(reply)
    assert (said.kind, said.work_id) == ("say", opening.work_id)
    assert analyst.receive(said).message == reply
    assert analyst.works[opening.work_id or ""].state == "working"


def test_the_ttl_of_a_question_ends_no_work() -> None:
    asker, analyst, _ = queried()
    plan = analyst.plan(BACK)
    (question,) = analyst.commit(plan)
    assert plan.waits is None
    assert asker.receive(question).waits is None


def test_the_same_question_is_asked_once_also_after_the_end_of_the_work() -> None:
    asker, analyst, opening = queried()
    question = analyst.send(BACK)
    assert analyst.plan(BACK).repeats
    ended = native(ASKER, ANALYST, "trace", {"state": "failed"}, work_id=opening.work_id, container=opening.container)
    analyst.receive(asker.say(ended))
    plan = analyst.plan(BACK)
    assert (plan.repeats, plan.drafts[0].id) == (True, question.id)


def test_a_query_about_an_ended_work_or_for_another_peer_opens_a_work() -> None:
    _asker, analyst, opening = queried()
    third = analyst.send(varied(BACK, to=agent("third-agent.ta-001")))
    assert (third.kind, third.work_id not in (None, opening.work_id)) == ("say", True)
    analyst.send(RESPONSE)
    later = analyst.send(varied(BACK, id="msg-723e4567-e89b-42d3-a456-426614174007"))
    assert (later.kind, later.work_id not in (None, opening.work_id)) == ("say", True)


EVENT = varied(GAP, sender=agent(ASKER), to=agent(ANALYST), type="event")


def test_a_retry_while_the_work_is_open_is_a_repetition() -> None:
    asker, _ = pair()
    first = asker.send(QUERY)
    plan = asker.plan(varied(QUERY, retryCount=1, timestamp="2025-01-29T10:31:00Z", ttl=60))
    assert (plan.refused, plan.repeats) == (False, True)
    assert [draft.id for draft in plan.drafts] == [first.id]


def test_a_retry_after_the_end_of_the_work_opens_a_new_one() -> None:
    asker, analyst, first = queried()
    ended = native(ANALYST, ASKER, "trace", {"state": "failed"}, work_id=first.work_id, container=first.container)
    asker.receive(analyst.say(ended))
    assert asker.plan(QUERY).repeats
    again = varied(QUERY, retryCount=1)
    second = asker.send(again)
    assert (second.id, second.work_id) != (first.id, first.work_id)
    assert analyst.receive(second).message == again
    assert asker.plan(again).repeats
    assert asker.plan(QUERY).repeats  # a late copy of the first submission


def test_a_retry_of_a_message_without_work_is_sent_again() -> None:
    asker, _ = pair()
    first = asker.send(EVENT)
    assert asker.plan(EVENT).repeats
    second = asker.send(varied(EVENT, retryCount=2))
    assert second.id != first.id


def test_changed_content_conflicts_despite_higher_retry_count() -> None:
    asker, _ = pair()
    asker.send(QUERY)
    other = varied(QUERY, retryCount=1, payload=QUERY["payload"] | {"content": "something else"})
    assert ("/id", "id_conflict", "error") in rules(asker.plan(other).findings)
    assert ("/id", "id_conflict", "error") in rules(asker.plan(varied(QUERY, priority="high")).findings)


def test_a_native_answer_has_the_context_of_the_question() -> None:
    asker, analyst, question = queried()
    for state in ("needs_input", "completed"):
        draft = native(ANALYST, ASKER, "trace", {"state": state, "message": "17"}, id=f"msg_{state}")
        answer = msgspec.structs.replace(draft, work_id=question.work_id, container=question.container)
        delivered = asker.receive(analyst.say(answer), now=NOW + 1)
        assert delivered.native
        assert message_of(delivered)["context"] == QUERY["context"]
        assert "/context" not in [path for path, _, _ in rules(delivered.findings)]
