"""AgentOS: a query back to the asker is a question in the asker's work."""

from tests.support.agentos_peers import ANALYST, ASKER, QUERY, RESPONSE, agent, native, pair, varied

BACK = varied(
    QUERY,
    id="msg-623e4567-e89b-42d3-a456-426614174006",
    sender=agent(ANALYST),
    to=agent(ASKER),
    replyTo=QUERY["id"],
    ttl=1,
)


def test_a_query_back_asks_in_the_work_and_its_answer_continues_it() -> None:
    asker, analyst = pair()
    opening = asker.send(QUERY)
    analyst.receive(opening)
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
    asker, analyst = pair()
    analyst.receive(asker.send(QUERY))
    plan = analyst.plan(BACK)
    (question,) = analyst.commit(plan)
    assert plan.waits is None
    assert asker.receive(question).waits is None


def test_the_same_question_is_asked_once_also_after_the_end_of_the_work() -> None:
    asker, analyst = pair()
    opening = asker.send(QUERY)
    analyst.receive(opening)
    question = analyst.send(BACK)
    assert analyst.plan(BACK).repeats
    ended = native(ASKER, ANALYST, "trace", {"state": "failed"}, work_id=opening.work_id, container=opening.container)
    analyst.receive(asker.say(ended))
    plan = analyst.plan(BACK)
    assert (plan.repeats, plan.drafts[0].id) == (True, question.id)


def test_a_query_about_an_ended_work_or_for_another_peer_opens_a_work() -> None:
    asker, analyst = pair()
    opening = asker.send(QUERY)
    analyst.receive(opening)
    third = analyst.send(varied(BACK, to=agent("third-agent.ta-001")))
    assert (third.kind, third.work_id not in (None, opening.work_id)) == ("say", True)
    analyst.send(RESPONSE)
    later = analyst.send(varied(BACK, id="msg-723e4567-e89b-42d3-a456-426614174007"))
    assert (later.kind, later.work_id not in (None, opening.work_id)) == ("say", True)
