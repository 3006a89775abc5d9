"""Two daemons run with copies of one store or key: the one that was started later takes nothing, and everybody is told."""

import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import DURABLE, Daemon, Home, HttpError, wait_for
from tests.support.foreign import foreign_peer
from tests.support.natsutil import NatsServer

OFTEN = ("--discovery-interval", "2s")  # after three intervals without a greet the other one counts as gone
GIVES_WAY = "was started before this one, which takes no messages"
KEEPS = "was started after this one, and takes no messages"


@pytest.fixture
async def server() -> AsyncIterator[NatsServer]:
    async with NatsServer() as server:
        yield server


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def problem(daemon: Daemon, text: str) -> bool:
    return any(text in one for one in daemon.get("/v1/status")["problems"])


def end(daemon: Daemon) -> None:
    if daemon.process is not None:
        daemon.stop()


def copied(
    stack: ExitStack, tmp_path: Path, server: NatsServer, *more: str, key: bool = False
) -> tuple[Daemon, Daemon]:
    """The daemon `worker`, running, and a copy of it on another machine that is not started."""
    options = ("--nats", server.url, "--capability", "test.run", *OFTEN, *(DURABLE if server.jetstream else ()))
    first, second = (Daemon(Home(tmp_path / place), "worker", *options) for place in ("here", "there"))
    if key:
        first.home.ctl_json("--name", "worker", "key", "generate")
    first.start().stop()
    shutil.copytree(first.home.root / "state", second.home.root / "state")
    second.args += more
    for one in (first, second):
        stack.callback(end, one)
    return first.start(), second


def opened(ops: Daemon, to: str) -> str:
    work_id: str = ops.post("/v1/works", to=to, text="run once")["work_id"]
    return work_id


@pytest.mark.parametrize("key", [False, True], ids=["store", "key"])
def test_the_later_one_takes_no_work_and_all_three_say_so(
    tmp_path: Path, server: NatsServer, stack: ExitStack, key: bool
) -> None:
    first, second = copied(stack, tmp_path, server, key=key)
    ops = stack.enter_context(Daemon(Home(tmp_path / "ops"), "ops", "--nats", server.url, *OFTEN))
    peer_id = first.get("/v1/status")["peer_id"]
    wait_for(lambda: ops.knows(peer_id), 30, "the worker")
    ops.home.ctl_json("--name", "ops", "trust", "admit", peer_id)
    second.start()
    wait_for(lambda: problem(second, GIVES_WAY), 30, "the later one")
    wait_for(lambda: problem(first, KEEPS), 30, "the earlier one")
    wait_for(lambda: problem(ops, f"two daemons run as the peer {peer_id}"), 30, "the peer")
    work_id = opened(ops, peer_id)
    assert first.post("/v1/inbox/next", wait=30)["item"]["message"]["work_id"] == work_id
    with pytest.raises(HttpError) as refused:
        second.post("/v1/inbox/next", wait=1)
    assert (refused.value.status, refused.value.answer["code"]) == (503, "unavailable")
    assert "started earlier" in refused.value.answer["message"]
    assert second.state_of(work_id) == ""
    first.post(f"/v1/works/{work_id}/complete")
    wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end")


async def test_with_a_stream_the_later_one_takes_none_of_its_messages(tmp_path: Path, stack: ExitStack) -> None:
    async with NatsServer(jetstream=True) as server:
        first, second = copied(stack, tmp_path, server)
        ops = stack.enter_context(Daemon(Home(tmp_path / "ops"), "ops", "--nats", server.url, *OFTEN, *DURABLE))
        second.start(wait=False)
        wait_for(second.answers, 30, "the later one")
        wait_for(lambda: problem(second, "another daemon receives as worker"), 30, "its report")
        wait_for(lambda: problem(first, KEEPS), 30, "the earlier one")
        for _ in range(10):
            work_id = opened(ops, "worker")
            assert first.post("/v1/inbox/next", ack=True, wait=30)["item"]["message"]["work_id"] == work_id
            assert second.state_of(work_id) == ""
        stack.close()


@pytest.mark.parametrize("away", [Daemon.stop, Daemon.kill], ids=["stopped", "killed"])
def test_the_later_one_goes_on_when_the_earlier_one_is_gone(
    tmp_path: Path, server: NatsServer, stack: ExitStack, away: Callable[[Daemon], Any]
) -> None:
    first, second = copied(stack, tmp_path, server)
    second.start()
    wait_for(lambda: problem(second, GIVES_WAY), 30, "the later one")
    away(first)
    ops = stack.enter_context(Daemon(Home(tmp_path / "ops"), "ops", "--nats", server.url, *OFTEN))
    wait_for(lambda: ops.knows("worker"), 30, "the worker")
    work_id = opened(ops, "worker")

    def taken() -> bool:
        try:
            item = second.post("/v1/inbox/next", wait=1)["item"]
        except HttpError as error:
            assert error.status == 503
            return False
        return bool(item and item["message"]["work_id"] == work_id)

    wait_for(taken, 60, "the work at the later one")


def test_the_later_one_takes_over_if_it_is_told_to(tmp_path: Path, server: NatsServer, stack: ExitStack) -> None:
    first, second = copied(stack, tmp_path, server, "--take-over")
    second.start()
    wait_for(lambda: problem(first, GIVES_WAY), 30, "the one that was started first")
    wait_for(lambda: problem(second, KEEPS), 30, "the one that takes over")


def test_a_restart_is_no_conflict(tmp_path: Path, server: NatsServer, stack: ExitStack) -> None:
    first, _ = copied(stack, tmp_path, server)
    ops = stack.enter_context(Daemon(Home(tmp_path / "ops"), "ops", "--nats", server.url, *OFTEN))
    wait_for(lambda: ops.knows("worker"), 30, "the worker")
    for away in (first.stop, first.kill, first.kill):
        away()
        first.start()
        wait_for(lambda: first.knows("ops"), 30, "the other one")
    assert first.get("/v1/status")["counters"].get("identity.conflicts", 0) == 0
    assert not problem(ops, "two daemons")


async def test_another_peer_with_our_name_makes_nobody_give_way(tmp_path: Path, server: NatsServer) -> None:
    with Daemon(Home(tmp_path), "worker", "--nats", server.url, *OFTEN) as worker:
        async with foreign_peer(server.url, "worker") as other:
            later = int(time.time()) + 2  # than the start of the daemon
            older = {"aghbus.instance": "0000000000000-0123456789abcdef", "aghbus.copy": "0" * 32}
            await other.greet(ts=later, ext=older)
            wait_for(lambda: problem(worker, "another daemon uses our peer id worker"), 30, "the report")
            assert worker.post("/v1/inbox/next")["item"] is None
