"""The example of docs/adapters/sentient.md, run as it is written."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.daemons import Home

REPOSITORY = Path(__file__).parent.parent.parent
FOLDER = REPOSITORY / "docs" / "adapters"


ENDED = "for _ in $(seq 300); do aghctl --name objective work list --state completed -o jsonl | grep -q work_ && break; done"
"""A person types the next line more slowly than the end of the work takes to come back."""


def commands() -> list[str]:
    """The lines behind the prompts of the first console block."""
    (block,) = re.findall(
        r"## Two daemons, one chain\n.*?```console\n(.*?)```", (FOLDER / "sentient.md").read_text(), re.DOTALL
    )
    return re.findall(r"^\$ (.*)$", block, re.MULTILINE)


def test_the_example_of_the_manual_runs(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    shutil.copytree(FOLDER / "sentient", tmp_path / "docs" / "adapters" / "sentient")
    env = {**home.env, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{home.env['PATH']}"}
    *shown, stop = commands()
    shown.insert(shown.index("wait $!") + 1, ENDED)
    script = "\n".join(["set -e", "trap 'kill $(jobs -p); wait' EXIT", *shown])
    done = subprocess.run(["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert b"line 1: sent to goal in thread_" in done.stdout + done.stderr
    assert re.search(rb"work_\w+ +completed +for goal ", done.stdout)
    assert b"[TIMESTAMP: 14:31:52]\n[AGENT: objective_agent]\n" in done.stdout
    assert b"warning" not in done.stderr and b"error" not in done.stderr
    folder = tmp_path / "docs" / "adapters" / "sentient"
    assert json.loads((folder / "got.json").read_text()) == json.loads((folder / "objectives.json").read_text())
    assert stop == "kill %1 %2"
