"""`--watch`: what is drawn again, and when, on a terminal, in a pipe and in JSON."""

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for
from tests.support.terminals import TerminalProgram

Bus = tuple[Home, Daemon, Daemon]
HOME = "\x1b[H"  # begins every picture


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    home = Home(tmp_path_factory.mktemp("watch"))
    once = ("--retry-first", "30s")  # a retry after a stall would be an event of its own
    with ops_and_worker(home, *once) as (ops, worker):
        yield home, ops, worker


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "aghbus.cli", "--name", "ops", *words]


def opened(bus: Bus, work_id: str) -> None:
    bus[1].post("/v1/works", to="worker", text=f"text of {work_id}", work_id=work_id)
    wait_for(lambda: bus[2].state_of(work_id), 30, "the work")


def last_picture(program: TerminalProgram) -> str:
    return program.shown.decode(errors="replace").rpartition(HOME)[2]


@contextlib.contextmanager
def piped(bus: Bus, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command(*words), env=bus[0].env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[Any]:
    assert process.stdout is not None
    return map(json.loads, process.stdout)


def test_a_terminal_shows_every_change_and_ctrl_c_leaves_it_as_it_was(bus: Bus) -> None:
    opened(bus, "work_drawn")
    with TerminalProgram(command("work", "list", "--watch"), bus[0].env, bus[0].root, rows=20) as program:
        program.wait_for("text of work_drawn")
        bus[2].post("/v1/works/work_drawn/need-input", message="which?")
        wait_for(lambda: "needs_input" in last_picture(program), 30, "the change")
        opened(bus, "work_drawn_later")
        wait_for(lambda: "work_drawn_later" in last_picture(program), 30, "the new work")
        program.type("\x03")
        began = time.monotonic()
        assert program.wait() == 130
        assert time.monotonic() - began < 10
    shown = program.shown.decode()
    assert "\x1b[?" not in shown  # no mode of the terminal was changed, so none is left
    assert shown.endswith("\n")


def test_a_burst_is_drawn_once_a_second_at_most(bus: Bus) -> None:
    with TerminalProgram(command("work", "list", "-w"), bus[0].env, bus[0].root) as program:
        program.wait_for("WORK")
        began, before = time.monotonic(), program.shown.count(HOME.encode())
        for number in range(30):
            bus[1].post("/v1/works", to="worker", text="burst", work_id=f"work_burst_{number}")
        wait_for(lambda: "work_burst_29" in last_picture(program), 30, "the last work")
        drawn, took = program.shown.count(HOME.encode()) - before, time.monotonic() - began
    assert drawn <= took + 2


def test_more_lines_than_the_screen_has_are_counted(bus: Bus) -> None:
    for number in range(12):
        bus[1].post("/v1/works", to="worker", text="many", work_id=f"work_many_{number}")
    words = ("work", "list", "--text", "many", "--limit", "12", "--watch")
    with TerminalProgram(command(*words), bus[0].env, bus[0].root, rows=8) as program:
        program.wait_for("… 7 more lines")
        picture = last_picture(program)
    assert picture.count("\n") == 7


def test_a_watch_goes_on_after_a_restart_of_the_daemon(bus: Bus) -> None:
    _, ops, _ = bus
    with TerminalProgram(command("work", "list", "--watch"), bus[0].env, bus[0].root) as program:
        program.wait_for("WORK")
        ops.kill()
        program.wait_for("trying again for up to 30 s")
        ops.start()
        opened(bus, "work_after_restart")
        wait_for(lambda: "work_after_restart" in last_picture(program), 30, "the new work")


def test_a_daemon_that_stays_away_ends_the_watch(bus: Bus) -> None:
    home, _, _ = bus
    with Daemon(home, "gone"):
        words = [sys.executable, "-m", "aghbus.cli", "--name", "gone", "status", "--watch", "--timeout", "1s"]
        process = subprocess.Popen(words, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"name")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, b"no daemon listens" in errors) == (3, True)


def test_a_watch_needs_a_daemon_at_first(bus: Bus) -> None:
    done = bus[0].ctl("--name", "nobody", "peers", "--watch")
    assert (done.returncode, done.stdout) == (3, b"")


def test_a_pipe_gets_the_table_again_after_an_empty_line(bus: Bus) -> None:
    with piped(bus, "work", "list", "--text", "piped", "--watch") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"WORK  STATE  PEER  TRUST  CHANGED  TEXT\n"
        bus[1].post("/v1/works", to="worker", text="piped", work_id="work_piped")
        assert process.stdout.readline() == b"\n"
        assert process.stdout.readline().startswith(b"WORK")
        assert process.stdout.readline().startswith(b"work_piped")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130


def test_json_has_rows_that_are_new_or_have_changed_and_those_that_are_gone(bus: Bus) -> None:
    opened(bus, "work_rows")
    words = ("work", "list", "--text", "work_rows", "--state", "submitted", "--state", "working", "-w", "-o", "jsonl")
    with piped(bus, *words) as process:
        rows = lines_of(process)
        first = next(rows)
        assert (first["v"], first["work_id"], first["state"]) == (1, "work_rows", "submitted")
        bus[2].post("/v1/works/work_rows/accept")
        assert next(rows)["state"] == "working"
        bus[2].post("/v1/works/work_rows/complete")
        last = next(rows)
        assert (last["work_id"], last["removed"]) == ("work_rows", True)


def test_an_acknowledgement_is_seen_in_the_inbox(bus: Bus) -> None:
    opened(bus, "work_inbox")
    with subprocess.Popen(
        [sys.executable, "-m", "aghbus.cli", "--name", "worker", "inbox", "list", "-w", "-o", "json"],
        env=bus[0].env,
        stdout=subprocess.PIPE,
    ) as process:
        rows = lines_of(process)
        item = next(row for row in rows if row["message"]["work_id"] == "work_inbox")
        bus[2].post(f"/v1/inbox/{item['seq']}/ack")
        gone = next(row for row in rows if row.get("removed"))
        process.kill()
    assert gone["seq"] == item["seq"]


def test_a_peer_that_appears_is_shown(bus: Bus) -> None:
    home, _, _ = bus
    with TerminalProgram(command("peers", "--watch"), home.env, home.root) as program:
        program.wait_for("worker")
        with Daemon(home, "newcomer"):
            wait_for(lambda: "newcomer" in last_picture(program), 30, "the peer")


def test_peers_in_json_are_not_repeated_because_they_were_seen_again(bus: Bus) -> None:
    with piped(bus, "peers", "-w", "-o", "jsonl") as process:
        rows = lines_of(process)
        known = {row["peer_id"]: row["presence"] for row in (next(rows) for _ in bus[1].get("/v1/peers")["peers"])}
        with Daemon(bus[0], "another"):
            row = next(rows)
            assert known.get(row["peer_id"]) != row["presence"]


def test_status_is_drawn_again(bus: Bus) -> None:
    home, _, _ = bus
    with TerminalProgram(command("status", "--watch"), home.env, home.root) as program:
        program.wait_for("process")
        wait_for(lambda: program.shown.count(HOME.encode()) >= 2, 30, "the second picture")
        assert "uptime" not in last_picture(program) and "up " in last_picture(program)
