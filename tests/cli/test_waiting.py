"""Commands that wait for the daemon or for peers, and the exit code of `status`."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, Home, wait_for
from tests.support.terminals import TerminalProgram

UNREACHABLE = ("--nats", "nats://127.0.0.1:1", "--log-format", "json")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home with the daemon `ops`, to which the tests add peers."""
    home = Home(tmp_path_factory.mktemp("waiting"))
    with Daemon(home, "ops"):
        yield home


def waiting(home: Home, *args: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "aghbus.cli", *args]
    return subprocess.Popen(command, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_wait_is_started_before_the_daemon(home: Home) -> None:
    with waiting(home, "--name", "late", "wait", "--timeout", "60s") as waiter, Daemon(home, "late"):
        assert waiter.communicate(timeout=60) == ("ready\n", "")
    assert waiter.returncode == 0


def test_waiting_without_a_daemon_ends_as_unreachable(home: Home) -> None:
    assert home.ctl("--name", "nobody", "wait", "--ready", "--timeout", "0.3").returncode == 3


def test_a_daemon_without_a_broker_is_not_ready(home: Home) -> None:
    daemon = Daemon(home, "lonely", *UNREACHABLE).start(wait=False)
    try:
        wait_for(lambda: home.ctl("--name", "lonely", "status").returncode == 1, 60, "the exit code")
        assert json.loads(home.ctl("--name", "lonely", "status", "-o", "json").stdout)["ready"] is False
        done = home.ctl("--name", "lonely", "wait", "--timeout", "3", "-o", "json")
        assert (done.returncode, json.loads(done.stderr)["code"]) == (1, "timeout")
        assert home.ctl("--name", "lonely", "wait", "--peer", "x", "--timeout", "3").returncode == 1
    finally:
        daemon.stop()


def test_status_of_a_ready_daemon_succeeds(shared: Home) -> None:
    assert shared.ctl("--name", "ops", "status").returncode == 0


@pytest.mark.parametrize(
    ("name", "condition"), [("late-a", ["--peer", "late-a"]), ("late-b", ["--capability", "late.b"])]
)
def test_wait_finds_a_peer_that_starts_later(shared: Home, name: str, condition: list[str]) -> None:
    waiter = waiting(shared, "--name", "ops", "wait", *condition, "--timeout", "60s")
    with waiter, Daemon(shared, name, "--capability", name.replace("-", ".")):
        assert waiter.communicate(timeout=60) == (f"{name}\n", "")
    assert waiter.returncode == 0


@pytest.mark.parametrize("condition", [["--peer", "nobody"], ["--capability", "nothing"], ["--capability", "ops"]])
def test_wait_ends_at_its_timeout(shared: Home, condition: list[str]) -> None:
    done = shared.ctl("--name", "ops", "wait", *condition, "--timeout", "3s")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"within 3 s" in done.stderr


def test_conditions_of_wait_exclude_each_other(shared: Home) -> None:
    done = shared.ctl("--name", "ops", "wait", "--peer", "a", "--capability", "b")
    assert (done.returncode, b"exclude each other" in done.stderr) == (2, True)


def test_whois_with_wait_asks_until_a_peer_answers(shared: Home) -> None:
    asking = waiting(shared, "--name", "ops", "whois", "late.c", "--wait", "50s", "-o", "json")
    with asking, Daemon(shared, "late-c", "--capability", "late.c"):
        found = json.loads(asking.communicate(timeout=60)[0])
    assert [peer["peer_id"] for peer in found["peers"]] == ["late-c"]


@pytest.mark.parametrize("to", [[], ["--to", "nobody"]])
def test_whois_without_an_answer_waits_the_whole_time(shared: Home, to: list[str]) -> None:
    done = shared.ctl("--name", "ops", "whois", "no.such.capability", *to, "--wait", "2.5s", "-o", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["elapsed_ms"] >= 2500


WAITING = [
    (["traces"], "waiting for traces and receipts after #"),
    (["traces", "--all"], "waiting for messages after #"),
    (["inbox", "follow"], "unread messages, then new ones as they arrive"),
    (["inbox", "next", "--wait", "30s"], "waiting up to 30s for a message"),
]


@pytest.mark.parametrize(("words", "shown"), WAITING)
def test_a_person_at_a_terminal_is_told_what_is_waited_for(
    shared: Home, tmp_path: Path, words: list[str], shown: str
) -> None:
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", *words]
    with TerminalProgram(command, shared.env, tmp_path) as program:
        wait_for(lambda: shown.encode() in program.shown, 30, shown)


@pytest.mark.parametrize("words", [["-o", "json", "inbox", "next", "--wait", "1s"], ["inbox", "next", "--wait", "1s"]])
def test_scripts_are_told_nothing_but_the_answer(shared: Home, words: list[str]) -> None:
    assert b"waiting" not in shared.ctl("--name", "ops", *words).stderr
