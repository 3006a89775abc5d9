"""`aghctl serve` and messages without a work: acknowledged, given to the command, or left; a work never waits for them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Bus, Serve, script, serving, two_peers

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="serve needs Linux")

CAPACITY = 100
"""Of the worker's inbox: one sender fills its share of it with much fewer messages than a test sends."""
WAITS_FOR_GO = """
import os, pathlib, time
with open("runs", "a") as runs:
    print(os.environ["AGH_TEXT"], file=runs, flush=True)
while "AGH_WORK_ID" not in os.environ and not pathlib.Path("go").exists():
    time.sleep(0.01)
"""


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    options = ("--inbox-capacity", str(CAPACITY))
    with two_peers(tmp_path / "home", worker_options=options) as both:
        yield both


def say(bus: Bus, count: int) -> None:
    for number in range(count):
        bus.ops.post("/v1/messages", kind="say", to="worker", body={"text": f"said {number}"})


def counted(serve: Serve) -> int:
    return sum(item["count"] for item in serve.seen("acknowledged"))


def unread(bus: Bus) -> int:
    return len(bus.worker.get("/v1/inbox?limit=1000")["items"])


def test_messages_are_acknowledged_and_block_no_work_of_their_sender(bus: Bus, tmp_path: Path) -> None:
    say(bus, 2 * CAPACITY)  # the inbox refuses many of them, and the sender sends them again
    with serving(bus, tmp_path, command=["true"]) as serve:
        work_id = bus.ops.post("/v1/works", to="worker", text="do it")["work_id"]
        assert bus.end_of(work_id)["event"] == "trace:completed"
        wait_for(lambda: counted(serve) == 2 * CAPACITY, WAIT, "all messages to be acknowledged")
        wait_for(lambda: not unread(bus), WAIT, "an empty inbox")
        assert {item["from"] for item in serve.seen("acknowledged")} == {"ops"}
        assert len(serve.seen("started")) == 1  # that of the work


def test_a_command_can_run_for_messages_beside_works(bus: Bus, tmp_path: Path) -> None:
    with serving(
        bus, tmp_path, "--without-work", "run", "--queue", "3", command=script(tmp_path, WAITS_FOR_GO)
    ) as serve:
        say(bus, 1)
        serve.until("started")
        say(bus, CAPACITY)
        assert bus.end_of(bus.open())["event"] == "trace:completed"  # while the first message's command runs
        wait_for(lambda: counted(serve) == CAPACITY - 3, WAIT, "what exceeds --queue to be acknowledged")
        (tmp_path / "go").touch()
        wait_for(lambda: not unread(bus), WAIT, "an empty inbox")
        wait_for(lambda: len(serve.seen("finished")) == 5, WAIT, "all commands to end")
        listed = bus.worker.get("/v1/messages?direction=in&kind=say&limit=1000")[
            "messages"
        ]  # in the order of their arrival
        said = [one["envelope"]["body"]["text"] for one in listed if one["work_id"] is None]
        assert len(said) == CAPACITY + 1
        last = said[-3:]  # a full inbox may have refused some at first
        assert (tmp_path / "runs").read_text().splitlines() == ["said 0", "do it", *last]


def test_a_killed_worker_leaves_no_command_and_runs_none_twice(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, WAITS_FOR_GO)
    with serving(bus, tmp_path, "--without-work", "run", command=command) as serve:
        say(bus, 1)
        pid = serve.until("started")["pid"]
    with serving(bus, tmp_path, "--without-work", "run", "--once", command=command) as serve:
        wait_for(lambda: not Path(f"/proc/{pid}").exists(), WAIT, "the command to be ended")
        bus.open()
        assert serve.ended() == 0
        assert [item["work_id"] for item in serve.seen("started")] == [serve.seen("taken")[0]["work_id"]]
    assert unread(bus) == 0


def test_only_accepted_messages_are_taken(bus: Bus, tmp_path: Path) -> None:
    say(bus, 1)
    with serving(bus, tmp_path, "--once", "--accept", "intent=test", command=["true"]) as serve:
        bus.open(intent="test")
        assert serve.ended() == 0
        assert counted(serve) == 0
    assert unread(bus) == 1
