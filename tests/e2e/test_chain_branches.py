"""Chains over real daemons: parallel branches with a join, questions with time limits, and the loop of ADR-007."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chain_agents import Agent, Envelope, asked, begin, chain, reach, show
from tests.support.daemons import Daemon, Home, HttpError, wait_for
from tests.support.serving import Bus, script, serving

WITHIN = 20
LOOP = Path(__file__).parent.parent.parent / "docs" / "adapters" / "adr-007-loop.toml"

# Two branches that begin together, one of two nodes, and their join.
JOINED = {
    **chain(
        {
            "left": {"peer": "worker", "input": "left"},
            "more": {"peer": "worker", "input": "more {{response.data.said}}"},
            "right": {"peer": "worker", "input": "right"},
            "both": {"peer": "worker", "input": "{{more.data.said}} & {{right.data.said}}", "needs": ["left", "right"]},
        },
        ("left", "more", None),
    ),
    "start": ["left", "right"],
}


@contextlib.contextmanager
def two(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    home = Home(tmp_path)
    with Daemon(home, "ops") as ops, Daemon(home, "worker") as worker:
        yield ops, worker


def text_of(envelope: Envelope) -> str:
    return str(envelope["body"]["text"])


def say_back(agent: Agent, envelope: Envelope, _seq: int) -> None:
    agent.complete(envelope, said=text_of(envelope).upper())


def keep(agent: Agent, envelope: Envelope, _seq: int) -> None:
    """Leave the work open."""


def taken(agent: Agent, text: str) -> Envelope:
    """The envelope with this text, once the agent has taken it."""
    wait_for(lambda: text in agent.texts(), WITHIN, f"{text!r} to be taken")
    return next(envelope for envelope in agent.taken if text_of(envelope) == text)


def nodes_of(run: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(step["node"], step["branch"], step["work_state"]) for step in run["history"]]


# branches


def test_branches_run_side_by_side_and_the_join_gets_all_responses(tmp_path: Path) -> None:
    with two(tmp_path) as (ops, worker), Agent(worker, keep) as agent:
        run_id = begin(ops, JOINED)
        left, right = taken(agent, "left"), taken(agent, "right")  # both are open at once
        agent.complete(right, said="RIGHT")
        agent.complete(left, said="LEFT")
        more = taken(agent, "more LEFT")
        assert nodes_of(show(ops, run_id))[1:] == [("right", "right", "completed"), ("more", "left", "submitted")]
        agent.complete(more, said="MORE")
        agent.complete(taken(agent, "MORE & RIGHT"), said="both")
        run = reach(ops, run_id, "completed", "failed")
        assert run["state"] == "completed"
        assert [node for node, _, _ in nodes_of(run)] == ["left", "right", "more", "both"]
        assert run["response"]["data"] == {"said": "both"}


def test_a_branch_that_fails_ends_the_run_and_cancels_the_others(tmp_path: Path) -> None:
    with two(tmp_path) as (ops, worker), Agent(worker, keep) as agent:
        run_id = begin(ops, JOINED)
        left, right = taken(agent, "left"), taken(agent, "right")
        agent.fail(left, "no luck")
        run = reach(ops, run_id, "completed", "failed")
        assert (run["state"], run["error"]) == ("failed", "node left failed: no luck")
        assert nodes_of(run) == [("left", "left", "failed"), ("right", "right", "canceled")]
        wait_for(lambda: worker.state_of(right["work_id"]) == "canceled", WITHIN, "the receipt")


def test_a_canceled_run_cancels_the_works_of_all_branches(tmp_path: Path) -> None:
    with two(tmp_path) as (ops, worker), Agent(worker, keep) as agent:
        run_id = begin(ops, JOINED)
        works = [taken(agent, text)["work_id"] for text in ("left", "right")]
        ops.post(f"/v1/chains/runs/{run_id}/cancel")
        assert show(ops, run_id)["state"] == "canceled"
        wait_for(lambda: {worker.state_of(work_id) for work_id in works} == {"canceled"}, WITHIN, "the receipts")


def test_the_step_limit_counts_the_visits_of_all_branches(tmp_path: Path) -> None:
    with two(tmp_path) as (ops, worker), Agent(worker, say_back):
        run = reach(ops, begin(ops, {**JOINED, "max_steps": 3}), "completed", "failed")
        assert (run["state"], run["error"]) == ("failed", "the step limit of 3 is reached before node both")


@pytest.mark.parametrize("first", ["left", "right"])
def test_a_daemon_killed_between_two_branches_joins_them_once(tmp_path: Path, first: str) -> None:
    """One branch ends before the kill, the other one while the daemon is away."""
    other = "right" if first == "left" else "left"
    with two(tmp_path) as (ops, worker), Agent(worker, keep) as agent:
        run_id = begin(ops, chain_of_two := {**JOINED, "edges": [], "nodes": without_more(JOINED["nodes"])})
        opened = {text: taken(agent, text) for text in ("left", "right")}
        agent.complete(opened[first], said=first)
        wait_for(lambda: [*filter(None, (step["ended_ms"] for step in show(ops, run_id)["history"]))], WITHIN, first)
        ops.kill()
        agent.complete(opened[other], said=other)
        ops.start()
        agent.complete(taken(agent, "left & right"), said="both")
        assert reach(ops, run_id, "completed", "failed")["state"] == "completed"
        assert begin(ops, chain_of_two, run_id=run_id) == run_id
        assert sorted(agent.texts()) == ["left", "left & right", "right"]


@pytest.mark.parametrize("death", ["send.decided:1", "send.decided:2", "publish.before:2", "publish.confirmed:3"])
def test_a_daemon_killed_while_it_opens_branches_opens_each_once(home: Home, death: str) -> None:
    with Daemon(home, "worker") as worker, Agent(worker, say_back) as agent:
        ops = Daemon(home, "ops", env={"AGHD_FAILPOINT": death}).start()
        assert ops.process is not None
        try:
            with contextlib.suppress(ConnectionError):  # it may die before it answers
                begin(ops, JOINED, run_id="run_x")
            assert ops.process.wait(30) == -9, ops.log.read_text()
            del ops.env["AGHD_FAILPOINT"]
            ops.start()
            begin(ops, JOINED, run_id="run_x")
            assert reach(ops, "run_x", "completed", "failed")["state"] == "completed"
            assert sorted(agent.texts()) == ["MORE LEFT & RIGHT", "left", "more LEFT", "right"]
        finally:
            ops.stop()


def without_more(nodes: dict[str, Any]) -> dict[str, Any]:
    """The nodes of JOINED without the second one of the left branch."""
    both = {**nodes["both"], "input": "{{left.data.said}} & {{right.data.said}}"}
    return {"left": nodes["left"], "right": nodes["right"], "both": both}


# questions


def test_questions_of_two_branches_are_answered_one_by_one_over_a_kill(tmp_path: Path) -> None:
    def ask(agent: Agent, envelope: Envelope, _seq: int) -> None:
        if text_of(envelope) in ("left", "right"):
            agent.daemon.post(f"/v1/works/{envelope['work_id']}/need-input", message=f"{text_of(envelope)}?")
        else:
            say_back(agent, envelope, _seq)

    document = {**JOINED, "edges": [], "nodes": without_more(JOINED["nodes"])}
    with two(tmp_path) as (ops, worker), Agent(worker, ask):
        run_id = begin(ops, document)
        wait_for(lambda: len(questions(ops)) == 2, WITHIN, "both questions in the inbox")
        run = show(ops, run_id)
        assert (run["state"], run["node"], run["question"]) == ("waiting", "left", "left?")
        with pytest.raises(HttpError) as unclear:
            ops.post(f"/v1/chains/runs/{run_id}/answer", text="which?")
        assert "left, right" in unclear.value.answer["message"]
        told = ops.home.ctl("--name", "ops", "chain", "resume", run_id)
        assert told.returncode == 6
        assert b"--node left --answer TEXT" in told.stderr
        assert b"--node right --answer TEXT" in told.stderr
        ops.kill()
        ops.start()
        ops.post(f"/v1/chains/runs/{run_id}/answer", text="a", node="right")
        wait_for(lambda: show(ops, run_id)["history"][1]["work_state"] == "completed", WITHIN, "the right branch")
        assert questions(ops) == ["left?"]
        with pytest.raises(HttpError) as answered:
            ops.post(f"/v1/chains/runs/{run_id}/answer", text="again", node="right")
        assert answered.value.answer["code"] == "conflict"
        done = ops.home.ctl("--name", "ops", "chain", "resume", run_id, "--answer", "b", "-o", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["response"]["data"] == {"said": "B & A"}
        assert questions(ops) == []


def test_a_question_wakes_the_agent_that_waits_for_its_inbox(tmp_path: Path) -> None:
    def ask(agent: Agent, envelope: Envelope, _seq: int) -> None:
        agent.daemon.post(f"/v1/works/{envelope['work_id']}/need-input", message="which?")

    with two(tmp_path) as (ops, worker), Agent(ops, keep) as starter, Agent(worker, ask):
        run_id = begin(ops, chain({"a": {"peer": "worker", "input": "go"}}, ("a", "a", "true")))
        wait_for(lambda: starter.taken, WITHIN, "the question")
        assert starter.taken[0]["body"]["message"] == "which?"
        assert show(ops, run_id)["steps"] == 1  # the edge waits for the end of the node


def test_question_timeout_cancels_the_work_and_fails_the_node(tmp_path: Path) -> None:
    def ask(agent: Agent, envelope: Envelope, _seq: int) -> None:
        if text_of(envelope) == "ask":
            agent.daemon.post(f"/v1/works/{envelope['work_id']}/need-input", message="which?")
        else:
            say_back(agent, envelope, _seq)

    nodes = {
        "a": {"peer": "worker", "input": "ask", "answer_timeout": 0.5},
        "b": {"peer": "worker", "input": "{{response.message}}"},
    }
    with two(tmp_path) as (ops, worker), Agent(worker, ask) as agent:
        run = reach(ops, begin(ops, chain(nodes, ("a", "b", 'work.state == "canceled"'))), "completed", "failed")
        assert run["state"] == "completed"
        assert agent.texts() == ["ask", "no answer within 0.5 s"]
        wait_for(lambda: worker.state_of(run["history"][0]["work_id"]) == "canceled", WITHIN, "the receipt")
        assert questions(ops) == []


def test_work_rejected_as_busy_is_reopened_until_worker_is_free(home: Home) -> None:
    def work(agent: Agent, envelope: Envelope, _seq: int) -> None:
        if len(agent.taken) < 3:
            agent.daemon.post(f"/v1/works/{envelope['work_id']}/reject", reason="busy")
        else:
            agent.complete(envelope)

    # The message has an id of its own, which a second opening must not repeat.
    names = ("--bridge-agent", "asker=ops", "--bridge-agent", "helper=worker")
    document = chain({"a": {"peer": "worker", "format": "agentos", "input": asked("{{run.visit}}")}}, max_steps=1)
    with Daemon(home, "ops", *names) as ops, Daemon(home, "worker", *names) as worker, Agent(worker, work) as agent:
        run_id = begin(ops, document)
        wait_for(lambda: show(ops, run_id)["history"][0]["message"] == "worker is busy", WITHIN, "the refusal")
        ops.kill()
        ops.start()
        run = reach(ops, run_id, "completed", "failed")
        assert (run["state"], run["steps"]) == ("completed", 1)
        assert len({envelope["work_id"] for envelope in agent.taken}) == 3


def test_busy_worker_fails_node_at_timeout_unless_another_can_work(home: Home) -> None:
    def refuse(agent: Agent, envelope: Envelope, _seq: int) -> None:
        agent.daemon.post(f"/v1/works/{envelope['work_id']}/reject", reason="busy")

    able = ("--capability", "test.run")
    busy = {"peer": "worker-1", "input": "x", "timeout": 6}  # asked at once, and after 1 and 3 s: it is refused by then
    with (
        Daemon(home, "ops") as ops,
        Daemon(home, "worker-1", *able) as first,
        Daemon(home, "worker-2", *able) as second,
        Agent(first, refuse),
        Agent(second, say_back) as agent,
    ):
        run = reach(ops, begin(ops, chain({"a": busy})), "completed", "failed")
        assert run["error"] == "node a failed: worker-1 is busy for 6 s"
        wait_for(lambda: ops.knows("worker-1", "worker-2"), WITHIN, "both")
        run = reach(ops, begin(ops, chain({"a": {"capability": "test.run", "input": "x"}})), "completed", "failed")
        assert (run["state"], run["history"][0]["peer"], agent.texts()) == ("completed", "worker-2", ["x"])


def test_adr_007_loop_keeps_notes_and_asks_on_escalation(home: Home) -> None:
    """The example of the manual: the check recommends a retry, then the writer escalates, is answered, and all is well."""
    seen: list[tuple[str, int, str, list[str]]] = []

    def output(recommendation: str, *notes: str) -> dict[str, Any]:
        summary = f"{recommendation}: {len(notes)} notes"
        return {
            "success": recommendation == "proceed",
            "summary": summary,
            "artifacts": [],
            "notes": list(notes),
            "recommendation": recommendation,
        }

    answers = {
        "analyst": [output("proceed", "w1"), output("escalate"), output("retry", "w2"), output("proceed", "w3")],
        "reviewer": [output("retry", "c1", "c2"), output("proceed")],
    }

    def work(agent: Agent, envelope: Envelope, seq: int) -> None:
        got = agent.daemon.get(f"/v1/bridge/humaninloop/messages/{seq}")["message"]
        name = agent.daemon.name
        seen.append((name, got["context"]["iteration"], got["task"]["action"], got.get("prior_context", [])))
        agent.daemon.post("/v1/bridge/humaninloop", message=answers[name].pop(0), work_id=envelope["work_id"])

    with (
        Daemon(home, "ops") as ops,
        Daemon(home, "analyst") as analyst,
        Daemon(home, "reviewer") as reviewer,
        Agent(analyst, work) as writer,
        Agent(reviewer, work),
    ):
        options = ["--input-json", '{"feature_id":"005-user-auth"}', "--run-id", "loop"]
        asked = home.ctl("--name", "ops", "chain", "run", str(LOOP), *options)
        assert asked.returncode == 6, asked.stderr
        assert show(ops, "loop")["question"] == "escalate: 0 notes"
        assert questions(ops) == ["escalate: 0 notes"]
        done = home.ctl("--name", "ops", "chain", "resume", "loop", "--answer", "the second")
        assert done.returncode == 0, done.stderr
        assert [step["node"] for step in show(ops, "loop")["history"]] == ["write", "check", "write", "write", "check"]
    assert seen[0] == ("analyst", 1, "specify", [])
    assert seen[1] == ("reviewer", 1, "validate", ["w1"])
    assert seen[2] == ("analyst", 2, "specify", ["c1", "c2"])  # it escalates
    assert text_of(writer.taken[2]) == "the second"  # and is answered within the same work
    assert seen[4] == ("analyst", 3, "specify", ["c1", "c2"])  # its own retry
    assert seen[5] == ("reviewer", 2, "validate", ["w3"])


def questions(ops: Daemon) -> list[str]:
    """The questions in the inbox that nobody has answered."""
    items = ops.get("/v1/inbox?limit=1000")["items"]
    return [item["message"]["envelope"]["body"]["message"] for item in items if item["state"] == "ready"]


# workers


def test_branches_for_one_busy_worker_wait_for_it(tmp_path: Path) -> None:
    home = Home(tmp_path)
    document = {**JOINED, "edges": [], "nodes": without_more(JOINED["nodes"])}
    document["nodes"]["both"]["input"] = "both"
    with Daemon(home, "worker", "--capability", "test.run") as worker, Daemon(home, "ops") as ops:
        bus = Bus(home, ops, worker)
        bus.meet()
        command = script(tmp_path, "import json, sys\nprint(json.load(sys.stdin)['text'])")
        with serving(bus, tmp_path, "--max-jobs", "3", command=command) as serve:
            run = reach(ops, begin(ops, document), "completed", "failed")
            assert run["state"] == "completed", run
            assert serve.ended() == 0
