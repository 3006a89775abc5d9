"""Rules of adapters.md and of the seeds that need several lines or both directions, tested offline."""

import json
from pathlib import Path
from typing import Any

import pytest

from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.commands.convert import converter_of
from aghbus.cli.convert.converter import Converted

NOW = 1_780_000_000
VECTORS = Path(__file__).parent.parent / "vectors" / "seed_examples.jsonl"
FIRST, SECOND, LAST = (
    example["value"] for example in map(json.loads, VECTORS.read_text().splitlines()) if example["format"] == "sentient"
)
QUERY = next(
    example["value"]
    for example in map(json.loads, VECTORS.read_text().splitlines())
    if example["format"] == "agentos" and example["value"]["type"] == "query"
)
STATES = [
    ("sentient", "completed", {"message": "done", "result": {"a": 1}}),
    ("sentient", "failed", {"message": "broke"}),
    ("sentient", "canceled", {}),
    ("sentient", "needs_input", {"message": "which?"}),
    ("agentos", "completed", {"result": 5}),
    ("agentos", "failed", {"message": "broke"}),
    ("agentos", "needs_input", {"message": "which?"}),
    ("humaninloop", "completed", {"result": [1]}),
    ("humaninloop", "failed", {"result": {"recommendation": "retry"}}),
    ("humaninloop", "needs_input", {"message": "which?"}),
    ("sacp", "completed", {"result": 5}),
    ("sacp", "canceled", {}),
    ("sacp", "needs_input", {}),
]


def convert(source: str, target: str, *lines: Any, options: tuple[str, ...] = ()) -> list[Converted]:
    words = ["--from", source, "--to", target, "--now", str(NOW), *options]
    converter = converter_of(PROGRAM.parse(["convert", *words])[1])
    return [converter.convert(json.dumps(line).encode()) for line in lines]


def errors(result: Converted) -> list[tuple[str, str]]:
    return [(finding.path, finding.rule) for finding in result.findings if finding.severity == "error"]


def changed(message: dict[str, Any], group: str, /, **members: Any) -> dict[str, Any]:
    return {**message, group: {**message[group], **members}}


def native(kind: str, sender: str, to: str, body: dict[str, Any], identifier: str) -> dict[str, Any]:
    return {
        "protocol": "agh-network/v0",
        "id": identifier,
        "workspace_id": "ws_local",
        "kind": kind,
        "channel": "default",
        "from": sender,
        "to": to,
        "ts": NOW,
        "surface": "thread",
        "thread_id": "thread_native",
        "work_id": "work_native",
        "expires_at": NOW + 600,
        "body": body,
        "proof": None,
    }


@pytest.mark.parametrize(("format", "state", "body"), STATES)
def test_a_native_envelope_becomes_a_valid_message(format: str, state: str, body: dict[str, Any]) -> None:
    """The peers have the names that the options default to, so that nothing but the message is judged."""
    asked = native("say", "agent-a", "agent-b", {"text": "do it"}, "msg_1")
    ended = native("trace", "agent-b", "agent-a", {"state": state, **body}, "msg_2")
    messages = [message for result in convert("agh", format, asked, ended) for message in result.messages]
    assert len(messages) == 2
    (again,) = convert(format, format, messages[1])
    assert errors(again) == []
    assert again.messages == [messages[1]]


@pytest.mark.parametrize(
    ("following", "state"), [("user", "needs_input"), (None, "working"), ("goal_agent", "working")]
)
def test_a_pending_first_message_reports_on_the_missing_work(following: str | None, state: str) -> None:
    message = changed(changed(FIRST, "status", code="pending"), "next_agent", name=following)
    (result,) = convert("sentient", "agh", message, options=("--work", "work_given"))
    assert errors(result) == []
    assert [(one["kind"], one["work_id"], one["body"]["state"]) for one in result.messages] == [
        ("trace", "work_given", state)
    ]
    assert convert("sentient", "sentient", message)[0].messages == [message]


def test_user_is_the_peer_even_of_the_default_target_agent() -> None:
    message = changed(LAST, "agent", name="agent-b")
    (result,) = convert("sentient", "agh", message)
    assert errors(result) == []
    assert [(one["from"], one["to"]) for one in result.messages] == [("agent-b", "agent-a")]


def test_unknown_parent_is_an_error_only_in_a_session_with_history() -> None:
    orphan = changed(SECOND, "metadata", parent_message_id="msg-nobody")
    alone, (_, after) = convert("sentient", "sentient", orphan)[0], convert("sentient", "sentient", FIRST, orphan)
    assert errors(alone) == []
    assert errors(after) == [("/metadata/parent_message_id", "parent_unknown")]
    assert after.messages == []


def test_a_parent_of_a_later_part_of_the_chain_may_be_missing() -> None:
    """Both lines follow the same message, which no line holds."""
    twin = {**SECOND, "message_id": "msg-goal-2"}
    assert [errors(result) for result in convert("sentient", "sentient", SECOND, twin)] == [[], []]


def test_session_and_request_are_inherited_from_a_foreign_parent() -> None:
    stray = changed(changed(SECOND, "agent", name="third_agent"), "metadata", session_id="elsewhere", request_id=7)
    _, result = convert("sentient", "sentient", FIRST, stray)
    assert errors(result) == []
    (message,) = result.messages
    assert message == changed(
        stray,
        "metadata",
        session_id=FIRST["metadata"]["session_id"],
        request_id=FIRST["metadata"]["request_id"],
    )
    said = {finding.path: finding.message for finding in result.findings if finding.rule == "inherited"}
    assert said["/metadata/request_id"].startswith("was 7, ")
    assert said["/metadata/session_id"].startswith("was 'elsewhere', ")


def test_id_reused_with_other_content_conflicts_across_sessions() -> None:
    other = changed(changed(FIRST, "metadata", session_id="elsewhere"), "status", message="other words")
    _, result = convert("sentient", "sentient", FIRST, other)
    assert ("/message_id", "id_conflict") in errors(result)


@pytest.mark.parametrize("type", ["response", "event", "gap", "evidence", "error"])
def test_non_request_type_in_an_opening_say_becomes_a_query(type: str) -> None:
    (envelope,) = convert("agentos", "agh", QUERY)[0].messages
    envelope["ext"]["agentos.message"]["type"] = type
    (result,) = convert("agh", "agentos", envelope)
    assert [finding.path for finding in result.findings if finding.rule == "carried_message"] == ["/type"]
    (message,) = result.messages
    assert (message["type"], message["id"] == QUERY["id"]) == ("query", False)
