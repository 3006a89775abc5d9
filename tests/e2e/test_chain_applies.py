"""Chains that write the artifacts of ADR-007 below a root, and that follow the hint of an agent."""

import contextlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.chain_agents import Agent, Envelope, begin, chain, reach, show
from tests.support.daemons import Daemon, Home, wait_for

INPUT = {
    "context": {"feature_id": "005", "workflow": "specify", "iteration": "{{run.visit}}"},
    "paths": {"feature_root": "specs/005/"},
    "task": {"action": "specify", "params": {"nothing": "{{null}}"}},
}
WRITER = {"peer": "analyst", "format": "humaninloop", "input": INPUT}


def applies(node: str, **more: Any) -> dict[str, Any]:
    return {"apply": node, "root": "specs/{{input.feature_id}}", **more}


def output(path: str, content: str, operation: str = "create", recommendation: str = "proceed") -> dict[str, Any]:
    artifact = {"path": path, "operation": operation, "content": content}
    success = recommendation == "proceed"
    return {"success": success, "summary": "s", "artifacts": [artifact], "notes": [], "recommendation": recommendation}


@contextlib.contextmanager
def writing(tmp_path: Path, *outputs: dict[str, Any]) -> Iterator[tuple[Daemon, Path, Agent]]:
    """`ops`, which writes below the root, and `analyst`, whose agent gives these outputs one after the other."""
    home, root, left = Home(tmp_path / "home"), tmp_path / "root", list(outputs)
    root.mkdir()

    def answer(agent: Agent, envelope: Envelope, _seq: int) -> None:
        agent.daemon.post("/v1/bridge/humaninloop", message=left.pop(0), work_id=envelope["work_id"])

    with (
        Daemon(home, "ops", "--humaninloop-apply-root", str(root)) as ops,
        Daemon(home, "analyst") as analyst,
        Agent(analyst, answer) as agent,
    ):
        wait_for(lambda: ops.knows("analyst"), 20, "the analyst")
        yield ops, root, agent


def files(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() for path in sorted(root.rglob("*")) if path.is_file()}


def test_a_loop_writes_each_output_also_the_review_of_a_retry(tmp_path: Path) -> None:
    outputs = (
        output("spec.md", "first\n"),
        output("review.md", "not yet\n", recommendation="retry"),
        output("specs/005/spec.md", "second\n", "update"),
        output("review.md", "good\n", "update"),
    )
    document = chain(
        {
            "write": WRITER,
            "save": applies("write"),
            "check": WRITER,
            "note": applies("check", recommendations=["proceed", "retry"]),
        },
        ("write", "save", None),
        ("save", "check", None),
        ("check", "note", "true"),
        ("note", "write", 'check.recommendation == "retry"'),
        start="write",
    )
    with writing(tmp_path, *outputs) as (ops, root, agent):
        run = reach(ops, begin(ops, document, input={"feature_id": "005"}), "completed", "failed")
        assert run["state"] == "completed", run
        assert files(root) == {"specs/005/review.md": "good\n", "specs/005/spec.md": "second\n"}
        saved = [step for step in run["history"] if step["node"] == "save"]
        assert [(step["message"], step["peer"]) for step in saved] == [("1 files written", None)] * 2
        opening = agent.taken[0]["ext"]["humaninloop.message"]
        assert opening["task"]["params"] == {"nothing": None}


def test_an_output_that_asks_is_written_before_the_question_and_once(tmp_path: Path) -> None:
    asks = output("spec.md", "draft\n", recommendation="escalate")
    document = chain(
        {
            "a": WRITER,
            "draft": applies("a", recommendations=["escalate"]),
            "copy": {"apply": "a", "root": "drafts", "recommendations": ["escalate"]},
            "save": applies("a"),
        },
        ("a", "save", None),
    )
    with writing(tmp_path, asks, output("spec.md", "final\n", "update")) as (ops, root, _):
        run_id = begin(ops, document, input={"feature_id": "005"})
        run = reach(ops, run_id, "waiting", "completed", "failed")
        assert (run["state"], run["node"], run["question"]) == ("waiting", "a", "s")
        assert run["response"] == asks
        assert files(root) == {"drafts/spec.md": "draft\n", "specs/005/spec.md": "draft\n"}
        (written,) = [step["response"] for step in run["history"] if step["node"] == "draft"]
        assert [(one["path"], one["size"]) for one in written["data"]["files"]] == [("specs/005/spec.md", 6)]
        ops.stop()
        ops.start()
        ops.post(f"/v1/chains/runs/{run_id}/answer", text="go on")
        run = reach(ops, run_id, "completed", "failed")
        assert [(step["node"], step["work_state"]) for step in run["history"]] == [
            ("a", "completed"),
            ("draft", "completed"),
            ("copy", "completed"),
            ("save", "completed"),
        ]
        assert files(root) == {"drafts/spec.md": "draft\n", "specs/005/spec.md": "final\n"}


def test_an_output_that_asks_and_may_not_be_written_fails_the_run(tmp_path: Path) -> None:
    document = chain({"a": WRITER, "b": applies("a", recommendations=["proceed", "escalate"])}, ("a", "b", None))
    with writing(tmp_path, output("run.sh", "x", recommendation="escalate")) as (ops, root, agent):
        run = reach(ops, begin(ops, document, input={"feature_id": "005"}), "waiting", "completed", "failed")
        assert run["state"] == "failed"
        assert "path_kind" in run["error"]
        assert files(root) == {}
        assert ops.get("/v1/inbox")["items"] == []
        assert ops.state_of(agent.taken[0]["work_id"]) == "canceled"


def test_a_step_that_writes_waits_for_no_peer(tmp_path: Path) -> None:
    document = chain({"a": WRITER, "save": applies("a")}, ("a", "save", None))
    with writing(tmp_path, output("spec.md", "x")) as (ops, _, _agent):
        file = tmp_path / "chain.json"
        file.write_text(json.dumps(document))
        done = ops.home.ctl("--name", "ops", "chain", "run", str(file), "--input-json", '{"feature_id": "005"}')
        assert (done.returncode, b"#2  save" in done.stderr, b"no peer" in done.stderr) == (0, True, False), done.stderr


@pytest.mark.parametrize("death", ["chains.applied:1", "send.decided:2"])
def test_a_daemon_killed_between_the_files_and_the_step_writes_them_once(tmp_path: Path, death: str) -> None:
    """`send.decided:2`: the step is in the open transaction, with the opening of the next node."""
    made = output("spec.md", "new\n", "update")
    made["artifacts"].append({"path": "plan.md", "operation": "create", "content": "a plan\n"})
    document = chain({"a": WRITER, "save": applies("a"), "b": WRITER}, ("a", "save", None), ("save", "b", None))
    with writing(tmp_path, made, output("more.md", "x")) as (ops, root, agent):
        (root / "specs/005").mkdir(parents=True)
        (root / "specs/005/spec.md").write_text("old\n")
        ops.stop()
        ops.env["AGHD_FAILPOINT"] = death
        ops.start()
        assert ops.process is not None
        run_id = begin(ops, document, input={"feature_id": "005"})
        assert ops.process.wait(30) == -signal.SIGKILL, ops.log.read_text()
        wanted = {"specs/005/plan.md": "a plan\n", "specs/005/spec.md": "new\n"}
        assert files(root) == wanted
        written = {name: (root / name).stat() for name in wanted}
        del ops.env["AGHD_FAILPOINT"]
        ops.start()
        run = reach(ops, run_id, "completed", "failed")
        assert run["state"] == "completed", run
        assert [step["node"] for step in run["history"]] == ["a", "save", "b"]
        assert len(run["history"][1]["response"]["data"]["files"]) == 2
        assert files(root) == wanted
        assert {name: (root / name).stat().st_ino for name in wanted} == {
            name: status.st_ino for name, status in written.items()
        }
        assert len(agent.taken) == 2


@pytest.mark.parametrize(
    ("made", "changes", "says"),
    [
        (output("spec.md", "x"), {"root": "../elsewhere"}, "`.` or `..`"),
        (output("spec.md", "x"), {"root": "/etc"}, "relative"),
        (output("run.sh", "x"), {}, "path_kind"),
        (output("there.md", "x"), {"root": "link"}, "not a folder"),
        (output("spec.md", "x", "update"), {}, "does not exist"),
        (output("spec.md", "x", recommendation="retry"), {}, "success false, retry"),
    ],
)
def test_what_may_not_be_written_fails_the_node(
    tmp_path: Path, made: dict[str, Any], changes: dict[str, Any], says: str
) -> None:
    document = chain({"a": WRITER, "b": applies("a", **changes)}, ("a", "b", "true"))
    with writing(tmp_path, made) as (ops, root, _):
        (root / "link").symlink_to(tmp_path)
        run = reach(ops, begin(ops, document, input={"feature_id": "005"}), "completed", "failed")
        assert run["state"] == "failed"
        assert says in run["error"]
        assert files(root) == {}
        assert not (tmp_path / "there.md").exists()


def test_without_a_configured_root_nothing_is_written(tmp_path: Path) -> None:
    document = chain({"a": {"peer": "ops2", "input": "x"}, "b": applies("a")}, ("a", "b", None))
    with (
        Daemon(Home(tmp_path), "ops") as ops,
        Daemon(ops.home, "ops2") as other,
        Agent(other, lambda agent, envelope, seq: agent.complete(envelope)),
    ):
        run = reach(ops, begin(ops, document, input={"feature_id": "005"}), "failed")
    assert "humaninloop.apply_root is not set" in run["error"]


def test_files_that_are_there_with_the_same_content_are_left_alone(tmp_path: Path) -> None:
    """As after a crash before the run has recorded that it wrote them."""
    with writing(tmp_path, output("spec.md", "text\n")) as (ops, root, _):
        (root / "specs/005").mkdir(parents=True)
        (root / "specs/005/spec.md").write_text("text\n")
        document = chain({"a": WRITER, "b": applies("a")}, ("a", "b", None))
        run = reach(ops, begin(ops, document, input={"feature_id": "005"}), "completed", "failed")
        assert run["state"] == "completed", run
        assert files(root) == {"specs/005/spec.md": "text\n"}


@pytest.mark.parametrize(("hint", "visited"), [("b", ["a", "b"]), ("c", ["a", "c"]), ("d", ["a", "c"])])
def test_an_agent_chooses_among_the_nodes_that_the_file_allows(tmp_path: Path, hint: str, visited: list[str]) -> None:
    node = {"peer": "agent", "format": "sacp", "input": "{{input}}"}
    document = chain({"a": {**node, "follow_hint": ["b", "c"]}, "b": node, "c": node, "d": node}, ("a", "c", None))

    def answer(agent: Agent, envelope: Envelope, _seq: int) -> None:
        said = {"thought": "", "status": "success", "data": {}, "message": "m", "next_step_hint": hint}
        agent.daemon.post("/v1/bridge/sacp", text=json.dumps(said), work_id=envelope["work_id"])

    with Daemon(Home(tmp_path), "ops") as ops, Daemon(ops.home, "agent") as other, Agent(other, answer):
        wait_for(lambda: ops.knows("agent"), 20, "the agent")
        run = reach(ops, begin(ops, document, input="x"), "completed", "failed")
        assert [step["node"] for step in run["history"]] == visited
        assert show(ops, run["run_id"])["state"] == "completed"
