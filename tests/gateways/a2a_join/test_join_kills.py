"""`aghctl a2a join` over kill -9 of itself, of its daemon and of the agent: each work is one task, and is sent once."""

import json
from pathlib import Path

import pytest

from tests.support.daemons import wait_for
from tests.support.joining import AgentProcess, Join, agent, journals, phases
from tests.support.serving import WAIT, Bus


def killed(join: Join) -> None:
    join.process.kill()
    join.process.wait(WAIT)


def until_state(bus: Bus, work_id: str, state: str) -> None:
    wait_for(lambda: bus.ops.state_of(work_id) == state, WAIT, f"the state {state}")


def test_a_killed_join_goes_on_with_the_same_tasks(bus: Bus, reviewer: AgentProcess) -> None:
    """One work in each state: working here and there, ended while nobody looked, asked and answered, canceled."""
    with Join(bus, reviewer.url, "--concurrency", "8") as join:
        works, gone, early, asked, canceled = (
            bus.open(text) for text in ("wait late", "wait gone", "slow early", "ask first", "wait never")
        )
        for work_id in (works, gone, canceled):
            until_state(bus, work_id, "working")
        until_state(bus, asked, "needs_input")
        wait_for(
            lambda: phases(bus, early)[-1:] == ["sending"] and reviewer.runs("slow early"), WAIT, "a message on its way"
        )
        task = join.of(canceled, "sent")["task"]
        killed(join)
    checks = {
        row["check"]: row
        for row in json.loads(bus.home.ctl("--name", "worker", "doctor", "-o", "json").stdout)["checks"]
    }
    left = len(journals(bus))  # also those of joins that other tests have killed
    assert all(phases(bus, work_id) for work_id in (works, gone, early, asked, canceled))
    assert checks["a2a join"]["state"] == "warn"
    assert checks["a2a join"]["detail"].startswith(f"{left} works of a process")
    reviewer.go("gone")
    bus.ops.post(f"/v1/works/{asked}/say", message="trunk")
    bus.ops.post(f"/v1/works/{canceled}/cancel")
    with Join(bus, reviewer.url, "--concurrency", "8") as join:
        reviewer.go("early")
        assert bus.end_of(gone)["message"] == "went"
        assert bus.end_of(asked)["message"] == "on trunk"
        assert bus.end_of(early)["message"] == "went"
        wait_for(lambda: task in reviewer.lines("canceled"), WAIT, "the task to be canceled")
        reviewer.go("late")
        assert bus.end_of(works)["message"] == "went"
        join.of(works, "reported")
        for work_id in (works, gone, early, asked, canceled):
            wait_for(lambda work_id=work_id: not phases(bus, work_id), WAIT, "its journal to be removed")  # type: ignore[misc]
    for text in ("wait late", "wait gone", "slow early", "ask first", "wait never", "trunk"):
        assert len(reviewer.runs(text)) == 1, text


def test_an_answer_that_the_agent_has_is_not_sent_again(bus: Bus, reviewer: AgentProcess) -> None:
    """Killed after an answer went out, before that it arrived was on disk: the history of the task shows it."""
    with Join(bus, reviewer.url) as join:
        work_id = bus.open("ask again")
        until_state(bus, work_id, "needs_input")
        bus.ops.post(f"/v1/works/{work_id}/say", message="more answers")
        wait_for(lambda: phases(bus, work_id)[-1:] == ["said"], WAIT, "the answer to arrive")
        killed(join)
    ((path, text),) = [each for each in journals(bus).items() if work_id in each[1]]
    path.write_text("".join(text.splitlines(keepends=True)[:-1]))
    with Join(bus, reviewer.url) as join:
        join.of(work_id, "answered")
        bus.ops.post(f"/v1/works/{work_id}/say", message="the last")
        assert bus.end_of(work_id)["message"] == "on the last"
    assert len(reviewer.runs("more answers")) == 1


def test_a_task_that_ended_before_it_was_known_keeps_its_artifacts(bus: Bus, reviewer: AgentProcess) -> None:
    with Join(bus, reviewer.url) as join:
        work_id = bus.open("slow listed")
        wait_for(lambda: reviewer.runs("slow listed"), WAIT, "a message on its way")
        killed(join)
    reviewer.go("listed")
    with Join(bus, reviewer.url):
        assert bus.end_of(work_id)["result"] == {"artifacts": [{"name": "review", "text": "all of it"}]}


def test_what_may_have_been_sent_is_not_sent_again(bus: Bus, tmp_path: Path) -> None:
    """An agent that does not list its tasks: the work fails and says why, unless the operator allows a repetition."""
    with agent(tmp_path / "agent", "nolist", "jsonrpc") as other:
        with Join(bus, other.url) as join:
            first = bus.open("slow one")
            wait_for(lambda: other.runs("slow one"), WAIT, "the message on its way")
            killed(join)
        with Join(bus, other.url) as join:
            end = bus.end_of(first)
            assert end["after"] == "failed"
            assert "it is not known whether the agent has got this work: it cannot list its tasks" in end["message"]
            second = bus.open("slow two")
            wait_for(lambda: other.runs("slow two"), WAIT, "the message on its way")
            killed(join)
        with Join(bus, other.url, "--resend"):
            wait_for(lambda: len(other.runs("slow two")) == 2, WAIT, "the repetition")
            other.go("two")
            assert bus.end_of(second)["message"] == "went"
        assert len(other.runs("slow one")) == 1
        assert len(set(other.runs("slow two"))) == 1  # with the same message id


def test_the_daemon_is_killed(bus: Bus, reviewer: AgentProcess) -> None:
    with Join(bus, reviewer.url) as join:
        work_id = bus.open("wait daemon")
        until_state(bus, work_id, "working")
        bus.worker.kill()
        reviewer.go("daemon")
        bus.worker.start()
        assert bus.end_of(work_id)["message"] == "went"
        join.of(work_id, "reported")
    assert len(reviewer.runs("wait daemon")) == 1


def test_a_join_ends_while_its_daemon_is_away(bus: Bus, reviewer: AgentProcess) -> None:
    with Join(bus, reviewer.url) as join:
        work_id = bus.open("wait ended")
        until_state(bus, work_id, "working")
        bus.worker.kill()
        try:
            assert join.stop() == 0
        finally:
            bus.worker.start()
    with Join(bus, reviewer.url):
        reviewer.go("ended")
        assert bus.end_of(work_id)["message"] == "went"
    assert len(reviewer.runs("wait ended")) == 1


@pytest.mark.parametrize("kept", [True, False])
def test_the_agent_is_killed_and_comes_back(bus: Bus, tmp_path: Path, kept: bool) -> None:
    with agent(tmp_path / "agent", *(["kept"] if kept else []), "http") as other, Join(bus, other.url) as join:
        work_id = bus.open("wait agent")
        until_state(bus, work_id, "working")
        other.kill()
        join.of(work_id, "away")
        later = bus.open("done later")  # not taken while the agent is away
        other.start()
        end = bus.end_of(work_id)
        assert end["after"] == ("completed" if kept else "failed")
        assert end["message"] == (
            "completed after a restart"
            if kept
            else "the agent refused: it does not know the task any more, perhaps since it was restarted"
        )
        assert bus.end_of(later)["message"] == "it is good"
        assert len(other.runs("wait agent")) == 1


def test_a_work_for_an_agent_that_is_away_goes_out_once_it_is_back(bus: Bus, tmp_path: Path) -> None:
    with agent(tmp_path / "agent", "http") as other:
        with Join(bus, other.url) as join:
            other.kill()
            work_id = bus.open("done back")
            join.of(work_id, "away")
            assert bus.ops.state_of(work_id) == "submitted"
            killed(join)
            assert "unsent" in phases(bus, work_id)
        other.start()
        with Join(bus, other.url):
            assert bus.end_of(work_id)["message"] == "it is good"
        assert len(other.runs("done back")) == 1


@pytest.mark.parametrize("binding", ["jsonrpc", "http", "grpc"])
def test_an_artifact_in_pieces_is_whole_over_broken_streams(bus: Bus, tmp_path: Path, binding: str) -> None:
    with agent(tmp_path / "agent", "cuts", binding) as other, Join(bus, other.url) as join:
        work_id = bus.open("pieces cut")
        join.of(work_id, "away")
        join.of(work_id, "back")
        other.go("cut")
        assert bus.end_of(work_id)["message"] == "one two three"
        assert len(other.runs("pieces cut")) == 1


def test_an_artifact_in_pieces_is_whole_over_a_kill(bus: Bus, reviewer: AgentProcess) -> None:
    with Join(bus, reviewer.url) as join:
        work_id = bus.open("pieces killed")
        until_state(bus, work_id, "working")
        killed(join)
    with Join(bus, reviewer.url) as join:
        join.of(work_id, "working")
        reviewer.go("killed")
        assert bus.end_of(work_id)["message"] == "one two three"


def test_an_agent_without_streams_is_polled(bus: Bus, tmp_path: Path) -> None:
    with agent(tmp_path / "agent", "nostream", "jsonrpc") as other, Join(bus, other.url) as join:
        work_id = bus.open("wait here")
        join.of(work_id, "working")
        other.go("here")
        assert bus.end_of(work_id)["message"] == "went"
        asked = bus.open("ask it")
        wait_for(lambda: bus.ops.state_of(asked) == "needs_input", WAIT, "the question")
        bus.ops.post(f"/v1/works/{asked}/say", message="main")
        assert bus.end_of(asked)["message"] == "on main"


def test_artifacts_without_end_fail_the_work(bus: Bus, reviewer: AgentProcess) -> None:
    with Join(bus, reviewer.url) as join:
        work_id = bus.open("flood it")
        end = bus.end_of(work_id)
        assert end["after"] == "failed" and "are larger than" in end["message"]
        assert join.of(work_id, "canceled")["task"] in reviewer.lines("canceled")
