"""The console in a real Chromium: its screens, text of peers, and what happens to tabs in the second hour."""

from collections.abc import Callable, Generator

import pytest
from playwright.sync_api import Page, expect

from tests.support.browsers import Tab
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for

HOSTILE = (
    "<img src=x onerror=alert(1)><script>alert(2)</script>",
    "<a href='javascript:alert(3)'>click</a> <style>*{display:none}</style>",
    "</span></bdi></table><h1>Ready</h1><iframe src='http://evil.example/'></iframe>",
    "invoice\u202egnp.exe \u2066\u200f\u200b end",
    "{{constructor.constructor('alert(4)')()}} ${alert(5)} &lt;b&gt; \ud83d\ude00 \ufeff",
    "paypa\u0456.example аррӏе.com http://evil.example/ javascript:alert(6)",
    "W" * 20_000,
    "\x1b[31mred\x07 tab\tline\nline",
)

WIDER = """() => [...document.querySelectorAll("body *")]
    .filter((one) => one.getBoundingClientRect().right > innerWidth && !one.closest("nav, .scroll, pre"))
    .map((one) => `${one.tagName}.${one.className}`)"""

CUT = "one => one.scrollWidth > one.clientWidth"


@pytest.fixture
def pair(home: Home) -> Generator[tuple[Daemon, Daemon]]:
    with ops_and_worker(home) as daemons:
        yield daemons


def opened(ops: Daemon, worker: Daemon, text: str = "run the tests") -> str:
    """A work of the first daemon that the second has."""
    work: str = ops.post("/v1/works", to=worker.name, text=text)["work_id"]
    wait_for(lambda: worker.state_of(work), 30, "the work")
    return work


def test_the_overview_follows_works_and_leads_to_one(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    page = tab(ops)
    expect(page.get_by_text("No work fits")).to_be_visible()
    work = opened(ops, worker)
    expect(page.locator("tbody tr .state")).to_contain_text("submitted")
    worker.post(f"/v1/works/{work}/accept")
    expect(page.locator("tbody tr .state")).to_contain_text("working")
    worker.post(f"/v1/works/{work}/need-input", message="which branch?")
    expect(page.locator("tr.asks")).to_contain_text("which branch?")
    page.get_by_role("link", name="run the tests").click()
    expect(page.get_by_role("heading", name="It needs an answer")).to_be_visible()
    assert page.url.endswith(f"#/ops/works/{work}")


def test_a_question_is_answered_and_a_work_canceled(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    work = opened(ops, worker)
    worker.post(f"/v1/works/{work}/need-input", message="which branch?")
    wait_for(lambda: ops.state_of(work) == "needs_input", 30, "the question")
    page = tab(ops, f"works/{work}", write=True, confirms=True)
    page.get_by_label("Answer").fill("main")
    page.get_by_role("button", name="Send the answer").click()
    wait_for(lambda: ops.state_of(work) == "working", 30, "the answer")
    wait_for(lambda: worker.state_of(work) == "working", 30, "the answer at the worker")
    said = [message["envelope"]["body"] for message in worker.get(f"/v1/messages?work={work}&kind=say")["messages"]]
    assert said[-1]["text"] == "main"
    page.get_by_role("button", name="Cancel").click()
    wait_for(lambda: worker.state_of(work) == "canceled", 30, "the end")


def test_a_console_that_reads_shows_the_commands_alone(pair: tuple[Daemon, Daemon], tab: Tab, home: Home) -> None:
    ops, worker = pair
    work = opened(ops, worker)
    page = tab(ops, f"works/{work}")
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
    page.get_by_text("as a command").click()
    line = page.locator(".lines code").first.inner_text()
    assert line == f"aghctl --name ops work cancel {work}"
    assert home.ctl(*line.split()[1:]).returncode == 0
    expect(page.get_by_role("heading", level=1)).to_contain_text("canceled")


def test_the_ladder_has_both_sides(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    work = opened(ops, worker)
    worker.post(f"/v1/works/{work}/accept")
    worker.post(f"/v1/works/{work}/complete", message="all pass", result={"passed": 3})
    wait_for(lambda: ops.state_of(work) == "completed", 30, "the end")
    page = tab(ops, f"works/{work}")
    expect(page.get_by_text("from both sides: ops and worker")).to_be_visible()
    expect(page.locator(".ladder .out")).to_contain_text("ms later")
    expect(page.locator(".ladder .in").last).to_contain_text("trace: completed")


def test_text_of_peers_stays_text(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    works = [opened(worker, ops, text) for text in HOSTILE]
    page = tab(ops)
    expect(page.locator("tbody tr")).to_have_count(len(HOSTILE))
    for work, text in zip(works, HOSTILE, strict=True):
        page.evaluate("hash => { location.hash = hash }", f"#/ops/works/{work}")
        expect(page.locator("h1 .said")).to_be_visible()
        shown = page.locator("h1 .said").inner_text()
        assert not set(shown) & set("\u202e\u2066\u200f\u200b\ufeff\x1b\x07")
        if "\u202e" in text:
            assert "⟨U+202E⟩" in shown
    for made in ("img:not([src='/icon.svg'])", "iframe", "main script", "main style", "a[href^=javascript]"):
        assert page.locator(made).count() == 0, made


def test_a_tab_survives_kill_9_and_follows_on(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    page = tab(ops)
    expect(page.locator(".health")).to_contain_text("ready")
    ops.kill()
    expect(page.locator(".health")).to_contain_text("away")
    ops.start()
    expect(page.locator(".health")).to_contain_text("ready")
    opened(ops, worker)
    expect(page.locator("tbody tr")).to_have_count(1)


def test_an_instance_that_stopped_is_shown_so_beside_those_that_run(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    page = tab(ops, expected=(503,))
    page.evaluate("location.hash = '#/worker/overview'")
    cards = page.get_by_role("group", name="Instances of this user")
    expect(cards.get_by_role("link", name="worker")).to_contain_text("ready")
    worker.kill()
    expect(cards.get_by_role("link", name="worker")).to_contain_text("stopped")
    expect(page.get_by_text("start it: aghd run --name worker").first).to_be_visible()
    worker.start()
    expect(cards.get_by_role("link", name="worker")).to_contain_text("ready")


def test_two_tabs_have_sessions_of_their_own(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    first, second = tab(ops, write=True), tab(ops)
    expect(first.locator("footer")).to_contain_text("may act")
    expect(second.locator("footer")).to_contain_text("read-only")
    assert first.evaluate("document.cookie") == ""
    assert "ticket" not in first.url


def test_a_used_ticket_and_a_tab_without_a_session_are_explained(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    page = tab(ops, expected=(401,))
    base = page.url.partition("#")[0]
    page.evaluate("sessionStorage.clear()")
    page.goto(f"{base}?again#ticket=used")
    expect(page.get_by_role("heading", name="The console did not open")).to_be_visible()
    page.goto(f"{base}?more")
    expect(page.get_by_role("heading", name="This tab has no session")).to_be_visible()


def test_the_keyboard_is_enough(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, worker = pair
    work = opened(ops, worker)
    page = tab(ops)
    expect(page.locator("tbody tr")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_contain_text("run the tests")
    assert page.url.endswith(work)
    page.keyboard.press("g")
    page.keyboard.press("o")
    expect(page.get_by_role("searchbox", name="Text")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("nothing like it")
    expect(page.get_by_text("No work fits")).to_be_visible()
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog", name="Keys")).to_have_count(0)


@pytest.mark.parametrize(("width", "theme"), [(360, "dark"), (1280, "light"), (2560, "dark")])
def test_screens_have_no_violation_and_no_overflow(
    pair: tuple[Daemon, Daemon], tab: Tab, violations: Callable[[Page], list[str]], width: int, theme: str
) -> None:
    ops, worker = pair
    works = [opened(ops, worker, text) for text in ("run the tests", "W" * 300)]
    worker.post(f"/v1/works/{works[0]}/need-input", message="which branch?")
    wait_for(lambda: ops.state_of(works[0]) == "needs_input", 30, "the question")
    page = tab(ops, width=width, theme=theme)
    for screen in ("overview", f"works/{works[0]}"):
        page.evaluate("hash => { location.hash = hash }", f"#/ops/{screen}")
        expect(page.locator("main .panel").last).to_be_visible()
        expect(page.get_by_text("Loading …")).to_have_count(0)
        assert page.evaluate(WIDER) == [], screen
        assert violations(page) == [], screen


def test_a_narrow_screen_shows_the_state_of_the_daemon_and_where_one_is(pair: tuple[Daemon, Daemon], tab: Tab) -> None:
    ops, _ = pair
    page = tab(ops, "open", width=360)
    expect(page.get_by_role("navigation").get_by_role("link", name="Open a work")).to_be_in_viewport(ratio=1)
    health = page.locator(".health")
    expect(health).to_have_text("ready", use_inner_text=True)
    assert not health.evaluate(CUT)
    ops.kill()
    expect(health).to_contain_text("the daemon cannot be reached")
    assert not health.evaluate(CUT)
    ops.start()


@pytest.mark.parametrize("width", [360, 719])
def test_a_narrow_live_tail_gives_a_text_half_of_the_row(pair: tuple[Daemon, Daemon], tab: Tab, width: int) -> None:
    ops, _ = pair
    ops.post("/v1/messages", kind="say", to="worker", thread_id="thread_tail", body={"text": "word " * 40})
    page = tab(ops, "live", width=width)
    said = page.locator("tbody .said")
    expect(said).to_be_visible()
    share = "one => one.getBoundingClientRect().width / one.closest('tr').getBoundingClientRect().width"
    assert said.evaluate(share) > 0.4
