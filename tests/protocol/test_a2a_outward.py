"""Works as tasks of an A2A agent: what goes out and what comes back."""

import base64
import json
from typing import Any

import pytest

from aghbus.protocol.formats.a2a import outward
from aghbus.protocol.formats.a2a.parts import content_of
from aghbus.protocol.formats.a2a.tasks import carried


def task(state: str, text: str = "", *artifacts: dict[str, Any]) -> dict[str, Any]:
    message = {"message": {"messageId": "m1", "parts": [{"text": text}]}} if text else {}
    return {
        "id": "t1",
        "contextId": "c1",
        "status": {"state": f"TASK_STATE_{state}", **message},
        "artifacts": [*artifacts],
    }


def artifact(name: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {"artifactId": name, "name": name, "parts": [*parts]}


def raw(content: bytes, **more: str) -> dict[str, Any]:
    return {"raw": base64.b64encode(content).decode(), **more}


def test_ids_are_those_of_the_work_and_differ_by_what_they_are_for() -> None:
    ids = [outward.derived("msg_1", what) for what in ("message", "context")] + [outward.derived("msg_2", "message")]
    assert len(set(ids)) == 3
    assert ids[0] == outward.derived("msg_1", "message")
    assert [len(part) for part in ids[0].split("-")] == [8, 4, 4, 4, 12]


def test_an_opening_goes_out_with_its_artifacts() -> None:
    references = [
        {"type": "file", "uri": "agh://artifacts/work_1/a.txt", "name": "a.txt", "media_type": "text/plain"},
        {"type": "file", "uri": "https://example.com/b", "name": "b"},
        {"ticket": 7},
    ]
    envelope = {"body": {"text": "Look at it", "artifacts": references}}
    message = outward.opening_message("msg_1", envelope, "text.review", {"agh://artifacts/work_1/a.txt": b"abc"})
    assert message["metadata"] == {"skill": "text.review"}
    assert message["parts"] == [
        {"text": "Look at it"},
        {"raw": "YWJj", "filename": "a.txt", "mediaType": "text/plain"},
        {"url": "https://example.com/b", "filename": "b"},
        {"data": {"ticket": 7}},
    ]


def test_parts_of_a_gateway_go_out_as_they_came() -> None:
    parts: list[dict[str, Any]] = [
        {"data": {"n": 1}},
        {"text": "first"},
        {"raw": "YWJj", "filename": "a"},
        {"text": "second"},
    ]
    content = content_of(parts, {})
    ext = carried({"messageId": "m1"}, None, "", content.layout)
    envelope = {"body": {"text": content.text, "artifacts": content.references}, "ext": ext}
    assert outward.opening_message("msg_1", envelope, None, {})["parts"] == parts


def test_a_capability_goes_out_as_text_and_data() -> None:
    record = {"id": "text.review", "summary": "Reviews", "digest": "sha256:0"}
    message = outward.opening_message("msg_1", {"body": {"capability": record}}, None, {})
    assert message["parts"] == [{"text": "Reviews"}, {"data": record}]


def test_says_go_out_as_one_message_to_the_task() -> None:
    file = {"type": "file", "uri": "agh://artifacts/work_1/a.txt", "name": "a.txt"}
    says: list[dict[str, Any]] = [{"body": {"text": "First"}}, {"body": {"text": "Then this", "artifacts": [file]}}]
    task = {"task_id": "t1", "context_id": "c1"}
    message = outward.further_message("m2", says, {"agh://artifacts/work_1/a.txt": b"abc"}, task)
    assert (message["messageId"], message["taskId"], message["contextId"]) == ("m2", "t1", "c1")
    assert message["parts"] == [{"text": "First"}, {"text": "Then this"}, {"raw": "YWJj", "filename": "a.txt"}]


@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("text.review", "text.review"),
        ("Summarise things!", "Summarise-things"),
        ("a\x1b[31m\nb", "a-31m-b"),
        ("§§", ""),
        ("a/b:c", "a/b:c"),
    ],
)
def test_ids_of_skills(given: str, made: str) -> None:
    assert outward.capability_id(given) == made


def test_skills_become_records_of_one_line_each() -> None:
    card = {
        "name": "Agent",
        "version": "3",
        "defaultInputModes": ["text/plain"],
        "skills": [
            {
                "id": "a",
                "name": "A",
                "description": "Does\n\x1b[31mA\x07",
                "tags": ["x", "y"],
                "examples": ["do a", "", 7],
            },
            {"id": "a", "name": "the same id again"},
            {"id": "", "name": "none"},
        ],
    }
    (skill,) = outward.skills_of(card)
    assert (skill.id, skill.record["summary"]) == ("a", "A: Does [31mA (x, y)")
    assert skill.record["examples"] == ["do a"]
    assert skill.record["context_needed"] == ["text/plain"]
    assert skill.record["version"] == "3"
    assert outward.whole_agent("my.agent", card).record["summary"] == "Agent"


def test_events_change_the_task() -> None:
    found: dict[str, Any] = {"id": "t1"}
    chunk = {"artifactId": "a", "parts": [{"text": "it is "}]}
    for event in (
        {"task": task("SUBMITTED")},
        {"statusUpdate": {"taskId": "t1", "status": {"state": "TASK_STATE_WORKING"}}},
        {"artifactUpdate": {"taskId": "t1", "artifact": chunk}},
        {"artifactUpdate": {"taskId": "t1", "artifact": {**chunk, "parts": [{"text": "good"}]}, "append": True}},
        {"artifactUpdate": {"taskId": "t1", "artifact": {"artifactId": "b", "parts": [{"text": "old"}]}}},
        {"artifactUpdate": {"taskId": "t1", "artifact": {"artifactId": "b", "parts": [{"data": {"n": 1.0}}]}}},
        {"statusUpdate": {"taskId": "t1", "status": {"state": "TASK_STATE_COMPLETED"}}},
    ):
        found = outward.merged(found, event)
    end = outward.outcome_of(found)
    assert (end.verb, end.message, end.result) == ("complete", "it is good", {"n": 1})


@pytest.mark.parametrize(
    ("given", "verb", "message"),
    [
        (task("COMPLETED", "fine"), "complete", "fine"),
        (task("COMPLETED"), "complete", None),
        (task("FAILED", "no disk"), "fail", "no disk"),
        (task("FAILED", "  "), "fail", "the agent's task failed, without a reason"),
        (task("REJECTED", "not mine"), "fail", "the agent rejected the task: not mine"),
        (task("CANCELED"), "cancel", "the agent canceled its task"),
    ],
)
def test_ends(given: dict[str, Any], verb: str, message: str | None) -> None:
    end = outward.outcome_of(given)
    assert (end.verb, end.message) == (verb, message)


def test_several_artifacts_are_listed_and_files_get_safe_names() -> None:
    end = outward.outcome_of(
        task(
            "COMPLETED",
            "see these",
            artifact("one", {"text": "first"}, {"data": [1.0, 2.5]}),
            artifact(
                "two", raw(b"x", filename="../../etc/passwd"), raw(b"y", filename="passwd"), raw(b"z", filename="..")
            ),
            artifact("three", {"url": "https://example.com/c"}),
        )
    )
    assert end.result == {"artifacts": [{"name": "one", "text": "first"}, {"name": "one", "data": [1, 2.5]}]}
    assert [(file.name, file.content) for file in end.files] == [("passwd", b"x"), ("2_passwd", b"y"), ("file", b"z")]
    assert end.links == ({"type": "file", "uri": "https://example.com/c", "artifact_id": "three", "title": "three"},)
    assert end.files[0].about["artifact_id"] == "two"


def test_what_is_too_large_for_a_trace_becomes_a_file() -> None:
    text, data = "ä" * outward.TEXT_BYTES, {"long": "x" * outward.RESULT_BYTES}
    end = outward.outcome_of(task("COMPLETED", text, artifact("a", {"data": data})))
    assert end.message is not None
    assert len(end.message.encode()) <= outward.TEXT_BYTES
    assert end.result is None
    contents = {file.name: file.content for file in end.files}
    assert contents["message.txt"].decode() == text
    assert json.loads(contents["result.json"]) == data


def test_questions() -> None:
    asked = task("INPUT_REQUIRED", "Which?")
    asked["status"]["message"]["parts"].append({"data": {"choices": [1.0, 2.0]}})
    assert outward.question_of(asked) == ("Which?", {"parts": [{"data": {"choices": [1, 2]}}]}, None)
    assert outward.question_of(task("AUTH_REQUIRED"))[2] == {"aghbus.auth_required": True}
    assert outward.status_key(asked) == outward.status_key(json.loads(json.dumps(asked)))
    assert outward.status_key(asked) != outward.status_key(task("INPUT_REQUIRED", "Which one?"))


def test_a_message_in_the_history() -> None:
    assert outward.has_message({"history": []}, "m1") is None
    assert outward.has_message({"history": [{"messageId": "m2"}]}, "m1") is False
    assert outward.has_message({"history": [{"messageId": "m1"}]}, "m1") is True
