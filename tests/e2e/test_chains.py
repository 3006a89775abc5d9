"""Chains over real daemons: data and decisions from node to node, pauses, crashes, limits, and agents of other formats."""

import contextlib
import json
import signal
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chain_agents import Agent, Envelope, asked, begin, chain, handed, reach, show
from tests.support.daemons import Daemon, Home, HttpError, wait_for

# seed 004, section 6
RESEARCHED = {
    "thought": "I found the CEO is John Doe, but no direct email. I will guess standard formats.",
    "status": "success",
    "data": {
        "ceo_name": "John Doe",
        "domain": "acme.com",
        "guesses": ["john.doe@acme.com", "jdoe@acme.com"],
    },
    "message": "I identified the CEO as John Doe.",
}


@contextlib.contextmanager
def network(tmp_path: Path, *names: str) -> Iterator[list[Daemon]]:
    """Daemons of one home that know each other; whatever a test did to them, they are ended."""
    home = Home(tmp_path)
    daemons = [Daemon(home, name) for name in names]
    try:
        for daemon in daemons:
            daemon.start()
        yield daemons
    finally:
        for daemon in daemons:
            if daemon.process is not None:
                daemon.stop()


def test_three_agents_of_three_formats_and_the_data_between_them(tmp_path: Path) -> None:
    """The example of the seed: research, validate, report; SACP, ADR-007 and a native agent."""

    def research(agent: Agent, envelope: Envelope, _seq: int) -> None:
        text = "Sure, here it is:\n```json\n" + json.dumps(RESEARCHED) + "\n```"
        agent.daemon.post("/v1/bridge/sacp", text=text, work_id=envelope["work_id"])

    def review(agent: Agent, envelope: Envelope, seq: int) -> None:
        handed = agent.daemon.get(f"/v1/bridge/humaninloop/messages/{seq}")["message"]
        assert handed["context"]["feature_id"] == "acme"
        assert handed["task"] == {"action": "check", "input": RESEARCHED["data"]["guesses"]}  # type: ignore[index]
        output = {"success": True, "summary": "one is real", "artifacts": [], "notes": [], "recommendation": "proceed"}
        agent.daemon.post("/v1/bridge/humaninloop", message=output, work_id=envelope["work_id"])

    def report(agent: Agent, envelope: Envelope, _seq: int) -> None:
        agent.complete(envelope, "sent", to="jdoe@acme.com")

    document = """
    name = "email"
    start = "researcher"
    max_steps = 5

    [nodes.researcher]
    peer = "sacp-agent"
    format = "sacp"
    input = "{{input}}"

    [nodes.validator]
    peer = "adr-agent"
    format = "humaninloop"
    [nodes.validator.input]
    context = { feature_id = "acme", workflow = "mail", iteration = 1 }
    paths = { feature_root = "specs/acme/" }
    task = { action = "check", input = "{{researcher.data.guesses}}" }

    [nodes.reporter]
    peer = "native-agent"
    intent = "report"
    input = "{{researcher.message}} {{response.summary}}: {{researcher.data.guesses}}"

    [[edges]]
    from = "researcher"
    to = "validator"
    when = 'response.status == "success" and response.data.guesses[0] != null'

    [[edges]]
    from = "validator"
    to = "reporter"
    when = 'response.success and response.recommendation == "proceed" and work.state == "completed"'
    """
    file = tmp_path / "email.toml"
    file.write_text(document)
    with (
        network(tmp_path, "ops", "sacp-agent", "adr-agent", "native-agent") as (ops, *others),
        Agent(others[0], research) as first,
        Agent(others[1], review),
        Agent(others[2], report) as last,
    ):
        done = ops.home.ctl(
            *("--name", "ops", "chain", "run", str(file), "--input", "Find the email of the CEO of Acme Corp."),
            *("-o", "json"),
        )
        assert done.returncode == 0, done.stderr
        run = json.loads(done.stdout)
        assert run["state"] == "completed"
        assert [step["node"] for step in run["history"]] == ["researcher", "validator", "reporter"]
        assert run["history"][0]["response"] == RESEARCHED
        assert run["history"][1]["response"]["recommendation"] == "proceed"
        assert run["response"] == {
            "thought": "",
            "status": "success",
            "data": {"to": "jdoe@acme.com"},
            "message": "sent",
        }
        assert first.texts() == ["Find the email of the CEO of Acme Corp."]
        assert last.texts() == ['I identified the CEO as John Doe. one is real: ["john.doe@acme.com","jdoe@acme.com"]']
        assert last.taken[0]["body"]["intent"] == "report"
        threads = {envelope["thread_id"] for envelope in first.taken + last.taken}
        assert len(threads) == 1
        assert {envelope["trace_id"] for envelope in first.taken + last.taken} == {run["run_id"]}


def test_a_failure_follows_its_edge_else_ends_the_run(tmp_path: Path) -> None:
    def work(agent: Agent, envelope: Envelope, _seq: int) -> None:
        if envelope["body"]["text"].startswith("handle"):
            agent.complete(envelope)
        else:
            agent.fail(envelope, "no luck")

    nodes = {
        "a": {"peer": "worker", "input": "try"},
        "b": {"peer": "worker", "input": "go on"},
        "c": {"peer": "worker", "input": "handle {{response.message}} of {{work.id}}"},
    }
    with network(tmp_path, "ops", "worker") as (ops, worker), Agent(worker, work) as agent:
        handled = chain(nodes, ("a", "b", 'response.status == "success"'), ("a", "c", 'response.status == "failure"'))
        run = reach(ops, begin(ops, handled), "completed", "failed")
        assert run["state"] == "completed"
        assert agent.texts() == ["try", f"handle no luck of {run['history'][0]['work_id']}"]
        run = reach(ops, begin(ops, chain(nodes, ("a", "b", None))), "completed", "failed")
        assert (run["state"], run["error"], run["steps"]) == ("failed", "node a failed: no luck", 1)
        shown = ops.home.ctl("--name", "ops", "chain", "watch", run["run_id"])
        assert shown.returncode == 1
        assert b"no luck" in shown.stdout


def test_a_loop_ends_at_the_step_limit_with_one_work_for_each_step(tmp_path: Path) -> None:
    def count(agent: Agent, envelope: Envelope, _seq: int) -> None:
        agent.complete(envelope, n=len(agent.taken))

    nodes = {"a": {"peer": "worker", "input": "round"}}
    loop = chain(nodes, ("a", "a", "response.data.n < 100"), max_steps=4)
    with network(tmp_path, "ops", "worker") as (ops, worker), Agent(worker, count) as agent:
        run = reach(ops, begin(ops, loop), "completed", "failed")
        assert run["state"] == "failed"
        assert "step limit of 4" in run["error"]
        assert len(agent.taken) == 4
        assert len({envelope["work_id"] for envelope in agent.taken}) == 4
        assert [step["response"] for step in run["history"][:3]] == [None] * 3
        assert run["response"]["data"] == {"n": 4}
        enough = chain(nodes, ("a", "a", "response.data.n < 6"), max_steps=4)
        assert reach(ops, begin(ops, enough), "completed", "failed")["state"] == "completed"


def test_a_killed_daemon_continues_its_run_and_no_node_runs_twice(tmp_path: Path) -> None:
    held = threading.Event()

    def work(agent: Agent, envelope: Envelope, _seq: int) -> None:
        if envelope["body"]["text"] == "two":
            held.wait(60)
        agent.complete(envelope, n=len(agent.taken))

    nodes = {
        name: {"peer": "worker", "input": text} for name, text in (("a", "one"), ("b", "two"), ("c", "{{b.data.n}}"))
    }
    document = chain(nodes, ("a", "b", None), ("b", "c", None))
    with network(tmp_path, "ops", "worker") as (ops, worker), Agent(worker, work) as agent:
        run_id = begin(ops, document)
        wait_for(lambda: len(agent.taken) == 2, 20, "the second node")
        ops.kill()
        held.set()  # its result comes while nobody is there
        wait_for(lambda: worker.state_of(agent.taken[1]["work_id"]) == "completed", 20, "the second result")
        ops.start()
        run = reach(ops, run_id, "completed", "failed")
        assert run["state"] == "completed"
        assert agent.texts() == ["one", "two", "2"]
        assert len(worker.get("/v1/works")["works"]) == 3


@pytest.mark.parametrize("death", ["send.decided:2", "send.decided:3", "publish.before:2", "publish.confirmed:2"])
def test_a_daemon_killed_while_it_opens_a_node_opens_it_once(tmp_path: Path, death: str) -> None:
    def work(agent: Agent, envelope: Envelope, _seq: int) -> None:
        agent.complete(envelope)

    nodes = {name: {"peer": "worker", "input": name} for name in "abc"}
    document = chain(nodes, ("a", "b", None), ("b", "c", None))
    with network(tmp_path, "worker") as (worker,), Agent(worker, work) as agent:
        ops = Daemon(worker.home, "ops", env={"AGHD_FAILPOINT": death}).start()
        assert ops.process is not None
        try:
            with contextlib.suppress(ConnectionError):  # it may die before it answers
                begin(ops, document, run_id="run_x")
            assert ops.process.wait(30) == -signal.SIGKILL, ops.log.read_text()
            del ops.env["AGHD_FAILPOINT"]
            ops.start()
            begin(ops, document, run_id="run_x")
            assert reach(ops, "run_x", "completed", "failed")["state"] == "completed"
            assert agent.texts() == ["a", "b", "c"]
        finally:
            ops.stop()


def test_a_question_pauses_the_run_until_it_is_answered_over_a_restart(tmp_path: Path) -> None:
    def ask(agent: Agent, envelope: Envelope, _seq: int) -> None:
        asked = [one for one in agent.taken if one["work_id"] == envelope["work_id"]]
        if len(asked) == 1 and envelope["body"]["text"] == "find it":
            agent.daemon.post(f"/v1/works/{envelope['work_id']}/need-input", message="which\x1b[31m one?")
        else:
            agent.complete(envelope, said=envelope["body"]["text"])

    nodes = {"a": {"peer": "worker", "input": "find it"}, "b": {"peer": "worker", "input": "{{a.data.said}}"}}
    file = tmp_path / "ask.json"
    file.write_text(json.dumps(chain(nodes, ("a", "b", "response.data.said != null"))))
    with network(tmp_path, "ops", "worker") as (ops, worker), Agent(worker, ask) as agent:
        ctl = ops.home.ctl
        asked = ctl("--name", "ops", "chain", "run", str(file), "--run-id", "r1")
        assert asked.returncode == 6
        assert b"which\\x1b[31m one?" in asked.stderr
        assert b"chain resume r1 --answer" in asked.stderr
        assert b"\x1b" not in asked.stdout + asked.stderr
        ops.kill()
        ops.start()
        assert show(ops, "r1")["question"] == "which\x1b[31m one?"
        listed = ops.home.ctl_json("--name", "ops", "chain", "list", "--state", "waiting")
        assert [run["run_id"] for run in listed["runs"]] == ["r1"]
        assert ctl("--name", "ops", "chain", "resume", "r1").returncode == 6  # it still waits
        answered = ctl("--name", "ops", "chain", "resume", "r1", "--answer", "the red one", "-o", "json")
        assert answered.returncode == 0, answered.stderr
        run = json.loads(answered.stdout)
        assert (run["state"], run["question"]) == ("completed", None)
        assert agent.texts() == ["find it", "the red one", "the red one"]
        with pytest.raises(HttpError) as late:
            ops.post("/v1/chains/runs/r1/answer", text="too late")
        assert (late.value.status, late.value.answer["code"]) == (409, "conflict")


def test_a_canceled_run_cancels_its_work(tmp_path: Path) -> None:
    document = chain(
        {"a": {"peer": "worker", "input": "wait"}, "b": {"peer": "worker", "input": "x"}}, ("a", "b", None)
    )
    with network(tmp_path, "ops", "worker") as (ops, worker):
        run_id = begin(ops, document)
        wait_for(lambda: worker.get("/v1/works")["works"], 20, "the work")
        canceled = ops.home.ctl_json("--name", "ops", "chain", "cancel", run_id)
        assert canceled["state"] == "canceled"
        work_id = canceled["history"][0]["work_id"]
        wait_for(lambda: worker.state_of(work_id) == "canceled", 20, "the receipt")
        assert len(worker.get("/v1/works")["works"]) == 1
        assert ops.home.ctl("--name", "ops", "chain", "cancel", run_id).returncode == 4
        assert ops.home.ctl("--name", "ops", "chain", "show", "nobody").returncode == 4


def test_a_node_with_a_capability_selects_the_first_peer_or_waits_for_one(tmp_path: Path) -> None:
    def work(agent: Agent, envelope: Envelope, _seq: int) -> None:
        agent.complete(envelope)

    able = ("--capability", "email.check")
    document = chain({"a": {"capability": "email.check", "input": "check"}})
    with network(tmp_path, "ops") as (ops,):
        run_id = begin(ops, document)
        run = show(ops, run_id)
        assert (run["state"], run["history"][0]["peer"], run["history"][0]["work_state"]) == (
            "running",
            None,
            "waiting",
        )
        with Daemon(ops.home, "worker-2", *able) as second, Agent(second, work):
            run = reach(ops, run_id, "completed")
            assert run["history"][0]["peer"] == "worker-2"
            with Daemon(ops.home, "worker-1", *able) as first, Agent(first, work):
                wait_for(lambda: ops.knows("worker-1", "worker-2"), 20, "both")
                run = reach(ops, begin(ops, document), "completed")
                assert run["history"][0]["peer"] == "worker-1"


def test_a_node_fails_at_its_timeout_and_its_work_is_canceled(tmp_path: Path) -> None:
    def work(agent: Agent, envelope: Envelope, _seq: int) -> None:
        if envelope["body"]["text"] != "slow":
            agent.complete(envelope)

    nodes = {
        # An opening lives no longer than its node waits: time enough for the agent to get it.
        "a": {"peer": "worker", "input": "slow", "timeout": 5},
        "b": {"capability": "nobody.has.it", "input": "x", "timeout": 0.5},
        "c": {"peer": "worker", "input": "{{response.message}}"},
    }
    edges = [("a", "b", 'work.state == "canceled"'), ("b", "c", 'work.state == "failed"')]
    with network(tmp_path, "ops", "worker") as (ops, worker), Agent(worker, work) as agent:
        run = reach(ops, begin(ops, chain(nodes, *edges)), "completed", "failed")
        assert run["state"] == "completed", run
        assert agent.texts() == ["slow", "no peer with capability nobody.has.it within 0.5 s"]
        wait_for(lambda: worker.state_of(run["history"][0]["work_id"]) == "canceled", 20, "the receipt")


def test_the_same_request_is_the_same_run(tmp_path: Path) -> None:
    document = chain({"a": {"peer": "worker", "input": "{{input.x}}"}})
    with network(tmp_path, "ops", "worker") as (ops, worker):
        for _ in range(2):
            assert begin(ops, document, input={"x": 1}, run_id="once") == "once"
        assert show(ops, "once")["steps"] == 1
        with pytest.raises(HttpError) as other:
            begin(ops, document, input={"x": True}, run_id="once")
        assert other.value.answer["code"] == "conflict"
        wait_for(lambda: worker.get("/v1/works")["works"], 20, "the work")
        assert len(worker.get("/v1/works")["works"]) == 1


def test_unresolved_reference_fails_run_and_braces_stay_literal(tmp_path: Path) -> None:
    def work(agent: Agent, envelope: Envelope, _seq: int) -> None:
        agent.complete(envelope, said="{{input}} {{nobody.x}} {{")

    nodes = {"a": {"peer": "worker", "input": "x"}, "b": {"peer": "worker", "input": "<{{a.data.said}}>"}}
    missing = {**nodes, "b": {"peer": "worker", "input": "{{a.data.other}}"}}
    with network(tmp_path, "ops", "worker") as (ops, worker), Agent(worker, work) as agent:
        assert reach(ops, begin(ops, chain(nodes, ("a", "b", None))), "completed", "failed")["state"] == "completed"
        assert agent.texts() == ["x", "<{{input}} {{nobody.x}} {{>"]
        run = reach(ops, begin(ops, chain(missing, ("a", "b", None))), "completed", "failed")
        assert run["state"] == "failed"
        assert "input of node b" in run["error"]
        assert "{{a.data.other}}" in run["error"]
        assert (run["history"][1]["work_id"], run["history"][1]["peer"]) == (None, "worker")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"chain": {}}, "chain"),
        ({"chain": chain({"a": {"peer": "ops", "input": 1}})}, "chain/nodes/a/peer"),
        ({"chain": chain({"a": {"peer": "p", "input": "{{b.x}}"}})}, "chain/nodes/a/input"),
        ({"chain": chain({"a": {"peer": "p", "input": 1}}), "run_id": "../x"}, "run_id"),
        ({"chain": chain({"a": {"peer": "p", "input": 1}}), "channel": "elsewhere"}, "channel"),
        ({"chain": chain({"a": {"peer": "p", "input": 1}}), "input": 2**60}, "input"),
    ],
)
def test_a_bad_request_is_refused_with_the_place_of_its_fault(tmp_path: Path, body: Any, named: str) -> None:
    with network(tmp_path, "ops") as (ops,):
        with pytest.raises(HttpError) as refused:
            ops.post("/v1/chains/runs", **body)
        assert refused.value.status == 400
        assert refused.value.answer["message"].startswith(named)
        assert ops.get("/v1/chains/runs")["runs"] == []


def answer_agentos(agent: Agent, got: dict[str, Any]) -> None:
    """The helper's response to a query."""
    assert got["payload"]["content"] == {"question": "how many?"}
    back = {
        **got,
        "id": f"msg-{uuid.uuid4()}",
        "type": "response",
        "replyTo": got["id"],
        "from": got["to"],
        "to": got["from"],
        "payload": {**got["payload"], "content": {"answer": ["seven", "or eight"]}},
    }
    agent.daemon.post("/v1/bridge/agentos", message=back)


def answer_sentient(agent: Agent, got: dict[str, Any]) -> None:
    """The helper's message, the last of its chain."""
    assert got["output"]["content"] == ["seven", "or eight"]
    back = {
        **got,
        "message_id": f"msg-{uuid.uuid4()}",
        "agent": {"name": "helper", "type": "governance"},
        "output": {"content": "written down", "content_type": "plan"},
        "next_agent": {"name": None, "reason": "the end"},
        "metadata": {**got["metadata"], "sequence_number": 2, "parent_message_id": got["message_id"]},
    }
    agent.daemon.post("/v1/bridge/sentient", message=back)


def test_openings_of_agentos_and_sentient_and_their_answers(home: Home) -> None:
    """A chain asks an AgentOS agent, then sends its answer to the first agent of a sentient chain."""

    def work(agent: Agent, _envelope: Envelope, seq: int) -> None:
        name = "agentos" if len(agent.taken) % 2 else "sentient"
        got = agent.daemon.get(f"/v1/bridge/{name}/messages/{seq}")["message"]
        (answer_agentos if name == "agentos" else answer_sentient)(agent, got)

    names = ("--bridge-agent", "asker=ops", "--bridge-agent", "helper=worker")
    nodes = {
        "a": {"peer": "worker", "format": "agentos", "input": asked("{{input}}")},
        "b": {"peer": "worker", "format": "sentient", "input": handed("{{a.payload.content.answer}}")},
    }
    document = chain(nodes, ("a", "b", "response.type == 'response' and response.payload.content.answer != null"))
    with Daemon(home, "ops", *names) as ops, Daemon(home, "worker", *names) as worker, Agent(worker, work):
        for _ in range(2):  # nothing of the second run collides with the first
            run = reach(ops, begin(ops, document, input="how many?"), "completed", "failed")
            assert run["state"] == "completed", run
            assert run["response"]["output"]["content"] == "written down"


def test_message_invalid_for_its_format_fails_run_and_is_unsent(tmp_path: Path) -> None:
    document = chain({"a": {"peer": "worker", "format": "humaninloop", "input": {"task": "{{input}}"}}})
    with network(tmp_path, "ops", "worker") as (ops, _worker):
        run = show(ops, begin(ops, document, input="x"))
        assert run["state"] == "failed"
        assert "not a valid humaninloop message" in run["error"]
        assert ops.get("/v1/works")["works"] == []


def test_chain_files_are_checked_offline(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.toml"
    good.write_text(json.dumps(chain({"a": {"peer": "p", "input": 1}})))
    bad.write_text('name = "x"\nstart = "b"\nmax_steps = 1\n[nodes.a]\npeer = "p"\ninput = "{{"\n')
    home = Home(tmp_path)
    done = home.ctl("chain", "check", str(good), "-o", "json")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"v": 1, "ok": True, "findings": []})
    done = home.ctl("chain", "check", str(bad), "-o", "json")
    assert done.returncode == 1
    found = {(finding["path"], finding["rule"]) for finding in json.loads(done.stdout)["findings"]}
    assert found == {("/start", "unknown_node"), ("/nodes/a/input", "template")}
    assert home.ctl("chain", "run", str(bad)).returncode == 1
    assert home.ctl("chain", "check", str(tmp_path / "none.json")).returncode == 2
    assert home.ctl("chain", "check", "-", stdin=b'{"name": "a", "name": "b"}').returncode == 1
    assert home.ctl("chain", "check", "-", stdin=b"\xff").returncode == 1
    done = home.ctl("chain", "check", "-", stdin=bad.read_bytes())
    assert (done.returncode, b".toml" in done.stdout) == (1, True)
