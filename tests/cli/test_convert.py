"""`aghctl convert`: its output, the seeds' own examples, missing endpoints, and effects of earlier lines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.commands.convert import converter_of
from aghbus.protocol.agh.envelope import parse as parse_envelope
from tests.support.bridge_daemons import link
from tests.support.convert_cases import FOREIGN, INPUT, NOW, OUTPUT, RESPONSE, envelope, examples, trace

ALL = ("agh", *FOREIGN)
DESERVED = {"clock_skew", "uuid_version", "feature_root_stripped"}
"""What the seeds' own examples may be told: they are months old, of UUID version 1, and one path is repo-relative."""


def convert(source: str, target: str, *lines: Any, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Each line's result; a line that is no bytes is written as JSON."""
    words = ["--from", source, "--to", target, "--now", str(NOW), *options]
    converter = converter_of(PROGRAM.parse(["convert", *words])[1])
    raws = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return [{"messages": one.messages, "findings": one.findings} for one in map(converter.convert, raws)]


def only(source: str, target: str, line: Any, *options: str) -> Any:
    """The one message that one line becomes, without an error."""
    (result,) = convert(source, target, line, options=options)
    assert [one for one in result["findings"] if one.severity == "error"] == []
    (message,) = result["messages"]
    return message


def rules(result: dict[str, Any]) -> set[str]:
    return {finding.rule for finding in result["findings"]}


def errors(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(finding.path, finding.rule) for finding in result["findings"] if finding.severity == "error"]


def ctl(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "aghbus.cli", "convert", *args]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


# the fixed form


def test_output_is_json_lines_with_findings_on_stderr_and_exit_1() -> None:
    lines = [json.dumps(RESPONSE).encode(), b"", b"   ", b'"text that is no\\nresponse"']
    done = ctl("--from", "sacp", "--to", "sacp", stdin=b"\n".join(lines))
    first, second = (json.loads(line) for line in done.stdout.splitlines())
    assert done.returncode == 0
    assert list(first) == ["messages", "findings"]
    assert first == {"messages": [RESPONSE], "findings": []}
    assert second["messages"][0]["data"]["raw_output"] == "text that is no\nresponse"
    assert list(second["findings"][0]) == ["path", "rule", "severity", "message"]
    assert done.stderr.startswith(b"line 2: warning (whole) ")

    refused = ctl("--from", "humaninloop", "--to", "agh", stdin=b'{"success": true}\n' + json.dumps(INPUT).encode())
    bad, good = (json.loads(line) for line in refused.stdout.splitlines())
    assert refused.returncode == 1
    assert bad["messages"] == []
    assert {finding["severity"] for finding in bad["findings"]} == {"error"}
    assert len(good["messages"]) == 1
    assert b"line 1: error " in refused.stderr
    assert b"line 2" not in refused.stderr


def test_findings_are_json_objects_with_json_output() -> None:
    done = ctl("--from", "agentos", "--to", "agh", "-o", "json", stdin=b"[]")
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert json.loads(done.stdout)["findings"] == [
        {name: one[name] for name in ("path", "rule", "severity", "message")} for one in told
    ]
    assert {one["line"] for one in told} == {1}


def test_nothing_of_a_message_acts_on_a_terminal() -> None:
    hostile = {"suc\x1b[2Jcess": 1, "success": "\u202eevil\nline 9: error / forged", "recommendation": "\x07"}
    done = ctl("--from", "humaninloop", "--to", "sacp", stdin=json.dumps(hostile, ensure_ascii=False).encode())
    assert done.returncode == 1
    told = done.stderr.decode()
    assert not {char for char in told if not char.isprintable()} - {"\n"}
    assert all(line.startswith("line 1: ") for line in told.splitlines())


@pytest.mark.parametrize(
    "options",
    [
        ("--from", "agh"),
        ("--from", "agh", "--to", "xml"),
        ("--from", "agh", "--to", "sacp", "--peer", "Not A Peer"),
        ("--from", "agh", "--to", "sacp", "--peer", "a", "--target", "a"),
        ("--from", "agh", "--to", "sacp", "--work", "no work"),
        ("--from", "agh", "--to", "sacp", "--workspace", "a.b"),
        ("--from", "agh", "--to", "sacp", "--channel", "A"),
        ("--from", "agh", "--to", "sacp", "--agent", "name"),
        ("--from", "agh", "--to", "sacp", "--agent", "name=Not A Peer"),
        ("--from", "agh", "--to", "agentos", "--manifest", "/no/such/file"),
        ("--from", "agh", "--to", "sacp", "--now", "0"),
    ],
)
def test_bad_options_are_usage_errors(options: tuple[str, ...]) -> None:
    done = ctl(*options, stdin=b"{}")
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"aghctl: ")


# the seeds' own examples


@pytest.mark.parametrize("format", FOREIGN)
def test_every_seed_example_is_unchanged_in_its_own_format(format: str) -> None:
    results = convert(format, format, *examples(format))
    assert [result["messages"] for result in results] == [[value] for value in examples(format)]
    assert set().union(*map(rules, results)) <= DESERVED


@pytest.mark.parametrize("format", FOREIGN)
def test_seed_examples_round_trip_through_envelopes_as_text(format: str) -> None:
    envelopes = [message for one in convert(format, "agh", *examples(format)) for message in one["messages"]]
    back = convert("agh", format, *envelopes)
    assert [message for one in back for message in one["messages"]] == examples(format)
    assert [errors(one) for one in back] == [[]] * len(envelopes)


@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("source", FOREIGN)
def test_every_seed_example_becomes_a_message_of_every_format(source: str, target: str) -> None:
    for result in convert(source, target, *examples(source)):
        assert errors(result) == []
        assert result["messages"]


@pytest.mark.parametrize("format", FOREIGN)
def test_the_envelopes_are_ones_that_a_receiver_takes(format: str) -> None:
    for result in convert(format, "agh", *examples(format)):
        for document in result["messages"]:
            envelope = parse_envelope(json.dumps(document).encode(), NOW)
            assert envelope.ts == NOW
            assert (envelope.workspace_id, envelope.channel) == ("ws_local", "default")


# missing ends


def test_ends_that_a_message_does_not_name_have_defaults_and_options() -> None:
    trace = only("sacp", "agh", RESPONSE)
    assert (trace["from"], trace["to"], trace["work_id"]) == ("agent-a", "agent-b", "work_convert")
    options = ("--peer", "p", "--target", "q", "--work", "work_w", "--workspace", "ws", "--channel", "ch")
    trace = only("sacp", "agh", RESPONSE, *options)
    assert [trace[name] for name in ("from", "to", "work_id", "workspace_id", "channel")] == [
        *("p", "q", "work_w", "ws", "ch")
    ]
    say = only("humaninloop", "agh", INPUT, "--peer", "p", "--target", "q")
    assert (say["kind"], say["from"], say["to"]) == ("say", "p", "q")


def test_ends_that_a_message_names_are_those_of_the_envelope() -> None:
    objective = examples("sentient")[0]
    say = only("sentient", "agh", objective)
    assert (say["from"], say["to"]) == (objective["agent"]["name"], objective["next_agent"]["name"])
    query = examples("agentos")[0]
    say = only("agentos", "agh", query)
    assert say["from"] == f"{query['from']['agentId']}.{query['from']['instanceId']}"
    assert say["to"] == f"{query['to']['agentId']}.{query['to']['instanceId']}"


def test_names_that_are_not_peer_ids_are_replaced_unless_there_is_a_map() -> None:
    message = {**examples("sentient")[0], "agent": {"name": "Objective Agent", "type": "governance"}}
    say = only("sentient", "agh", message)
    assert (say["from"], say["to"]) == ("agent-a", "goal_agent")
    say = only("sentient", "agh", message, "--agent", "Objective Agent=o", "--agent", "goal_agent=g")
    assert (say["from"], say["to"]) == ("o", "g")
    (refused,) = convert("sentient", "agh", message, options=("--agent", "somebody=s"))
    assert errors(refused) == [("/agent/name", "agent_map")]
    (other,) = convert("sentient", "agh", message, options=("--agent", "Objective Agent=o", "--peer", "p"))
    assert ("/agent/name", "agent_map") in errors(other)


def test_options_of_the_formats_reach_them(tmp_path: Path) -> None:
    query = examples("agentos")[0]
    (strict,) = convert("agentos", "agh", query, options=("--strict",))
    assert ("/id", "uuid_version") in errors(strict)
    manifest = tmp_path / "manifest"
    for text, taken in [("one-brain\nmacro-analyst\n", True), ('["one-brain", "macro-analyst"]', True), ("x", False)]:
        manifest.write_text(text)
        (result,) = convert("agentos", "agh", query, options=("--manifest", str(manifest)))
        assert (errors(result) == []) is taken
    output = {**OUTPUT, "artifacts": [{"path": "specs/005/spec.md", "operation": "create", "content": "x"}]}
    trace = only("humaninloop", "agh", output, "--feature-root", "specs/005/")
    assert trace["body"]["artifact_refs"][0]["path"] == "spec.md"


# earlier lines


def test_each_report_has_its_own_work_unless_one_is_named() -> None:
    fresh = convert("sacp", "agh", RESPONSE, RESPONSE)
    assert [one["messages"][0]["work_id"] for one in fresh] == ["work_convert", "work_convert_2"]
    first, second = convert("sacp", "agh", RESPONSE, {**RESPONSE, "message": "more"}, options=("--work", "work_w"))
    assert first["messages"][0]["work_id"] == "work_w"
    assert (second["messages"], errors(second)) == ([], [("", "work_closed")])


def test_an_output_reports_on_the_work_that_the_input_before_it_opened() -> None:
    opening, report, again = convert("humaninloop", "agh", INPUT, OUTPUT, OUTPUT)
    say, trace = opening["messages"][0], report["messages"][0]
    assert (trace["work_id"], trace["from"], trace["to"]) == (say["work_id"], "agent-b", "agent-a")
    assert again["messages"][0]["work_id"] == "work_convert_3"


def test_an_answer_closes_the_query_of_an_earlier_line() -> None:
    query, answer = examples("agentos")[:2]
    assert answer["replyTo"] == query["id"]
    opened, closed = convert("agentos", "agh", query, answer)
    say, trace = opened["messages"][0], closed["messages"][0]
    assert (trace["work_id"], trace["reply_to"]) == (say["work_id"], say["id"])
    (alone,) = convert("agentos", "agh", answer)
    assert alone["messages"][0]["work_id"] == "work_convert"
    _, _, late = convert("agentos", "agh", query, answer, {**answer, "id": answer["id"][:-1] + "0"})
    assert [rule for _, rule in errors(late)] == ["work_closed"]


def test_a_chain_continues_from_an_earlier_line() -> None:
    objective, goal = examples("sentient")[:2]
    first, second = convert("sentient", "agh", objective, goal)
    (say,) = first["messages"]
    trace, next_say = second["messages"]
    assert (trace["kind"], trace["work_id"], trace["to"]) == ("trace", say["work_id"], say["from"])
    assert next_say["work_id"] != say["work_id"]
    skipped = {**goal, "metadata": {**goal["metadata"], "sequence_number": 7}}
    assert ("/metadata/sequence_number", "sequence") in errors(convert("sentient", "agh", objective, skipped)[1])


def test_a_chain_of_unmapped_names_alternates_between_two_peers() -> None:
    text = json.dumps(examples("sentient")[:2]).replace("_agent", " agent").replace("next agent", "next_agent")
    objective, goal = json.loads(text)
    first, second = convert("sentient", "agh", objective, goal)
    (say,) = first["messages"]
    trace, next_say = second["messages"]
    assert (say["from"], say["to"]) == ("agent-a", "agent-b")
    assert (trace["from"], trace["to"], trace["work_id"]) == ("agent-b", "agent-a", say["work_id"])
    assert (next_say["from"], next_say["to"]) == ("agent-b", "agent-a")
    again = convert("sentient", "sentient", objective, goal)
    assert [one["messages"] for one in again] == [[objective], [goal]]


def test_the_same_message_again_is_the_same_envelope() -> None:
    query = examples("agentos")[0]
    first, again, changed = convert("agentos", "agh", query, query, {**query, "priority": "low"})
    assert again["messages"] == first["messages"]
    assert "repeated" in rules(again)
    assert ("/id", "id_conflict") in errors(changed)


def test_envelopes_are_validated_at_their_own_timestamp() -> None:
    fine, bad, none = convert("agh", "agh", envelope(future="kept"), envelope(kind="shout"), b"{")
    assert fine["messages"] == [envelope(future="kept")]
    assert errors(bad) == [("/kind", "unsupported_kind")]
    assert errors(none) == [("", "malformed")]


def test_native_work_is_delivered_to_an_agent_of_sacp_as_text() -> None:
    said, asked, ended, late = convert(
        "agh", "sacp", envelope(), trace("needs_input"), trace("completed"), trace("failed")
    )
    assert said["messages"] == ["add 5 and 5"]
    assert ("/body/intent", "not_carried") in {(finding.path, finding.rule) for finding in said["findings"]}
    assert asked["messages"][0]["status"] == "clarification_needed"
    assert ended["messages"] == [{"thought": "", "status": "success", "data": {"n": 1}, "message": "said"}]
    assert late["messages"] == []
    assert {"work_closed", "not_carried"} <= rules(late)


def test_a_trace_without_an_opening_line_is_accepted() -> None:
    (ended,) = convert("agh", "sacp", trace("completed"))
    assert ended["messages"][0]["status"] == "success"
    (broadcast,) = convert("agh", "sacp", envelope(to=None, work_id=None))
    assert broadcast["messages"] == ["add 5 and 5"]


def test_a_repeated_envelope_is_reported_with_the_same_output() -> None:
    first, copy = convert("agh", "sacp", trace("completed"), trace("completed"))
    assert copy["messages"] == first["messages"]
    assert rules(copy) == {"duplicate"}


def test_lost_members_are_reported_and_carried_ones_are_not() -> None:
    (result,) = convert("sacp", "humaninloop", {**RESPONSE, "thought": "a secret plan", "next_step_hint": "call bob"})
    told = {finding.path for finding in result["findings"] if finding.rule == "not_carried"}
    assert told == {"/thought", "/next_step_hint"}
    assert result["messages"][0]["recommendation"] == "proceed"


def test_a_message_over_the_envelope_limit_is_too_large() -> None:
    huge = {**RESPONSE, "data": {"text": "x" * 1_100_000}}
    (result,) = convert("sacp", "agh", huge)
    assert (result["messages"], errors(result)) == ([], [("", "too_large")])


def test_a_parent_is_found_although_the_session_is_invented() -> None:
    first = link("objective", "goal", 1, message_id="msg-a", session="session-a", request="req-a")
    second = link("goal", "task", 2, "msg-a", message_id="msg-b", session="invented", request="invented")
    last = link("task", None, 3, "msg-b", session="another", request="another")
    opened, forwarded, ended = (one["messages"] for one in convert("sentient", "agh", first, second, last))
    report, say = forwarded
    assert (report["work_id"], report["to"]) == (opened[0]["work_id"], "objective")
    assert say["thread_id"] == opened[0]["thread_id"]
    assert (ended[0]["work_id"], ended[0]["body"]["state"]) == (say["work_id"], "completed")


@pytest.mark.parametrize("target", ["sacp", "humaninloop", "agentos"])
def test_a_failure_that_is_passed_on_in_a_say_is_reported_as_lost(target: str) -> None:
    lost = {"/status/code", "/error/has_error"}
    failed = link("objective", "goal", 1, code="failed")
    failed["error"] = {**failed["error"], "has_error": True, "error_code": "INVALID_INPUT", "error_message": "no"}
    failed["status"]["message"] = "it failed"
    (result,) = convert("sentient", target, failed)
    assert lost <= {one.path for one in result["findings"] if one.rule == "not_carried"}
    opened, ended = convert("sentient", target, link("goal", "objective", 1, message_id="msg-a"), {**failed, **LAST})
    assert not lost & {one.path for one in ended["findings"] if one.rule == "not_carried"}, opened


LAST = {
    "next_agent": {"name": None, "reason": None},
    "metadata": {"session_id": "session-1", "request_id": "req-1", "sequence_number": 2, "parent_message_id": "msg-a"},
}
