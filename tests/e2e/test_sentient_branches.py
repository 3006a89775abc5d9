"""One agent of a sentient chain with several next agents: its work ends when all branches have ended."""

import contextlib
import json
import os
import subprocess
import sys
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridging import WITHIN, envelope, handed_out, same_json, submit, the_say, work_ended
from tests.support.daemons import wait_for
from tests.support.sentient_daemons import FAILED, PEERS, Six, asked, dying, entry, plain, refused

BRANCHES = ("sentiment agent", "final_output_agent")


def branch(session: str, day: str, number: int, to: str, **more: Any) -> dict[str, Any]:
    """Message `number` of the objective agent, for one of several next agents."""
    message: dict[str, Any] = plain("objective_agent", to, session, f"req_{session}", 1, day, **more)
    return {**message, "message_id": f"{session}-b{number}"}


def fanned_out(six: Six, session: str, day: str) -> tuple[str, list[str]]:
    """A request that the objective agent passes on to two agents: the user's work, and the works of the branches."""
    work_id, _handed = asked(six, session, f"req_{session}")
    opened = []
    for number, agent in enumerate(BRANCHES, 1):
        said = the_say(submit(six.at["objective"], "sentient", branch(session, day, number, agent)))
        handed_out(six.at[PEERS[agent]], "sentient", said["id"])
        opened.append(said["work_id"])
    return work_id, opened


def finish(six: Six, session: str, day: str, number: int, **more: Any) -> dict[str, Any]:
    """The end of branch `number`, submitted by its agent."""
    agent = BRANCHES[number - 1]
    message: dict[str, Any] = plain(agent, None, session, f"req_{session}", 2, day, **more)
    message["message_id"] = f"{session}-e{number}"
    message["metadata"]["parent_message_id"] = f"{session}-b{number}"
    submit(six.at[PEERS[agent]], "sentient", message)
    return message


def failing(number: int) -> dict[str, Any]:
    """The groups of a message that reports a failure."""
    return {"status": {"code": "failed", "message": f"branch {number} failed"}, "error": FAILED}


FAULT = {key: value for key, value in FAILED.items() if key != "has_error"}


def test_the_assigned_work_ends_with_the_results_of_all_branches(six: Six) -> None:
    session, day = "thread_joined", "20260501"
    work_id, opened = fanned_out(six, session, day)
    finish(six, session, day, 2)
    work_ended(six.at["objective"], opened[1])
    wait_for(lambda: "a branch of a work ended" in six.at["objective"].log.read_text(), WITHIN, "its outcome")
    assert six.at["desk"].state_of(work_id) == "working"
    finish(six, session, day, 1)
    work = work_ended(six.at["desk"], work_id)
    assert (work["state"], work["message"]) == ("completed", "2 of 2 branches completed")
    parts = [(part["agent"], part["state"], part["result"]["content"]) for part in work["result"]["content"]]
    assert parts == [(agent, "completed", f"what {agent} says") for agent in BRANCHES]
    assert (work["result"]["content_type"], work["result"]["status"]) == ("branches", "success")
    assert "partial" not in work["result"]
    assert six.at["objective"].get("/v1/status")["counters"]["bridge.joined"] == 1


def test_the_join_is_in_the_log_and_the_memory_agent_gets_all_entries(six: Six) -> None:
    session, day = "thread_join-logged", "20260502"
    work_id, _opened = fanned_out(six, session, day)
    for number in (1, 2):
        finish(six, session, day, number)
    work_ended(six.at["desk"], work_id)
    daemon = six.at["objective"]
    rows = [row for row in daemon.get("/v1/bridge/sentient/log")["rows"] if row["session_id"] == session]
    assert [row["agent"] for row in rows] == ["objective_agent", "objective_agent", "orchestration"]
    join = rows[-1]
    lines = join["entry"].split("\n")
    assert f"[INPUT SOURCE: {', '.join(BRANCHES)}]" in lines
    assert "[OUTPUT TYPE: branches]" in lines
    assert "[STATUS: success] 2 of 2 branches completed" in lines
    wait_for(lambda: join["entry"] in (six.log("objective", join["day"]) or ""), WITHIN, "the entry of the join")
    closing = envelope(six.at["desk"], join["message_id"])
    texts = [one["text"] for one in closing["ext"]["sentient.log"]]
    ends = [
        entry(agent, session, 2).replace(f"{session}-2]", f"{session}-e{n}]") for n, agent in enumerate(BRANCHES, 1)
    ]
    assert len(texts) == 5
    assert set(ends) < set(texts)
    assert texts[-1] == join["entry"]
    (told,) = six.told(session)
    assert told["sender"] == "objective"
    whole = told["envelope"]
    assert [one["text"] for one in whole["ext"]["sentient.log"]] == texts
    assert whole["ext"]["sentient.chain"] == {"session_id": session, "request_id": f"req_{session}"}


def test_failed_branch_makes_result_partial_with_its_error(six: Six) -> None:
    session, day = "thread_one-failed", "20260503"
    work_id, _opened = fanned_out(six, session, day)
    finish(six, session, day, 1, **failing(1))
    finish(six, session, day, 2)
    work = work_ended(six.at["desk"], work_id)
    said = "1 of 2 branches completed; failed: sentiment agent (branch 1 failed)"
    assert (work["state"], work["message"]) == ("completed", said)
    result = work["result"]
    assert (result["status"], result["partial"]) == ("partial", True)
    assert same_json(result["error"], FAULT)
    assert [part["state"] for part in result["content"]] == ["failed", "completed"]


def test_the_assigned_work_fails_when_no_branch_completed(six: Six) -> None:
    session, day = "thread_all-failed", "20260504"
    work_id, opened = fanned_out(six, session, day)
    six.at["final"].post(f"/v1/works/{opened[1]}/reject", reason="busy", message="no time")
    finish(six, session, day, 1, **failing(1))
    work = work_ended(six.at["desk"], work_id)
    assert work["state"] == "failed"
    assert work["result"]["status"] == "failed"
    assert same_json(work["result"]["error"], FAULT)
    assert "busy" in work["result"]["content"][1]["message"]


def test_branches_that_have_the_same_next_agent_or_parent_are_joined(six: Six) -> None:
    session, day = "thread_second-level", "20260505"
    work_id, _handed = asked(six, session, f"req_{session}")
    first = plain("objective_agent", "goal_agent", session, f"req_{session}", 1, day)
    given = handed_out(six.at["goal"], "sentient", the_say(submit(six.at["objective"], "sentient", first))["id"])
    for number in (1, 2):
        message = plain("goal_agent", "sentiment agent", session, f"req_{session}", 2, day)
        message["message_id"] = f"{session}-b{number}"
        submit(six.at["goal"], "sentient", message)
    for number in (1, 2):
        end = plain("sentiment agent", None, session, f"req_{session}", 3, day)
        end["message_id"], end["metadata"]["parent_message_id"] = f"{session}-e{number}", f"{session}-b{number}"
        wait_for(lambda end=end: accepts(six, "executional", end), WITHIN, "the branch to arrive")  # type: ignore[misc]
    result = work_ended(six.at["desk"], work_id)["result"]
    assert [part["agent"] for part in result["content"]] == ["sentiment agent", "sentiment agent"]
    assert six.at["goal"].state_of(given["work_id"]) == "completed"


def accepts(six: Six, peer: str, message: Any) -> bool:
    """Whether a message was accepted; its parent may not have been delivered yet."""
    for one in six.at[peer].get("/v1/messages?direction=in&kind=say&limit=500")["messages"]:
        handed_out(six.at[peer], "sentient", one["id"])
    with contextlib.suppress(Exception):
        submit(six.at[peer], "sentient", message)
        return True
    return False


def test_branches_submitted_together_are_sent_together_or_not_at_all(six: Six) -> None:
    session, day = "thread_together", "20260506"
    work_id, handed = asked(six, session, f"req_{session}")
    messages = [branch(session, day, number, agent) for number, agent in enumerate(BRANCHES, 1)]
    wrong = {**messages[1], "status": {"code": "unheard-of", "message": None}}
    assert refused(six.at["objective"], [messages[0], wrong]) == {("/1/status/code", "enum")}
    assert six.at["objective"].state_of(handed["work_id"]) == "submitted"
    answer = submit(six.at["objective"], "sentient", messages)
    assert [sent["kind"] for sent in answer["sent"]] == ["trace", "say", "trace", "say"]
    assert same_json(answer["message"], messages)
    assert {one["path"] for one in answer["findings"]} == {"/0/timestamp/executed_at", "/1/timestamp/executed_at"}
    assert submit(six.at["objective"], "sentient", messages)["repeated"]
    for number, sent in ((1, answer["sent"][1]), (2, answer["sent"][3])):
        handed_out(six.at[PEERS[BRANCHES[number - 1]]], "sentient", sent["id"])
        finish(six, session, day, number)
    assert work_ended(six.at["desk"], work_id)["message"] == "2 of 2 branches completed"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="bridging to a command needs Linux")
def test_a_command_that_prints_an_array_has_several_next_agents(six: Six, tmp_path: Path) -> None:
    session, day = "thread_command", "20260509"
    messages = [branch(session, day, number, agent) for number, agent in enumerate(BRANCHES, 1)]
    (tmp_path / "answer").write_text(json.dumps(messages))
    objective = six.at["objective"]
    accept = ("--accept", "intent=fan-out")
    words = ("--name", objective.name, "bridge", "sentient", "--once", *accept, "--", "cat", str(tmp_path / "answer"))
    process = subprocess.Popen([sys.executable, "-m", "aghbus.cli", *words], env=objective.env)
    try:
        opened = six.at["desk"].post(
            "/v1/works",
            to="objective",
            text="Go",
            intent="fan-out",
            thread_id=session,
            trace_id=f"req_{session}",
        )
        assert process.wait(WITHIN) == 0
    finally:
        process.kill()
    says = objective.get("/v1/messages?direction=out&kind=say&limit=500")["messages"]
    for number, agent in enumerate(BRANCHES, 1):
        (said,) = (one["id"] for one in says if carried_id(one) == f"{session}-b{number}" and one["to"] == PEERS[agent])
        handed_out(six.at[PEERS[agent]], "sentient", said)
        finish(six, session, day, number)
    assert work_ended(six.at["desk"], opened["work_id"])["message"] == "2 of 2 branches completed"


def carried_id(message: dict[str, Any]) -> str | None:
    """The id of the message that an envelope carries."""
    carried = (message["envelope"].get("ext") or {}).get("sentient.message") or {}
    return carried.get("message_id")


def test_a_branch_that_comes_after_the_join_is_refused(six: Six) -> None:
    session, day = "thread_late", "20260507"
    work_id, _handed = asked(six, session, f"req_{session}")
    said = the_say(submit(six.at["objective"], "sentient", branch(session, day, 1, BRANCHES[0])))
    handed_out(six.at["executional"], "sentient", said["id"])
    finish(six, session, day, 1)
    assert work_ended(six.at["desk"], work_id)["result"]["content"] == "what sentiment agent says"
    assert refused(six.at["objective"], branch(session, day, 2, BRANCHES[1])) == {("", "work_closed")}


def test_the_end_of_a_work_with_open_branches_is_refused(six: Six) -> None:
    session, day = "thread_too-early", "20260508"
    work_id, _opened = fanned_out(six, session, day)
    own = {**branch(session, day, 3, "x"), "next_agent": {"name": None, "reason": "I am done"}}
    assert refused(six.at["objective"], own) == {("/next_agent/name", "branches_open")}
    for number in (1, 2):
        finish(six, session, day, number)
    assert work_ended(six.at["desk"], work_id)["message"] == "2 of 2 branches completed"


@pytest.mark.parametrize("point", ["send.decided:1", "send.committed:1", "publish.before:1", "bridge.appended:1"])
def test_a_daemon_killed_at_the_join_joins_once(six: Six, point: str, request: pytest.FixtureRequest) -> None:
    number = request.node.callspec.indices["point"]
    session, day = f"thread_killed-{number}", f"2026051{number}"
    work_id, opened = fanned_out(six, session, day)
    objective = six.at["objective"]
    finish(six, session, day, 1)
    work_ended(objective, opened[0])
    objective.kill()  # between the branches
    objective.start()
    with dying(objective, point), contextlib.suppress(OSError, HTTPException):
        finish(six, session, day, 2)
    work = work_ended(six.at["desk"], work_id)
    assert [part["state"] for part in work["result"]["content"]] == ["completed", "completed"]
    rows = objective.get("/v1/bridge/sentient/log")["rows"]
    assert [row["agent"] for row in rows if row["session_id"] == session].count("orchestration") == 1
    assert len(six.told(session)) == 1
