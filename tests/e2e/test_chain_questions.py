"""Chains whose nodes are commands that ask: the run pauses, the answer continues the command, and the run ends."""

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking_commands import AGENTOS, HUMANINLOOP, IMPORTS, NOW, SACP, SENTIENT
from tests.support.chain_agents import asked, begin, chain, handed, reach, show
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.serving import WAIT, Bus, script, serving

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="commands need Linux")

START = f"""{IMPORTS}{NOW}
text = sys.stdin.read()
answer = os.environ.get("AGH_ANSWER")
agent, first = "helper", answer is None
message = "Which company?" if first else "Found it at " + answer + "."
"""
NATIVE = """
if first:
    command = [sys.executable, "-m", "aghbus.cli", "work", "need-input", os.environ["AGH_WORK_ID"], "--message", message]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
else:
    print(json.dumps({"found": message}))
"""
INPUT = {
    "context": {"feature_id": "acme", "workflow": "search", "iteration": "{{run.visit}}"},
    "paths": {"feature_root": "specs/acme/"},
    "task": {"action": "find", "params": {}},
}
SERVE = ("serve", "--capability", "test.run")
KINDS = [
    pytest.param(SERVE, NATIVE, None, "go", "response.data.output.found", id="serve"),
    pytest.param(("bridge", "sacp"), SACP, "sacp", "go", "response.message", id="sacp"),
    pytest.param(("bridge", "humaninloop"), HUMANINLOOP, "humaninloop", INPUT, "response.summary", id="humaninloop"),
    pytest.param(("bridge", "agentos"), AGENTOS, "agentos", asked("where?"), "response.payload.content", id="agentos"),
    pytest.param(
        ("bridge", "sentient"), SENTIENT, "sentient", handed("where?"), "response.status.message", id="sentient"
    ),
]


@contextlib.contextmanager
def two(tmp_path: Path) -> Iterator[Bus]:
    names = ("--bridge-agent", "asker=ops", "--bridge-agent", "helper=worker")
    home = Home(tmp_path)
    with Daemon(home, "worker", "--capability", "test.run", *names) as worker, Daemon(home, "ops", *names) as ops:
        bus = Bus(home, ops, worker)
        bus.meet()
        yield bus


@pytest.mark.parametrize(("words", "agent", "name", "value", "result"), KINDS)
def test_a_run_pauses_for_a_command_that_asks_and_ends_with_its_result(
    tmp_path: Path, words: tuple[str, ...], agent: str, name: str | None, value: Any, result: str
) -> None:
    """The daemon of the run, and that of the worker with its commands, are killed while the run waits."""
    node = {"peer": "worker", "input": value, **({"format": name} if name else {})}
    document = chain({"a": node}, ("a", "a", f"{result} == 'not this'"))
    command = script(tmp_path, START + agent)
    with two(tmp_path) as bus:
        with serving(bus, tmp_path, command=command, words=words) as serve:
            run_id = begin(bus.ops, document)
            run = reach(bus.ops, run_id, "waiting", "completed", "failed")
            assert (run["state"], run["question"]) == ("waiting", "Which company?"), run
            wait_for(lambda: serve.seen("asked"), WAIT, "the worker to wait")
            serve.stop(signal.SIGKILL)
        for daemon in (bus.ops, bus.worker):
            daemon.kill()
            daemon.start()
        bus.meet()
        assert show(bus.ops, run_id)["state"] == "waiting"
        with serving(bus, tmp_path, command=command, words=words):
            done = bus.home.ctl("--name", "ops", "chain", "resume", run_id, "--answer", "Acme", "-o", "json")
        assert done.returncode == 0, done.stderr
        run = json.loads(done.stdout)
        assert (run["state"], run["steps"]) == ("completed", 1)
        assert "Found it at Acme." in json.dumps(run["response"])
        assert bus.ops.get("/v1/inbox")["items"] == []
