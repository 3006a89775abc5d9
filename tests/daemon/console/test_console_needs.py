"""What waits for a person, with real held openings, chains that ask and works that do not move; and a page that keeps still."""

from collections.abc import Generator

import pytest
from playwright.sync_api import Page, expect

from tests.support.auditing import changed
from tests.support.backups import backup, restore
from tests.support.browsers import Tab
from tests.support.chain_agents import Agent, Envelope, begin, chain, reach
from tests.support.daemons import Daemon, Home, delivery, ops_and_worker, wait_for

expect.set_options(timeout=30_000)

SHIFTS = """() => { window.shifts = []; new PerformanceObserver((list) => { for (const one of list.getEntries())
    if (!one.hadRecentInput) window.shifts.push([one.value, one.sources.map((each) => each.node?.outerHTML?.slice(0, 90))]);
}).observe({ type: "layout-shift", buffered: true }); }"""
MOST_SHIFT = 0.1  # of a screen: what Chromium's metric counts as good


@pytest.fixture
def pair(home: Home) -> Generator[tuple[Daemon, Daemon]]:
    with ops_and_worker(home) as daemons:
        yield daemons


def ask(agent: Agent, envelope: Envelope, _seq: int) -> None:
    if "work_id" in envelope and envelope["body"]["text"].startswith("apply"):
        agent.daemon.post(f"/v1/works/{envelope['work_id']}/need-input", message="which branch?")


def test_a_chain_that_asks_is_answered_and_a_work_that_stands_still_says_why(
    pair: tuple[Daemon, Daemon], tab: Tab
) -> None:
    ops, worker = pair
    still = ops.post("/v1/works", to="worker", text="Build the wheel")
    with Agent(worker, ask):
        run_id = begin(ops, chain({"a": {"peer": "worker", "input": "apply the patch"}}))
        reach(ops, run_id, "waiting")
        wait_for(lambda: delivery(ops, still["id"]) == "receipted", 30, "the opening")
        ops.stop()
        changed(
            ops.store_path, lambda db: db.execute("UPDATE works SET updated_ms = updated_ms - 7200000")
        )  # two hours
        ops.start()
        page = tab(ops, "needs", write=True)
        expect(page.get_by_role("heading", name="A chain asks")).to_be_visible()
        expect(page.get_by_text("which branch?")).to_have_count(1)
        row = page.get_by_role("row").filter(has=page.locator(f"a[href$='{still['work_id']}']"))
        expect(row).to_contain_text("worker")
        page.get_by_label("Answer").fill("main")
        page.get_by_role("button", name="Send the answer").click()
        expect(page.get_by_role("heading", name="A chain asks")).to_have_count(0)


def test_held_openings_are_released_in_place(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    copy = backup(worker)
    worker.kill()
    work_id = ops.post("/v1/works", to="worker", text="run the tests")["work_id"]
    restore(worker, copy)
    worker.start()
    wait_for(lambda: worker.get("/v1/status")["inbox"].get("dead"), 30, "the held opening")
    page = tab(worker, "needs", write=True, confirms=True)
    expect(page.get_by_role("heading", name="Held openings")).to_be_visible()
    expect(page.get_by_role("link", name="Needs you")).to_contain_text("1")
    page.get_by_role("button", name="Requeue").click()
    expect(page.get_by_role("heading", name="Held openings")).to_have_count(0)
    assert worker.post("/v1/inbox/next", ack=True)["item"]["message"]["work_id"] == work_id


def test_screens_keep_still_while_they_load_and_while_works_change(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    works = [ops.post("/v1/works", to="worker", text=f"work {number}")["work_id"] for number in range(30)]
    wait_for(lambda: worker.get("/v1/status")["inbox"].get("ready") == len(works), 30, "the works")
    page = tab(ops)
    page.evaluate(SHIFTS)
    moved: dict[str, float] = {}
    for screen in ("overview", f"works/{works[0]}", "peers", "inbox", "needs", "chains", "live", "open", "overview"):
        page.evaluate("hash => { window.shifts = []; location.hash = hash }", f"#/ops/{screen}")
        expect(page.get_by_text("Loading …")).to_have_count(0)
        worker.post(f"/v1/works/{works.pop()}/accept")
        settle(page)
        moved[screen] = sum(value for value, _ in page.evaluate("window.shifts"))
    assert {screen: value for screen, value in moved.items() if value > MOST_SHIFT} == {}


def settle(page: Page) -> None:
    """Two frames later the observer has been told of every shift until now."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
