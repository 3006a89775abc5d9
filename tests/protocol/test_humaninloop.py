"""ADR-007: the envelopes of inputs and outputs, and their delivery."""

import hashlib

import msgspec
import pytest

from aghbus.protocol.formats.derived_ids import same_json
from aghbus.protocol.formats.humaninloop.adapter import HumanInLoopOptions
from tests.support.humaninloop_peers import (
    SEED_INPUT,
    SEED_OUTPUT,
    HumanInLoopPeer,
    opened,
    output,
    pair,
    result_of,
    rules,
    say_of,
    trace_of,
)

# the seed's own examples


def test_the_seeds_input_opens_work_and_arrives_unchanged() -> None:
    flow, checker = pair()
    plan, (delivered,) = flow.submit(SEED_INPUT, checker, target="checker")
    assert plan.findings == delivered.findings == ()
    assert same_json(delivered.message, SEED_INPUT)
    assert not delivered.native
    body = say_of(plan)
    assert (body.text, body.intent) == ("specify: validate 005-user-auth, iteration 1", "validate")
    assert [msgspec.json.decode(raw) for raw in body.artifacts] == [
        {"type": "path", "name": name, "path": path} for name, path in SEED_INPUT["paths"].items()
    ]
    assert checker.assigned_works()[0].state == "submitted"


def test_the_seeds_output_completes_the_work_with_one_warning() -> None:
    flow, checker, work = opened()
    plan, (delivered,) = checker.submit(SEED_OUTPUT, flow)
    assert rules(plan) == [("warning", "feature_root_stripped", "/artifacts/0/path")]
    assert same_json(delivered.message, SEED_OUTPUT)
    assert flow.works[work.work_id].state == checker.works[work.work_id].state == "completed"
    body = trace_of(plan)
    assert body.message == SEED_OUTPUT["summary"]
    assert [msgspec.json.decode(raw) for raw in body.artifact_refs] == [
        {
            "type": "file",
            "path": "spec.md",
            "operation": "update",
            "sha256": hashlib.sha256(b"...").hexdigest(),
            "size": 3,
        }
    ]
    assert result_of(plan)["notes"] == SEED_OUTPUT["notes"]
    assert result_of(plan)["artifacts"] == [{"path": "spec.md", "operation": "update", "content": "..."}]
    assert (plan.drafts[0].ext or {})["humaninloop.findings"][0]["rule"] == "feature_root_stripped"


def test_without_its_opening_the_configured_feature_root_counts() -> None:
    for options, found in (
        (None, []),
        (HumanInLoopOptions(feature_root="specs/005-user-auth"), ["feature_root_stripped"]),
    ):
        flow, checker = pair(options)
        opening = checker.native("say", {"text": "check"}, None, "checker", sender="flow", work_id="work_1")
        flow.send(opening, checker)
        plan, _ = checker.submit(SEED_OUTPUT, flow)
        assert [finding.rule for finding in plan.findings] == found


# success and recommendation, both ways


@pytest.mark.parametrize(
    ("success", "recommendation", "state", "warned"),
    [
        (True, "proceed", "completed", False),
        (True, "retry", "failed", False),
        (False, "retry", "failed", False),
        (True, "escalate", "needs_input", False),
        (False, "escalate", "needs_input", False),
        (False, "proceed", "failed", True),
    ],
)
def test_the_table_of_outputs(success: bool, recommendation: str, state: str, warned: bool) -> None:
    flow, checker, work = opened()
    message = output(success=success, recommendation=recommendation)
    plan, (delivered,) = checker.submit(message, flow)
    assert flow.works[work.work_id].state == state
    assert same_json(delivered.message, message)
    assert result_of(plan)["recommendation"] == recommendation
    assert rules(plan) == ([("warning", "success_recommendation", "/recommendation")] if warned else [])


# conversation over a work


def test_escalation_answer_and_end_stay_in_one_work() -> None:
    flow, checker, work = opened()
    question = output(success=False, recommendation="escalate", summary="which provider?")
    checker.submit(question, flow)
    answer = {**SEED_INPUT, "task": {"action": "answer", "params": {"provider": "none"}}}
    plan, (delivered,) = flow.submit(answer, checker, work_id=work.work_id)
    assert same_json(delivered.message, answer)
    assert plan.drafts[0].reply_to == flow.envelopes[-2].id
    assert checker.works[work.work_id].state == "working"
    again, (delivered,) = checker.submit(question, flow)
    assert not again.repeats, "the same words to a later answer are new"
    assert flow.works[work.work_id].state == "needs_input"
    plan, _ = flow.submit(answer, checker, work_id=work.work_id, target="checker")
    assert not plan.repeats, "and so is the same answer to a later question"
    checker.submit(output(), flow)
    assert set(flow.works) == {work.work_id}
    assert flow.works[work.work_id].state == "completed"


def test_a_retry_with_a_key_after_a_later_message_is_sent_once() -> None:
    flow, checker, work = opened()
    question = output(success=False, recommendation="escalate", summary="which provider?")
    answer = {**SEED_INPUT, "task": {"action": "answer", "params": {"provider": "none"}}}
    first, _ = checker.submit(question, flow, key="q1")
    said, _ = flow.submit(answer, checker, work_id=work.work_id, key="a1")
    again, _ = checker.submit(question, flow, key="q1")
    assert (again.repeats, [draft.id for draft in again.drafts]) == (True, [draft.id for draft in first.drafts])
    assert flow.works[work.work_id].state == "working"
    anew, _ = checker.submit(question, flow, key="q2")
    assert not anew.repeats
    assert flow.works[work.work_id].state == "needs_input"
    again, _ = flow.submit(answer, checker, work_id=work.work_id, key="a1")
    assert (again.repeats, [draft.id for draft in again.drafts]) == (True, [draft.id for draft in said.drafts])


def test_inputs_of_one_feature_and_workflow_share_a_thread() -> None:
    flow, checker = pair()
    threads = []
    for feature, workflow, iteration in (("f", "w", 1), ("f", "w", 2), ("f", "x", 1), ("fw", "", 1), ("g", "w", 1)):
        context = {"feature_id": feature, "workflow": workflow or "ww", "iteration": iteration}
        plan, _ = flow.submit({**SEED_INPUT, "context": context}, checker, target="checker")
        threads.append(plan.drafts[0].container)
    assert threads[0] == threads[1]
    assert len(set(threads)) == 4


# idempotence


def test_an_opening_is_sent_once_while_its_work_is_open_and_anew_after() -> None:
    flow, checker, work = opened()
    again, _ = flow.submit(SEED_INPUT, checker, target="checker")
    assert again.repeats
    assert [draft.id for draft in again.drafts] == [work.opening_id]
    for _ in range(3):
        checker.submit(output(success=False, recommendation="retry"), flow)
        retried, _ = flow.submit(SEED_INPUT, checker, target="checker")
        assert not retried.repeats
        assert flow.submit(SEED_INPUT, checker, target="checker")[0].repeats
    assert len(flow.works) == 4


def test_key_and_target_distinguish_openings_and_key_order_does_not() -> None:
    flow, checker, _ = opened()
    assert not flow.submit(SEED_INPUT, checker, target="checker", key="second")[0].repeats
    assert flow.submit(SEED_INPUT, checker, target="checker", key="second")[0].repeats
    assert not flow.submit(SEED_INPUT, HumanInLoopPeer("other", flow.adapter), target="other")[0].repeats
    turned = dict(reversed(SEED_INPUT.items()))
    assert list(turned) != list(SEED_INPUT)
    assert flow.submit(turned, checker, target="checker")[0].repeats


def test_an_output_is_sent_once_also_when_its_work_has_ended() -> None:
    flow, checker, work = opened()
    checker.submit(SEED_OUTPUT, flow)
    for named in ({}, {"work_id": work.work_id}):
        again, _ = checker.submit(SEED_OUTPUT, flow, **named)
        assert again.repeats
        assert not again.refused
    other, _ = checker.submit(output(), flow, work_id=work.work_id)
    assert rules(other) == [("error", "work_closed", "")]


# who may say what to whom


def test_an_input_without_target_names_the_option() -> None:
    flow, checker = pair()
    plan, _ = flow.submit(SEED_INPUT, checker)
    assert rules(plan) == [("error", "no_target", "")]
    assert "--target" in plan.findings[0].message


@pytest.mark.parametrize("target", ["flow", "No Peer", ""])
def test_an_input_without_a_target_or_for_oneself_is_refused(target: str) -> None:
    flow, checker = pair()
    assert rules(flow.submit(SEED_INPUT, checker, target=target)[0]) == [("error", "bad_target", "")]


def test_work_that_is_unknown_foreign_or_ended_is_named_as_such() -> None:
    flow, checker, work = opened()
    assert rules(flow.submit(SEED_INPUT, checker, work_id="work_9")[0]) == [("error", "unknown_work", "")]
    assert rules(flow.submit(SEED_OUTPUT, checker)[0]) == [("error", "no_work", "")]
    refused, _ = flow.submit(SEED_OUTPUT, checker, work_id=work.work_id)
    assert ("error", "not_our_work", "") in rules(refused)
    mismatch, _ = flow.submit(SEED_INPUT, checker, work_id=work.work_id, target="third")
    assert rules(mismatch) == [("error", "target_mismatch", "")]
    checker.submit(output(), flow)
    assert rules(flow.submit(SEED_INPUT, checker, work_id=work.work_id)[0]) == [("error", "work_closed", "")]


def test_an_input_for_another_peer_during_an_assigned_work_opens_a_work() -> None:
    _, checker, work = opened()
    helper = HumanInLoopPeer("reader", checker.adapter)
    plan, _ = checker.submit(SEED_INPUT, helper, work_id=work.work_id, target="reader")
    assert plan.drafts[0].work_id != work.work_id
    assert plan.drafts[0].causation_id == work.opening_id


def test_two_open_works_need_a_name() -> None:
    flow, checker, work = opened()
    flow.submit(SEED_INPUT, checker, target="checker", key="2")
    assert rules(checker.submit(output(), flow)[0]) == [("error", "ambiguous_work", "")]
    assert not checker.submit(output(), flow, work_id=work.work_id)[0].refused


# bounds


def test_large_contents_are_complete_in_ext_and_truncated_in_the_result() -> None:
    flow, checker, _ = opened()
    message = output(
        summary="s" * 100_000,
        artifacts=[{"path": f"f{n}", "operation": "create", "content": "x" * 500} for n in range(700)],
    )
    plan, (delivered,) = checker.submit(message, flow)
    assert same_json(delivered.message, message)
    assert len(trace_of(plan).message or "") < 70_000
    assert len(msgspec.json.encode(result_of(plan))) <= 65_536
    assert result_of(plan)["truncated"] == ["artifacts"]
    assert ("warning", "list_cut", "/artifacts") in rules(plan)
    assert 0 < len(trace_of(plan).artifact_refs) < 700
