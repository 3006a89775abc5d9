"""`aghctl a2a join` with an agent on the SDK's own server, in each binding."""

import urllib.request
from pathlib import Path

import pytest

from tests.support.a2a_agent import LEAK
from tests.support.daemons import wait_for
from tests.support.joining import AgentProcess, Join
from tests.support.serving import WAIT, Bus


def test_a_work_is_a_task_and_its_text_comes_back(bus: Bus, joined: Join, reviewer: AgentProcess) -> None:
    before = len(reviewer.runs("done it"))
    work_id = bus.open("done it")
    end = bus.end_of(work_id)
    assert (end["after"], end["message"]) == ("completed", "it is good")
    assert len(reviewer.runs("done it")) == before + 1
    assert joined.of(work_id, "reported")["verb"] == "complete"


def test_its_events_are_counted(bus: Bus, joined: Join) -> None:
    work_id = bus.open("say something")
    bus.end_of(work_id)
    joined.of(work_id, "reported")
    with urllib.request.urlopen(f"http://127.0.0.1:{joined.until('metrics')['port']}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    counts = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(counts['aghbus_a2a_join_events_total{event="reported"}']) >= 1
    assert "aghbus_a2a_join_running" in counts


def test_the_skills_of_the_card_are_found(bus: Bus, joined: Join) -> None:
    found = bus.ops.post("/v1/whois", query="text.review")["peers"]
    assert [peer["peer_id"] for peer in found] == ["worker"]
    record = bus.worker.get("/v1/capabilities/Summarise-things")["document"]
    assert record["summary"] == "Summary: Says it in short (text, short)"


def test_files_and_data(bus: Bus, joined: Join, tmp_path: Path) -> None:
    work_id = bus.open("file x", intent="text.review")
    end = bus.end_of(work_id)
    assert (end["message"], end["result"]) == ("two files", {"findings": 2})
    (reference,) = end["artifacts"]
    assert reference["name"] == "a_b.bin"
    done = bus.home.ctl("--name", "ops", "artifact", "get", work_id, "a_b.bin", "-O", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out").read_bytes() == b"\0\1" * 500_000


def test_an_artifact_in_pieces_is_whole(bus: Bus, joined: Join, reviewer: AgentProcess) -> None:
    name = f"pieces{joined.name}"
    work_id = bus.open(f"pieces {name}")
    joined.of(work_id, "working")
    reviewer.go(name)
    assert bus.end_of(work_id)["message"] == "one two three"


def test_an_artifact_in_pieces_after_an_answer_is_whole(bus: Bus, joined: Join, reviewer: AgentProcess) -> None:
    name = f"answer{joined.name}"
    work_id = bus.open("ask it")
    wait_for(lambda: bus.ops.state_of(work_id) == "needs_input", WAIT, "the question")
    bus.ops.post(f"/v1/works/{work_id}/say", message=f"pieces {name}")
    joined.until("working", work_id=work_id, message="wrote one")
    reviewer.go(name)
    assert bus.end_of(work_id)["message"] == "one two three"


def test_a_question_is_asked_and_answered(bus: Bus, joined: Join, reviewer: AgentProcess) -> None:
    work_id = bus.open("ask it")
    wait_for(lambda: bus.ops.state_of(work_id) == "needs_input", WAIT, "the question")
    assert bus.traces(work_id)[-1]["message"] == "Which branch?"
    bus.ops.post(f"/v1/works/{work_id}/say", message="main")
    end = bus.end_of(work_id)
    assert (end["after"], end["message"]) == ("completed", "on main")


def test_what_is_said_while_the_agent_works_reaches_the_task_in_order(
    bus: Bus, joined: Join, reviewer: AgentProcess
) -> None:
    name = f"order{joined.name}"
    work_id = bus.open(f"listen {name}")
    wait_for(lambda: bus.ops.state_of(work_id) == "working", WAIT, "the work to be worked on")
    for text in ("first", "second"):
        bus.ops.post(f"/v1/works/{work_id}/say", message=f"more {name} {text}")
    reviewer.go(name)
    wait_for(lambda: f"{name} second" in "".join(reviewer.lines("runs")), WAIT, "the second to arrive")
    bus.ops.post(f"/v1/works/{work_id}/say", message=f"{name} the end")
    assert bus.end_of(work_id)["message"] == f"on {name} the end"
    said = "\n".join([line for line in reviewer.lines("runs") if name in line][1:])
    assert said.index("first") < said.index("second") < said.index("the end")
    assert [said.count(text) for text in ("first", "second", "the end")] == [1, 1, 1]


def test_a_login_is_marked_and_the_task_goes_on_by_itself(bus: Bus, joined: Join, reviewer: AgentProcess) -> None:
    work_id = bus.open(f"login {joined.name}")
    wait_for(lambda: bus.ops.state_of(work_id) == "needs_input", WAIT, "the question")
    envelope = bus.ops.get(f"/v1/messages?work={work_id}&kind=trace")["messages"][-1]["envelope"]
    assert envelope["ext"]["aghbus.auth_required"] is True
    reviewer.go(joined.name)
    assert bus.end_of(work_id)["message"] == "went"


def test_a_canceled_work_cancels_the_task(bus: Bus, joined: Join, reviewer: AgentProcess) -> None:
    work_id = bus.open("wait forever")
    task = joined.of(work_id, "sent")["task"]
    wait_for(lambda: bus.ops.state_of(work_id) == "working", WAIT, "the work to be worked on")
    bus.ops.post(f"/v1/works/{work_id}/cancel")
    wait_for(lambda: task in reviewer.lines("canceled"), WAIT, "the task to be canceled")
    joined.of(work_id, "dropped")


@pytest.mark.parametrize(
    ("text", "state", "message"),
    [
        ("reject x", "failed", "the agent rejected the task: not \x1b[31mtoday"),
        ("fail x", "failed", "no disk"),
        ("say hello you", "completed", "hello you"),
    ],
)
def test_ends(bus: Bus, joined: Join, text: str, state: str, message: str) -> None:
    end = bus.end_of(bus.open(text))
    assert (end["after"], end["message"]) == (state, message)


def test_what_looks_like_a_credential_is_replaced(bus: Bus, joined: Join) -> None:
    """In progress, questions and ends: the daemon refuses it."""
    work_id = bus.open("leak it")
    wait_for(lambda: bus.ops.state_of(work_id) == "needs_input", WAIT, "the question")
    assert LEAK not in bus.traces(work_id)[-1]["message"]
    bus.ops.post(f"/v1/works/{work_id}/say", message="leak")
    end = bus.end_of(work_id)
    assert end["after"] == "failed"
    assert LEAK not in end["message"] and "the agent rejected the task: the key is" in end["message"]
