"""The examples of pages, run as they are written, by a user who has followed the README before."""

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import free_ports
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.manuals import Step, fits, steps_of
from tests.support.tools import require_tool

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    """The two daemons of the README, and the work that it completes: its end is unread."""
    home = Home(tmp_path)
    with Daemon(home, "patch-worker", "--capability", "test.run") as worker, Daemon(home, "ops") as ops:
        wait_for(lambda: ops.knows("patch-worker") and worker.knows("ops"), 30, "presence")
        work_id = ops.post("/v1/works", to="patch-worker", text="Run the migration smoke test")["work_id"]
        wait_for(lambda: worker.state_of(work_id), 30, "the work")
        worker.post("/v1/inbox/next", ack=True)
        worker.post(f"/v1/works/{work_id}/complete", result={"passed": True})
        wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end")
        yield home


def transcript(home: Home, steps: list[Step], timeout: float = 60) -> list[str]:
    """What one shell shows for each of the commands; what it has started and not ended is killed."""
    tools = [str(Path(sys.executable).parent), home.env["PATH"]]
    script = "\n".join(f"echo {shlex.quote(step.given)}\n{step.given.removeprefix('$ ')}" for step in steps)
    with subprocess.Popen(
        ["bash", "-ec", script],
        env={**home.env, "PATH": os.pathsep.join(tools)},
        cwd=home.root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as shell:
        try:
            shown, errors = shell.communicate(timeout=timeout)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, (shown, errors)
    return shown.decode().splitlines()


def unlike(step: Step, found: list[str]) -> str:
    return "\n".join(["expected:", step.given, *step.shown, "", "in:", *found])


@pytest.mark.parametrize(("page", "section"), [("inbox.md", "Items"), ("why.md", "The sentence")])
def test_a_page_shows_what_its_commands_print(home: Home, page: str, section: str) -> None:
    require_tool("jq")
    steps = steps_of(DOCS / page, section)
    found = transcript(home, steps)
    for step in steps:
        assert fits([step.given, *step.shown], found), unlike(step, found)


@pytest.mark.timeout(240)
def test_the_tutorial_runs_as_it_is_printed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    for program in (DOCS.parent / "examples").glob("*report*.py"):
        shutil.copy(program, tmp_path)
    steps = steps_of(DOCS / "tutorial.md")
    found = transcript(home, [Step("console", "$ exec 2>&1", []), *steps], timeout=180)
    killed, slow = "bash: line ", "("  # the shell tells of killed jobs, `watch` why a work has not moved for 10 seconds
    found = [line for line in found if not line.startswith((killed, slow))]
    for step in steps:
        assert fits([step.given, *step.shown], found), unlike(step, found)


def test_the_quick_start_of_a2a_runs_as_it_is_printed(tmp_path: Path) -> None:
    require_tool("curl")
    home, port = Home(tmp_path), str(free_ports(1)[0])
    steps = [step._replace(given=step.given.replace("8080", port)) for step in steps_of(DOCS / "adapters" / "a2a.md")]
    found = transcript(home, [Step("console", "$ exec 2>&1", []), *steps], timeout=100)
    for step in steps:
        assert fits([step.given, *step.shown], found), unlike(step, found)
