"""Wall clocks that are set by hours under real daemons: what waits goes on waiting, nothing is lost, nothing happens twice."""

import contextlib
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for
from tests.support.foreign import foreign_peer
from tests.support.natsutil import NatsServer

HOUR = 3600
RETRY = ("--retry-first", "200ms", "--retry-ceiling", "1s")
GREETS = ("--discovery-interval", "1s")
TRAFFIC = 30  # works before, between and after


class WallClock:
    """The wall clock of the daemons that get `env`: `set(seconds)` puts it that far from the true one."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "clock-offset"
        self.env = {"AGHD_CLOCK_OFFSET_FILE": str(self._file)}
        self.set(0)

    def set(self, seconds: float) -> None:
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(seconds))
        fresh.replace(self._file)


@contextlib.contextmanager
def pair(tmp_path: Path, *args: str) -> Iterator[tuple[Daemon, Daemon, WallClock]]:
    """worker and ops, who share a machine and so its clock."""
    clock = WallClock(tmp_path)
    home = Home(tmp_path)
    with ops_and_worker(home, *RETRY, *args, env=clock.env) as (ops, worker):
        yield worker, ops, clock


def counter(daemon: Daemon, name: str) -> int:
    return int(daemon.get("/v1/status")["counters"].get(name, 0))


def retried(daemon: Daemon, times: int) -> bool:
    return counter(daemon, "outbox.retried") >= times


def all_receipted(daemon: Daemon) -> bool:
    sent = daemon.get("/v1/messages?direction=out&limit=500")["messages"]
    return {message["delivery"] for message in sent} == {"receipted"}


def noticed(daemon: Daemon, steps: int) -> None:
    wait_for(lambda: counter(daemon, "clock.changes") >= steps, 30, f"{daemon.name} to notice that its clock was set")


def open_works(ops: Daemon, name: str) -> list[str]:
    return [ops.post("/v1/works", to="worker", text=f"{name} {number}")["work_id"] for number in range(TRAFFIC)]


def arrived_once(worker: Daemon, work_ids: list[str]) -> None:
    wait_for(lambda: len(worker.get("/v1/works?limit=500")["works"]) >= len(work_ids), 20, "all works")
    stored = [m["work_id"] for m in worker.get("/v1/messages?kind=say&limit=500")["messages"]]
    assert sorted(stored) == sorted(work_ids)
    assert sorted(item["message"]["work_id"] for item in worker.get("/v1/inbox?limit=500")["items"]) == sorted(work_ids)


def complete_all(worker: Daemon) -> None:
    while (item := worker.post("/v1/inbox/next", visibility=60)["item"]) is not None:
        worker.post(f"/v1/works/{item['message']['work_id']}/complete", result={"ok": True})
        worker.post(f"/v1/inbox/{item['seq']}/ack", lease=item["lease"])


def test_hours_forward_and_back_in_the_middle_of_traffic(tmp_path: Path) -> None:
    with pair(tmp_path) as (worker, ops, clock):
        works = open_works(ops, "at first")
        clock.set(3 * HOUR)
        works += open_works(ops, "three hours ahead")
        noticed(ops, 1)
        noticed(worker, 1)
        clock.set(0)
        noticed(ops, 2)
        noticed(worker, 2)
        works += open_works(ops, "right again")
        arrived_once(worker, works)
        complete_all(worker)
        wait_for(
            lambda: {work["state"] for work in ops.get("/v1/works?limit=500")["works"]} == {"completed"},
            20,
            "every work to be completed on both sides",
        )
        for daemon in (ops, worker):
            sent = daemon.get("/v1/messages?direction=out&limit=500")["messages"]
            # An acknowledgement that takes more than the 200 ms costs a second try, which is answered with a receipt.
            directed = [message for message in sent if message["envelope"]["to"] and message["kind"] != "receipt"]
            assert len(directed) == 3 * TRAFFIC
            wait_for(partial(all_receipted, daemon), 30, "every message to be receipted")
        seqs = [m["seq"] for m in ops.get("/v1/messages?limit=500")["messages"]]
        assert seqs == sorted(seqs)  # order is that of the sequence, whatever the ids say


def test_a_jump_back_by_hours_in_the_middle_of_traffic(tmp_path: Path) -> None:
    with pair(tmp_path) as (worker, ops, clock):
        works = open_works(ops, "at first")
        arrived_once(worker, works)
        clock.set(-5 * HOUR)
        noticed(ops, 1)
        noticed(worker, 1)
        works += open_works(ops, "five hours behind")
        arrived_once(worker, works)
        complete_all(worker)
        wait_for(
            lambda: {work["state"] for work in ops.get("/v1/works?limit=500")["works"]} == {"completed"},
            20,
            "every work to be completed",
        )


def test_a_lease_lasts_as_long_as_it_was_given_for(tmp_path: Path) -> None:
    with pair(tmp_path) as (worker, ops, clock):
        ops.post("/v1/works", to="worker", text="hold me")
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
        held = worker.post("/v1/inbox/next", visibility=600)["item"]
        clock.set(4 * HOUR)
        assert worker.post("/v1/inbox/next")["item"] is None  # not four hours later: nobody else may have it
        worker.post(f"/v1/inbox/{held['seq']}/nack", lease=held["lease"], delay=0)
        started = time.monotonic()
        short = worker.post("/v1/inbox/next", visibility=2)["item"]
        clock.set(-4 * HOUR)
        again = worker.post("/v1/inbox/next", wait=20, visibility=60)["item"]
        assert again is not None  # not eight hours later
        assert time.monotonic() - started > 1.5
        assert (again["seq"], again["attempts"]) == (short["seq"], short["attempts"] + 1)


def test_deadlines_neither_fire_early_nor_never(tmp_path: Path) -> None:
    with pair(tmp_path) as (worker, ops, clock):
        long = ops.post("/v1/works", to="worker", text="an hour", accept_within=HOUR)["work_id"]
        clock.set(6 * HOUR)
        noticed(ops, 1)
        short = ops.post("/v1/works", to="worker", text="soon", accept_within=2)["work_id"]
        assert ops.state_of(long) == "submitted"
        clock.set(-6 * HOUR)
        wait_for(lambda: ops.state_of(short) == "canceled", 30, "the short deadline, hours later or not")
        assert ops.state_of(long) == "submitted"
        wait_for(lambda: worker.state_of(long) == "submitted", 20, "the long one over there")


def test_retries_neither_stop_nor_storm(tmp_path: Path) -> None:
    with pair(tmp_path) as (worker, ops, clock):
        worker.kill()
        late = ops.post("/v1/works", to="worker", text="anybody there?")
        wait_for(lambda: counter(ops, "outbox.retried") >= 1, 30, "a first retry")
        for step, hours in enumerate((-3, 2, 0), start=1):
            started = time.monotonic()
            before = counter(ops, "outbox.retried")
            clock.set(hours * HOUR)
            noticed(ops, step)
            wait_for(partial(retried, ops, before + 2), 15, "retries to go on")
            tries = counter(ops, "outbox.retried") - before
            assert tries <= 3 + (time.monotonic() - started) / 0.5  # every 0.75 s at most, by configuration
        worker.start()
        wait_for(lambda: worker.get("/v1/works")["works"], 20, "the work")
        wait_for(lambda: ops.get(f"/v1/messages/{late['id']}")["delivery"] == "receipted", 20, "its acknowledgement")


def presence(daemon: Daemon, peer: str) -> str:
    found = {one["peer_id"]: one["presence"] for one in daemon.get("/v1/peers?all=true")["peers"]}
    return str(found.get(peer))


def test_presence_follows_the_truth_over_a_jump(tmp_path: Path) -> None:
    with pair(tmp_path, *GREETS) as (worker, ops, clock):
        for step, hours in enumerate((3, -3), start=1):
            clock.set(hours * HOUR)
            noticed(ops, step)
            wait_for(lambda: presence(ops, "worker") == "active", 30, "the other to be active")
        worker.kill()
        clock.set(-9 * HOUR)
        noticed(ops, 3)
        wait_for(lambda: presence(ops, "worker") == "expired", 30, "the dead to be gone, not in six hours")
        worker.start()


@pytest.mark.long
def test_a_jump_of_ten_days_forward_keeps_history_and_the_dedup_window(tmp_path: Path) -> None:
    """Retention is seven days here: believing such a clock would empty the store at the next sweep."""
    with pair(tmp_path) as (worker, ops, clock):
        work_id = ops.post("/v1/works", to="worker", text="keep me")["work_id"]
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
        worker.post(f"/v1/works/{work_id}/complete")
        wait_for(lambda: ops.state_of(work_id) == "completed", 30, "its end")
        clock.set(240 * HOUR)
        noticed(ops, 1)
        swept = counter(ops, "retention.sweeps")
        wait_for(lambda: counter(ops, "retention.sweeps") > swept, 60, "a sweep with the wrong clock")
        assert ops.state_of(work_id) == "completed"
        assert len(ops.get("/v1/messages")["messages"]) == len(worker.get("/v1/messages")["messages"])


@pytest.mark.long
async def test_an_id_is_remembered_over_a_start_with_the_clock_two_days_ahead(tmp_path: Path) -> None:
    clock = WallClock(tmp_path)
    async with NatsServer() as server, foreign_peer(server.url, "asker") as asker:
        with Daemon(Home(tmp_path), "worker", "--nats", server.url, env=clock.env) as worker:
            opening = asker.work("worker", "work_1", expires_at=int(time.time()) + 6 * HOUR)
            await asker.publish(opening)
            wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
            worker.kill()
            clock.set(48 * HOUR)
            worker.start()
            problems = worker.get("/v1/status")["problems"]
            assert any("the wall clock jumped forward by 48.0 h" in problem for problem in problems)
            wait_for(lambda: counter(worker, "retention.sweeps") > 0, 90, "a sweep with the wrong clock")
            worker.kill()
            clock.set(0)
            worker.start()
            await asker.publish(opening)
            await asker.expect(kind="receipt", status="duplicate")
            assert worker.get("/v1/inbox")["counts"]["ready"] == 1


def test_set_back_while_it_was_down(tmp_path: Path) -> None:
    with pair(tmp_path) as (worker, ops, clock):
        clock.set(5 * HOUR)
        noticed(worker, 1)
        ops.post("/v1/works", to="worker", text="hold me")
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")
        held = worker.post("/v1/inbox/next", visibility=5)["item"]
        worker.kill()
        clock.set(0)
        worker.start()
        again = worker.post("/v1/inbox/next", wait=20)["item"]
        assert again is not None
        assert again["seq"] == held["seq"]
        assert any("the clock was set back" in problem for problem in worker.get("/v1/status")["problems"])


def test_one_wrong_clock_of_two_is_reported(tmp_path: Path) -> None:
    home, clock = Home(tmp_path), WallClock(tmp_path)
    clock.set(2 * HOUR)
    with Daemon(home, "worker", *RETRY) as worker, Daemon(home, "ops", *RETRY, env=clock.env) as ops:
        sent = ops.post("/v1/works", to="worker", text="from the future")
        wait_for(lambda: ops.state_of(sent["work_id"]) == "canceled", 20, "the refusal")
        assert worker.get("/v1/works")["works"] == []
        refused = worker.get("/v1/quarantine")["quarantined"]
        assert {row["reason"] for row in refused} == {"expired"}
        assert any("future" in row["detail"] for row in refused)
