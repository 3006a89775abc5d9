"""Colours: only where a person sees them, and only for states."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from aghbus.cli.app.output import shows_color
from aghbus.cli.app.text import Id, State, fields, painted, plain, table
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for
from tests.support.terminals import TerminalProgram

Bus = tuple[Home, Daemon, Daemon]
FAILED = "\x1b[31mfailed\x1b[0m"
NO_TERMINAL = 0  # standard input of the tests, at most a pipe


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """A home with a work that has failed; its text would turn a terminal red."""
    home = Home(tmp_path_factory.mktemp("colors"))
    with ops_and_worker(home) as (ops, worker):
        text = "\x1b[31mred\x1b[0m"
        work = ops.post("/v1/works", to="worker", text=text, work_id="work_red")["work_id"]
        wait_for(lambda: worker.state_of(work), 30, "the work")
        worker.post(f"/v1/works/{work}/fail", message=text)
        wait_for(lambda: ops.state_of(work) == "failed", 30, "the end")
        yield home, ops, worker


def drawn(bus: Bus, *words: str, **env: str) -> str:
    """What a command shows on a terminal."""
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", *words]
    with TerminalProgram(command, {**bus[0].env, **env}, bus[0].root, columns=200) as program:
        program.wait()
    return program.shown.decode().replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (["work", "list"], FAILED),
        (["work", "show", "work_red"], f"submitted → {FAILED}"),
        (["work", "watch", "work_red"], f"→ {FAILED}"),
        (["peers"], "\x1b[32mactive\x1b[0m"),
        (["traces", "--since", "0", "--timeout", "1s"], FAILED),
    ],
)
def test_states_are_coloured_on_a_terminal_and_text_of_peers_is_not(bus: Bus, words: list[str], state: str) -> None:
    if words[0] == "traces":  # without end
        command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", *words]
        with TerminalProgram(command, bus[0].env, bus[0].root, columns=200) as program:
            shown = program.wait_for(state)
    else:
        shown = drawn(bus, *words)
    assert state in shown
    assert "\x1b[31mred" not in shown
    assert "\\x1b[31mred" in shown or words == ["peers"]


def test_a_coloured_table_is_aligned_as_a_plain_one() -> None:
    rows = [(Id("work_a"), State(state), "text") for state in ("failed", "submitted", "needs_input")]
    coloured = table(["WORK", "STATE", "TEXT"], rows, 0)
    assert plain(coloured) == table(["WORK", "STATE", "TEXT"], [tuple(map(str, row)) for row in rows], 0)
    assert FAILED in coloured and "submitted" in coloured
    assert fields([("state", State("failed")), ("text", "failed")]) == f"state  {FAILED}\ntext   failed"


def test_a_state_that_is_none_is_escaped() -> None:
    assert painted("\x1b[2J") == "\\x1b[2J"
    assert table(["S"], [(State("\x1b[31m"),)], 0) == "S\n\\x1b[31m"


@pytest.mark.parametrize(
    ("words", "env", "coloured"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        (["--color", "never"], {}, False),
        (["--color", "always"], {"NO_COLOR": "1"}, True),
        ([], {"TERM": "dumb"}, False),
    ],
)
def test_a_person_decides_about_colours(bus: Bus, words: list[str], env: dict[str, str], coloured: bool) -> None:
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "work", "list", *words]
    with TerminalProgram(
        ["env", *(f"{name}={value}" for name, value in env.items()), *command], bus[0].env, bus[0].root
    ) as it:
        assert it.wait() == 0
    assert (FAILED.encode() in it.shown) == coloured


@pytest.mark.parametrize(
    ("words", "env", "coloured"),
    [
        ([], {}, False),
        ([], {"CLICOLOR_FORCE": "1"}, True),
        ([], {"FORCE_COLOR": "1"}, True),
        ([], {"FORCE_COLOR": "0"}, False),
        ([], {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        (["--color", "always"], {}, True),
        (["--color", "never"], {"FORCE_COLOR": "1"}, False),
        (["-o", "json", "--color", "always"], {}, False),
    ],
)
def test_pipes_have_no_colours_unless_somebody_asks(
    bus: Bus, words: list[str], env: dict[str, str], coloured: bool
) -> None:
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "work", "list", *words]
    done = subprocess.run(command, env={**bus[0].env, **env}, capture_output=True, check=True)
    assert (b"\x1b" in done.stdout) == coloured


def test_each_stream_is_looked_at_for_itself(bus: Bus) -> None:
    assert not shows_color("auto", NO_TERMINAL, {"TERM": "xterm"})
    command = f"{sys.executable} -m aghbus.cli --name ops work watch work_red > {bus[0].root}/answer"
    with TerminalProgram(["sh", "-c", command], bus[0].env, bus[0].root) as program:
        assert program.wait() == 1
    assert FAILED.encode() in program.shown  # the note on standard error
    assert b"\x1b" not in (bus[0].root / "answer").read_bytes()
