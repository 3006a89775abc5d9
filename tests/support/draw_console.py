"""Draws the pictures of the console in docs/img: `make pictures`. Real daemons, real works, a real Chromium.

Beside the pictures it writes a digest of the page's files, from which `tests/test_docs.py` tells that they are out of date.
"""

import contextlib
import hashlib
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from playwright.sync_api import Page, expect, sync_playwright

from aghbus.daemon.console.pages import FOLDER
from tests.support.daemons import ADMIT_ALL, Daemon, Home, wait_for

DIGEST: Final = "console.sha256"
PICTURES: Final = ("console-overview.png", "console-work.png", "console-needs.png", "console-ladder.png")
_WIDTH: Final = 1200
_HEIGHT: Final = 760

expect.set_options(timeout=30_000)


def digest_of_page() -> str:
    """SHA-256 of all files of the page."""
    whole = hashlib.sha256()
    for path in sorted(FOLDER.rglob("*")):
        if path.is_file():
            whole.update(f"{path.relative_to(FOLDER)}\n".encode() + path.read_bytes())
    return whole.hexdigest()


def draw(folder: Path) -> None:
    """Write the pictures and the digest into `folder`."""
    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        home = Home(Path(root))
        names = {"patch-worker": ("test.run", "code.patch"), "reviewer": ("code.review",), "ops": ()}
        daemons = [
            stack.enter_context(Daemon(home, name, *(f"--capability={one}" for one in can), *ADMIT_ALL))
            for name, can in names.items()
        ]
        worker, reviewer, ops = daemons
        wait_for(lambda: ops.knows("patch-worker", "reviewer"), 30, "presence")
        asked, done = _fill(ops, worker, reviewer)
        console = ops.post("/v1/console", write=True)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": _WIDTH, "height": _HEIGHT})
            page.goto(f"http://127.0.0.1:{console['port']}/#ticket={console['ticket']}")
            for picture, screen in zip(PICTURES, ("overview", f"works/{asked}", "needs"), strict=False):
                _show(page, f"#/ops/{screen}")
                page.screenshot(path=folder / picture)
            _show(page, f"#/ops/works/{done}")
            page.locator(".panel", has=page.locator(".ladder")).screenshot(path=folder / PICTURES[-1])
            browser.close()
    (folder / DIGEST).write_text(digest_of_page() + "\n")


def _fill(ops: Daemon, worker: Daemon, reviewer: Daemon) -> tuple[str, str]:
    """Works in each state; the ids of one that asks and of one that is done."""

    def opened(peer: Daemon, text: str) -> str:
        work: str = ops.post("/v1/works", to=peer.name, text=text)["work_id"]
        wait_for(lambda: peer.state_of(work), 30, "the work")
        return work

    done = opened(worker, "Run the migration smoke test")
    worker.post(f"/v1/works/{done}/accept")
    worker.post(f"/v1/works/{done}/update", message="12 of 40 tests")
    worker.post(f"/v1/works/{done}/complete", message="all 40 pass", result={"passed": 40})
    failed = opened(worker, "Build the wheel for arm64")
    worker.post(f"/v1/works/{failed}/accept")
    worker.post(f"/v1/works/{failed}/fail", message="no cross compiler on this machine")
    busy = opened(reviewer, "Review the change to the retry policy")
    reviewer.post(f"/v1/works/{busy}/accept")
    reviewer.post(f"/v1/works/{busy}/update", message="reading daemon/send")
    opened(reviewer, "Check the licences of new dependencies")
    asked = opened(worker, "Apply the patch for the login page")
    worker.post(f"/v1/works/{asked}/accept")
    worker.post(f"/v1/works/{asked}/need-input", message="It fits main and release-2. Which branch?")
    wait_for(lambda: ops.state_of(asked) == "needs_input" and ops.state_of(done) == "completed", 30, "the states")
    return asked, done


def _show(page: Page, screen: str) -> None:
    page.evaluate("hash => { location.hash = hash }", screen)
    expect(page.locator("main .panel").first).to_be_visible()
    expect(page.get_by_text("Loading …")).to_have_count(0)
    page.evaluate("document.activeElement.blur()")


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
