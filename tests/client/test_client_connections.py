"""Connections are kept over calls, and one stream serves all that wait: over restarts, forks, threads and event loops."""

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from aghbus.client import AsyncClient, Client, ConnectionLost, Endpoint, NotFound
from aghbus.protocol.api.works import Work
from tests.support.client_pair import Pair, Running
from tests.support.daemons import Daemon, wait_for
from tests.support.natsutil import wait_until


def sockets() -> set[str]:
    """The sockets that this process has open."""
    found = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(entry.readlink()))
    return {one for one in found if one.startswith("socket:")}


def client_of(daemon: Daemon, timeout: float = 30.0) -> Client:
    return Client(Endpoint(path=str(daemon.socket_path)), timeout=timeout)


def test_calls_one_after_the_other_share_a_connection(pair: Pair) -> None:
    before = sockets()
    with client_of(pair.ops) as client:
        client.version()
        (only,) = sockets() - before
        for _ in range(20):
            client.version()
            with pytest.raises(NotFound):
                client.message("none")
        assert sockets() - before == {only}
    assert sockets() <= before
    assert client.version().api == "v1"  # a client that was closed goes on
    client.close()


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_kept_connection_does_not_outlive_its_daemon(pair: Pair, how: str, caplog: pytest.LogCaptureFixture) -> None:
    with client_of(pair.ops) as client:
        for call in (client.version, client.next_message):
            client.version()
            getattr(pair.ops, how)()
            pair.ops.start()
            call()
    assert "waiting for the daemon" not in caplog.text


ALIVE = b'HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{"alive":true}'


@contextlib.contextmanager
def answering(path: Path, *connections: int, cut: bytes = b"") -> Iterator[list[bytes]]:
    """A server that answers so many requests of each connection, takes one more, sends `cut` and closes it; yields the requests."""
    requests: list[bytes] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve(connection: socket.socket, count: int) -> None:
        with connection:
            for _ in range(count):
                requests.append(connection.recv(65_536))
                connection.sendall(ALIVE)
            requests.append(connection.recv(65_536))
            if requests[-1]:
                connection.sendall(cut)

    def accept() -> list[Running]:
        accepted = ((listener.accept()[0], count) for count in connections)
        return [Running(partial(serve, connection, count)) for connection, count in accepted]

    accepting = Running(accept)
    try:
        yield requests
    finally:
        for one in accepting.result():
            one.result()
        listener.close()


def test_what_may_be_repeated_is_when_a_kept_connection_closes_under_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = Client(Endpoint(path=str(tmp_path / "s")))
    with answering(tmp_path / "s", 2, 1) as requests:
        for _ in range(3):
            assert client.health().alive
        client.close()
    assert [request.partition(b" HTTP")[0] for request in requests if request] == [b"GET /healthz"] * 4
    assert "waiting for the daemon" not in caplog.text


def test_what_may_be_repeated_is_when_its_answer_ends_early(tmp_path: Path) -> None:
    client = Client(Endpoint(path=str(tmp_path / "s")))
    with answering(tmp_path / "s", 1, 1, cut=ALIVE[:-4]) as requests:
        assert client.health().alive
        assert client.health().alive
        client.close()
    assert [request.partition(b" HTTP")[0] for request in requests if request] == [b"GET /healthz"] * 3


def test_what_may_not_be_repeated_is_sent_once_on_a_new_connection(tmp_path: Path) -> None:
    client = Client(Endpoint(path=str(tmp_path / "s")))
    with answering(tmp_path / "s", 1, 0) as requests:
        assert client.health().alive
        with pytest.raises(ConnectionLost):
            client.next_message()
        client.close()
    assert [request.partition(b" HTTP")[0] for request in requests if request] == [
        b"GET /healthz",
        b"POST /v1/inbox/next",
    ]


def test_messages_of_many_threads_are_sent_once_over_kills_of_the_daemon(pair: Pair) -> None:
    before, client, ends = sockets(), client_of(pair.ops, timeout=60), threading.Event()
    sent: list[str] = []

    def send() -> None:
        while not ends.is_set():
            sent.append(client.send("say", {"text": "x"}, to="worker").id)

    running = [Running(send) for _ in range(8)]
    for _ in range(3):
        enough = len(sent) + 20
        wait_for(lambda enough=enough: len(sent) >= enough, 60, "further messages")  # type: ignore[misc]
        pair.ops.kill()
        pair.ops.start()
    ends.set()
    for one in running:
        one.result()
    stored = client.messages(kinds=frozenset({"say"}), directions=frozenset({"out"}), limit=1_000).messages
    assert sorted(message.id for message in stored) == sorted(sent)
    assert len(sockets() - before) <= 8
    client.close()


def run(program: str, daemon: Daemon) -> None:
    """Run a program that must succeed in silence."""
    command = [sys.executable, "-W", "always", "-c", program, str(daemon.socket_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


FORK = """
import os, sys
from aghbus.client import Client, Endpoint

def sockets():
    links = (os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{one}"))
    return {link for link in links if link.startswith("socket:")}

client = Client(Endpoint(path=sys.argv[1]))
work = client.open_work("worker", "x").work_id
events = client.events(since=0)
next(events)
for _ in range(100):  # a wait may end before its connection is there
    try:
        client.wait(work, timeout=0.1)
    except TimeoutError:
        pass
    if len(mine := sockets()) >= 3:
        break
assert len(mine) == 3, mine  # of calls, of the events, and of the wait
if (child := os.fork()) == 0:
    try:
        assert not sockets()
        assert client.wait(work, timeout=60).state == "canceled"
        assert not sockets() & mine
    except BaseException as error:
        print(repr(error), flush=True)
    os._exit(0)
client.act_on_work(work, "cancel")
assert client.wait(work, timeout=60).state == "canceled"
os.waitpid(child, 0)
assert sockets() == mine
assert next(events).work.after == "canceled"
"""


def test_a_child_has_none_of_the_connections_of_its_parent(pair: Pair) -> None:
    run(FORK, pair.ops)


LOOPS = """
import asyncio, gc, sys
from aghbus.client import AsyncClient, Client, Endpoint

client = AsyncClient(Endpoint(path=sys.argv[1]))

async def work():
    opened = await client.open_work("worker", "x")
    try:
        await client.wait(opened.work_id, timeout=0.1)
    except TimeoutError:
        pass
    await client.act_on_work(opened.work_id, "cancel")
    return (await client.wait(opened.work_id, timeout=60)).state

for _ in range(2):
    assert asyncio.run(work()) == "canceled"
for _ in range(2):
    loop = asyncio.new_event_loop()  # which nobody tells to cancel its tasks
    assert loop.run_until_complete(work()) == "canceled"
    loop.close()

async def both():
    async with AsyncClient(Endpoint(path=sys.argv[1])) as other:
        await other.version()
        return await asyncio.gather(work(), work())

assert asyncio.run(both()) == ["canceled", "canceled"]
blocking = Client(Endpoint(path=sys.argv[1]))
blocking.version()
blocking.itself = blocking
del client, blocking
gc.collect()
left = Client(Endpoint(path=sys.argv[1]))
left.version()
"""


def test_clients_outlive_event_loops_and_leave_nothing_behind(pair: Pair) -> None:
    run(LOOPS, pair.ops)


def waits(pair: Pair, *, count: int = 2) -> tuple[list[str], list[Running]]:
    """Works that nobody has taken, and waits for them at once."""
    opened = [pair.asking.open_work("worker", str(number)).work_id for number in range(count)]
    return opened, [Running(lambda one=one: pair.asking.wait(one, timeout=60)) for one in opened]  # type: ignore[misc]


def test_two_waits_at_once_see_what_happened_while_their_daemon_was_away(pair: Pair) -> None:
    opened, waiting = waits(pair)
    for work_id in opened:
        wait_for(lambda: len(pair.working.inbox().items) == 2, 30, "the works")
        pair.working.act_on_work(work_id, "accept")
    wait_for(lambda: len(pair.asking.works(states=frozenset({"working"})).works) == 2, 30, "their acceptance")
    pair.ops.kill()
    for work_id in opened:
        pair.working.act_on_work(work_id, "complete", message=work_id)
    pair.ops.start()
    done: list[Work] = [one.result() for one in waiting]
    assert [(work.state, work.message) for work in done] == [("completed", work_id) for work_id in opened]
    pair.asking.close()


def test_waits_end_when_their_works_are_gone_with_the_store(pair: Pair) -> None:
    _, waiting = waits(pair)
    wait_for(lambda: any(one.name == "aghbus-client" for one in threading.enumerate()), 30, "the stream")
    pair.ops.kill()
    shutil.rmtree(pair.ops.store_path.parent)
    pair.ops.start()
    for one in waiting:
        with pytest.raises(NotFound):
            one.result()
    pair.asking.close()


async def test_hundreds_of_waits_share_one_stream(pair: Pair) -> None:
    before = sockets()
    async with AsyncClient(Endpoint(path=str(pair.ops.socket_path))) as client:
        opened = [(await client.open_work("worker", str(number))).work_id for number in range(300)]
        waiting = [asyncio.create_task(client.wait(work_id)) for work_id in opened]
        for work_id in opened:
            await client.act_on_work(work_id, "cancel")
        assert {work.state for work in await asyncio.gather(*waiting)} == {"canceled"}
        assert len(sockets() - before) <= 33
    await wait_until(lambda: sockets() <= before)


@contextlib.asynccontextmanager
async def recorded(path: Path, daemon: Daemon) -> AsyncIterator[list[bytes]]:
    """A socket in front of a daemon's; yields what clients send, piece by piece."""
    sent: list[bytes] = []
    ends: list[asyncio.Event] = []

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, kept: list[bytes]) -> None:
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65_536):
                kept.append(piece)
                writer.write(piece)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends.append(end := asyncio.Event())
        from_daemon, to_daemon = await asyncio.open_unix_connection(daemon.socket_path)
        await asyncio.gather(pass_on(reader, to_daemon, sent), pass_on(from_daemon, writer, []))
        end.set()

    async with await asyncio.start_unix_server(serve, path):
        yield sent
        for end in ends:
            await end.wait()


async def test_a_work_takes_one_request_beside_the_stream(pair: Pair, tmp_path: Path) -> None:
    async with recorded(tmp_path / "s", pair.ops) as sent, AsyncClient(Endpoint(path=str(tmp_path / "s"))) as client:
        running = asyncio.create_task(client.run("worker", "count"))
        await wait_until(lambda: pair.working.works().works)
        pair.working.act_on_work(pair.working.works().works[0].work_id, "complete", result={"count": 3})
        async with asyncio.timeout(30):
            assert (await running).result == {"count": 3}
    requests = re.findall(rb"([A-Z]+ /[^ ?]+)\S* HTTP/1.1\r", b"".join(sent))
    assert sorted(requests) == [b"GET /v1/events", b"POST /v1/works"]
