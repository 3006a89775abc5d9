"""Both command lines with standard streams that are closed, full, or without a reader."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, Home

MODULES = {"aghctl": "aghbus.cli", "aghd": "aghbus.daemon"}
UNWRITABLE = b"standard output cannot be written: No space left on device\n"


def shell(folder: Path, line: str) -> subprocess.CompletedProcess[bytes]:
    """A shell command line with `aghctl` and `aghd` as functions."""
    functions = [f'{name}() {{ "{sys.executable}" -m {module} "$@"; }}' for name, module in MODULES.items()]
    env = Home(folder).env
    return subprocess.run(
        ["/bin/sh", "-c", "\n".join([*functions, line])], env=env, capture_output=True, timeout=60, check=False
    )


def unread(*command: str, env: dict[str, str]) -> tuple[int, bytes]:
    """Exit code and standard error of a command whose standard output has lost its reader."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, env=env, stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False)
    finally:
        os.close(writer)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("aghctl version >&-", 0),
        ("aghctl version <&- >&- 2>&-", 0),
        ("aghctl --socket nobody status >&-", 3),
        ("aghctl --socket nobody status 2>&-", 3),
        ("aghctl --socket nobody status 2>/dev/full", 3),
        ("aghctl nonsense 2>&-", 2),
        ("aghd version >&-", 0),
        ("aghd version <&- >&- 2>&-", 0),
        ("aghd run --name BAD 2>&-", 2),
        ("aghd run --name BAD 2>/dev/full", 2),
        ("aghd nonsense 2>/dev/full", 2),
    ],
)
def test_without_a_stream_the_exit_code_is_that_of_the_command(line: str, code: int, tmp_path: Path) -> None:
    assert shell(tmp_path, line).returncode == code


@pytest.mark.parametrize("arguments", ["version", "--help", "completion bash", "nats permissions --peer ops"])
def test_a_full_standard_output_is_named(arguments: str, tmp_path: Path) -> None:
    done = shell(tmp_path, f"aghctl {arguments} >/dev/full")
    assert (done.returncode, done.stderr) == (5, b"aghctl: " + UNWRITABLE)


@pytest.mark.parametrize("arguments", ["version", "--help", "config show", "config check -o json"])
def test_a_full_standard_output_of_the_daemon_is_named(arguments: str, tmp_path: Path) -> None:
    done = shell(tmp_path, f"aghd {arguments} >/dev/full")
    assert (done.returncode, done.stderr) == (1, b"aghd: " + UNWRITABLE)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("aghctl", ["version"]),
        ("aghctl", ["--help"]),
        ("aghd", ["version"]),
        ("aghd", ["--help"]),
        ("aghd", ["config", "show"]),
    ],
)
def test_a_closed_reader_is_exit_code_141_without_output(name: str, arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", MODULES[name], *arguments]
    assert unread(*command, env=Home(tmp_path).env) == (141, b"")


def test_a_work_is_opened_even_if_the_note_cannot_be_written(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops"):
        for away in ("2>&-", "2>/dev/full"):
            opened = shell(tmp_path, f"aghctl --name ops work open --to worker --text x {away}")
            work_id = opened.stdout.decode().strip()
            assert opened.returncode == 0
            assert home.ctl_json("--name", "ops", "work", "show", work_id)["work"]["work_id"] == work_id


def test_a_daemon_runs_without_standard_streams(home: Home) -> None:
    line = f'exec "{sys.executable}" -m aghbus.daemon run --name ops <&- >&- 2>&-'
    daemon = Daemon(home, "ops")
    daemon.log.touch()
    daemon.process = subprocess.Popen(["/bin/sh", "-c", line], env=home.env)
    try:
        daemon.wait_ready()
    finally:
        code = daemon.stop()
    assert code == 0
