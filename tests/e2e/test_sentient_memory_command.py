"""A memory agent that is a command: it runs at the end of chains, on demand and on a schedule."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.bridging import WITHIN, agent_map, broker, daemons, handed_out, submit, the_say, work_ended
from tests.support.daemons import Daemon, wait_for
from tests.support.sentient_daemons import FAILED, entry, plain, refused

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="bridging to a command needs Linux")

AGENTS = {"objective_agent": "objective", "goal_agent": "goal", "memory_agent": "memory"}
DAY = "20260601"
# The command appends its input to a file, and answers it with the next message of its chain.
SCRIPT = """
import json, sys
asked = json.load(sys.stdin)
with open(sys.argv[1], "a") as file:
    file.write(json.dumps(asked) + chr(10))
asked["agent"] = {"name": "memory_agent", "type": "operational"}
asked["input"] = {"source": None, "content": None}
asked["output"] = {"content": "learnt", "content_type": "memory"}
asked["next_agent"] = {"name": None, "reason": None}
asked["status"] = {"code": "success", "message": "distilled"}
asked["error"] = {"has_error": False, "error_code": None, "error_message": None, "retry_count": 0, "recoverable": False}
asked["audit"]["reasoning"] = "Because context/governance/audit.md says so."
asked["metadata"]["parent_message_id"] = asked["message_id"]
asked["metadata"]["sequence_number"] += 1
asked["message_id"] += "-learnt"
print(json.dumps(asked))
"""


class Bus(NamedTuple):
    """The daemons by peer id, and the folder of a test."""

    at: dict[str, Daemon]
    folder: Path

    def inputs(self) -> list[dict[str, Any]]:
        """What the command got so far."""
        file = self.folder / "inputs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def wait_inputs(self, count: int) -> list[dict[str, Any]]:
        wait_for(lambda: len(self.inputs()) >= count, WITHIN, f"{count} runs of the command")
        return self.inputs()

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        """Start the memory agent."""
        memory = self.at["memory"]
        script = [sys.executable, "-c", SCRIPT, str(self.folder / "inputs")]
        command = [
            sys.executable,
            "-m",
            "aghbus.cli",
            "--name",
            memory.name,
            "bridge",
            "sentient",
            *options,
            "--",
            *script,
        ]
        with (self.folder / "bridge.log").open("ab") as log:
            return subprocess.Popen(command, env=memory.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @contextlib.contextmanager
    def memory_agent(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        """The memory agent, stopped at the end."""
        process = self.start(*options)
        try:
            yield process
        finally:
            process.terminate()
            assert process.wait(WITHIN) == 0, (self.folder / "bridge.log").read_text()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Daemon]]:
    flags = (*agent_map(AGENTS), "--sentient-memory-agent", "memory", "--sentient-user", "desk")
    peers = dict.fromkeys(AGENTS.values(), flags)
    with broker() as url, daemons(tmp_path_factory.mktemp("home"), url, {**peers, "desk": ()}) as made:
        yield made


@pytest.fixture
def bus(running: dict[str, Daemon], tmp_path: Path) -> Bus:
    return Bus(running, tmp_path)


def end_chain(bus: Bus, session: str, **more: Any) -> dict[str, Any]:
    """A chain of one message without a next agent; the call of the memory agent."""
    message = plain("goal_agent", None, session, f"req {session}", 1, DAY, **more)
    said = submit(bus.at["goal"], "sentient", message)["sent"]
    (called,) = (sent for sent in said if sent["to"] == "memory")
    return dict(called)


def test_the_command_runs_at_the_end_of_a_chain_completed_or_failed(bus: Bus) -> None:
    failed = {"status": {"code": "failed", "message": "no"}, "error": FAILED}
    with bus.memory_agent("--when-busy", "queue"):
        for session, more in (("done", {}), ("broken", failed)):
            called = end_chain(bus, session, **more)
            work = work_ended(bus.at["goal"], called["work_id"])
            assert (work["state"], work["result"]["content"]) == ("completed", "learnt")
        done, broken = bus.wait_inputs(2)
    assert [one["metadata"]["session_id"] for one in (done, broken)] == ["done", "broken"]
    assert [one["metadata"]["request_id"] for one in (done, broken)] == ["req done", "req broken"]
    assert entry("goal_agent", "done", 1) in done["output"]["content"]
    assert "[ERROR: DEPENDENCY_ERROR]" in broken["output"]["content"]
    rows = bus.at["memory"].get("/v1/bridge/sentient/log")["rows"]
    assert [(row["agent"], row["session_id"]) for row in rows] == [("memory_agent", "done"), ("memory_agent", "broken")]


def test_the_command_runs_on_demand_of_another_agent(bus: Bus) -> None:
    with bus.memory_agent():
        message = plain("goal_agent", "memory_agent", "on demand", "req", 1, DAY)
        said = the_say(submit(bus.at["goal"], "sentient", message))
        assert work_ended(bus.at["goal"], said["work_id"])["result"]["content"] == "learnt"
    (got,) = bus.inputs()
    assert got == message


def test_scheduled_command_gets_ended_conversations_after_kill_too(bus: Bus) -> None:
    with bus.memory_agent("--every", "1s", "--accept", "intent=none"):  # the schedule alone
        wait_for(lambda: "ready" in (bus.folder / "bridge.log").read_text(), WITHIN, "the start")
        calls = [end_chain(bus, session) for session in ("first", "second")]
        wait_for(lambda: "[SESSION_ID: second]" in contents(bus), WITHIN, "the second chain in a batch")
        for call in calls:
            work = work_ended(bus.at["goal"], call["work_id"])
            assert (work["state"], work["message"]) == ("completed", "handled by a scheduled run")
    assert contents(bus).count("[SESSION_ID: first]") == 1
    batch = bus.inputs()[0]
    assert batch["agent"]["name"] == "schedule"
    assert batch["output"]["content"].startswith(f"{DAY}.log\n" + entry("goal_agent", "first", 1))
    rows = bus.at["memory"].get("/v1/bridge/sentient/log")["rows"]
    assert [row["message_id"] for row in rows].count(batch["message_id"] + "-learnt") == 1
    killed = bus.start("--every", "1s", "--accept", "intent=none")
    end_chain(bus, "third")
    wait_for(lambda: "[SESSION_ID: third]" in contents(bus), WITHIN, "the third chain")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    last = end_chain(bus, "fourth")  # while no process runs
    with bus.memory_agent("--every", "1s", "--accept", "intent=none"):
        wait_for(lambda: "[SESSION_ID: fourth]" in contents(bus), WITHIN, "the fourth chain")
        work_ended(bus.at["goal"], last["work_id"])
    waiting = bus.at["memory"].get("/v1/inbox?limit=500")["items"]
    assert not {item["work_id"] for item in waiting} & {call["work_id"] for call in (*calls, last)}
    assert contents(bus).count("[SESSION_ID: first]") == 1
    assert contents(bus).count("[SESSION_ID: fourth]") == 1


def contents(bus: Bus) -> str:
    """The entries of all runs so far."""
    return "".join(one["output"]["content"] for one in bus.inputs())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("agentos", "--every", "1h", "--", "true"), "--every is for the memory agent of sentient only"),
        (("sentient", "--every", "1h"), "--every goes with a COMMAND only"),
    ],
)
def test_a_schedule_needs_sentient_and_a_command(bus: Bus, words: tuple[str, ...], said: str) -> None:
    memory = bus.at["memory"]
    command = [sys.executable, "-m", "aghbus.cli", "--name", memory.name, "bridge", *words]
    done = subprocess.run(command, env=memory.env, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr.decode()


def test_answers_after_pending_keep_session_and_request(bus: Bus) -> None:
    desk, objective = bus.at["desk"], bus.at["objective"]
    opened = desk.post("/v1/works", to="objective", text="Plan my day", trace_id="req_native")
    handed_out(objective, "sentient", opened["id"])
    pending = {"status": {"code": "pending", "message": "Which day?"}}
    submit(objective, "sentient", plain("objective_agent", "user", "my session", "my request", 1, DAY, **pending))
    wait_for(lambda: desk.state_of(opened["work_id"]) == "needs_input", WITHIN, "the question")
    answer = desk.post(f"/v1/works/{opened['work_id']}/say", message="Monday")
    metadata = handed_out(objective, "sentient", answer["id"])["message"]["metadata"]
    assert (metadata["session_id"], metadata["request_id"]) == ("my session", "my request")
    # A first message with these ids is about the same work, though another request waits.
    other = desk.post("/v1/works", to="objective", text="Something else")
    handed_out(objective, "sentient", other["id"])
    last = {**plain("objective_agent", None, "my session", "my request", 1, DAY), "message_id": "after the answer"}
    submit(objective, "sentient", last)
    assert work_ended(desk, opened["work_id"])["state"] == "completed"
    assert desk.state_of(other["work_id"]) == "submitted"
    late = {**last, "message_id": "too late"}
    assert refused(objective, late) == {("", "work_closed")}
