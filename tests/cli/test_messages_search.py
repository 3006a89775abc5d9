"""`aghctl messages search`, as its user calls it."""

import json
from collections.abc import Iterator

import pytest

from tests.support.daemons import Daemon, Home, wait_for


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """Two daemons; `ops` has a completed work, some conversation, and a long message."""
    home = Home(tmp_path_factory.mktemp("search"))
    with Daemon(home, "worker") as worker, Daemon(home, "ops") as ops:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 20, "the two to know each other")
        for number in range(3):
            ops.post("/v1/messages", kind="say", to="worker", body={"text": f"the Needle {number}\x1b[2J"})
        ops.post(
            "/v1/messages", kind="say", to="worker", body={"text": "x" * 3_000 + " beyond the line\n" + "y" * 3_000}
        )
        work_id = ops.post("/v1/works", to="worker", text="sort it")["work_id"]
        wait_for(lambda: worker.state_of(work_id), 20, "the work to arrive")
        worker.post(f"/v1/works/{work_id}/complete", result={"lines": ["a pin"]})
        wait_for(lambda: ops.state_of(work_id) == "completed", 20, "the end")
        yield home


def search(home: Home, *words: str) -> list[str]:
    found = home.ctl("--name", "ops", "messages", "search", *words)
    assert (found.returncode, b"\x1b" in found.stdout) == (0, False)
    return found.stdout.decode().splitlines()


def test_the_newest_messages_with_a_text_are_listed_oldest_first(home: Home) -> None:
    assert [line.partition("the Needle ")[2][0] for line in search(home, "needle")] == ["0", "1", "2"]
    assert "the Needle 2" in search(home, "NEEDLE", "--limit", "1")[0]
    assert search(home, "needle", "--peer", "nobody") == []
    (of_work,) = search(home, "a pin", "--kind", "trace", "--direction", "in")
    assert "completed" in of_work


def test_what_is_beyond_the_line_is_shown_below_it(home: Home) -> None:
    line, around = search(home, "beyond the")
    assert "beyond the" not in line
    assert "x beyond the line\\ny" in around


def test_pages_go_on_before_a_sequence(home: Home) -> None:
    page = home.ctl_json("--name", "ops", "messages", "search", "needle", "--limit", "2")
    assert [message["envelope"]["body"]["text"][11] for message in page["messages"]] == ["1", "2"]
    rest = home.ctl_json("--name", "ops", "messages", "search", "needle", "--before", str(page["next_before"]))
    assert [message["envelope"]["body"]["text"][11] for message in rest["messages"]] == ["0"]
    assert rest["next_before"] is None
    lines = home.ctl("--name", "ops", "messages", "search", "needle", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["say"] * 3


@pytest.mark.parametrize("words", [[""], ["x" * 201], []])
def test_a_text_of_no_use_is_refused(home: Home, words: list[str]) -> None:
    assert home.ctl("--name", "ops", "messages", "search", *words).returncode in (2, 4)
