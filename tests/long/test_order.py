"""Order from outside: daemons that are killed, links that are slow and cut, inboxes that are full, in both profiles."""

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.support.daemons import DURABLE, Daemon, Home, delivery, ops_and_worker, wait_for
from tests.support.natsutil import NatsServer

_CHUNK: Final = 65_536


class TcpProxy:
    """Listens on a port of 127.0.0.1 in front of another one, in a thread. What is in flight when it cuts is lost."""

    def __init__(self, port: int, delay: float = 0.0) -> None:
        """`delay` is in seconds, for each direction."""
        self.cuts = 0
        self._target = port
        self._delay = delay
        self._port = 0
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    @property
    def url(self) -> str:
        """nats:// URL."""
        return f"nats://127.0.0.1:{self._port}"

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut(self) -> None:
        """Ends every connection; new ones are taken."""
        self.cuts += 1
        asyncio.run_coroutine_threadsafe(self._cut(), self._loop).result(10)

    async def _cut(self) -> None:
        for pipe in self._pipes:
            pipe.cancel()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        pipes = [asyncio.create_task(self._pass_on(*pair)) for pair in ((reader, back), (there, writer))]
        self._pipes.update(pipes)
        try:
            await asyncio.wait(pipes, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pipe in pipes:
                pipe.cancel()
                self._pipes.discard(pipe)
            for each in (writer, back):
                each.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: chunks are written in order, each after the delay."""
        loop = asyncio.get_running_loop()
        chunks: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def write() -> None:
            while True:
                due, chunk = await chunks.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                writer.write(chunk)
                await writer.drain()

        writing = asyncio.create_task(write())
        try:
            with contextlib.suppress(OSError):
                while chunk := await reader.read(_CHUNK):
                    chunks.put_nowait((loop.time() + self._delay, chunk))
        finally:
            writing.cancel()


pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

QUICK = ("--retry-first", "200ms", "--retry-ceiling", "2s")
WORKS = 120
PROFILES = pytest.mark.parametrize("profile", [(), DURABLE], ids=["core", "jetstream"])
TERMINAL = ("completed", "failed", "canceled")


def opened(ops: Daemon, worker: Daemon, count: int) -> list[str]:
    """So many works of ops that the worker knows."""
    works = [str(ops.post("/v1/works", to="worker", text=f"job {number}")["work_id"]) for number in range(count)]
    wait_for(lambda: all(worker.state_of(work) for work in works), 120, "the works")
    return works


def answered(daemon: Daemon) -> bool:
    """Whether nothing that it has sent waits for an answer."""
    rows = daemon.get("/v1/messages?direction=out&limit=1000")["messages"]
    return all(row["delivery"] not in ("queued", "published") or row["to"] is None for row in rows)


def history(daemon: Daemon, work: str) -> list[str]:
    return [step["event"] for step in daemon.get(f"/v1/works/{work}")["history"]]


def agree(ops: Daemon, worker: Daemon, works: list[str]) -> None:
    """Both copies of every work are in one state, by the same steps of the target."""
    wait_for(lambda: answered(ops) and answered(worker), 180, "every answer")
    differing = {work: (ops.state_of(work), worker.state_of(work)) for work in works}
    assert {work: states for work, states in differing.items() if states[0] != states[1]} == {}
    for work in works:
        steps = [[step for step in history(daemon, work) if step.startswith("trace:")] for daemon in (ops, worker)]
        assert steps[0] == steps[1]


async def disturbed(traffic: Callable[[], Any], disturb: Callable[[], None], seed: int, pause: float) -> None:
    """Runs `traffic` in a thread, and disturbs it now and then."""
    rng = random.Random(seed)
    running = asyncio.create_task(asyncio.to_thread(traffic))
    while not running.done():
        await asyncio.sleep(pause * rng.uniform(0.5, 1.5))
        if not running.done():
            disturb()
    await running


@PROFILES
@pytest.mark.parametrize("steps", [("update", "need-input"), ("update", "complete")], ids="-".join)
async def test_steps_keep_their_order_over_kills_of_the_initiator(
    home: Home, server: NatsServer, profile: tuple[str, ...], steps: tuple[str, str]
) -> None:
    args = ("--nats", server.url, *QUICK, *profile)
    with Daemon(home, "worker", *args) as worker, Daemon(home, "ops", *args) as ops:
        works = await asyncio.to_thread(opened, ops, worker, WORKS)

        def traffic() -> None:
            for work in works:
                for step in steps:
                    worker.post(f"/v1/works/{work}/{step}", message=f"{step} of {work}")
                time.sleep(0.03)

        def killed() -> None:
            ops.kill()
            ops.start(wait=False)

        await disturbed(traffic, killed, 1, 0.8)
        await asyncio.to_thread(ops.wait_ready)
        await asyncio.to_thread(agree, ops, worker, works)
        ended = "needs_input" if steps[1] == "need-input" else "completed"
        assert {ops.state_of(work) for work in works} == {ended}


@PROFILES
async def test_a_word_before_the_end_arrives_over_a_slow_link_that_is_cut(
    home: Home, server: NatsServer, profile: tuple[str, ...]
) -> None:
    with (
        TcpProxy(server.port, delay=0.025) as link,
        Daemon(home, "worker", "--nats", server.url, *QUICK, *profile) as worker,
        Daemon(home, "ops", "--nats", link.url, *QUICK, *profile) as ops,
    ):
        works = await asyncio.to_thread(opened, ops, worker, WORKS)
        said: list[str] = []

        def traffic() -> None:
            for work in works:
                said.append(worker.post(f"/v1/works/{work}/say", message="one thing more")["id"])
                worker.post(f"/v1/works/{work}/complete", message="done")
                time.sleep(0.03)

        await disturbed(traffic, link.cut, 2, 0.5)
        await asyncio.to_thread(agree, ops, worker, works)
        assert link.cuts > 2
        assert {delivery(worker, message_id) for message_id in said} == {"receipted"}
        arrived = {row["id"]: row["outcome"] for row in ops.get("/v1/messages?direction=in&limit=1000")["messages"]}
        assert {arrived.get(message_id) for message_id in said} <= {"unchanged", "advanced"}


@PROFILES
async def test_an_end_does_not_overtake_its_opening_while_the_peer_is_away(
    home: Home, server: NatsServer, profile: tuple[str, ...]
) -> None:
    args = ("--nats", server.url, *QUICK, *profile)
    with ops_and_worker(home, *args) as (ops, worker):
        await asyncio.to_thread(worker.stop)
        ops.kill()
        await asyncio.to_thread(ops.start)

        def traffic() -> list[str]:
            works = [str(ops.post("/v1/works", to="worker", text="job")["work_id"]) for _ in range(WORKS)]
            for work in works:
                ops.post(f"/v1/works/{work}/cancel")
            return works

        works = await asyncio.to_thread(traffic)
        await asyncio.to_thread(worker.start)
        await asyncio.to_thread(agree, ops, worker, works)
        assert {worker.state_of(work) for work in works} == {"canceled"}


@PROFILES
async def test_a_thread_arrives_in_order_through_a_full_inbox(tmp_path: Path, profile: tuple[str, ...]) -> None:
    lines = 600
    async with NatsServer(jetstream=True) as server:
        args = ("--nats", server.url, *QUICK, *profile)
        home = Home(tmp_path)
        with Daemon(home, "worker", *args, "--inbox-capacity", "100") as worker, Daemon(home, "ops", *args) as ops:
            wait_for(lambda: ops.knows("worker"), 30, "presence")

            def traffic() -> list[str]:
                for number in range(lines):
                    ops.post(
                        "/v1/messages", kind="say", to="worker", thread_id="thread_long", body={"text": str(number)}
                    )
                wait_for(lambda: worker.get("/v1/status")["counters"].get("overload.inbox"), 30, "the full inbox")
                taken: list[str] = []
                while len(taken) < lines:
                    item = worker.post("/v1/inbox/next", wait=20, ack=True)["item"]
                    assert item is not None, f"only {len(taken)} arrived"
                    taken.append(item["message"]["envelope"]["body"]["text"])
                return taken

            assert await asyncio.to_thread(traffic) == [str(number) for number in range(lines)]
            await asyncio.to_thread(wait_for, lambda: answered(ops), 60, "every answer")


async def test_an_agent_is_told_of_its_word_that_was_refused(home: Home, server: NatsServer) -> None:
    with (
        TcpProxy(server.port) as link,
        Daemon(home, "worker", "--nats", server.url, *QUICK) as worker,
        Daemon(home, "ops", "--nats", link.url, *QUICK) as ops,
    ):
        (work,) = await asyncio.to_thread(opened, ops, worker, 1)
        ops.kill()
        late = worker.post(f"/v1/works/{work}/say", message="are you there?")["id"]
        await asyncio.to_thread(worker.stop)
        await asyncio.to_thread(ops.start)
        ops.post(f"/v1/works/{work}/cancel")
        await asyncio.to_thread(worker.start)
        await asyncio.to_thread(wait_for, lambda: delivery(worker, late) == "refused", 60, "the refusal")
        wait_for(lambda: worker.state_of(work) in TERMINAL, 30, "the end")
        notices = worker.get("/v1/inbox")["items"]
        assert [item["last_error"] for item in notices if item["message"]["id"] == late]


async def test_a_request_repeated_after_the_store_was_lost_fails_visibly(home: Home, server: NatsServer) -> None:
    args = ("--nats", server.url, *QUICK)
    with ops_and_worker(home, *args) as (ops, worker):
        request = {"kind": "say", "to": "worker", "body": {"text": "nightly"}, "id": "msg_nightly"}
        ops.post("/v1/messages", **request, work_id="work_first")
        wait_for(lambda: worker.state_of("work_first"), 30, "the work")
        await asyncio.to_thread(ops.stop)
        for path in ops.store_path.parent.glob("store.db*"):
            path.unlink()
        await asyncio.sleep(1.1)  # another second: other bytes
        await asyncio.to_thread(ops.start)
        wait_for(lambda: ops.knows("worker"), 30, "presence")
        ops.post("/v1/messages", **request, work_id="work_second")
        await asyncio.to_thread(wait_for, lambda: delivery(ops, "msg_nightly") == "refused", 30, "the refusal")
        assert ops.state_of("work_second") == "canceled"
        assert worker.state_of("work_second") == ""
