"""SACP: envelopes of submitted texts, and messages delivered from envelopes (adapters.md, sacp)."""

import json
from typing import Final

import msgspec
import pytest

from aghbus.protocol.agh.send import build
from aghbus.protocol.formats.attachments import CUT_BYTES
from aghbus.protocol.formats.model import Delivered
from aghbus.protocol.formats.sacp.guardrails import REDACTED
from tests.support.sacp_cases import (
    ASKS,
    CARD,
    NOW,
    NUMBER,
    WORKS,
    SacpPeer,
    body,
    pair,
    received,
    response,
    rules,
    send,
)

# The seed's own examples, as it prints them: 3.1, 6 (two agents), 7.2 and 8.1 with its mis-encoded degree sign.
SEED: Final = {
    "3.1": """{
    "thought": "I need to calculate the sum. 5+5 is 10.",
    "status": "success",
    "data": { "result": 10 },
    "message": "The result is 10."
}""",
    "6 agent 1": """    {
        "thought": "I found the CEO is John Doe, but no direct email. I will guess standard formats.",
        "status": "success",
        "data": {
            "ceo_name": "John Doe",
            "domain": "acme.com",
            "guesses": ["john.doe@acme.com", "jdoe@acme.com"]
        },
        "message": "I identified the CEO as John Doe."
    }
""",
    "6 agent 2": """    {
        "thought": "Pinged servers. jdoe@acme.com is valid.",
        "status": "success",
        "data": {
            "valid_email": "jdoe@acme.com"
        },
        "message": "The valid email is jdoe@acme.com"
    }
""",
    "7.2": """{
    "thought": "System Note: LLM failed to provide structured JSON output.",
    "status": "failure",
    "data": { "raw_output": "The actual raw text from the LLM..." },
    "message": "The LLM returned an invalid response format."
}""",
    "8.1": """{
    "thought": "I used the search tool and found the weather.",
    "status": "success",
    "data": {
        "city": "London",
        "temp": 15,
        "tool_used": "get_weather"
    },
    "message": "The weather in London is 15\u00c2\u00b0C."
}""",
}


@pytest.mark.parametrize("text", SEED.values(), ids=list(SEED))
def test_every_seed_example_is_delivered_unchanged(text: str) -> None:
    asks, works = pair()
    plan = works.write(text)
    assert rules(plan) == []
    delivered = send(plan, works, asks)
    assert delivered == Delivered(message=json.loads(text))
    assert json.dumps(delivered.message) == json.dumps(json.loads(text)), "keys in their order, too"


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("success", "completed"),
        ("completed", "completed"),
        ("failure", "failed"),
        ("clarification_needed", "needs_input"),
    ],
)
def test_a_response_is_a_trace_on_the_assigned_work(status: str, state: str) -> None:
    asks, works = pair()
    work = works.assigned_works()[0]
    plan = works.write(json.dumps(response(status)))
    (draft,) = plan.drafts
    assert (draft.kind, draft.sender, draft.to, draft.work_id) == ("trace", WORKS, ASKS, work.work_id)
    assert (draft.reply_to, draft.ts, draft.container) == (work.opening_id, NOW, work.container)
    assert draft.body == {"state": state, "message": "m", "result": {"a": 1}}
    assert draft.ext == {"sacp.message": response(status)}
    assert send(plan, works, asks).message == response(status)
    assert asks.works == works.works
    assert asks.works[work.work_id].state == state


def test_a_text_with_a_target_opens_work_with_that_text() -> None:
    asks, works = SacpPeer(ASKS), SacpPeer(WORKS)
    plan = asks.write("Find the email of the CEO of Acme Corp.", target=WORKS)
    (draft,) = plan.drafts
    assert (draft.kind, draft.to, draft.surface) == ("say", WORKS, "thread")
    assert draft.body == {"text": "Find the email of the CEO of Acme Corp."}
    assert send(plan, asks, works) == Delivered(message="Find the email of the CEO of Acme Corp.")
    assert [work.initiator for work in works.assigned_works()] == [ASKS]


@pytest.mark.parametrize("text", ["", " \n", "x" * (CUT_BYTES + 1), '{"a": 1}', "nul \x00 and \u202e"])
def test_any_text_of_a_say_is_delivered_complete(text: str) -> None:
    asks, works = SacpPeer(ASKS), SacpPeer(WORKS)
    plan = asks.write(text, target=WORKS)
    assert len(body(plan)["text"].encode()) <= CUT_BYTES
    assert send(plan, asks, works).message == text


def test_a_question_is_answered_by_a_say_and_the_work_continues() -> None:
    asks, works = pair()
    (work,) = works.assigned_works()
    question = response("clarification_needed", message="Which Acme?")
    assert send(works.write(json.dumps(question)), works, asks).message == question
    answer = asks.write("The one in Ohio.", work_id=work.work_id)
    assert (answer.drafts[0].kind, answer.drafts[0].to) == ("say", WORKS)
    assert send(answer, asks, works) == Delivered(message="The one in Ohio.")
    assert works.works[work.work_id].state == "working"
    again = works.write(json.dumps(question))
    assert send(again, works, asks).message == question, "the same question after an answer is a new one"
    assert send(asks.write("The one in Ohio.", work_id=work.work_id), asks, works).message == "The one in Ohio."


def test_a_retry_with_a_key_after_a_later_message_is_sent_once() -> None:
    asks, works = pair()
    (work,) = works.assigned_works()
    question = json.dumps(response("clarification_needed", message="Which Acme?"))
    send(works.write(question, key="q1"), works, asks)
    send(asks.write("The one in Ohio.", work_id=work.work_id, key="a1"), asks, works)
    again = works.write(question, key="q1")
    assert again.repeats and not again.refused
    assert not works.write(question, key="q2").repeats
    send(works.write(question, key="q2"), works, asks)
    assert asks.write("The one in Ohio.", work_id=work.work_id, key="a1").repeats


def test_the_same_response_submitted_twice_is_sent_once() -> None:
    asks, works = pair()
    (work,) = works.assigned_works()
    text = json.dumps(response("clarification_needed"))
    send(works.write(text), works, asks)
    again = works.write(json.dumps(json.loads(text), indent=1, sort_keys=True))
    assert again.repeats and not again.refused
    final = json.dumps(response())
    send(works.write(final), works, asks)
    for plan in (works.write(final), works.write(final, work_id=work.work_id)):
        assert plan.repeats and not plan.refused, "known though its work has ended and none is in hand"
        assert plan.drafts[0].id == works.envelopes[-1].id


def test_the_same_text_for_another_work_is_new() -> None:
    asks, works = pair()
    text = json.dumps(response())
    send(works.write(text), works, asks)
    send(asks.write("Now the phone number.", target=WORKS), asks, works)
    assert send(works.write(text), works, asks).message == response()


def test_the_same_opening_is_one_message_while_its_work_is_open() -> None:
    asks, works = pair()
    assert asks.write("Find the email.", target=WORKS).repeats
    assert not asks.write("Find the email.", target=WORKS, key="second").repeats
    assert not asks.write("Find the email.", target="other").repeats
    for _ in range(3):
        send(works.write(json.dumps(response())), works, asks)
        send(asks.write("Find the email.", target=WORKS), asks, works)
        assert asks.write("Find the email.", target=WORKS).repeats
    assert len(works.works) == 4


def test_a_closed_work_is_not_reopened() -> None:
    asks, works = pair()
    (work,) = works.assigned_works()
    send(works.write(json.dumps(response("failure"))), works, asks)
    late = works.write(json.dumps(response()), work_id=work.work_id)
    assert late.refused and late.drafts == () and rules(late) == [("", "work_closed")]
    assert asks.write("And now?", work_id=work.work_id).refused


def test_the_work_must_be_known_own_and_unambiguous() -> None:
    asks, works = pair()
    text = json.dumps(response())
    assert rules(works.write(text, work_id="work_else")) == [("", "unknown_work")]
    assert rules(SacpPeer(WORKS).write(text)) == [("", "no_work")]
    send(asks.write("And the phone number.", target=WORKS), asks, works)
    several = works.write(text)
    assert rules(several) == [("", "ambiguous_work")]
    assert "--work" in several.findings[0].message and "work_id" in several.findings[0].message
    assert not works.write(text, work_id=works.assigned_works()[1].work_id).refused
    outsider = SacpPeer("outsider")
    outsider.works = dict(works.works)
    assert rules(outsider.write(text, work_id=works.assigned_works()[0].work_id)) == [("", "not_our_work")]


def test_a_response_without_a_work_is_for_a_delivered_work() -> None:
    asks, works = pair()
    text = json.dumps(response())
    (seen,) = works.assigned_works()
    send(asks.write("And the phone number.", target=WORKS), asks, works)
    unseen = works.assigned_works()[1]
    works.undelivered.add(unseen.work_id)
    assert [draft.work_id for draft in works.write(text).drafts] == [seen.work_id]
    assert [draft.work_id for draft in works.write(text, work_id=unseen.work_id).drafts] == [unseen.work_id]
    works.undelivered.add(seen.work_id)
    assert rules(works.write(text)) == [("", "ambiguous_work")]  # it reads elsewhere: all count
    works.undelivered.discard(seen.work_id)
    works.works[seen.work_id] = msgspec.structs.replace(seen, state="canceled")
    assert rules(works.write(text)) == [("", "no_work")]  # it reads here: what it was handed has ended
    refused = SacpPeer(WORKS).write(text)
    assert rules(refused) == [("", "no_work")]
    assert "--target" in refused.findings[0].message


def test_text_that_holds_no_response_becomes_the_fallback() -> None:
    asks, works = pair()
    plan = works.write("I'd rather not.\n")
    assert rules(plan) == [("", "not_json"), ("", "fallback")]
    assert all(finding.severity == "warning" for finding in plan.findings)
    assert send(plan, works, asks).message == {
        "thought": "System Note: LLM failed to provide structured JSON output.",
        "status": "failure",
        "data": {"raw_output": "I'd rather not.\n"},
        "message": "The LLM returned an invalid response format.",
    }
    assert [work.state for work in asks.works.values()] == ["failed"]


def test_a_schema_fault_is_a_warning_that_travels() -> None:
    asks, works = pair()
    plan = works.write(json.dumps(response("done")))
    assert rules(plan) == [("/status", "enum"), ("", "fallback")]
    (draft,) = plan.drafts
    assert draft.ext is not None
    assert [(found["path"], found["rule"], found["severity"]) for found in draft.ext["sacp.findings"]] == [
        ("/status", "enum", "warning"),
        ("", "fallback", "warning"),
    ]
    assert json.loads(received(send(plan, works, asks))["data"]["raw_output"]) == response("done")


def test_surrounding_text_is_a_warning_and_in_the_audit_row() -> None:
    _, works = pair()
    text = f"Sure!\n```json\n{json.dumps(response())}\n```"
    plan = works.write(text)
    assert rules(plan) == [("", "surrounding_text")]
    assert plan.record is not None
    (work,) = works.assigned_works()
    assert plan.record == {
        "at": NOW,
        "direction": "sent",
        "peer": WORKS,
        "work_id": work.work_id,
        "envelope_id": plan.drafts[0].id,
        "status": "success",
        "thought": "t",
        "stage": "fence",
        "raw": text,
        "original": response(),
        "sent": response(),
        "findings": [msgspec.to_builtins(finding) for finding in plan.findings],
    }


def test_a_refused_response_is_a_row_of_the_audit_table_too() -> None:
    plan = SacpPeer(WORKS).write(json.dumps(response()))
    assert plan.refused and plan.record is not None
    assert (plan.record["envelope_id"], plan.record["findings"][0]["rule"]) == (None, "no_work")


def test_invalid_bytes_are_replaced_with_a_warning() -> None:
    asks, works = pair()
    plan = works.write(b"caf\xe9")
    assert ("", "not_utf8") in rules(plan)
    assert received(send(plan, works, asks))["data"] == {"raw_output": "caf\ufffd"}


def test_thoughts_can_be_removed_before_sending() -> None:
    asks, works = pair(wire_thought=False)
    plan = works.write(json.dumps(response(thought="between us")))
    assert rules(plan) == [("/thought", "thought_withheld")]
    assert plan.record is not None and plan.record["thought"] == "between us"
    assert b"between us" not in build(plan.drafts[0], NOW).raw
    assert send(plan, works, asks).message == response(thought="")
    quiet = pair(wire_thought=False)[1].write(json.dumps(response(thought="")))
    assert rules(quiet) == [], "an empty thought has lost nothing"


def test_responses_that_differ_in_a_withheld_thought_only_are_two() -> None:
    asks, works = pair(wire_thought=False)
    send(works.write(json.dumps(response("clarification_needed", thought="first"))), works, asks)
    assert not works.write(json.dumps(response("clarification_needed", thought="second"))).repeats


@pytest.mark.parametrize("status", ["success", "failure", "clarification_needed"])
def test_a_guardrail_match_in_the_message_is_never_sent(status: str) -> None:
    asks, works = pair(guardrails=(CARD,))
    written = response(status, message=f"charged {NUMBER}", thought=f"I know {NUMBER}", next_step_hint=NUMBER)
    plan = works.write(json.dumps(written))
    assert NUMBER.encode() not in build(plan.drafts[0], NOW).raw
    assert plan.record is not None and plan.record["original"] == written
    assert body(plan)["state"] == "failed"
    assert send(plan, works, asks).message == response("failure", message=REDACTED, thought="", next_step_hint="")


def test_failure_keeps_sensitive_data_for_the_orchestrator() -> None:
    asks, works = pair(guardrails=(CARD,))
    plan = works.write(json.dumps(response("failure", data={"card": NUMBER}, message="the bank refused it")))
    assert rules(plan) == [("/data", "guardrail")]
    assert send(plan, works, asks).message == response("failure", data={"card": NUMBER}, message=REDACTED)


def test_raw_output_is_data_too() -> None:
    _, works = pair(guardrails=(CARD,))
    plan = works.write(f"Your card {NUMBER} was charged.")
    assert body(plan)["message"] == REDACTED
    assert body(plan)["result"] == {"raw_output": f"Your card {NUMBER} was charged."}


def test_a_credential_is_a_warning_without_its_value() -> None:
    _, works = pair()
    plan = works.write(json.dumps(response(data={"api_key": "hunter2hunter2"})))
    assert rules(plan) == [("/data/api_key", "secret_like")]
    assert "hunter2" not in str(plan.findings)


def test_large_data_is_truncated_in_the_result_and_complete_for_the_agent() -> None:
    asks, works = pair()
    large = response(data={"list": list(range(30_000)), "n": 1}, message="é" * CUT_BYTES)
    plan = works.write(json.dumps(large))
    assert len(json.dumps(body(plan)["result"])) <= CUT_BYTES
    assert body(plan)["result"]["n"] == 1
    assert len(body(plan)["message"].encode()) <= CUT_BYTES
    assert send(plan, works, asks).message == large
