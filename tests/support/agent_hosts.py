"""The real agent hosts, Claude Code and Codex, in a home that has nothing of the person who runs the tests.

Their model is a script behind a port of this machine (tests/support/model_api.py). The settings written here are what a person
who has used the host before has: where its model is, no first questions, trust in the project. For Claude Code there is also the
rule of docs/mcp.md that allows the tools of the bus.
"""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from tests.support.daemons import Home, wait_for
from tests.support.model_api import SERVER, Dialect, Messages, Model, ModelApi, Responses, Script
from tests.support.terminals import TerminalProgram, shell_env

_KEY = "sk-ant-standin-of-the-model"


class AgentHost:
    """One host whose model is `script`. A context manager: from entry to exit its model answers.

    `open` starts its terminal program, `ask` runs one prompt without a terminal.
    """

    name: ClassVar[str]
    dialect: ClassVar[type[Dialect]]
    field: ClassVar[str]
    """What is drawn where a prompt is typed."""

    def __init__(self, home: Home, path: str, script: Script) -> None:
        self.home = home
        self.folder = home.root / "project"
        self.model = Model(self.dialect(), script)
        self.api = ModelApi(self.model)
        self.env = {**shell_env(home.root), **{key: home.env[key] for key in home.env if key.startswith("XDG_")}}
        self.env["PATH"] = os.pathsep.join((path, self.env["PATH"]))

    def __enter__(self) -> Self:
        self.folder.mkdir(exist_ok=True)
        self.api.__enter__()
        self.configure()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self.api.__exit__(kind, error, trace)
        if self.model.failures:
            raise self.model.failures[0]

    def configure(self) -> None:
        """Write the host's own settings."""
        raise NotImplementedError

    def connect(self, name: str) -> None:
        """Connect the host with the daemon `name`."""
        done = self.run("aghctl", "--name", name, "mcp", "install", self.name)
        assert done.returncode == 0, done

    def command(self, prompt: str) -> list[str]:
        """The command that answers one prompt without a terminal."""
        raise NotImplementedError

    def close(self) -> None:
        """End what the host has left running."""

    def ask(self, prompt: str) -> str:
        """What the host prints for one prompt."""
        done = self.run(*self.command(prompt))
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the host's environment."""
        return subprocess.run(
            command,
            env=self.env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def open(self, *args: str) -> TerminalProgram:
        """The host's terminal program."""
        return TerminalProgram([self.name, *args], self.env, self.folder)

    def prompt(self, program: TerminalProgram, text: str) -> None:
        """Type a prompt, and press Enter until its turn begins, as a person does: a program that starts, or takes a fast line for
        pasted text, does not send it at once."""
        turns = len(self.model.prompts)
        program.wait_for(self.field)
        program.type(text)
        for _ in range(60):
            program.type("\r")
            with contextlib.suppress(AssertionError):
                return wait_for(lambda: len(self.model.prompts) > turns, 1, text)
        raise AssertionError(f"{text!r} began no turn, but {program.shown!r}")


class ClaudeCode(AgentHost):
    """Claude Code."""

    name = "claude"
    dialect = Messages
    field = "❯"

    def configure(self) -> None:
        self.env |= {
            "ANTHROPIC_BASE_URL": self.api.url,
            "ANTHROPIC_API_KEY": _KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        }
        _update(
            self.home.root / ".claude.json",
            hasCompletedOnboarding=True,
            customApiKeyResponses={"approved": [_KEY[-20:]], "rejected": []},
            projects={str(self.folder): {"hasTrustDialogAccepted": True}},
        )
        _update(self.home.root / ".claude" / "settings.json", permissions={"allow": [f"mcp__{SERVER}"]})

    def command(self, prompt: str) -> list[str]:
        return [self.name, "--print", prompt]


class Codex(AgentHost):
    """Codex. Its terminal program starts a server of its own in the background, which is stopped at the exit."""

    name = "codex"
    dialect = Responses
    field = "Ask Codex"

    def configure(self) -> None:
        self.env["STANDIN_KEY"] = _KEY
        folder = self.home.root / ".codex"
        folder.mkdir(exist_ok=True)
        (folder / "config.toml").write_text(f"""\
model = "standin"
model_provider = "standin"
check_for_update_on_startup = false

[model_providers.standin]
name = "standin"
base_url = "{self.api.url}/v1"
wire_api = "responses"
env_key = "STANDIN_KEY"

[projects."{self.folder}"]
trust_level = "trusted"
""")

    def command(self, prompt: str) -> list[str]:
        return [self.name, "exec", "--skip-git-repo-check", prompt]

    def close(self) -> None:
        state = self.home.root / ".codex" / "app-server-daemon"
        if state.is_dir():
            self.run(self.name, "app-server", "daemon", "stop")
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(json.loads((state / "daemon-updater.pid").read_text())["pid"], signal.SIGTERM)


def _update(path: Path, **members: Any) -> None:
    """Set members of a JSON file of a host's settings."""
    path.parent.mkdir(exist_ok=True)
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | members))


HOSTS = (ClaudeCode, Codex)
