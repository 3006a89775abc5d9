"""Chains, the live tail and the form that opens works, in a real Chromium."""

import re
from collections.abc import Callable, Generator

import pytest
from playwright.sync_api import Page, expect

from tests.support.browsers import Tab
from tests.support.chain_agents import Agent, Envelope, begin, chain, reach, show
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for

expect.set_options(timeout=30_000)


@pytest.fixture
def pair(home: Home) -> Generator[tuple[Daemon, Daemon]]:
    with ops_and_worker(home) as daemons:
        yield daemons


def ask_at_check(agent: Agent, envelope: Envelope, _seq: int) -> None:
    """Completes what it gets, and asks about what begins with `check`."""
    if "work_id" not in envelope:
        return
    if envelope["body"]["text"].startswith("check"):
        agent.daemon.post(f"/v1/works/{envelope['work_id']}/need-input", message="which one?")
    else:
        agent.complete(envelope, found="jdoe")


def test_a_run_is_a_graph_with_inputs_and_outputs_and_its_question_is_answered(
    pair: tuple[Daemon, Daemon], tab: Tab
) -> None:
    ops, worker = pair
    nodes = {
        "a": {"peer": "worker", "input": "find {{input}}"},
        "b": {"peer": "worker", "input": "check {{a.data.found}}"},
        "c": {"peer": "worker", "input": "send"},
    }
    document = chain(nodes, ("a", "b", None), ("b", "c", "response.data.again == true"))
    with Agent(worker, ask_at_check):
        run_id = begin(ops, document, input="the address")
        reach(ops, run_id, "waiting")
        page = tab(ops, f"chains/{run_id}", write=True)
        for name, state in (("a", "completed"), ("b", "needs input"), ("c", "not visited")):
            expect(page.get_by_role("link", name=f"{name}: {state}")).to_be_visible()
        expect(page.get_by_text("check jdoe")).to_be_visible()
        page.get_by_role("link", name="a: completed").click()
        expect(page.get_by_text("find the address")).to_be_visible()
        expect(page.locator("pre.said", has_text='"found": "jdoe"')).to_be_visible()
        page.get_by_label("Answer").fill("the second")
        page.get_by_role("button", name="Send the answer").click()
        expect(page.get_by_role("heading", name="b needs an answer")).to_have_count(0)
        work = show(ops, run_id)["history"][-1]["work_id"]

        def said() -> list[str]:
            found = worker.get(f"/v1/messages?work={work}&kind=say")["messages"]
            return [one["envelope"]["body"]["text"] for one in found]

        wait_for(lambda: said()[-1] == "the second", 30, "the answer at the worker")


def test_a_node_of_a_run_cannot_write_into_the_page(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    hostile = "<svg onload=alert(1)>\u202e"
    run_id = begin(ops, {**chain({"a": {"peer": "worker", "input": hostile}}), "name": hostile})
    page = tab(ops, f"chains/{run_id}")
    expect(page.get_by_role("heading", level=1)).to_contain_text("<svg onload=alert(1)>⟨U+202E⟩")
    expect(page.locator("svg")).to_have_count(1)


def say(ops: Daemon, text: str) -> None:
    ops.post("/v1/messages", kind="say", to="worker", thread_id="thread_tail", body={"text": text})


def texts(page: Page) -> list[str]:
    """The texts in the live tail, newest first."""
    return page.locator("tbody .said").all_inner_texts()


def test_the_live_tail_pauses_and_goes_on_without_loss(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    page = tab(ops, "live?kind=say")
    send = [f"number {number}" for number in range(60)]
    say(ops, send[0])
    expect(page.get_by_text(send[0])).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    for text in send[1:30]:
        say(ops, text)
    expect(page.get_by_text(re.compile("paused; [0-9]+ came since"))).to_be_visible()
    assert texts(page) == send[:1]
    ops.kill()
    ops.start()
    page.get_by_role("button", name="Resume").click()
    for text in send[30:]:
        say(ops, text)
    expect(page.locator("tbody .said")).to_have_count(len(send))
    assert texts(page) == send[::-1]
    page.get_by_label("Text").fill("NUMBER 5")
    expect(page.locator("tbody .said")).to_have_count(11)


def test_the_live_tail_keeps_a_bounded_number_of_rows(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    page = tab(ops, "live?kind=say&direction=out")
    say(ops, "number 0")
    expect(page.get_by_text("number 0")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    for number in range(1, 520):
        say(ops, f"number {number}")
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("20 older ones are not shown any more")).to_be_visible()
    assert len(texts(page)) == 500


def test_a_work_is_opened_by_the_form_and_by_its_command(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    wait_for(lambda: "worker" in {one["peer_id"] for one in ops.get("/v1/peers")["peers"]}, 30, "the worker")
    page = tab(ops, "open?to=worker&text=run+it's+tests", write=True)
    expect(page.get_by_role("combobox", name="Peer")).to_have_value("worker")
    page.get_by_label("Accept within").fill("soon")
    page.get_by_text("as a command").click()
    line = "aghctl --name ops work open --to worker --text 'run it'\\''s tests' --accept-within soon"
    expect(page.locator(".lines code").first).to_have_text(line)
    page.get_by_label("Accept within").fill("5m")
    page.get_by_label("in the direct room").check()
    page.get_by_role("button", name="Open the work", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("run it's tests")
    (work,) = ops.get("/v1/works")["works"]
    assert page.url.endswith(f"#/ops/works/{work['work_id']}") and work["direct_id"]


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1280, "light"), (2560, "dark")])
def test_these_screens_have_no_violation_and_no_overflow(
    pair: tuple[Daemon, Daemon], tab: Tab, violations: Callable[[Page], list[str]], width: int, theme: str
) -> None:
    ops, worker = pair
    names = [f"node_{number}_{'x' * 50}" for number in range(6)]
    nodes = {name: {"peer": "worker", "input": "check this"} for name in names}
    edges = [(source, target, "response.data.again == true") for source in names for target in names]
    with Agent(worker, ask_at_check):
        run_id = begin(ops, chain(nodes, *edges, start=names[0]))
        reach(ops, run_id, "waiting")
        say(ops, "W" * 300)
        page = tab(ops, width=width, theme=theme)
        for screen in ("chains", f"chains/{run_id}", "live", "open"):
            page.evaluate("hash => { location.hash = hash }", f"#/ops/{screen}")
            expect(page.locator("main table, main textarea").first).to_be_visible()
            expect(page.get_by_text("Loading …")).to_have_count(0)
            wider = """() => [...document.querySelectorAll("main *")].filter((one) =>
                one.getBoundingClientRect().right > innerWidth && !one.closest(".scroll, pre")).map((one) => one.outerHTML)"""
            assert page.evaluate(wider) == [], screen
            assert violations(page) == [], screen
