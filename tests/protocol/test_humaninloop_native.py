"""ADR-007: native envelopes as messages, and invalid carried messages."""

import json
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from aghbus.protocol.agh.send import build
from aghbus.protocol.formats.humaninloop.shape import check_input, check_output
from tests.support.humaninloop_peers import NOW, SEED_INPUT, SEED_OUTPUT, inside, opened, output, pair

VECTORS: Final = Path(__file__).parent.parent / "vectors"


@pytest.mark.parametrize(
    ("state", "result", "success", "recommendation"),
    [
        ("completed", None, True, "proceed"),
        ("failed", None, False, "escalate"),
        ("failed", {"recommendation": "retry"}, False, "retry"),
        ("failed", {"recommendation": ["retry"]}, False, "escalate"),
        ("needs_input", {"recommendation": "retry"}, False, "escalate"),
        ("canceled", None, False, "escalate"),
    ],
)
def test_the_table_of_native_states(state: str, result: Any, success: bool, recommendation: str) -> None:
    flow, checker, work = opened()
    body = {"state": state, "message": "as it is", "result": result}
    delivered = checker.send(checker.native("trace", body, work, "flow"), flow)
    assert delivered.native
    assert delivered.message == output(success=success, recommendation=recommendation, summary="as it is")


def test_working_traces_are_not_for_this_format() -> None:
    flow, checker, work = opened()
    assert checker.send(checker.native("trace", {"state": "working"}, work, "flow"), flow).message is None


def test_a_receipt_that_ends_the_work_is_a_failure_with_its_reason() -> None:
    flow, checker, work = opened()
    accepted = {"for_id": work.opening_id, "status": "accepted"}
    assert checker.send(checker.native("receipt", accepted, work, "flow"), flow).message is None
    rejected = {"for_id": work.opening_id, "status": "rejected", "reason_code": "busy", "detail": "two days"}
    delivered = checker.send(checker.native("receipt", rejected, work, "flow"), flow)
    assert delivered.message == output(success=False, recommendation="escalate", summary="rejected: busy: two days")
    assert delivered.native


def test_an_opening_that_came_too_late_is_a_failure() -> None:
    flow, checker, work = opened()
    expired = {"for_id": work.opening_id, "status": "expired", "reason_code": "expired"}
    delivered = checker.send(checker.native("receipt", expired, work, "flow"), flow)
    assert delivered.message == output(success=False, recommendation="escalate", summary="expired: expired")


def test_a_trace_that_the_lifecycle_ignored_reaches_no_agent() -> None:
    flow, checker, work = opened()
    checker.send(checker.native("trace", {"state": "completed"}, work, "flow"), flow)
    late = build(checker.native("trace", {"state": "failed"}, work, "flow"), NOW)
    assert flow.receive(late).message is None


def test_notes_become_the_prior_context_of_the_next_native_say() -> None:
    flow, checker, work = opened()
    checker.submit(output(notes=["look at login"]), flow)
    following = msgspec.structs.replace(work, work_id="work_next")
    delivered = flow.send(flow.native("say", {"text": "go on"}, following, "checker"), checker)
    assert inside(delivered)["prior_context"] == ["look at login"]


# carried messages that do not hold, and native ones


@pytest.mark.parametrize(
    ("carried", "why"),
    [
        (SEED_INPUT, "does not belong"),
        (output(success=False, recommendation="retry"), "means failed"),
        (output(summary=None), "must be a string"),
        (output(artifacts=[{"path": "../x", "operation": "create", "content": ""}]), "must not contain"),
        (output(count=2**60), "2^53"),
        ({}, "required members"),
        ("nonsense", "must be a JSON object"),
    ],
)
def test_an_inconsistent_carried_message_counts_as_native(carried: Any, why: str) -> None:
    flow, checker, work = opened()
    forged = checker.native("trace", {"state": "completed"}, work, "flow", ext={"humaninloop.message": carried})
    delivered = checker.send(forged, flow)
    assert delivered.native
    assert delivered.message == output(summary="the work is completed")
    (doubt,) = delivered.findings
    assert (doubt.rule, doubt.severity) == ("carried_message", "warning")
    assert why in doubt.message


def test_an_output_carried_by_a_say_counts_as_native() -> None:
    flow, checker, work = opened()
    following = msgspec.structs.replace(work, work_id="work_next")
    ext = {"humaninloop.message": SEED_OUTPUT}
    delivered = flow.send(flow.native("say", {"text": "hi"}, following, "checker", ext=ext), checker)
    assert delivered.native
    assert inside(delivered)["task"] == {"action": "say", "params": {"text": "hi"}}
    assert "carried_message" in [finding.rule for finding in delivered.findings]


def test_a_native_say_becomes_an_input_with_the_known_members() -> None:
    flow, checker = pair()
    artifacts = [
        {"type": "path", "name": "spec", "path": "docs/spec.md"},
        {"path": "b.md"},
        {"type": "path", "name": "spec", "path": "other.md"},
        {"uri": "agh://artifacts/w/x"},
        {"path": "bad\u0000path"},
        2**60,
    ]
    body = {"text": "please", "intent": "review", "artifacts": artifacts}
    delivered = flow.send(flow.native("say", body, None, "checker", work_id="work_n"), checker)
    assert delivered.native
    assert delivered.message == {
        "context": {"feature_id": "thread_plain", "workflow": "native", "iteration": 1},
        "paths": {"spec": "docs/spec.md", "artifact_2": "b.md", "spec_3": "other.md"},
        "task": {
            "action": "review",
            "params": {"text": "please", "artifacts": [{"uri": "agh://artifacts/w/x"}, {"path": "bad\u0000path"}]},
        },
    }
    assert check_input(delivered.message) == ()
    assert [finding.rule for finding in delivered.findings] == ["artifacts_as_params", "artifacts_dropped"]


def test_a_native_say_in_a_work_keeps_the_context_of_its_opening() -> None:
    flow, checker, work = opened()
    delivered = flow.send(flow.native("say", {"text": "hurry"}, work, "checker"), checker)
    assert inside(delivered)["context"] == SEED_INPUT["context"]
    assert inside(delivered)["paths"] == SEED_INPUT["paths"]


def test_a_say_without_work_warns_that_nothing_can_be_reported() -> None:
    flow, checker = pair()
    delivered = flow.send(flow.native("say", {"text": "hello"}, None, "checker"), checker)
    assert [finding.rule for finding in delivered.findings] == ["no_work"]


def test_native_results_and_references_become_notes() -> None:
    flow, checker, work = opened()
    body = {
        "state": "completed",
        "result": {"exit_code": 0, "notes": ["fine"]},
        "artifact_refs": [{"uri": "agh://artifacts/w/report.xml"}],
    }
    delivered = checker.send(checker.native("trace", body, work, "flow"), flow)
    assert inside(delivered)["notes"] == [
        "fine",
        'result: {"exit_code":0}',
        'artifact_refs: [{"uri":"agh://artifacts/w/report.xml"}]',
    ]
    assert [finding.rule for finding in delivered.findings] == ["result_as_note", "references_as_note"]


def test_artifacts_in_a_native_result_are_taken_when_they_can_be_written() -> None:
    good = [{"path": "a.md", "operation": "create", "content": "x"}]
    bad = [{"path": "/etc/passwd", "operation": "create", "content": "x"}]
    for artifacts, taken in ((good, good), (bad, []), ("cut…", [])):
        flow, checker, work = opened()
        body = {"state": "completed", "result": {"artifacts": artifacts}}
        delivered = checker.send(checker.native("trace", body, work, "flow"), flow)
        assert inside(delivered)["artifacts"] == taken
        assert not [fault for fault in check_output(delivered.message) if fault.severity == "error"]


def test_a_capability_that_opens_work_is_an_input() -> None:
    case = json.loads((VECTORS / "capability_digests.jsonl").read_text("utf-8").splitlines()[0])
    document = {**case["capability"], "digest": case["digest"]}
    flow, checker = pair()
    draft = flow.native("capability", {"capability": document}, None, "checker", work_id="work_c")
    delivered = flow.send(draft, checker)
    assert inside(delivered)["task"] == {"action": "capability", "params": {"capability": document}}
