"""ADR-007: properties of any message, valid or not."""

import json
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.formats.derived_ids import same_json
from aghbus.protocol.formats.humaninloop.shape import check_input, check_output, kind_of
from tests.support.humaninloop_peers import opened, pair

# properties

TEXT: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME: Final = TEXT.map(lambda text: "n" + text)
JSON: Final = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
MEMBERS: Final = [
    *["context", "paths", "task", "prior_context", "success", "summary", "artifacts", "notes", "recommendation"],
    *["feature_id", "workflow", "iteration", "action", "params", "path", "operation", "content"],
]
MORE: Final = st.dictionaries(TEXT.map(lambda key: "+" + key), JSON, max_size=2)
PATH: Final = st.text(st.characters(categories=["L", "N", "M", "Zs", "So"], include_characters="-_.~"), max_size=8).map(
    lambda name: "p" + name
)


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    message: dict[str, Any] = {
        "context": {
            "feature_id": draw(NAME),
            "workflow": draw(NAME),
            "iteration": draw(st.integers(1, 2**53 - 1)),
            **draw(MORE),
        },
        "paths": draw(st.dictionaries(TEXT, PATH, max_size=3)),
        "task": {"action": draw(NAME), "params": draw(st.dictionaries(TEXT, JSON, max_size=2)), **draw(MORE)},
        **draw(MORE),
    }
    if draw(st.booleans()):
        message["prior_context"] = draw(st.lists(TEXT, max_size=3))
    return message


@st.composite
def outputs(draw: st.DrawFn) -> dict[str, Any]:
    artifacts = [
        {
            "path": "/".join([f"{number}-{draw(PATH)}", *(f"_{name}" for name in draw(st.lists(PATH, max_size=2)))]),
            "operation": draw(st.sampled_from(["create", "update"])),
            "content": draw(st.text(st.characters(exclude_categories=["Cs"]))),
            **draw(MORE),
        }
        for number in range(draw(st.integers(0, 3)))
    ]
    message: dict[str, Any] = {
        "success": draw(st.booleans()),
        "summary": draw(TEXT),
        "artifacts": artifacts,
        "recommendation": draw(st.sampled_from(["proceed", "retry", "escalate"])),
        **draw(MORE),
    }
    if draw(st.booleans()):
        message["notes"] = draw(st.lists(TEXT, max_size=3))
    return message


@given(inputs(), outputs())
def test_a_message_is_delivered_as_submitted(question: dict[str, Any], answer: dict[str, Any]) -> None:
    flow, checker = pair()
    plan, (delivered,) = flow.submit(question, checker, target="checker")
    assert not delivered.native
    assert same_json(delivered.message, question)
    assert flow.submit(question, checker, target="checker")[0].repeats
    plan, (delivered,) = checker.submit(answer, flow)
    assert not plan.refused
    assert not delivered.native
    assert same_json(delivered.message, answer)
    assert checker.submit(answer, flow)[0].repeats


@given(st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()))
def test_no_text_raises(text: bytes) -> None:
    flow, checker, _ = opened()
    flow.submit(text, checker, target="checker")
    checker.submit(text, flow)


@given(
    inputs() | outputs(),
    st.lists(st.sampled_from(MEMBERS) | st.integers(0, 2), min_size=1, max_size=3),
    JSON,
)
def test_no_spoilt_envelope_raises_or_leaves_invalid(message: Any, path: list[str | int], value: Any) -> None:
    """A member somewhere becomes any JSON value: what still leaves passes the protocol's own validator (`HumanInLoopPeer.send`)."""
    inner: Any = message
    for key in path[:-1]:
        inside = inner if isinstance(inner, dict) else dict(enumerate(inner)) if isinstance(inner, list) else {}
        inner = inside.get(key, inner)
    if isinstance(inner, dict):
        inner[str(path[-1])] = value
    flow, checker, _ = opened()
    for side, other, named in ((flow, checker, {"target": "checker", "key": "k"}), (checker, flow, {})):
        plan, delivered = side.submit(message, other, **named)
        assert plan.refused or (delivered and same_json(delivered[0].message, message))


@given(JSON, JSON, st.sampled_from(["completed", "failed", "canceled", "needs_input", "working"]))
def test_any_envelope_of_a_peer_is_delivered_as_a_valid_message(carried: Any, result: Any, state: str) -> None:
    flow, checker, work = opened()
    body = {"state": state, "result": result, "artifact_refs": [result]}
    delivered = checker.send(checker.native("trace", body, work, "flow", ext={"humaninloop.message": carried}), flow)
    if state == "working":
        assert delivered.message is None
        return
    assert kind_of(delivered.message) == "output"
    assert not [fault for fault in check_output(delivered.message) if fault.severity == "error"]


@given(JSON, JSON, NAME)
def test_any_say_of_a_peer_is_delivered_as_a_valid_message(carried: Any, artifact: Any, text: str) -> None:
    flow, checker = pair()
    body = {"text": text, "intent": text, "artifacts": [artifact, {"path": artifact, "name": artifact}]}
    draft = flow.native("say", body, None, "checker", work_id="work_1", ext={"humaninloop.message": carried})
    delivered = flow.send(draft, checker)
    assert check_input(delivered.message) == ()
