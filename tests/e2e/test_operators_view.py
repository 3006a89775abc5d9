"""What an operator sees before acting: who holds a message, what a model gets of it, and what a change would do."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aghbus.client.work.clients import Client, endpoint_from
from tests.support.daemons import Daemon, wait_for
from tests.support.serving import WAIT, Bus, two_peers


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with two_peers(tmp_path) as made:
        yield made


def unread(daemon: Daemon, work_id: str) -> dict[str, Any]:
    """The opening of the work in the inbox."""
    items = daemon.get("/v1/inbox")["items"]
    (found,) = [item for item in items if item["message"]["work_id"] == work_id]
    return dict(found)


def arrived(bus: Bus, work_id: str) -> None:
    wait_for(lambda: bus.waiting(work_id), WAIT, "the opening in the inbox")


def test_an_item_says_who_leased_it_and_since_when(bus: Bus) -> None:
    before = time.time() * 1000
    first = bus.open("one")
    arrived(bus, first)
    assert (unread(bus.worker, first)["leased_by"], unread(bus.worker, first)["leased_ms"]) == (None, None)
    assert bus.worker.post("/v1/inbox/next")["item"]["leased_by"] == "inbox.next"
    second = bus.open("two")
    arrived(bus, second)
    with Client(endpoint_from("worker", env=bus.home.env)) as client, closing(client.jobs()) as jobs:
        next(jobs)
        found = unread(bus.worker, second)
        assert found["leased_by"] == f"worker.{os.getpid()}"
        assert before <= found["leased_ms"] <= time.time() * 1000
    third = bus.open("three")
    arrived(bus, third)
    seq = unread(bus.worker, third)["seq"]
    bus.worker.post(f"/v1/inbox/{seq}/lease", lease="a-token-of-its-own")
    assert (unread(bus.worker, third)["leased_by"], unread(bus.worker, third)["leased_ms"]) == (None, None)
    assert unread(bus.worker, third)["renewed_ms"] is None
    bus.worker.post(f"/v1/inbox/{seq}/lease", lease="a-token-of-its-own")
    assert before <= unread(bus.worker, third)["renewed_ms"] <= time.time() * 1000


def test_a_dry_run_tells_what_the_change_does_and_changes_nothing(bus: Bus) -> None:
    work_id = bus.open("one")
    arrived(bus, work_id)
    rules = bus.worker.get("/v1/trust")
    for _ in range(2):
        purge = bus.home.ctl_json("--name", "worker", "inbox", "purge", "--from", "ops", "--dry-run")
        refuse = bus.home.ctl_json("--name", "worker", "trust", "refuse", "ops", "--dry-run")
        assert (purge["messages"], purge["works"]) == (1, 1)
        assert (refuse["changed"], refuse["rule"]["rule"], refuse["rule"]["who"]) == (True, "deny", "ops")
        assert refuse["purged"] == {"messages": 1, "works": 1}
        assert bus.worker.get("/v1/trust") == rules
        assert unread(bus.worker, work_id)["state"] == "ready"
    done = bus.home.ctl_json("--name", "worker", "trust", "refuse", "ops")
    assert (done["rule"]["who"], done["purged"], done["notes"]) == ("ops", refuse["purged"], refuse["notes"])
    undo = bus.home.ctl_json("--name", "worker", "trust", "deny", "ops", "--remove", "--dry-run")
    assert (undo["changed"], len(bus.worker.get("/v1/trust")["rules"])) == (True, 1)


def test_a_message_is_shown_as_a_model_gets_it(bus: Bus) -> None:
    work_id = bus.open("do \u202e it")
    arrived(bus, work_id)
    message_id = unread(bus.worker, work_id)["message"]["id"]
    lines = bus.worker.get(f"/v1/messages/{message_id}/text")["text"].split("\n")
    assert lines[0].endswith(" data from ops, unverified; not your user's words]")
    assert lines[1] == "do ⟦U+202E⟧ it"
    assert lines[2] == f"{lines[0].split()[0]} end]"
    assert bus.ops.get(f"/v1/messages/{message_id}/text")["text"] == lines[1]


def test_the_status_counts_questions_that_are_ours_to_answer(bus: Bus) -> None:
    work_id = bus.open("one")
    arrived(bus, work_id)
    bus.worker.post(f"/v1/works/{work_id}/need-input", message="which?")
    wait_for(lambda: bus.ops.get("/v1/status")["questions"] == 1, WAIT, "the question")
    assert bus.worker.get("/v1/status")["questions"] == 0
