"""The console with 10,000 works: `python -m bench.micro.console [--works N] [--seconds S]` (needs chromium and playwright).

How long the first row of the list, its next page and a search take, with the processor time of the tab's main thread and of the
daemon until then; and how much of a core the daemon uses for an open tab on each screen, compared with none. On a machine that
is busy the seconds are those of its load: the processor times say more.
"""

import argparse
import shutil
import sys
import time

from playwright.sync_api import CDPSession, Page, sync_playwright

from bench.harness.filling import fill
from bench.harness.processes import broker, cpu_seconds, home, pid_of
from tests.support.daemons import Daemon

SCREENS = ("overview", "live", "chains", "open")
SETTLE = 3.0  # seconds after a screen was opened
OTHER = "first => document.querySelector('tbody tr')?.dataset.href !== first"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--works", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=30.0, help="for which the processor time of a screen is taken")
    values = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        print("chromium is not installed", file=sys.stderr)
        return 1
    with broker() as server, home() as place:
        daemon = Daemon(place, "ops", "--nats", server.url)
        fill(daemon.store_path, "works", values.works, "ops", lambda _: True)
        with daemon, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(60_000)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable", {"timeDomain": "threadTicks"})
            list_works(daemon, page, session)
            for screen in SCREENS:
                page.evaluate("hash => { location.hash = hash }", f"#/ops/{screen}")
                page.wait_for_timeout(1_000 * SETTLE)
                print(f"{screen:20} {share(daemon, values.seconds):.2f} % of a core")
            browser.close()
            print(f"{'without a tab':20} {share(daemon, values.seconds):.2f} % of a core")
    return 0


def list_works(daemon: Daemon, page: Page, session: CDPSession) -> None:
    """Print the times of the list of works."""
    opened = daemon.post("/v1/console")

    def timed(name: str, wanted: str) -> None:
        nonlocal started, spent, used
        page.wait_for_function(wanted, arg=first)
        took, tab, own = time.monotonic() - started, busy(session) - spent, cpu_seconds(pid_of(daemon)) - used
        print(f"{name:20} {took:.2f} s, of it {tab:.2f} s in the tab and {own:.2f} s in the daemon")
        started, spent, used = time.monotonic(), busy(session), cpu_seconds(pid_of(daemon))

    first: str | None = None
    started, spent, used = time.monotonic(), 0.0, cpu_seconds(pid_of(daemon))
    page.goto(f"http://127.0.0.1:{opened['port']}/#ticket={opened['ticket']}")
    timed("first row", "() => document.querySelector('tbody tr')?.offsetParent")
    first = page.locator("tbody tr").first.get_attribute("data-href")
    page.get_by_text("Older works").click()
    timed("next page", OTHER)
    page.get_by_text("Newest works").click()
    page.get_by_label("Text").fill("no work has this text")
    timed("search", "() => document.querySelector('main p.none') !== null")


def busy(session: CDPSession) -> float:
    """Processor seconds of the main thread of the tab."""
    metrics = session.send("Performance.getMetrics")["metrics"]
    return float(next(one["value"] for one in metrics if one["name"] == "TaskDuration"))


def share(daemon: Daemon, seconds: float) -> float:
    """Percent of a core that the daemon uses."""
    before, started = cpu_seconds(pid_of(daemon)), time.monotonic()
    time.sleep(seconds)
    return 100 * (cpu_seconds(pid_of(daemon)) - before) / (time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
