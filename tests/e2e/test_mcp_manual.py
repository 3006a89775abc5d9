"""docs/mcp.md, "Two coding agents in five minutes": its commands, and what the real hosts do then."""

import shlex
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.agent_hosts import AgentHost, ClaudeCode, Codex
from tests.support.daemons import Home, stop_daemon, wait_for
from tests.support.manuals import Step, fits, steps_of
from tests.support.model_scripts import colleague
from tests.support.terminals import TerminalProgram
from tests.support.tools import require_agent_hosts

pytestmark = pytest.mark.timeout(300)

PAGE = Path(__file__).parents[2] / "docs" / "mcp.md"
SECONDS = 90
DAEMONS = {"claude": "writer", "codex": "reviewer"}
"""The hosts start them."""


def test_two_agents_hand_work_to_each_other_as_the_manual_shows(home: Home) -> None:
    path = require_agent_hosts()
    steps = steps_of(PAGE, "Two coding agents in five minutes")
    assert {step.where for step in steps} == {"console", "claude", "codex"}
    with ExitStack() as stack:
        for name in DAEMONS.values():
            stack.callback(stop_daemon, home, name)
        claude = stack.enter_context(ClaudeCode(home, path, colleague("reviewer", "Review parser.py")))
        codex = stack.enter_context(Codex(home, path, colleague("writer", "none")))
        reader = Reader({"claude": claude, "codex": codex}, stack)
        for step in steps:
            if step.where == "console":
                reader.run(step)
            else:
                reader.use(step)


class Reader:
    """Does what the manual says, and compares. What it starts ends with `stack`."""

    def __init__(self, hosts: dict[str, AgentHost], stack: ExitStack) -> None:
        self._hosts = hosts
        self._stack = stack
        self._terminals: dict[str, TerminalProgram] = {}

    def run(self, step: Step) -> None:
        """A command of the shell; repeated until it shows what the manual has, because states follow each other."""
        command = step.given.removeprefix("$ ")
        wait_for(lambda: fits(step.shown, self._output(command)), SECONDS, f"what {command!r} shows")

    def _output(self, command: str) -> list[str]:
        done = self._hosts["claude"].run("sh", "-c", command)
        assert done.returncode == 0, done
        return done.stdout.splitlines()

    def use(self, step: Step) -> None:
        """What happens in a host; `step.shown` are prompts of its model, calls and answers."""
        host = self._hosts[step.where]
        if step.given.startswith("$ "):
            _, *args = shlex.split(step.given.removeprefix("$ "))
            self._terminals[step.where] = self._stack.enter_context(host.open(*args))
        elif step.given:
            self._await_connection(host)
            host.prompt(self._terminals[step.where], step.given.removeprefix("> "))
        wait_for(lambda: fits(step.shown, list(host.model.events)), SECONDS, f"{step} in {host.model.events}")

    def _await_connection(self, host: AgentHost) -> None:
        """A host connects, and its daemon starts, within the seconds that a person needs to begin with a sentence."""
        listed = ("aghctl", "--name", DAEMONS[host.name], "mcp", "sessions")
        wait_for(lambda: host.name in host.run(*listed).stdout, SECONDS, "the connection")
