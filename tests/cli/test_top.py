"""`aghctl top`: on a terminal, and where there is none."""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aghbus.cli.app.text import plain, width
from aghbus.cli.commands.top import SORTS, Overview, TopView
from aghbus.protocol.api.examples import values
from tests.support.daemons import Home, ops_and_worker, wait_for
from tests.support.terminals import TerminalProgram


def work(number: int, **changed: Any) -> dict[str, Any]:
    """A work as the API answers it."""
    return {
        **msgspec.to_builtins(values.WORK),
        "work_id": f"work_{number:032d}",
        "text": f"text {number}",
        "updated_ms": 1_000 * number,
        **changed,
    }


def overview(*works: dict[str, Any], status: dict[str, Any] | None = None) -> Overview:
    return Overview({**msgspec.to_builtins(values.STATUS), **(status or {})}, [*works], [], [])


def texts(view: TopView, shown: Overview) -> list[str]:
    return [row["text"] for row in view.rows(shown)]


def test_works_that_need_input_come_first_and_orders_change() -> None:
    shown = overview(work(1, state="completed"), work(2, state="working"), work(3, state="needs_input"), work(4))
    shown.lists["works"][3]["state"] = "failed"
    view = TopView()
    assert texts(view, shown) == ["text 3", "text 2", "text 4", "text 1"]
    view.press("s", shown)
    assert texts(view, shown) == ["text 4", "text 3", "text 2", "text 1"]
    for _ in SORTS[1:]:
        view.press("s", shown)
    assert texts(view, shown)[0] == "text 3"


def test_keys_filter_select_and_open_a_work() -> None:
    shown = overview(*(work(number) for number in range(1, 30)))
    view = TopView()
    for key in ("/", *"text 2", "enter"):
        view.press(key, shown)
    assert set(texts(view, shown)) == {f"text {number}" for number in (2, *range(20, 30))}
    for key in ("j", "down", "k", "enter"):
        view.press(key, shown)
    assert view.detail == view.rows(shown)[1]["work_id"]
    view.press("escape", shown)
    assert view.detail is None and not view.quit
    view.press("escape", shown)
    assert len(view.rows(shown)) == 29
    view.press("q", shown)
    assert view.quit


@pytest.mark.parametrize(("height", "columns"), [(8, 30), (24, 80), (60, 250)])
def test_the_screen_fits_and_the_selected_row_is_on_it(height: int, columns: int) -> None:
    hostile = "\x1b]0;x\x07\u202e界" * 50
    shown = overview(
        *(work(number, text=hostile, target="p" * 90) for number in range(200)), status={"problems": [hostile]}
    )
    view = TopView()
    for _ in range(150):
        view.press("j", shown)
    lines = view.lines(shown, height, columns)
    assert len(lines) <= height and any(line.startswith("> ") for line in lines)
    for line in lines:
        text = plain(line)
        assert not set(text) & set("\x1b\x07\u202e")
        assert width(text) <= max(columns, 120), text


def test_rates_are_those_of_the_counters_between_two_looks() -> None:
    before = overview(status={"uptime_s": 10.0, "counters": {"received": 5, "sent.say": 1, "sent.trace": 1}})
    after = overview(status={"uptime_s": 12.0, "counters": {"received": 25, "sent.say": 3, "sent.trace": 5}})
    assert after.after(before).rates == (10.0, 3.0)


def test_a_terminal_shows_works_as_they_change_and_one_alone(home: Home, tmp_path: Path) -> None:
    with ops_and_worker(home) as (ops, worker):
        command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "top"]
        with TerminalProgram(command, home.env, tmp_path) as top:
            top.wait_for("nothing here")
            opened = ops.post("/v1/works", to="worker", text="run the tests")["work_id"]
            top.wait_for("run the tests")
            wait_for(lambda: worker.state_of(opened), 30, "the work")
            worker.post(f"/v1/works/{opened}/need-input", message="which branch?")
            top.wait_for("needs_input")
            top.type("\n")
            top.wait_for("which branch?")
            ops.kill()
            top.wait_for("the daemon is away")
            ops.start()
            top.type("q")
            top.type("q")
            assert top.wait() == 0


def test_without_a_terminal_it_is_printed_once(home: Home) -> None:
    with ops_and_worker(home) as (ops, _):
        opened = ops.post("/v1/works", to="worker", text="run the tests")["work_id"]
        shown = home.ctl("--name", "ops", "top")
        assert shown.returncode == 0 and opened in shown.stdout.decode() and b"\x1b" not in shown.stdout
        document = json.loads(home.ctl("--name", "ops", "top", "-o", "json").stdout)
        assert {"v", "status", "works", "peers", "inbox"} == set(document)
        assert [one["work_id"] for one in document["works"]] == [opened]
