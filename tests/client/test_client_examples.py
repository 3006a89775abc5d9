"""The programs of the pages are those of examples/, and they run against real daemons."""

import json
import re
import shutil
import signal
import site
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Final

import pytest

from aghbus.client import Client, Endpoint
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.tools import require_pyright, require_tool

ROOT: Final = Path(__file__).parents[2]
EXAMPLES: Final = ROOT / "examples"
PAGES: Final = {
    "client.md": ("give_work.py", "worker.py", "jobs.py", "events.py", "two_works.py"),
    "recipes.md": ("many_works.py", "fan_out.py", "retry.py"),
    "testing.md": ("test_worker.py", "test_bus.py", "sandbox.py"),
    "tutorial.md": ("report_worker.py", "get_report.py"),  # tests/e2e/test_manuals.py runs them
}
"""The programs of each page, in their order."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path)
    capabilities = [f"--capability={one}" for one in ("test.run", "text.count", "text.translate")]
    with Daemon(home, "ops") as ops, Daemon(home, "patch-worker", *capabilities) as worker:
        wait_for(lambda: ops.knows("patch-worker") and worker.knows("ops"), 30, "presence")
        yield home


def start(home: Home, daemon: str, name: str, **more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-u", str(EXAMPLES / name)]
    env = {**home.env, "AGHD_NAME": daemon, **more}
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def lines_of(home: Home, name: str) -> list[str]:
    """The lines that a program of `ops` prints until its end."""
    with start(home, "ops", name) as program:
        lines, _ = program.communicate(timeout=60)
        assert program.returncode == 0
    return lines.splitlines()


def test_the_pages_show_the_programs() -> None:
    for page, names in PAGES.items():
        shown = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text("utf-8"), re.DOTALL)
        programs = [(EXAMPLES / name).read_text("utf-8") for name in names]
        assert [one for one in shown if one.startswith('"""')] == programs
    every = [path.read_text("utf-8") for path in EXAMPLES.glob("*.py")]
    assert [one for one in shown if not any(one in program for program in every)] == []
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
        states, missing = lines_of(home, "two_works.py")
        assert states == "['completed', 'completed']" and missing.startswith("not_found no work work_unknown")
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def test_many_works_are_given_and_several_capabilities_asked(home: Home) -> None:
    with start(home, "patch-worker", "worker.py") as worker:
        counts = [f"{'one two three'[:end]} -> completed {{'words': {n}}}" for end, n in ((3, 1), (7, 2), (13, 3))]
        assert sorted(lines_of(home, "many_works.py")) == counts
        assert lines_of(home, "fan_out.py") == [
            "test.run ('completed', {'branch': 'main', 'passed': True, 'attempt': 1})",
            "text.count ('completed', {'words': 4})",
        ]
        worker.terminate()


def test_a_work_is_tried_again_until_the_server_of_the_model_is_there(home: Home) -> None:
    class Model(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the name that http.server calls
            text = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.upper())

    with HTTPServer(("127.0.0.1", 0), Model, bind_and_activate=False) as server:
        server.server_bind()  # it refuses connections until it listens
        address = f"127.0.0.1:{server.server_port}"
        with start(home, "patch-worker", "retry.py", MODEL=address) as worker:
            ops, peer = Daemon(home, "ops"), Daemon(home, "patch-worker")
            work_id = ops.post("/v1/works", to_capability="text.translate", text="hello")["work_id"]
            wait_for(lambda: peer.why(work_id) == "returned", 30, "the first attempt to fail")
            server.server_activate()
            threading.Thread(target=server.serve_forever, daemon=True).start()
            wait_for(lambda: ops.state_of(work_id) == "completed", 60, "a later attempt")
            result = ops.get(f"/v1/works/{work_id}")["work"]["result"]
            assert result["text"] == "HELLO" and result["attempt"] > 1
            server.shutdown()
            worker.terminate()


def test_the_unit_of_the_recipe_is_one_of_systemd(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    (unit,) = re.findall(r"```ini\n(.*?)```", page, re.DOTALL)
    (tmp_path / "patch-worker.service").write_text(unit.replace("%h/agents/bin/python", sys.executable))
    shutil.copy(ROOT / "deploy/systemd/user/aghd@.service", tmp_path)
    done = subprocess.run(
        [require_tool("systemd-analyze"), "--user", "verify", str(tmp_path / "patch-worker.service")],
        env=Home(tmp_path).env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


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
