"""The mapping between works and A2A: what is sent comes back, and a task is the same however it is read."""

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.identifiers import is_emitted_work_id, is_message_id, is_thread_id
from aghbus.protocol.api.messages import Message
from aghbus.protocol.formats.a2a.cards import Listener, card_of, etag
from aghbus.protocol.formats.a2a.ids import (
    Principal,
    belongs_to,
    envelope_id,
    new_context_id,
    principal_name,
    task_id,
    thread_id,
)
from aghbus.protocol.formats.a2a.parts import (
    INLINE_BYTES,
    artifacts_of,
    content_of,
    large_files,
    part_fault,
    parts_of,
    references_of,
)
from aghbus.protocol.formats.a2a.tasks import CARRIED, TaskView, carried

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = st.text("abcdefgh.-_ ", min_size=1, max_size=10)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
ABOUT = st.fixed_dictionaries(
    {}, optional={"filename": NAMES, "mediaType": st.sampled_from(["text/plain", "image/png"])}
)
METADATA = st.fixed_dictionaries({}, optional={"metadata": st.dictionaries(NAMES, VALUES, min_size=1, max_size=2)})
CONTENT = (
    st.fixed_dictionaries({"text": TEXTS.filter(str.strip)})
    | st.fixed_dictionaries({"data": st.dictionaries(NAMES, VALUES, max_size=2)})
    | st.fixed_dictionaries({"url": st.just("https://example.com/x")})
    | st.fixed_dictionaries({"raw": st.binary(max_size=40).map(lambda raw: base64.b64encode(raw).decode())})
)
PART = st.builds(lambda *all_of: {key: value for one in all_of for key, value in one.items()}, CONTENT, ABOUT, METADATA)
ENTRIES = st.fixed_dictionaries({}, optional={"ref": st.integers(-1, 3), "chars": st.integers(-1, 9)})
LAYOUTS = st.lists(ENTRIES, max_size=4) | VALUES
CALLERS = st.builds(Principal, st.text(max_size=20).map(principal_name), st.none() | TEXTS)


@given(st.lists(PART, min_size=1, max_size=6))
def test_parts_of_a_message_come_back_as_they_were(parts: list[dict[str, Any]]) -> None:
    assert not any(map(part_fault, parts))
    content = content_of(parts, {})
    assert content.text.strip()
    assert parts_of(content.text, content.references, content.layout) == parts


@given(st.lists(PART, min_size=1, max_size=6), LAYOUTS)
def test_any_layout_loses_no_text(parts: list[dict[str, Any]], layout: Any) -> None:
    content = content_of(parts, {})
    shown = parts_of(content.text, content.references, layout)
    texts = [part["text"] for part in shown if "text" in part]
    assert "\n\n".join(texts) == content.text or (not texts and not any("text" in part for part in parts))
    assert len(shown) - len(texts) == len(content.references)


@given(
    st.lists(PART, min_size=1, max_size=4),
    st.fixed_dictionaries(
        {"artifactId": NAMES}, optional={"name": NAMES, "description": NAMES, "metadata": st.just({"a": 1})}
    ),
)
def test_artifacts_come_back_as_they_were(parts: list[dict[str, Any]], about: dict[str, Any]) -> None:
    artifact = {"name": about["artifactId"], **about, "parts": parts}
    assert artifacts_of({"artifact_refs": references_of(artifact, {})}) == [artifact]


@given(VALUES, st.lists(VALUES | st.dictionaries(NAMES, VALUES), max_size=4))
def test_any_result_and_references_make_artifacts_with_parts(result: Any, references: list[Any]) -> None:
    found = artifacts_of({"result": result, "artifact_refs": references})
    assert all(artifact["artifactId"] and artifact["parts"] for artifact in found)
    assert len({artifact["artifactId"] for artifact in found}) == len(found)


def test_output_of_a_command_is_text_or_data() -> None:
    result = {
        "exit_code": 0,
        "stdout": "fine\n",
        "stderr": "at /home/ann/job.py",
        "duration_s": 0.1,
        "truncated": False,
    }
    (artifact,) = artifacts_of({"result": result})
    assert artifact["parts"] == [{"text": "fine\n", "mediaType": "text/plain"}]
    assert artifact["metadata"] == {"exit_code": 0, "duration_s": 0.1, "truncated": False}
    (artifact,) = artifacts_of({"result": {"exit_code": 0, "output": {"passed": True}}})
    assert artifact["parts"] == [{"data": {"passed": True}, "mediaType": "application/json"}]
    assert artifacts_of({"result": {"exit_code": 0, "stdout": "\n"}}) == []


def test_only_large_files_go_to_the_object_store() -> None:
    files = [base64.b64encode(b"x" * size).decode() for size in (INLINE_BYTES, INLINE_BYTES + 1)]
    parts = [{"raw": files[0]}, {"raw": files[1], "filename": "../../etc/passwd"}, {"text": "x" * 99_999}]
    found = large_files(parts)
    assert [*found] == [1]
    assert found[1].content == b"x" * (INLINE_BYTES + 1)
    assert "/" not in found[1].name


@pytest.mark.parametrize("part", [{}, {"text": "a", "data": 1}, {"raw": "%"}, {"raw": 5}, "text", {"filename": "a"}])
def test_parts_without_one_content_are_refused(part: Any) -> None:
    assert part_fault(part)


@given(CALLERS, CALLERS, TEXTS, TEXTS)
def test_ids_are_legal_and_those_of_their_caller(one: Principal, two: Principal, message: str, context: str) -> None:
    work = task_id(one, "peer:worker", message)
    assert is_emitted_work_id(work)
    assert is_message_id(envelope_id(work, message))
    made, chosen = new_context_id(one, work), thread_id(one, context)
    assert is_thread_id(made)
    assert is_thread_id(chosen)
    assert thread_id(one, made) == made
    assert belongs_to(one, work)
    assert belongs_to(two, work) == (one == two)
    assert (thread_id(two, made) == made) == (one == two)
    assert task_id(one, "peer:other", message) != work


@pytest.mark.parametrize(
    ("subject", "name"),
    [
        ("ann", "ann"),
        ("ann+ci@example.com", "ann+ci@example.com"),
        ("auth0|5f7", "auth0|5f7"),
        ("", "h_e3b0c44298fc1c149afbf4c8996fb924"),
        ("two words", "h_a03f1d611645eb53ad16c1af546ca079"),
    ],
)
def test_names_of_callers_are_plain(subject: str, name: str) -> None:
    assert principal_name(subject) == name


def stored(
    seq: int, kind: str, body: dict[str, Any], *, outcome: str = "advanced", out: bool = False
) -> tuple[Any, dict[str, Any]]:
    """A message of a work, and its envelope."""
    message = Message(
        seq=seq,
        id=f"msg_{seq}",
        direction="out" if out else "in",
        kind=kind,
        workspace_id="w",
        channel="c",
        sender="ops" if out else "worker",
        to="worker" if out else "ops",
        thread_id="thread_x",
        direct_id=None,
        work_id="work_x",
        trust="unverified",
        received_ms=1_000 * seq,
        outcome=outcome,
        reason=None,
        delivery=None,
        delivery_detail=None,
        envelope=b"",  # type: ignore[arg-type]
    )
    return message, {"body": body, "ext": {}}


OPENING = stored(1, "say", {"text": "Do it"}, outcome="opened", out=True)
STEPS = st.lists(
    st.sampled_from(
        [
            ("receipt", {"status": "accepted"}, False),
            ("receipt", {"status": "rejected", "reason_code": "busy"}, False),
            ("receipt", {"status": "canceled"}, True),
            ("trace", {"state": "working", "message": "on it"}, False),
            ("trace", {"state": "needs_input", "message": "Which?"}, False),
            ("trace", {"state": "completed", "message": "done", "result": {"n": 1}}, False),
            ("trace", {"state": "failed"}, False),
            ("trace", {"state": "canceled"}, False),
            ("say", {"text": "by the way"}, False),
            ("say", {"text": "this one"}, True),
        ]
    ),
    max_size=8,
)


@given(STEPS, st.integers(0, 8))
def test_a_snapshot_and_the_updates_after_it_agree_with_the_whole(steps: list[tuple[str, Any, bool]], cut: int) -> None:
    messages = [OPENING, *(stored(2 + at, kind, body, out=out) for at, (kind, body, out) in enumerate(steps))]
    whole, early = TaskView("work_x"), TaskView("work_x")
    for each in messages:
        whole.apply(*each)
    for each in messages[: 1 + cut]:
        early.apply(*each)
    state, artifacts = (
        early.task()["status"]["state"],
        {one["artifactId"]: one for one in early.task().get("artifacts", ())},
    )
    for each in messages[1 + cut :]:
        for update in early.apply(*each):
            if "statusUpdate" in update:
                state = update["statusUpdate"]["status"]["state"]
            else:
                artifacts[update["artifactUpdate"]["artifact"]["artifactId"]] = update["artifactUpdate"]["artifact"]
    assert early.task() == whole.task()
    assert state == whole.task()["status"]["state"]
    assert [*artifacts.values()] == whole.task().get("artifacts", [])


@given(STEPS)
def test_nothing_follows_the_end_of_a_task(steps: list[tuple[str, Any, bool]]) -> None:
    view = TaskView("work_x")
    view.apply(*OPENING)
    ended = False
    for at, (kind, body, out) in enumerate(steps):
        updates = view.apply(*stored(2 + at, kind, body, out=out))
        assert not (ended and any("status" in update.get("statusUpdate", {}) and kind != "say" for update in updates))
        ended = ended or view.has_ended()


@pytest.mark.parametrize("length", [None, 0, 1, 2, 9])
def test_history_has_the_newest_messages(length: int | None) -> None:
    view = TaskView("work_x")
    for each in (
        OPENING,
        stored(2, "say", {"text": "second"}, out=True),
        stored(3, "say", {"text": "third"}, out=True),
    ):
        view.apply(*each)
    history = view.task(length).get("history", [])
    texts = [said["parts"][0]["text"] for said in history]
    assert texts == ["Do it", "second", "third"][-length if length else 3 * (length is not None) :]


def test_a_client_gets_its_own_ids_back() -> None:
    message = {
        "messageId": "its own",
        "parts": [{"text": "Do it"}],
        "metadata": {"a": 1},
        "referenceTaskIds": ["work_y"],
    }
    opening, envelope = OPENING
    view = TaskView("work_x")
    view.apply(opening, {**envelope, "ext": carried(message, "its context", "mark", None)})
    task = view.task()
    assert task["contextId"] == "its context"
    assert task["history"][0]["messageId"] == "its own"
    assert task["history"][0]["metadata"] == {"a": 1}
    assert view.opening_digest == "mark"


@pytest.mark.parametrize("kept", [None, 5, [], {"parts": 3, "metadata": "x", "extensions": [1], "message_id": {}}])
def test_what_a_peer_writes_into_ext_does_no_harm(kept: Any) -> None:
    view = TaskView("work_x")
    view.apply(OPENING[0], {"body": {"text": "Do it"}, "ext": {CARRIED: kept}})
    said = view.task()["history"][0]
    assert said["parts"] == [{"text": "Do it"}]
    assert isinstance(said["messageId"], str)
    assert "metadata" not in said


def test_a_card_shows_capabilities_as_skills() -> None:
    record = {
        "id": "text.review",
        "summary": "Reviews texts",
        "outcome": "A list of remarks",
        "examples": ["Review this"],
    }
    listener = Listener(bindings=(("JSONRPC", "https://x/a2a/{agent}"), ("GRPC", "x:1")))
    card = card_of("writer", listener, {"display_name": "The Writer"}, [record])
    assert card["name"] == "The Writer"
    assert card["supportedInterfaces"][0]["url"] == "https://x/a2a/writer"
    assert card["supportedInterfaces"][1]["tenant"] == "writer"
    assert card["skills"] == [
        {
            "id": "text.review",
            "name": "Reviews texts",
            "description": "Reviews texts\n\nOutcome: A list of remarks",
            "tags": ["text", "review"],
            "examples": ["Review this"],
        }
    ]
    assert len(card_of("nobody", listener, {}, [])["skills"]) == 1
    assert etag(card) == etag({**card, "signatures": ["any"]})
    assert etag(card) != etag({**card, "name": "Another"})
