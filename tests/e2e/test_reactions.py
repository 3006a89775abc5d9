"""The inbox of works: questions and ends for the initiator, and openings that leave it when their work has ended."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    home = Home(tmp_path_factory.mktemp("reactions"))
    with ops_and_worker(home) as (ops, worker):
        yield ops, worker


def opened(ops: Daemon, worker: Daemon, **more: Any) -> str:
    """A work of `ops` that has reached `worker`."""
    work_id: str = ops.post("/v1/works", to="worker", text="do it", **more)["work_id"]
    wait_for(lambda: worker.state_of(work_id), 30, "the work")
    return work_id


def waiting(daemon: Daemon, work_id: str) -> list[dict[str, Any]]:
    """The unread messages of a work."""
    items: list[dict[str, Any]] = daemon.get("/v1/inbox?limit=1000")["items"]
    return [item for item in items if item["message"]["work_id"] == work_id]


def received(daemon: Daemon, work_id: str) -> dict[str, Any] | None:
    answer: dict[str, Any] = daemon.post("/v1/inbox/next", work_id=work_id, wait=30, ack=True)
    item: dict[str, Any] | None = answer["item"]
    return item


def test_a_question_and_the_end_reach_the_inbox_of_the_initiator(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    work_id = opened(ops, worker)
    for verb, message in (("accept", None), ("update", "half"), ("need-input", "which branch?")):
        worker.post(f"/v1/works/{work_id}/{verb}", message=message)
    question = received(ops, work_id)
    assert question is not None
    assert (question["message"]["envelope"]["body"]["message"], question["work_state"]) == (
        "which branch?",
        "needs_input",
    )
    ops.post(f"/v1/works/{work_id}/say", message="main")
    worker.post(f"/v1/works/{work_id}/complete", result={"passed": True})
    end = received(ops, work_id)
    assert end is not None
    assert (end["message"]["envelope"]["body"]["result"], end["work_state"]) == ({"passed": True}, "completed")


@pytest.mark.parametrize(("reactions", "kinds"), [("all", ["trace", "trace"]), ("questions", ["trace"]), ("none", [])])
def test_the_initiator_chooses_what_reaches_its_inbox(
    pair: tuple[Daemon, Daemon], reactions: str, kinds: list[str]
) -> None:
    ops, worker = pair
    work_id = opened(ops, worker, reactions=reactions)
    worker.post(f"/v1/works/{work_id}/need-input", message="which?")
    worker.post(f"/v1/works/{work_id}/fail", message="no answer")
    wait_for(lambda: ops.state_of(work_id) == "failed", 30, "the end")
    assert [item["message"]["kind"] for item in waiting(ops, work_id)] == kinds


def test_a_rejection_reaches_the_inbox(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    work_id = opened(ops, worker)
    worker.post(f"/v1/works/{work_id}/reject", reason="busy")
    end = received(ops, work_id)
    assert end is not None
    assert (end["message"]["envelope"]["body"]["reason_code"], end["work_state"]) == ("busy", "failed")


def test_a_passed_deadline_reaches_the_inbox(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    work_id = opened(ops, worker, accept_within=0.2)
    end = received(ops, work_id)
    assert end is not None
    assert (end["last_error"], end["work_state"]) == ("canceled: not accepted within 0.2 s", "canceled")


@pytest.mark.parametrize("leased", [False, True])
@pytest.mark.parametrize("by", ["initiator", "target"])
def test_the_opening_of_an_ended_work_leaves_the_inbox(pair: tuple[Daemon, Daemon], by: str, leased: bool) -> None:
    ops, worker = pair
    work_id = opened(ops, worker)
    (opening,) = waiting(worker, work_id)
    lease = worker.post("/v1/inbox/next", work_id=work_id)["item"]["lease"] if leased else None
    if by == "initiator":
        ops.post(f"/v1/works/{work_id}/cancel")
        wait_for(lambda: worker.state_of(work_id) == "canceled", 30, "the cancellation")
    else:
        worker.post(f"/v1/works/{work_id}/complete")
    assert waiting(worker, work_id) == []
    acked = worker.post(f"/v1/inbox/{opening['seq']}/ack", lease=lease)
    assert (acked["state"], acked["work_state"]) == ("acked", "canceled" if by == "initiator" else "completed")


def test_an_inbox_that_nobody_reads_keeps_no_end_from_its_work(home: Home) -> None:
    with Daemon(home, "ops", "--inbox-capacity", "1") as ops, Daemon(home, "worker") as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        for number in range(3):
            work_id = opened(ops, worker)
            worker.post(f"/v1/works/{work_id}/complete")
            wait_for(lambda work_id=work_id: ops.state_of(work_id) == "completed", 30, f"the end of work {number}")  # type: ignore[misc]
        assert len(ops.get("/v1/inbox")["items"]) == 1
        assert ops.get("/v1/status")["counters"]["inbox.reactions_left_out"] == 2
        assert any("ends of own works are not put into the inbox" in one for one in ops.get("/v1/status")["problems"])


def test_the_configuration_chooses_for_works_that_do_not(home: Home) -> None:
    with Daemon(home, "ops", "--work-reactions", "none") as ops, Daemon(home, "worker") as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        work_id = opened(ops, worker)
        worker.post(f"/v1/works/{work_id}/complete")
        wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end")
        assert ops.get("/v1/inbox")["items"] == []
