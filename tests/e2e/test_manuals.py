"""The examples of pages, run as they are written, by a user who has followed the README before."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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


def transcript(home: Home, steps: list[Step]) -> list[str]:
    """What one shell shows for each of the commands."""
    tools = [str(Path(sys.executable).parent), home.env["PATH"]]
    script = "\n".join(f"echo {shlex.quote(step.given)}\n{step.given.removeprefix('$ ')}" for step in steps)
    done = subprocess.run(
        ["bash", "-ec", script],
        env={**home.env, "PATH": os.pathsep.join(tools)},
        cwd=home.root,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    return done.stdout.decode().splitlines()


@pytest.mark.parametrize(("page", "section"), [("inbox.md", "Items"), ("why.md", "The sentence")])
def test_a_page_shows_what_its_commands_print(home: Home, page: str, section: str) -> None:
    require_tool("jq")
    steps = steps_of(DOCS / page, section)
    found = transcript(home, steps)
    for step in steps:
        assert fits([step.given, *step.shown], found), (step, found)
