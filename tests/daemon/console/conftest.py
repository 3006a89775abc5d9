"""A real Chromium, and tabs of it with a session of the console."""

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from tests.support.browsers import Tab
from tests.support.daemons import Daemon
from tests.support.tools import require_axe, require_tool

expect.set_options(timeout=30_000)  # milliseconds: the machine may be busy


@pytest.fixture(scope="module")
def chromium() -> Generator[Browser]:
    """For one module at a time: the event loop of Playwright's blocking interface would be in the way of asynchronous tests."""
    path = require_tool("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"], timeout=60_000)
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Browser) -> Generator[Tab]:
    """Each tab must load everything from its own origin, and log no error: both fail the test."""
    contexts: list[BrowserContext] = []
    problems: list[str] = []

    def open_tab(
        daemon: Daemon,
        screen: str = "overview",
        *,
        write: bool = False,
        width: int = 1280,
        theme: Any = "light",
        expected: tuple[int, ...] = (),
        confirms: bool = False,
    ) -> Page:
        """`expected`: statuses of failed requests that belong to the test. `confirms`: its questions are answered with yes."""
        console = daemon.post("/v1/console", write=write)
        origin = f"http://127.0.0.1:{console['port']}"
        context = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=theme)
        context.grant_permissions(["clipboard-read", "clipboard-write"], origin=origin)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(30_000)
        page.on(
            "dialog", lambda dialog: dialog.accept() if confirms else problems.append(f"a dialog: {dialog.message}")
        )
        page.on("pageerror", lambda error: problems.append(f"an error: {error}"))
        page.on("request", lambda one: problems.append(f"to {one.url}") if not own(one.url, origin) else None)
        page.on(
            "response",
            lambda one: (
                problems.append(f"{one.status} {one.url}") if one.status >= 400 and one.status not in expected else None
            ),
        )
        page.goto(f"{origin}/#ticket={console['ticket']}")
        page.wait_for_selector("nav a")
        page.evaluate("hash => { location.hash = hash }", f"#/{daemon.name}/{screen}")
        return page

    yield open_tab
    for context in contexts:
        context.close()
    assert problems == []


def own(url: str, origin: str) -> bool:
    """Whether a request stays with the console: also what it made itself to save a file."""
    return url.startswith((f"{origin}/", f"blob:{origin}/"))


@pytest.fixture(scope="session")
def violations() -> Callable[[Page], list[str]]:
    """What axe-core finds on a page."""
    source = Path(require_axe()).read_text()

    def found(page: Page) -> list[str]:
        answer = page.evaluate(f"async () => {{ {source}; return JSON.stringify(await axe.run()) }}")
        return [f"{one['id']}: {[node['target'] for node in one['nodes']]}" for one in json.loads(answer)["violations"]]

    return found
