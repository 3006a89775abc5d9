"""What a screen reader gets: the accessibility tree of a real Chromium, what is announced, and where the focus is."""

import collections
import itertools
from collections.abc import Generator
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.support.browsers import Tab
from tests.support.chain_agents import Agent, Envelope, begin, chain, reach
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for

expect.set_options(timeout=30_000)

ACTING = ("button", "DisclosureTriangle", "textbox", "searchbox", "combobox", "ComboBoxSelect", "checkbox")
LANDMARKS = ("banner", "navigation", "main", "contentinfo")


@pytest.fixture
def pair(home: Home) -> Generator[tuple[Daemon, Daemon]]:
    with ops_and_worker(home) as daemons:
        yield daemons


Node = tuple[str, str, dict[str, Any]]


def tree(page: Page) -> list[Node]:
    """Role, name and properties of all nodes that a screen reader reads, in its order."""
    client = page.context.new_cdp_session(page)
    nodes = client.send("Accessibility.getFullAXTree")["nodes"]
    client.detach()
    of_id = {one["nodeId"]: one for one in nodes}
    read: list[Node] = []
    left = [nodes[0]]
    while left:
        one = left.pop()
        left += [of_id[child] for child in reversed(one.get("childIds", ())) if child in of_id]
        if not one["ignored"]:
            name = " ".join(str(one.get("name", {}).get("value", "")).split())
            properties = {each["name"]: each["value"].get("value") for each in one.get("properties", ())}
            read.append((one["role"]["value"], name, properties))
    return read


def names(nodes: list[Node], *roles: str) -> list[str]:
    return [name for role, name, _ in nodes if role in roles]


def announced(page: Page) -> Locator:
    """The live region of the page."""
    return page.get_by_role("contentinfo").get_by_role("status")


def show(page: Page, screen: str) -> None:
    page.evaluate("hash => { location.hash = hash }", f"#/ops/{screen}")
    expect(page.locator("main h1:focus")).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0)


def opened(ops: Daemon, worker: Daemon, text: str) -> str:
    """A work of `ops` that the worker has."""
    work: str = ops.post("/v1/works", to="worker", text=text)["work_id"]
    wait_for(lambda: worker.state_of(work), 30, "the work")
    return work


def asking(ops: Daemon, worker: Daemon, text: str) -> str:
    """A work of `ops` at the worker, with a question."""
    work = opened(ops, worker, text)
    worker.post(f"/v1/works/{work}/need-input", message="which branch?")
    wait_for(lambda: ops.state_of(work) == "needs_input", 30, "the question")
    return work


def say(sender: Daemon, receiver: Daemon, *texts: str) -> None:
    for text in texts:
        sender.post("/v1/messages", kind="say", to=receiver.name, thread_id="thread_words", body={"text": text})
    wait_for(lambda: receiver.get("/v1/status")["inbox"].get("ready", 0) >= len(texts), 30, "the messages")


def ask(agent: Agent, envelope: Envelope, _seq: int) -> None:
    if "work_id" in envelope:
        agent.daemon.post(f"/v1/works/{envelope['work_id']}/need-input", message="which one?")


@pytest.fixture
def screens(home: Home) -> Generator[tuple[Daemon, dict[str, str]]]:
    """A daemon with two of everything, and the screens that show it: what each is for, and its place in the URL."""
    with ops_and_worker(home) as (ops, worker), Daemon(home, "guest"):
        with Agent(worker, ask):
            nodes = {name: {"peer": "worker", "input": "check this"} for name in ("a", "b")}
            run_id = begin(ops, chain(nodes, ("a", "b", None)))
            works = [ops.post("/v1/works", to="worker", text="run the tests")["work_id"] for _ in range(2)]
            reach(ops, run_id, "waiting")
            wait_for(lambda: {ops.state_of(one) for one in works} == {"needs_input"}, 30, "the questions")
        say(worker, ops, "first", "second")
        ops.post("/v1/inbox/purge", sender="worker")
        say(worker, ops, "third", "fourth")
        for _ in range(2):
            ops.post("/v1/inbox/next", visibility=600)
        (message, *_) = ops.get("/v1/messages?kind=say&limit=1")["messages"]
        yield (
            ops,
            {
                "overview": "overview",
                "needs": "needs",
                "inbox": "inbox",
                "peers": "peers",
                "one peer": "peers/worker",
                "chains": "chains",
                "run": f"chains/{run_id}",
                "live": "live",
                "open": "open",
                "work": f"works/{works[0]}",
                "message": f"messages/{message['id']}",
                "unknown": "nowhere",
            },
        )


def test_each_screen_can_be_walked_without_seeing_it(screens: tuple[Daemon, dict[str, str]], tab: Tab) -> None:
    ops, places = screens
    page = tab(ops, write=True)
    titles: dict[str, str] = {}
    for screen, place in places.items():
        show(page, place)
        titles[screen] = page.title()
        nodes = tree(page)
        acting = collections.Counter((role, name) for role, name, _ in nodes if role in ACTING)
        assert [one for one, count in acting.items() if count > 1] == [], screen
        assert [role for role, name in acting if name == ""] == [], screen
        assert [role for role, _, _ in nodes if role in LANDMARKS] == list(LANDMARKS), screen
        levels = [int(one["level"]) for role, _, one in nodes if role == "heading"]
        assert levels.count(1) == 1 and levels[0] == 1, screen
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), (screen, levels)
        assert "" not in names(nodes, "heading", "table", "columnheader", "link"), screen
        tables = names(nodes, "table")
        assert len(set(tables)) == len(tables), screen
    assert len(set(titles.values())) == len(titles), titles
    assert all("ops" in title for title in titles.values()), titles


def test_signs_that_are_drawn_are_not_read(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    work = asking(ops, worker, "run the tests")
    page = tab(ops, width=360)
    for screen in ("overview", f"works/{work}"):
        show(page, screen)
        read = " ".join(name for _, name, _ in tree(page))
        assert not set(read) & set("●○◐✓✕━→←"), screen
    read = " ".join(names(tree(page), "StaticText"))
    assert "sent say" in read and "received trace: needs_input" in read


def test_works_that_move_are_announced(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    work, other = opened(ops, worker, "run the tests"), opened(ops, worker, "build the wheel")
    overview, one = tab(ops), tab(ops, f"works/{work}")
    expect(overview.locator("tbody tr")).to_have_count(2)
    expect(one.locator("h1:focus")).to_contain_text("submitted")
    worker.post(f"/v1/works/{work}/accept")
    expect(announced(overview)).to_have_text("working: run the tests")
    expect(announced(one)).to_have_text("working: run the tests")
    worker.post(f"/v1/works/{work}/update", message="12 of 40")
    expect(announced(one)).to_have_text("working: 12 of 40")
    expect(one).to_have_title("working “run the tests” · Work · ops · aghbus console")
    worker.post(f"/v1/works/{other}/need-input", message="<b>for arm64?</b>")
    expect(announced(one)).to_have_text("1 thing waits for you")
    opened(ops, worker, "a third one")
    expect(announced(overview)).to_contain_text("submitted: a third one")


def test_a_daemon_that_is_away_and_back_is_announced_once(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    page = tab(ops)
    expect(page.locator(".health")).to_contain_text("ready")
    ops.kill()
    expect(page.get_by_role("alert")).to_contain_text("daemon away")
    expect(page.locator("main .problem").first).to_contain_text("cannot be reached")
    expect(page.get_by_role("alert")).to_have_count(1)
    ops.start()
    expect(announced(page)).to_have_text("the daemon is back")
    expect(page.get_by_role("alert")).to_have_count(0)


def test_an_action_that_fails_is_an_alert_and_keeps_the_focus(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    page = tab(ops, "open?to=nobody&text=run", write=True, expected=(400,))
    page.get_by_label("Accept within").fill("soon")
    press(page, "Open the work")
    expect(page.get_by_role("alert")).to_contain_text("accept_within")
    expect(page.get_by_role("button", name="Open the work", exact=True)).to_be_focused()


def press(page: Page, name: str) -> None:
    """A button, by the keyboard."""
    button = page.get_by_role("button", name=name, exact=True)
    expect(button).to_be_enabled()
    button.focus()
    page.keyboard.press("Enter")


def test_the_focus_goes_on_after_an_action_took_its_button_away(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    say(worker, ops, "first", "second")
    ops.post("/v1/inbox/purge", sender="worker")
    seqs = [item["seq"] for item in ops.get("/v1/inbox?state=dead")["items"]]
    work = asking(ops, worker, "run the tests")
    page = tab(ops, "needs", write=True, confirms=True)
    press(page, f"Remove message {seqs[0]}")
    expect(page.get_by_role("button", name=f"Remove message {seqs[0]}")).to_have_count(0)
    expect(page.locator("[data-href]:focus")).to_contain_text("second")
    press(page, f"Requeue message {seqs[1]}")
    expect(page.get_by_role("heading", name="Dead letters")).to_have_count(0)
    expect(page.locator("h1:focus")).to_have_text("Needs you")
    show(page, f"works/{work}")
    page.get_by_label("Answer").fill("main")
    press(page, "Send the answer")
    expect(page.locator("h1:focus")).to_contain_text("working")
    press(page, "Cancel")
    expect(page.locator("h1:focus")).to_contain_text("canceled")


def test_the_keys_are_shown_by_a_button_and_can_be_switched_off(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    page = tab(ops)
    press(page, "? keys")
    dialog = page.get_by_role("dialog", name="Keys")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    dialog.get_by_role("checkbox").uncheck()
    press(page, "Close")
    expect(dialog).to_have_count(0)
    expect(page.get_by_role("button", name="? keys")).to_be_focused()
    page.keyboard.press("g")
    page.keyboard.press("n")
    page.keyboard.press("?")
    press(page, "? keys")
    dialog.get_by_role("checkbox").check()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    assert page.url.endswith("#/ops/overview")
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.locator("h1:focus")).to_have_text("Needs you")


def test_a_session_that_ended_is_said(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    page = tab(ops, expected=(401,))
    expect(page.locator(".health")).to_contain_text("ready")
    page.evaluate(
        "sessionStorage.setItem('aghbus.console', JSON.stringify({token: 'over', instance: 'ops', write: false}))"
    )
    expect(page.locator("h1:focus")).to_have_text("This tab has no session")
    expect(page).to_have_title("No session · ops · aghbus console")
