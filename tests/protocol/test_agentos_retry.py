"""AgentOS: `retryCount`, and the asker's context in messages made from native answers."""

import msgspec

from tests.support.agentos_peers import ANALYST, ASKER, GAP, NOW, QUERY, agent, message_of, native, pair, rules, varied

EVENT = varied(GAP, sender=agent(ASKER), to=agent(ANALYST), type="event")


def test_a_retry_while_the_work_is_open_is_a_repetition() -> None:
    asker, _ = pair()
    first = asker.send(QUERY)
    plan = asker.plan(varied(QUERY, retryCount=1, timestamp="2025-01-29T10:31:00Z", ttl=60))
    assert (plan.refused, plan.repeats) == (False, True)
    assert [draft.id for draft in plan.drafts] == [first.id]


def test_a_retry_after_the_end_of_the_work_opens_a_new_one() -> None:
    asker, analyst = pair()
    first = asker.send(QUERY)
    analyst.receive(first)
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


def test_other_content_under_the_same_id_is_a_conflict_also_with_a_higher_count() -> None:
    asker, _ = pair()
    asker.send(QUERY)
    other = varied(QUERY, retryCount=1, payload=QUERY["payload"] | {"content": "something else"})
    assert ("/id", "id_conflict", "error") in rules(asker.plan(other).findings)
    assert ("/id", "id_conflict", "error") in rules(asker.plan(varied(QUERY, priority="high")).findings)


def test_a_native_answer_has_the_context_of_the_question() -> None:
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    for state in ("needs_input", "completed"):
        draft = native(ANALYST, ASKER, "trace", {"state": state, "message": "17"}, id=f"msg_{state}")
        answer = msgspec.structs.replace(draft, work_id=question.work_id, container=question.container)
        delivered = asker.receive(analyst.say(answer), now=NOW + 1)
        assert delivered.native
        assert message_of(delivered)["context"] == QUERY["context"]
        assert "/context" not in [path for path, _, _ in rules(delivered.findings)]
