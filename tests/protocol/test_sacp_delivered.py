"""SACP: messages delivered from envelopes that no agent of the format wrote, and properties of any text."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import build
from aghbus.protocol.formats.model import BridgedEnvelope, Delivered
from aghbus.protocol.formats.sacp.guardrails import Guardrail
from aghbus.protocol.formats.sacp.schema import response_faults
from tests.support.sacp_cases import ASKS, CARD, NOW, NUMBER, WORKS, SacpPeer, pair, received, response, rules, send


def native(kind: str, sender: str, to: str, content: dict[str, Any], work: WorkView | None, **fields: Any) -> Envelope:
    document = {
        "protocol": "agh-network/v0",
        "id": f"msg_native_{kind}",
        "workspace_id": "ws_alpha",
        "channel": "builders",
        "kind": kind,
        "from": sender,
        "to": to,
        "ts": NOW,
        "surface": "thread",
        "thread_id": work.container if work else "thread_native",
        "work_id": work.work_id if work else "work_native",
        "body": content,
        "proof": None,
        **fields,
    }
    return parse(json.dumps(document).encode(), NOW)


def answered(content: dict[str, Any], kind: str = "trace", **fields: Any) -> Delivered:
    """What an orchestrator's agent gets for a native answer of the worker."""
    asks, _ = pair()
    (work,) = asks.works.values()
    return asks.receive(native(kind, WORKS, ASKS, content, work, **fields))


@pytest.mark.parametrize(
    ("trace", "made"),
    [
        ({"state": "completed", "result": {"x": [1]}, "message": "done"}, ("success", {"x": [1]}, "done")),
        ({"state": "completed"}, ("success", {}, "")),
        ({"state": "completed", "result": [1, 2]}, ("success", {"result": [1, 2]}, "")),
        ({"state": "failed", "result": "why", "message": "no"}, ("failure", {"result": "why"}, "no")),
        ({"state": "canceled", "message": "stopped"}, ("failure", {}, "stopped")),
        ({"state": "needs_input", "message": "Which?"}, ("clarification_needed", {}, "Which?")),
    ],
)
def test_a_native_trace_becomes_a_response_that_invents_nothing(
    trace: dict[str, Any], made: tuple[str, dict[str, Any], str]
) -> None:
    status, data, message = made
    delivered = answered(trace)
    assert delivered == Delivered(
        message={"thought": "", "status": status, "data": data, "message": message}, native=True
    )
    assert response_faults(delivered.message) == ()


def test_a_native_result_beyond_strict_json_is_delivered_as_text() -> None:
    delivered = answered({"state": "completed", "result": {"n": 2**60}})
    assert received(delivered)["data"] == {"result": f'{{"n":{2**60}}}'}
    assert rules(delivered) == [("/data/result", "as_text")]


def test_progress_is_not_for_this_format() -> None:
    assert answered({"state": "working", "message": "half way"}).message is None


@pytest.mark.parametrize(
    ("receipt", "data"),
    [
        (
            {"status": "rejected", "reason_code": "busy", "detail": "full"},
            {"receipt": "rejected", "reason_code": "busy"},
        ),
        ({"status": "canceled"}, {"receipt": "canceled"}),
        ({"status": "expired", "reason_code": "expired"}, {"receipt": "expired", "reason_code": "expired"}),
        (
            {"status": "unsupported", "reason_code": "unsupported_kind"},
            {"receipt": "unsupported", "reason_code": "unsupported_kind"},
        ),
        ({"status": "accepted"}, None),
        ({"status": "duplicate", "reason_code": "duplicate"}, None),
    ],
)
def test_a_receipt_that_ends_the_work_is_delivered_as_failure(
    receipt: dict[str, Any], data: dict[str, str] | None
) -> None:
    asks, _ = pair()
    (work,) = asks.works.values()
    delivered = asks.receive(native("receipt", WORKS, ASKS, {"for_id": work.opening_id, **receipt}, work))
    if data is None:
        assert delivered.message is None
    else:
        expected = {"thought": "", "status": "failure", "data": data, "message": receipt.get("detail", "")}
        assert delivered == Delivered(message=expected, native=True)


def test_a_receipt_for_a_later_message_ends_nothing() -> None:
    asks, _ = pair()
    (work,) = asks.works.values()
    later = {"for_id": "msg_later", "status": "expired", "reason_code": "expired"}
    assert asks.receive(native("receipt", WORKS, ASKS, later, work)).message is None


def test_envelopes_refused_by_the_lifecycle_are_not_delivered() -> None:
    asks, works = pair()
    (work,) = asks.works.values()
    send(works.write(json.dumps(response())), works, asks)
    assert asks.receive(native("trace", WORKS, ASKS, {"state": "failed"}, work)).message is None
    assert works.receive(native("say", ASKS, WORKS, {"text": "more"}, work)).message is None


def test_native_words_and_capabilities_are_text() -> None:
    works = SacpPeer(WORKS)
    assert works.receive(native("say", ASKS, WORKS, {"text": "Run it."}, None)) == Delivered(
        message="Run it.", native=True
    )
    record = {"id": "fix-tests", "summary": "Repair.", "outcome": "A patch."}
    content = {"capability": {**record, "digest": capability_digest(record)}}
    delivered = works.receive(native("capability", ASKS, WORKS, content, None, work_id="work_2"))
    assert json.loads(received(delivered)) == content["capability"]


CARRIED: Final = [
    ("another state", response("failure")),
    ("a broken schema", {"status": "success"}),
    ("no object", "text"),
    ("an integer out of range", response(data={"n": 2**60})),
    ("too deep", response(data={"a": json.loads("[" * 70 + "]" * 70)})),
]


@pytest.mark.parametrize("carried", [value for _, value in CARRIED], ids=[name for name, _ in CARRIED])
def test_an_inconsistent_carried_message_makes_the_envelope_native(carried: Any) -> None:
    delivered = answered({"state": "completed", "message": "done"}, ext={"sacp.message": carried})
    assert delivered.native
    assert delivered.message == {"thought": "", "status": "success", "data": {}, "message": "done"}
    assert [finding.rule for finding in delivered.findings] == ["carried_message"]


@pytest.mark.parametrize("carried", ["other words", {"thought": ""}, 5])
def test_carried_words_must_be_those_of_the_envelope(carried: Any) -> None:
    delivered = SacpPeer(WORKS).receive(
        native("say", ASKS, WORKS, {"text": "Run it."}, None, ext={"sacp.message": carried})
    )
    assert (delivered.message, delivered.native) == ("Run it.", True)
    assert [finding.rule for finding in delivered.findings] == ["carried_message"]


def test_a_carried_message_from_the_artifact_store_counts_like_one_in_ext() -> None:
    asks, _ = pair()
    (work,) = asks.works.values()
    envelope = native("trace", WORKS, ASKS, {"state": "completed"}, work)
    delivered = asks.adapter.deliver(
        BridgedEnvelope(envelope=envelope, work=work, carried=response("completed")), asks.context(), asks
    )
    assert (delivered.message, delivered.native) == (response("completed"), False)


_texts: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_values: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4),
    max_leaves=10,
)
_responses: Final = st.builds(
    lambda base, more, hint: {**more, **base, **hint},
    st.fixed_dictionaries(
        {
            "thought": _texts,
            "status": st.sampled_from(["success", "failure", "clarification_needed", "completed"]),
            "data": st.dictionaries(_texts, _values, max_size=4),
            "message": _texts,
        }
    ),
    st.dictionaries(_texts, _values, max_size=2),
    st.fixed_dictionaries({}, optional={"next_step_hint": _texts}),
).filter(lambda value: response_faults(value) == ())


@given(_responses, st.sampled_from(["{}", "```json\n{}\n```", "Here you are: {} (done)"]))
def test_a_response_is_delivered_as_submitted(written: dict[str, Any], around: str) -> None:
    asks, works = pair()
    plan = works.write(around.replace("{}", json.dumps(written)))
    delivered = send(plan, works, asks)
    assert not delivered.native
    assert json.dumps(delivered.message) == json.dumps(written)


@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode(errors="replace")))
def test_any_bytes_become_one_valid_envelope_with_a_valid_response(raw: bytes) -> None:
    asks, works = pair(guardrails=(CARD, Guardrail("any", ".")))
    plan = works.write(raw)
    assert response_faults(plan.message) == ()
    assert response_faults(send(plan, works, asks).message) == ()


@given(_responses, st.text(max_size=5), st.text(max_size=5))
def test_no_guarded_word_of_a_message_leaves(written: dict[str, Any], before: str, after: str) -> None:
    asks, works = pair(guardrails=(CARD,))
    plan = works.write(json.dumps({**written, "message": before + NUMBER + after}))
    assert NUMBER.encode() not in build(plan.drafts[0], NOW).raw
    assert received(send(plan, works, asks))["status"] == "failure"
