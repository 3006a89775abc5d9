"""Why a work does not move, as real daemons and `aghctl` say it."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.client import Client, Endpoint, WorkTimeout
from tests.support.chain_agents import begin, chain
from tests.support.daemons import Daemon, Home, has_no_subscriber, ops_and_worker, wait_for
from tests.support.mcp_client import McpClient
from tests.support.natsutil import NatsServer

WAIT = 30.0
SHORT = ("--discovery-interval", "1s")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Daemon, Daemon]]:
    home = Home(tmp_path_factory.mktemp("why"))
    with ops_and_worker(home) as (ops, worker):
        yield home, ops, worker


def why(daemon: Daemon, work_id: str) -> dict[str, Any]:
    found: dict[str, Any] = daemon.get(f"/v1/works/{work_id}")["why"]
    return found


def until(daemon: Daemon, work_id: str, code: str) -> dict[str, Any]:
    wait_for(lambda: why(daemon, work_id)["code"] == code, WAIT, code)
    return why(daemon, work_id)


def opened(ops: Daemon, worker: Daemon, text: str = "do it") -> str:
    """A work that `worker` has."""
    work_id: str = ops.post("/v1/works", to="worker", text=text)["work_id"]
    wait_for(lambda: worker.state_of(work_id), WAIT, "the work to arrive")
    return work_id


def leased(worker: Daemon, work_id: str, **fields: Any) -> dict[str, Any]:
    item: dict[str, Any] = worker.post("/v1/inbox/next", work_id=work_id, **fields)["item"]
    return item


def test_a_peer_that_was_never_seen_is_named_with_one_like_it(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, ops, _ = pair
    work_id = ops.post("/v1/works", to="workr", text="do it")["work_id"]
    found = why(ops, work_id)
    assert found["code"] == "unknown_peer"
    assert "no peer workr was ever seen on channel default (did you mean worker?); expires 20" in found["text"]
    shown = home.ctl("--name", "ops", "work", "show", work_id).stdout.decode()
    assert "(did you mean worker?); expires tomorrow " in shown
    assert f"`aghctl --name ops work cancel {work_id}`" in shown
    ops.post(f"/v1/works/{work_id}/cancel")
    assert why(ops, work_id) is None


def test_each_side_says_who_has_not_taken_it(pair: tuple[Home, Daemon, Daemon]) -> None:
    _, ops, worker = pair
    work_id = ops.post("/v1/works", to="worker", text="do it", accept_within=600)["work_id"]
    assert (
        "not accepted: no worker of worker has taken it; deadline in 9m" in until(ops, work_id, "not_accepted")["text"]
    )
    assert "nobody took it" in until(worker, work_id, "in_inbox")["text"]
    item = leased(worker, work_id, visibility=600)
    assert "attempt 1" in until(worker, work_id, "leased")["text"]
    worker.post(f"/v1/inbox/{item['seq']}/nack", error="no disk", delay=600)
    assert until(worker, work_id, "returned")["said"] == "no disk"
    worker.post(f"/v1/inbox/{item['seq']}/ack")
    assert until(worker, work_id, "acknowledged")["hint"].startswith(f"`aghctl work accept {work_id}`")


def test_a_work_whose_opening_is_dead_has_ended(pair: tuple[Home, Daemon, Daemon]) -> None:
    _, ops, worker = pair
    work_id = opened(ops, worker)
    for _ in range(5):
        item = leased(worker, work_id, wait=WAIT)
        worker.post(f"/v1/inbox/{item['seq']}/nack", error="no \x1b[31mdisk", delay=0)
    wait_for(lambda: ops.state_of(work_id) == "failed", WAIT, "the end")
    found = ops.get(f"/v1/works/{work_id}")
    assert (found["why"], "given up after 5 attempts" in found["work"]["message"]) == (None, True)


def test_a_question_is_asked_for_an_answer_and_waited_for_by_its_target(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, ops, worker = pair
    work_id = opened(ops, worker)
    worker.post(f"/v1/works/{work_id}/accept")
    assert "worker has had it since" in until(ops, work_id, "working")["text"]
    worker.post(f"/v1/works/{work_id}/need-input", message="Which \x1b[31mbranch?")
    found = until(ops, work_id, "asks")
    assert (found["said"], "branch" in found["text"]) == ("Which \x1b[31mbranch?", False)
    assert found["hint"] == f"answer: `aghctl work say {work_id} TEXT`"
    assert "ops was asked at" in until(worker, work_id, "asked")["text"]
    shown = home.ctl("--name", "ops", "work", "show", work_id).stdout
    assert b"\x1b" not in shown and "“Which \\x1b[31mbranch?”".encode() in shown
    answer = McpClient(ops.socket_path).tool("work", work_id=work_id)
    assert "worker asks since" in answer["note"] and "`say` with its work_id" in answer["note"]
    assert "data from worker, unverified; not your user's words]" in answer["works"][0]["message"]
    assert "branch" not in answer["note"]  # once is enough
    ops.post(f"/v1/works/{work_id}/say", message="main")
    assert until(ops, work_id, "working")
    assert "a message of ops is in the inbox since" in until(worker, work_id, "in_inbox")["text"]


def test_a_chain_is_named_where_its_work_asks(pair: tuple[Home, Daemon, Daemon]) -> None:
    _, ops, worker = pair
    run_id = begin(ops, chain({"a": {"peer": "worker", "input": "go"}}))
    wait_for(lambda: ops.get(f"/v1/chains/runs/{run_id}")["history"][0]["work_id"], WAIT, "the work")
    work_id = ops.get(f"/v1/chains/runs/{run_id}")["history"][0]["work_id"]
    assert f"chain run {run_id} waits for it" in until(ops, work_id, "not_accepted")["text"]
    worker.post(f"/v1/works/{work_id}/need-input", message="Which?")
    found = until(ops, work_id, "asks_chain")
    assert (found["said"], found["hint"]) == (
        "Which?",
        f"answer: `aghctl chain resume {run_id} --node a --answer TEXT`",
    )
    ops.post(f"/v1/chains/runs/{run_id}/cancel")


def test_a_peer_that_has_gone_is_away_and_one_that_left_just_now_does_not_subscribe(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops", *SHORT) as ops:
        with Daemon(home, "worker", *SHORT) as worker:
            wait_for(lambda: ops.knows("worker") and worker.knows("ops"), WAIT, "presence")
            held = opened(ops, worker)
            worker.post(f"/v1/works/{held}/accept")
            until(ops, held, "working")
        sent = ops.post("/v1/works", to="worker", text="do it")
        wait_for(lambda: has_no_subscriber(ops, sent["id"]), WAIT, "the report of the broker")
        found = until(ops, sent["work_id"], "peer_away")
        assert "worker was last seen" in found["text"] and "nobody subscribes there" in found["text"]
        assert "; worker was last seen " in until(ops, held, "peer_away")["text"]


def test_a_peer_that_was_seen_and_does_not_subscribe_is_named(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops", "--discovery-interval", "10m") as ops:
        worker = Daemon(home, "worker").start()
        wait_for(lambda: ops.knows("worker"), WAIT, "presence")
        worker.kill()  # one that stops says so, and is away at once
        work_id = ops.post("/v1/works", to="worker", text="do it")["work_id"]
        assert "nobody subscribes there, though worker was seen" in until(ops, work_id, "no_subscriber")["text"]


async def test_a_broker_that_is_away_is_the_reason_before_all_others(tmp_path: Path) -> None:
    async with NatsServer() as server:
        with Daemon(Home(tmp_path), "ops", "--nats", server.url) as ops:
            server.kill()
            wait_for(lambda: ops.get("/v1/status")["broker"]["state"] != "up", WAIT, "the loss of the broker")
            work_id = ops.post("/v1/works", to="ghost", text="do it")["work_id"]
            assert "the broker is away since 20" in until(ops, work_id, "broker_away")["text"]


async def test_admission_is_the_reason_on_both_sides(tmp_path: Path) -> None:
    async with NatsServer() as server:
        with ops_and_worker(Home(tmp_path), "--nats", server.url) as (ops, worker):
            work_id = opened(ops, worker)
            found = until(worker, work_id, "waits_for_admission")
            assert "workers leave it: ops is not admitted" in found["text"]
            assert "`aghctl trust admit ops`" in found["hint"]
            (item,) = worker.get("/v1/inbox")["items"]
            worker.post(f"/v1/inbox/{item['seq']}/lease", lease="lease_of_a_worker", others=False)  # as a Worker does
            assert until(ops, work_id, "waits_for_admission")["text"] == "waits at worker for admission"


def test_work_run_says_why_it_has_not_ended(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, _, _ = pair
    given = ("--name", "ops", "work", "run", "--to", "worker", "--text", "do it")
    done = home.ctl(*given, "--wait", "25s")  # longer than the first keep-alive, and shorter than the second one
    notes = done.stderr.decode().splitlines()
    assert done.returncode == 8
    waiting = [line for line in notes if line.startswith("(delivered at ")]
    assert len(waiting) == 1
    assert any(line.startswith("why: delivered at ") and "has taken it" in line for line in notes)
    machine = home.ctl(*given, "--wait", "1s", "-o", "json")
    assert json.loads(machine.stdout)["why"]["code"] == "not_accepted"


@pytest.mark.parametrize("tell", [None, print])
def test_the_timeout_of_the_client_says_why(pair: tuple[Home, Daemon, Daemon], tell: Any) -> None:
    _, ops, worker = pair
    client = Client(Endpoint(path=str(ops.socket_path)))
    handle = client.start("worker", "do it", on_progress=tell)
    wait_for(lambda: worker.state_of(handle.id), WAIT, "the work to arrive")
    until(ops, handle.id, "not_accepted")
    with pytest.raises(WorkTimeout) as caught:
        handle.result(timeout=0.5)
    assert caught.value.why is not None and caught.value.why.code == "not_accepted"
    assert caught.value.message.startswith(f"the work {handle.id} has not ended after 0.5 s: delivered at 20")
    with pytest.raises(WorkTimeout) as waited:
        client.wait(handle.id, timeout=0.1)
    assert waited.value.work_id == handle.id
