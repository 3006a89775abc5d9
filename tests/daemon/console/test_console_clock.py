"""The clock of the daemon beside that of a browser on another machine: the page says how they differ, and its ages are right."""

import re
import time
from collections.abc import Generator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browsers import Tab
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for

expect.set_options(timeout=30_000)

SECONDS_AGO = re.compile(r"^(?!0\.0 )[\d.]+ s ago$")


@pytest.fixture
def pair(home: Home) -> Generator[tuple[Daemon, Daemon]]:
    with ops_and_worker(home) as daemons:
        yield daemons


def clock(page: Page) -> Locator:
    """What the Overview says about the clock of the daemon."""
    return page.locator(".facts > div").filter(has=page.locator("dt", has_text=re.compile("^clock$"))).locator("dd")


@pytest.mark.parametrize(("shift", "said"), [(-3600, "60 min ahead of"), (+10800, "3 h behind")])
def test_a_browser_whose_clock_differs_is_told_so_and_shows_right_ages(
    pair: tuple[Daemon, Daemon], tab: Tab, shift: int, said: str
) -> None:
    ops, _ = pair
    page = tab(ops)
    expect(clock(page)).to_have_text("as this browser's")
    page.clock.set_system_time(time.time() + shift)
    expect(clock(page)).to_have_text(f"{said} this browser's; ages are by the daemon's")
    work = ops.post("/v1/works", to="worker", text="run the tests")["work_id"]
    expect(page.locator("tbody time")).to_have_text(SECONDS_AGO)
    page.evaluate("hash => { location.hash = hash }", f"#/ops/works/{work}")
    expect(page.locator(".facts time").first).to_have_text(SECONDS_AGO)


def test_a_clock_that_was_compared_long_ago_is_not_taken_for_one_that_is_behind(
    pair: tuple[Daemon, Daemon], tab: Tab
) -> None:
    ops, worker = pair
    work = ops.post("/v1/works", to="worker", text="run the tests")["work_id"]
    wait_for(lambda: worker.state_of(work), 30, "the work")
    page = tab(ops)
    page.clock.install()
    page.reload()  # while it is installed, the clock is at 0 for a moment
    expect(clock(page)).to_have_text("as this browser's")
    ops.kill()
    expect(page.locator(".health")).to_contain_text("away")
    page.clock.fast_forward("10:00")
    expect(page.locator("tbody time")).to_have_text(re.compile("^1[01] min ago$"))
    page.get_by_label("Text").fill("run")
    expect(clock(page)).to_have_text("as this browser's")
    ops.start()
