"""Two daemons in one home find each other over the embedded broker and do work: the issue of a first user."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, Home, wait_for

ONCE = ("--retry-first", "30s")  # a second try, after a second's stall, would add a receipt `duplicate` to the stories


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Home, Daemon, Daemon]]:
    home = Home(tmp_path)
    worker = Daemon(home, "patch-worker", *ONCE, "--capability", "test.run", "--capability", "code.patch")
    ops = Daemon(home, "ops", *ONCE)
    with worker, ops:
        wait_for(lambda: ops.knows("patch-worker"), 30, "ops to know the worker")
        wait_for(lambda: worker.knows("ops"), 30, "the worker to know ops")
        yield home, worker, ops


def test_whois_finds_by_capability_and_fails_without_answers(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, _, _ = pair
    found = home.ctl_json("--name", "ops", "whois", "test.run", "--wait", "20s")  # it ends with the last answer
    assert [peer["peer_id"] for peer in found["peers"]] == ["patch-worker"]
    assert found["peers"][0]["card"]["capabilities"] == ["test.run", "code.patch"]
    human = home.ctl("--name", "ops", "whois", "test.run", "--wait", "20s")
    assert human.returncode == 0
    assert b"patch-worker" in human.stdout
    nobody = home.ctl("--name", "ops", "whois", "no.such.capability")
    assert nobody.returncode == 1
    assert b"no.such.capability" in nobody.stderr


def test_work_goes_from_hand_to_hand(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, worker, ops = pair
    opened = home.ctl_json("--name", "ops", "work", "open", "--to", "patch-worker", "--text", "Run the smoke test")
    work_id = opened["work_id"]
    assert opened["thread_id"].startswith("thread_")

    taken = home.ctl_json("--name", "patch-worker", "inbox", "next", "--wait", "25")
    assert taken["item"]["message"]["work_id"] == work_id
    assert taken["item"]["message"]["envelope"]["body"]["text"] == "Run the smoke test"

    def step(*args: str) -> None:
        home.ctl_json("--name", "patch-worker", "work", *args)

    step("accept", work_id)
    wait_for(lambda: ops.state_of(work_id) == "working", 30, "the receipt")
    step("update", work_id, "--message", "halfway")
    step("need-input", work_id, "--message", "which branch?")
    wait_for(lambda: ops.state_of(work_id) == "needs_input", 30, "the question")
    home.ctl_json("--name", "ops", "work", "say", work_id, "--message", "staging")
    wait_for(lambda: worker.state_of(work_id) == "working", 30, "the answer")
    step("complete", work_id, "--result", '{"passed":true}', "--artifact", "agh://artifacts/x/report")
    wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end")

    watched = home.ctl("--name", "ops", "work", "watch", work_id, "-o", "jsonl")
    assert watched.returncode == 0, watched.stderr
    story = [json.loads(line)["work"]["event"] for line in watched.stdout.splitlines()]
    assert story == [
        "message",
        "receipt:accepted",
        "trace:working",
        "trace:needs_input",
        "message",
        "trace:completed",
    ]
    here = ops.get(f"/v1/works/{work_id}")
    there = worker.get(f"/v1/works/{work_id}")
    assert here["work"]["result"] == {"passed": True} == there["work"]["result"]
    assert [row["id"] for row in here["history"]] == [row["id"] for row in there["history"]]
    assert [row["after"] for row in here["history"]] == [
        "submitted",
        "working",
        "working",
        "needs_input",
        "working",
        "completed",
    ]


@pytest.mark.parametrize(
    ("who", "args", "state"),
    [
        ("patch-worker", ("reject", "--reason", "busy"), "failed"),
        ("patch-worker", ("fail", "--message", "no such branch"), "failed"),
        ("patch-worker", ("cancel",), "canceled"),
        ("ops", ("cancel",), "canceled"),
    ],
)
def test_a_work_can_end_badly(pair: tuple[Home, Daemon, Daemon], who: str, args: tuple[str, ...], state: str) -> None:
    home, worker, ops = pair
    work_id = home.ctl_json("--name", "ops", "work", "open", "--to", "patch-worker", "--text", "try")["work_id"]
    wait_for(lambda: worker.get("/v1/works?state=submitted")["works"], 30, "the work to arrive")
    home.ctl_json("--name", who, "work", args[0], work_id, *args[1:])
    wait_for(lambda: ops.state_of(work_id) == state and worker.state_of(work_id) == state, 30, state)
    watched = home.ctl("--name", "ops", "work", "watch", work_id)
    assert watched.returncode == (1 if args[0] == "fail" else 7)
    refused = home.ctl("--name", "patch-worker", "work", "complete", work_id)
    assert refused.returncode == 4, refused
    assert state.encode() in refused.stderr


def test_messages_in_threads_and_rooms(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, worker, ops = pair
    home.ctl_json("--name", "ops", "say", "to everybody", "--thread", "thread_release")
    home.ctl_json("--name", "ops", "say", "just you", "--direct", "patch-worker")
    wait_for(lambda: worker.get("/v1/directs")["directs"], 30, "the room")
    wait_for(lambda: worker.get("/v1/threads")["threads"], 30, "the thread")
    (room,) = worker.get("/v1/directs")["directs"]
    assert (room["peer"], room["derived"]) == ("ops", True)
    (thread,) = worker.get("/v1/threads")["threads"]
    assert thread["thread_id"] == "thread_release"
    (said,) = worker.get(f"/v1/messages?direct={room['direct_id']}")["messages"]
    assert said["envelope"]["body"]["text"] == "just you"
    mine, theirs = (daemon.get("/v1/messages?thread=thread_release")["messages"] for daemon in (ops, worker))
    assert mine[0]["envelope"] == theirs[0]["envelope"]
    assert (mine[0]["direction"], theirs[0]["direction"]) == ("out", "in")
