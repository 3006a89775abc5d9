"""The programs of examples/other-languages against running daemons that are killed in between."""

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pytest

from aghbus.protocol.api.tcp_proof import proof
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer
from tests.support.tools import require_node, require_tool

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples" / "other-languages"
PAGE: Final = ROOT / "docs" / "other-languages.md"
RESULT: Final = '{"branch":"main","passed":true}'

pytestmark = pytest.mark.timeout(360)  # Go's first build of a user compiles its standard library


def node(_folder: Path) -> list[str]:
    return [str(require_node()), str(EXAMPLES / "agent.mjs")]


def go(folder: Path) -> list[str]:
    """The program, built without a network; the compiler's cache is that of the user."""
    built = folder / "agent"
    env = {**os.environ, "CGO_ENABLED": "0", "GOPROXY": "off", "GOTOOLCHAIN": "local"}
    command = [require_tool("go"), "build", "-o", str(built), str(EXAMPLES / "agent.go")]
    subprocess.run(command, env=env, cwd=folder, check=True, timeout=300)
    return [str(built)]


def shell(_folder: Path) -> list[str]:
    require_tool("curl")
    require_tool("jq")
    return ["bash", str(EXAMPLES / "agent.sh")]


@pytest.fixture(scope="module", params=[node, go, shell], ids=lambda language: language.__name__)
def command(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[str]:
    """The program of one language."""
    language: Callable[[Path], list[str]] = request.param
    return language(tmp_path_factory.mktemp("built"))


class Agents(NamedTuple):
    """Two daemons, and the command of a program that works for the one or gives works to the other."""

    command: list[str]
    ops: Daemon
    worker: Daemon
    running: list[subprocess.Popen[str]]

    def work(self) -> subprocess.Popen[str]:
        return self._start(self.worker, "worker")

    def give(self) -> subprocess.Popen[str]:
        return self._start(self.ops, "give", "Run the migration smoke test")

    def _start(self, daemon: Daemon, *arguments: str) -> subprocess.Popen[str]:
        env = {**daemon.env, "AGHD_API_SOCKET": str(daemon.socket_path)}
        command, pipe = [*self.command, *arguments], subprocess.PIPE
        self.running.append(
            subprocess.Popen(command, env=env, stdin=pipe, stdout=pipe, text=True, start_new_session=True)
        )
        return self.running[-1]


@contextlib.contextmanager
def running(command: list[str], folder: Path, *flags: str) -> Iterator[Agents]:
    home = Home(folder)
    with Daemon(home, "ops", *flags) as ops, Daemon(home, "worker", "--capability", "test.run", *flags) as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        agents = Agents(command, ops, worker, [])
        try:
            yield agents
        finally:
            for program in agents.running:
                end(program)


@pytest.fixture
def agents(tmp_path: Path, command: list[str]) -> Iterator[Agents]:
    with running(command, tmp_path) as agents:
        yield agents


def read_question(giving: subprocess.Popen[str]) -> str:
    """What a program prints until it waits for a line of its input."""
    assert giving.stdout is not None
    return giving.stdout.read(len("Which branch? "))


def answer(giving: subprocess.Popen[str]) -> None:
    """A line of its input."""
    assert giving.stdin is not None
    giving.stdin.write("main\n")
    giving.stdin.flush()


def end(running: subprocess.Popen[str]) -> None:
    """Kill a program with the processes that it started."""
    if running.poll() is None:
        os.killpg(running.pid, signal.SIGKILL)
        running.communicate(timeout=30)


def restart(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def test_a_work_with_a_question_survives_daemons_that_are_killed(agents: Agents) -> None:
    _, giving = agents.work(), agents.give()
    assert read_question(giving) == "Which branch? "
    restart(agents.worker)
    restart(agents.ops)
    printed, _ = giving.communicate("main\n", timeout=60)
    assert re.sub(r"(?<=[:,]) ", "", printed) == f"completed tested main {RESULT}\n"
    wait_for(lambda: not agents.worker.get("/v1/inbox")["items"], 30, "the messages of the work to be acknowledged")


def test_the_next_worker_gets_the_answer_to_the_question_of_a_killed_one(agents: Agents) -> None:
    working, giving = agents.work(), agents.give()
    assert read_question(giving) == "Which branch? "
    end(working)
    (item,) = agents.worker.get("/v1/inbox?state=leased")["items"]
    agents.worker.post(f"/v1/inbox/{item['seq']}/nack", delay=0)  # what happens when its lease has run out
    answer(giving)
    work = f"/v1/works/{item['message']['work_id']}"
    wait_for(lambda: agents.worker.get(work)["work"]["state"] == "working", 30, "the answer")
    agents.work()
    printed, _ = giving.communicate(timeout=60)
    assert "completed tested main" in printed
    asked = [entry["event"] for entry in agents.ops.get(work)["history"]]
    assert asked.count("trace:needs_input") == 1


def test_a_worker_that_waits_for_works_goes_on_after_its_daemon_was_killed(agents: Agents) -> None:
    agents.work()
    assert "completed tested main" in agents.give().communicate("main\n", timeout=60)[0]
    restart(agents.worker)
    assert "completed tested main" in agents.give().communicate("main\n", timeout=60)[0]


def test_a_canceled_work_ends_at_both_sides_and_the_worker_takes_the_next(agents: Agents) -> None:
    _, giving = agents.work(), agents.give()
    assert read_question(giving) == "Which branch? "
    (work,) = agents.ops.get("/v1/works")["works"]
    agents.ops.post(f"/v1/works/{work['work_id']}/cancel")
    printed, _ = agents.give().communicate("main\n", timeout=60)
    assert "completed tested main" in printed


def test_a_work_of_a_peer_is_not_carried_out_before_it_is_admitted(
    command: list[str], tmp_path: Path, server: NatsServer
) -> None:
    """On a broker that others may join."""
    with running(command, tmp_path, "--nats", server.url) as agents:
        agents.work()
        giving = agents.give()
        wait_for(lambda: agents.worker.get("/v1/inbox")["items"], 30, "the opening")
        (item,) = agents.worker.get("/v1/inbox")["items"]
        assert (item["state"], item["attempts"], item["work_state"]) == ("ready", 0, "submitted")
        agents.worker.post("/v1/trust/admit", who="ops")
        assert read_question(giving) == "Which branch? "


def test_the_proofs_of_the_page_are_those_of_the_daemon() -> None:
    values = dict(re.findall(r"^\| (\w+) \| `(\S+)` \|$", PAGE.read_text("utf-8"), re.MULTILINE))
    host, _, port = values["address"].partition(":")
    sides: dict[str, Literal["daemon", "client"]] = {"P": "daemon", "Q": "client"}
    for name, side in sides.items():
        made = proof(values["token"], side, (host, int(port)), values["C"], values["D"])
        assert values[name] == made
