"""The pytest plugin as its users run it: a pytest of its own, in a process of its own."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support.daemons import Daemon, Home, wait_for
from tests.support.leftovers import processes_with

pytest_plugins = "pytester"

WAIT: Final = 30.0
INI: Final = """
[pytest]
addopts = -p no:hypothesispytest
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
"""


@pytest.fixture(autouse=True)
def user(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of a project, and a mark in the environment of all processes that its pytest starts."""
    pytester.path.joinpath("pytest.ini").write_text(INI)
    monkeypatch.setenv("STARTED_BY_TEST", str(pytester.path))


def left_behind(pytester: pytest.Pytester) -> list[str]:
    return processes_with(str(pytester.path))


def test_peers_meet_in_tests_with_and_without_asyncio(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from aghbus.client import Job, Worker
        from aghbus.testing import Sandbox

        worker = Worker()

        @worker.capability("test.run")
        def run_tests(job: Job) -> dict[str, object]:
            return {"text": job.text}

        def test_blocking(aghbus_sandbox: Sandbox) -> None:
            ops, runner = aghbus_sandbox.peers("ops", "runner", capabilities={"runner": ["test.run"]})
            assert {peer.peer_id for peer in ops.client().peers().peers} == {"ops", "runner"}
            runner.serve(worker)
            assert ops.client().run("runner", "one", timeout=20).result == {"text": "one"}

        async def test_asyncio(aghbus_sandbox: Sandbox) -> None:
            ops, runner = aghbus_sandbox.peers("ops", "runner", capabilities={"runner": ["test.run"]})
            runner.serve(worker)
            work = await ops.async_client().run(to_capability="test.run", text="two", timeout=20)
            assert work.result == {"text": "two"}
    """)
    pytester.runpytest_subprocess().assert_outcomes(passed=2)
    assert left_behind(pytester) == []


def test_failures_and_errors_leave_nothing_behind(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def broken(aghbus_sandbox):
            aghbus_sandbox.peers("ops")
            raise RuntimeError("broken fixture")

        def test_fails(aghbus_sandbox):
            aghbus_sandbox.peers("ops", "worker")
            assert False

        def test_error(broken):
            pass

        def test_exit(aghbus_sandbox):
            aghbus_sandbox.peers("ops")
            raise SystemExit(3)
    """)
    pytester.runpytest_subprocess().assert_outcomes(failed=2, errors=1)
    assert left_behind(pytester) == []


def started(pytester: pytest.Pytester) -> subprocess.Popen[bytes]:
    """pytest with the module in the folder of the test, once that has written the file `started`."""
    command = [sys.executable, "-m", "pytest", f"--basetemp={pytester.path / 'base'}"]
    output = (pytester.path / "output").open("wb")
    with output:
        running = subprocess.Popen(command, cwd=pytester.path, stdout=output, stderr=output)
    wait_for((pytester.path / "started").exists, WAIT, "the test to run")
    return running


def ends(running: subprocess.Popen[bytes], pytester: pytest.Pytester, number: int) -> None:
    """The signal ends pytest and all that it started."""
    with running:
        running.send_signal(number)
        code = running.wait(WAIT)
    assert code == (2 if number == signal.SIGINT else -number), (pytester.path / "output").read_text()
    wait_for(lambda: not left_behind(pytester), WAIT, "the processes to end")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_daemons_and_sockets_go_with_a_pytest_that_is_ended(pytester: pytest.Pytester, number: signal.Signals) -> None:
    pytester.makepyfile("""
        import os, pathlib, time

        def test_waits(aghbus_sandbox):
            ops, worker = aghbus_sandbox.peers("ops", "worker")
            pathlib.Path("new").write_text(ops.env["XDG_RUNTIME_DIR"])
            os.rename("new", "started")
            time.sleep(120)
    """)
    running = started(pytester)
    assert any("nats-server" in command for command in left_behind(pytester))
    sockets = Path((pytester.path / "started").read_text())
    assert sockets.exists()
    ends(running, pytester, number)
    wait_for(lambda: not sockets.exists(), WAIT, "the sockets to be removed")


@pytest.mark.parametrize("pause", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_pytest_that_is_ended_while_daemons_start_leaves_nothing_behind(
    pytester: pytest.Pytester, number: signal.Signals, pause: float
) -> None:
    pytester.makepyfile(f"""
        import pathlib, threading, time

        def test_starts(aghbus_sandbox):
            threading.Timer({pause}, pathlib.Path("started").touch).start()
            aghbus_sandbox.peers("ops", "worker", "third")
            time.sleep(120)
    """)
    ends(started(pytester), pytester, number)


@pytest.mark.parametrize("call", ["fork_exec", "connect"])
def test_ctrl_c_waits_for_the_end_of_a_step_which_closes_what_it_opened(pytester: pytest.Pytester, call: str) -> None:
    pytester.makepyfile(f"""
        import pytest, signal, sys

        def interrupt(frame, event, function):
            if event == "c_return" and function.__name__ == "{call}":
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

        def test_starts(aghbus_sandbox):
            sys.setprofile(interrupt)
            with pytest.raises(KeyboardInterrupt):
                aghbus_sandbox.peers("ops")
    """)
    pytester.runpytest_subprocess().assert_outcomes(passed=1)  # its warnings about resources are errors
    assert left_behind(pytester) == []


def test_workers_of_xdist_have_peers_of_the_same_names(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_works(aghbus_sandbox, number):
            ops, worker = aghbus_sandbox.peers("ops", "worker")
            ops.client().start("worker", f"work {number}")
            for job in worker.client().jobs():
                assert job.text == f"work {number}"
                break
            assert {peer.peer_id for peer in ops.client().peers().peers} == {"ops", "worker"}
    """)
    pytester.runpytest_subprocess("-n", "2").assert_outcomes(passed=4)
    assert left_behind(pytester) == []


def test_the_users_own_daemon_of_the_same_name_is_left_alone(
    pytester: pytest.Pytester, home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile("""
        import os, subprocess, sys

        def test_the_names_are_those_of_the_sandbox(aghbus_sandbox):
            ops, worker = aghbus_sandbox.peers("ops", "worker")
            assert {peer.peer_id for peer in worker.client().peers().peers} == {"ops", "worker"}
            ops.client().send("say", {"text": "hello"}, to="worker", thread_id="thread_of_test")
            command = [sys.executable, "-m", "aghbus.cli", "status", "-o", "json"]
            shown = subprocess.run(command, env={**os.environ, **ops.env}, check=True, capture_output=True)
            assert ops.env["XDG_STATE_HOME"].encode() in shown.stdout
    """)
    with Daemon(home, "ops") as ops:
        files = {path for path in home.root.rglob("*") if path.is_file()}
        for name, value in {**home.env, "AGHD_NAME": "ops", "AGHD_CHANNELS": "nowhere"}.items():
            monkeypatch.setenv(name, value)
        pytester.runpytest_subprocess().assert_outcomes(passed=1)
        assert ops.get("/v1/messages")["messages"] == []
        assert [peer["peer_id"] for peer in ops.get("/v1/peers")["peers"]] == ["ops"]
        assert {path for path in home.root.rglob("*") if path.is_file()} == files


def test_a_broker_that_cannot_start_is_a_clear_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_it(aghbus_sandbox):
            aghbus_sandbox.peers("ops", "worker", options=["--broker-binary", "/nowhere/nats-server"])
    """)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*Unexpected: the broker cannot be used: /nowhere/nats-server is not an executable file*"]
    )
    assert left_behind(pytester) == []


def test_a_run_that_does_not_use_it_loads_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import sys

        def test_nothing_is_loaded():
            assert [name for name in sys.modules if name.startswith("aghbus")] == []
            assert "pytest_aghbus" in sys.modules
    """)
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
    listed = pytester.runpytest_subprocess("--help").stdout.str()
    assert "aghbus" not in listed.partition("plugins:")[0]
