"""`aghctl work run`: open, watch, print the result, and an exit code by the state."""

import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from aghbus.cli.app import errors
from aghbus.cli.commands.work_run import run_to_end
from aghbus.cli.context import Context
from aghbus.client.api import Api
from aghbus.client.http import Endpoint, Query
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for

Bus = tuple[Home, Daemon, Daemon]
WORK = "work_of_this_test"


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    home = Home(tmp_path_factory.mktemp("run"))
    once = ("--retry-first", "30s")  # a retry after a stall would be an event of its own
    with ops_and_worker(home, *once) as (ops, worker):
        yield home, ops, worker


@contextlib.contextmanager
def running(bus: Bus, work_id: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """The command, with a work that has reached the worker."""
    home, _, worker = bus
    command = ["--name", "ops", "work", "run", "--to", "worker", "--text", "do it", "--work-id", work_id, *options]
    with subprocess.Popen(
        [sys.executable, "-m", "aghbus.cli", *command], env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            wait_for(lambda: worker.state_of(work_id), 30, "the work")
            yield process
        finally:
            process.kill()


def ended(process: subprocess.Popen[bytes]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=30)
    return process.returncode, out.decode(), errors.decode()


def test_the_result_is_printed_and_progress_is_a_note(bus: Bus) -> None:
    _, ops, worker = bus
    with running(bus, "work_done") as process:
        worker.post("/v1/works/work_done/update", message="half \x1b[31mdone")
        worker.post("/v1/works/work_done/complete", result={"stdout": "two\nlines\x1b[2J\n", "exit_code": 0})
        code, out, errors = ended(process)
    assert (code, out) == (0, "stdout:\n  two\n  lines\\x1b[2J\nexit_code:  0\n")
    assert "half \\x1b[31mdone" in errors and "work_done completed" in errors
    assert [item for item in ops.get("/v1/inbox")["items"] if item["message"]["work_id"] == "work_done"] == []


@pytest.mark.parametrize(
    ("verb", "body", "exits", "expected"),
    [
        ("complete", {"result": {"n": 1}}, 0, {"state": "completed", "result": {"n": 1}, "reason": None}),
        ("fail", {"message": "no disk"}, 1, {"state": "failed", "message": "no disk", "result": None}),
        ("cancel", {}, 7, {"state": "canceled"}),
        (
            "reject",
            {"reason": "busy", "message": "later"},
            7,
            {"state": "failed", "reason": "busy", "message": "later"},
        ),
    ],
)
def test_the_exit_code_and_the_json_tell_the_state(
    bus: Bus, verb: str, body: Any, exits: int, expected: dict[str, Any]
) -> None:
    worker = bus[2]
    with running(bus, f"work_{verb}", "-o", "json") as process:
        worker.post(f"/v1/works/work_{verb}/{verb}", **body)
        code, out, _ = ended(process)
    answer = json.loads(out)
    assert code == exits
    assert {name: answer[name] for name in expected} == expected
    assert (answer["work_id"], answer["to"], answer["artifacts"]) == (f"work_{verb}", "worker", [])


def test_a_question_ends_the_command_and_not_the_work(bus: Bus) -> None:
    _, ops, worker = bus
    with running(bus, "work_asks") as process:
        worker.post("/v1/works/work_asks/need-input", message="which branch?")
        code, out, errors = ended(process)
    assert (code, out) == (6, "which branch?\n")
    assert "aghctl --name ops work say work_asks TEXT" in errors
    assert ops.state_of("work_asks") == "needs_input"


def test_the_wait_is_bounded(bus: Bus) -> None:
    with running(bus, "work_slow", "--wait", "0.2s") as process:
        code, out, errors = ended(process)
    assert (code, out) == (8, "")
    assert "work_slow submitted: it has not ended in time" in errors
    assert "aghctl --name ops work watch work_slow" in errors


@pytest.mark.parametrize("form", ["human", "json"])
def test_ctrl_c_tells_the_id_and_how_to_go_on(bus: Bus, form: str) -> None:
    work_id = f"work_interrupted_{form}"
    with running(bus, work_id, "-o", form) as process:
        if form == "human":  # the worker may have the work before the command has the answer of the daemon
            assert process.stderr is not None
            assert process.stderr.readline().startswith(b"sent to worker")
        process.send_signal(signal.SIGINT)
        code, out, errors = ended(process)
    assert (code, out) == (130, "")
    if form == "json":
        told = json.loads(errors)
        assert told["code"] == "interrupted"
        errors = f"{told['message']} {told['hint']}"
    assert f"{work_id} goes on" in errors
    for verb in ("watch", "cancel"):
        assert f"`aghctl --name ops work {verb} {work_id}`" in errors
    assert bus[1].state_of(work_id) == "submitted"


def test_ctrl_c_while_it_looks_for_an_unknown_peer_tells_the_id_too() -> None:
    class Interrupted(Api):
        def get(self, path: str, query: Query = ()) -> dict[str, Any]:
            raise KeyboardInterrupt

    class Ours(Context):
        @property
        def api(self) -> Api:
            return Interrupted(Endpoint(), 1.0)

    options = dict.fromkeys(("output", "timeout", "name", "socket", "api", "token_file"))
    where = {"to": "nobody", "recipient": "unknown", "thread_id": "thread_one", "channel": "default"}
    with pytest.raises(BaseException, match="work_open goes on") as raised:  # a KeyboardInterrupt would end all tests
        run_to_end(
            Ours(options), {**where, "work_id": "work_open", "id": "msg_open", "state": "queued", "seq": 1}, None
        )
    assert isinstance(raised.value, errors.Interrupted)


@pytest.mark.parametrize(
    ("verb", "body", "code"), [("complete", {}, 0), ("fail", {}, 1), ("cancel", {}, 7), ("reject", {}, 7)]
)
def test_a_shown_work_is_followed_to_its_end(bus: Bus, verb: str, body: Any, code: int) -> None:
    home, ops, worker = bus
    work_id = ops.post("/v1/works", to="worker", text="do it")["work_id"]
    wait_for(lambda: worker.state_of(work_id), 30, "the work")
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "work", "show", work_id, "--follow", "-o", "jsonl"]
    with subprocess.Popen(command, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["work"]["work_id"] == work_id
        worker.post(f"/v1/works/{work_id}/{verb}", **body)
        out, _ = process.communicate(timeout=30)
    (event,) = map(json.loads, out.splitlines())
    assert event["work"]["after"] in ("completed", "failed", "canceled")
    assert process.returncode == code
    again = home.ctl("--name", "ops", "work", "show", work_id, "--follow", "-o", "jsonl")
    assert (again.returncode, len(again.stdout.splitlines())) == (code, 1)


def test_a_target_is_required(bus: Bus) -> None:
    done = bus[0].ctl("--name", "ops", "work", "run", "--text", "x")
    assert (done.returncode, b"--to PEER or --to-capability ID" in done.stderr) == (2, True)


def test_a_shown_work_has_its_output_once_and_its_artifacts_by_name(bus: Bus) -> None:
    home, ops, worker = bus
    work_id = ops.post("/v1/works", to="worker", text="do it")["work_id"]
    wait_for(lambda: worker.state_of(work_id), 30, "the work")
    artifacts = [{"name": "a.xml", "uri": "https://example.org/a.xml", "size": 5}]
    worker.post(f"/v1/works/{work_id}/complete", result={"stdout": "two\nlines\n"}, artifacts=artifacts)
    wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end")
    shown = home.ctl("--name", "ops", "work", "show", work_id).stdout.decode()
    assert "result\n  stdout:\n    two\n    lines\nartifacts\n  a.xml  5 B  https://example.org/a.xml\n\n" in shown
    assert shown.count("lines") == 1 and "[1 artifact]" in shown
