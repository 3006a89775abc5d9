"""The programs of docs/client.md and docs/testing.md are those of examples/, and they run against real daemons."""

import json
import re
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from aghbus.client import Client, Endpoint
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.tools import require_pyright

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"
PAGES: Final = {
    "client.md": ("give_work.py", "worker.py", "jobs.py", "events.py", "two_works.py"),
    "testing.md": ("test_worker.py", "test_bus.py", "sandbox.py"),
}
"""The programs of each page, in their order."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    capabilities = ("--capability", "test.run", "--capability", "text.count")
    with Daemon(home, "ops") as ops, Daemon(home, "patch-worker", *capabilities) as worker:
        wait_for(lambda: ops.knows("patch-worker") and worker.knows("ops"), 30, "presence")
        yield home


def start(home: Home, daemon: str, name: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", str(EXAMPLES / name)]
    env = {**home.env, "AGHD_NAME": daemon}
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_the_pages_show_the_programs() -> None:
    for page, names in PAGES.items():
        shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL)
        assert shown == [(EXAMPLES / name).read_text("utf-8") for name in names]
    assert sorted(path.name for path in EXAMPLES.glob("*.py")) == sorted(
        name for names in PAGES.values() for name in names
    )


def test_the_tests_and_the_sandbox_of_the_page_about_testing_run(tmp_path: Path) -> None:
    folder = shutil.copytree(EXAMPLES, tmp_path / "examples")
    settings = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function", "-W", "error")
    for command, last in (
        (["-m", "pytest", "-q", "-p", "no:cacheprovider", *settings], r"5 passed in .*"),
        (["sandbox.py"], r"\{'passed': True\}"),
    ):
        command = [sys.executable, *command]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100, check=False)
        assert re.fullmatch(last, (done.stdout.splitlines() or [""])[-1]), done.stdout + done.stderr


def test_the_worker_is_asked_and_answers_and_drains_at_sigterm(home: Home) -> None:
    with start(home, "patch-worker", "worker.py") as worker:
        giving = start(home, "ops", "give_work.py")
        printed, _ = giving.communicate("main\n", timeout=60)
        result = "{'branch': 'main', 'passed': True, 'attempt': 1}"
        assert printed == f"Which branch? completed testing main {result}\n"
        client = Client(Endpoint(path=str(Daemon(home, "ops").socket_path)))
        assert client.run("patch-worker", "one two three", intent="text.count", timeout=60).result == {"words": 3}
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / "two_works.py")],
            env={**home.env, "AGHD_NAME": "ops"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.splitlines()[0] == "['completed', 'completed']"
        assert done.stdout.splitlines()[1].startswith("not_found no work work_unknown")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_jobs_one_by_one_and_the_events_of_them(home: Home) -> None:
    with start(home, "patch-worker", "jobs.py") as jobs, start(home, "ops", "events.py") as events:
        client = Client(Endpoint(path=str(Daemon(home, "ops").socket_path)))
        work = client.run("patch-worker", "hello", timeout=60)
        assert work.result == {"exit_code": 0, "output": "ok\n", "attempt": 1}
        assert events.stdout is not None
        lines = [events.stdout.readline().split() for _ in range(3)]
        assert [line[1:] for line in lines] == [
            [work.work_id, "message", "submitted"],
            [work.work_id, "receipt:accepted", "working"],
            [work.work_id, "trace:completed", "completed"],
        ]
        jobs.kill()
        events.kill()


def test_the_programs_are_clean_for_pyright(tmp_path: Path) -> None:
    checker = require_pyright()
    settings = {
        "typeCheckingMode": "strict",
        "include": [str(EXAMPLES)],
        "extraPaths": [str(EXAMPLES), str(ROOT / "tests" / "typecheck"), *site.getsitepackages()],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    done = subprocess.run([checker, "-p", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
