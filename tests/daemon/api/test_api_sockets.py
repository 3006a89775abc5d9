"""Where the API listens: the Unix socket's file, its folder, and TCP behind a token."""

import asyncio
import http.client
import multiprocessing
import os
import socket
import stat
from pathlib import Path

import pytest

from aghbus.daemon.api.http.listeners import ListenError, listen_unix
from aghbus.daemon.api.server import ApiServer
from tests.support.api_harness import DEADLINE, Api, Reply, exchange
from tests.support.api_simulator import SimulatedDaemon
from tests.support.daemons import START_WAIT

TOKEN = "correct-horse-battery-staple-and-more"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def is_socket(path: Path) -> bool:
    return stat.S_ISSOCK(path.lstat().st_mode)


def exists(path: Path) -> bool:
    return path.exists()


async def test_socket_and_folder_are_private_under_any_umask(socket_path: Path) -> None:
    before = os.umask(0)
    try:
        server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path)
        await server.start()
        assert os.umask(0) == 0  # start left the mask as it was
        assert is_socket(socket_path)
        assert mode(socket_path) == 0o600
        assert mode(socket_path.parent) == 0o700
    finally:
        os.umask(before)
    await server.stop(1.0)
    assert not exists(socket_path)


async def test_the_socket_is_private_from_the_start(socket_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sees the mode at the last moment before it is corrected: what a racing process could see at worst."""
    seen: list[int] = []
    chmod = Path.chmod

    def watched(path: Path, to: int) -> None:
        seen.append(mode(path))
        chmod(path, to)

    monkeypatch.setattr(Path, "chmod", watched)
    before = os.umask(0)
    try:
        listener = await listen_unix(socket_path, private_folder=True)
    finally:
        os.umask(before)
    listener.remove()
    listener.socket.close()
    assert [found & 0o077 for found in seen] == [0]


async def test_stale_socket_is_replaced(socket_path: Path) -> None:
    socket_path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path))
        dead.listen()
    assert exists(socket_path)
    server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path)
    await server.start()
    reply = await Api(server, SimulatedDaemon(), socket_path).get("/healthz")
    assert reply.status == 200
    await server.stop(1.0)


async def test_live_socket_is_refused_and_left_alone(api: Api) -> None:
    second = ApiServer(SimulatedDaemon().handlers(), socket_path=api.path)
    with pytest.raises(ListenError, match="another daemon listens") as caught:
        await second.start()
    assert str(api.path) in caught.value.message
    assert caught.value.hint
    await second.stop(1.0)
    assert (await api.get("/healthz")).status == 200


async def test_busy_listener_counts_as_live(socket_path: Path) -> None:
    """One that accepts nobody, its backlog full: connecting to it takes time, but it is somebody's."""
    socket_path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as busy, socket.socket(socket.AF_UNIX) as first:
        busy.bind(str(socket_path))
        busy.listen(0)
        first.connect(str(socket_path))
        with pytest.raises(ListenError, match="another daemon listens"):
            await listen_unix(socket_path, private_folder=False)


async def test_a_file_that_is_not_a_socket_is_not_removed(socket_path: Path) -> None:
    socket_path.parent.mkdir()
    await asyncio.to_thread(socket_path.write_text, "precious")
    with pytest.raises(ListenError, match="is not a socket"):
        await listen_unix(socket_path, private_folder=False)
    assert await asyncio.to_thread(socket_path.read_text) == "precious"


async def test_a_too_long_path_is_refused_before_a_folder_is_made(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 100) / "d.sock"
    with pytest.raises(ListenError, match="bytes, the system allows") as caught:
        await listen_unix(path, private_folder=True)
    assert "--name" in caught.value.hint
    assert not path.parent.exists()


async def test_unwritable_folder_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ListenError, match="cannot listen on"):
        await listen_unix(tmp_path / "file" / "d.sock", private_folder=False)


async def test_a_folder_of_another_user_is_refused_when_it_must_be_private(socket_path: Path) -> None:
    socket_path.parent.mkdir()
    socket_path.parent.chmod(0o755)
    with pytest.raises(ListenError, match="0755"):
        await listen_unix(socket_path, private_folder=True)
    listener = await listen_unix(socket_path, private_folder=False)  # the operator's own choice
    listener.remove()
    listener.socket.close()
    socket_path.parent.rmdir()
    socket_path.parent.symlink_to(socket_path.parent.parent)
    with pytest.raises(ListenError, match="symbolic link"):
        await listen_unix(socket_path, private_folder=True)


async def test_stop_leaves_a_successors_socket(api: Api) -> None:
    api.path.unlink()
    successor = ApiServer(SimulatedDaemon().handlers(), socket_path=api.path)
    await successor.start()
    await api.server.stop(1.0)
    assert exists(api.path)
    assert (await api.get("/healthz")).status == 200
    await successor.stop(1.0)


def contend(path: Path, start: "multiprocessing.synchronize.Barrier", results: "multiprocessing.Queue[str]") -> None:
    """One of several processes that want the same socket; the winner holds it until all have tried."""

    async def attempt() -> None:
        start.wait(START_WAIT)
        try:
            listener = await listen_unix(path, private_folder=True)
        except ListenError as error:
            results.put(error.message)
            start.wait(START_WAIT)
        else:
            results.put("listens")
            start.wait(START_WAIT)
            listener.socket.close()

    asyncio.run(attempt())


async def test_of_several_daemons_on_a_stale_socket_one_wins(socket_path: Path) -> None:
    """Each would see the stale one and remove it: without the lock, the second removes what the first has just made."""
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(3), context.Queue()
    socket_path.parent.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(socket_path))
    rivals = [context.Process(target=contend, args=(socket_path, start, results)) for _ in range(3)]
    for rival in rivals:
        rival.start()
    outcomes = [await asyncio.to_thread(results.get, True, START_WAIT) for _ in rivals]
    for rival in rivals:
        await asyncio.to_thread(rival.join, START_WAIT)
        assert rival.exitcode == 0
    assert sorted(word for word in outcomes if word == "listens") == ["listens"]
    assert sum("another daemon listens" in word for word in outcomes) == 2


async def tcp(server: ApiServer, headers: dict[str, str], target: str = "/v1/status") -> Reply:
    assert server.tcp_address is not None
    connection = http.client.HTTPConnection(*server.tcp_address, timeout=DEADLINE)
    return await asyncio.to_thread(exchange, connection, "GET", target, None, headers)


async def test_tcp_needs_the_token(socket_path: Path) -> None:
    server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path, tcp=("127.0.0.1", 0), token=TOKEN)
    await server.start()
    assert server.tcp_address is not None
    assert server.tcp_address[1] != 0
    assert (await tcp(server, {"authorization": f"Bearer {TOKEN}"})).status == 200
    assert (await tcp(server, {"authorization": f"bearer {TOKEN}"})).status == 200
    for headers in (
        {},
        {"authorization": TOKEN},
        {"authorization": f"Bearer {TOKEN[:-1]}"},
        {"authorization": f"Bearer {TOKEN}x"},
        {"authorization": f"Basic {TOKEN}"},
        {"authorization": "Bearer "},
        {"authorization": "Bearer t\u00f6ken"},
    ):
        for target in ("/v1/status", "/healthz", "/openapi.json", "/nowhere"):
            reply = await tcp(server, headers, target)
            assert (reply.status, reply.json["code"]) == (401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer"
    await server.stop(1.0)


async def test_tcp_refuses_other_names_and_web_pages(socket_path: Path) -> None:
    server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path, tcp=("127.0.0.1", 0), token=TOKEN)
    await server.start()
    assert server.tcp_address is not None
    port = server.tcp_address[1]
    good = {"authorization": f"Bearer {TOKEN}"}
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"127.0.0.2:{port}", ""):
        reply = await tcp(server, {**good, "host": host})
        assert (host, reply.status, reply.json["code"]) == (host, 403, "forbidden")
    assert (await tcp(server, {**good, "host": f"LOCALHOST:{port}"})).status == 200
    for origin in ("http://evil.example", "null", f"http://127.0.0.1:{port}", f"http://localhost:{port}", ""):
        reply = await tcp(server, {**good, "origin": origin})
        assert (origin, reply.status) == (origin, 403)
        assert "access-control-allow-origin" not in reply.headers
    await server.stop(1.0)


async def test_tcp_with_two_host_headers_is_refused(socket_path: Path) -> None:
    server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path, tcp=("127.0.0.1", 0), token=TOKEN)
    await server.start()
    assert server.tcp_address is not None
    host, port = server.tcp_address
    reader, writer = await asyncio.open_connection(host, port)
    line = f"Host: {host}:{port}\r\n"
    writer.write(f"GET /v1/status HTTP/1.1\r\n{line}{line}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.readline(), DEADLINE)
    assert answer.startswith(b"HTTP/1.1 403 ")
    writer.close()
    await server.stop(1.0)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", "", "127.0.0.1.example.com"])
async def test_only_loopback_is_bound(socket_path: Path, host: str) -> None:
    server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path, tcp=(host, 0), token=TOKEN)
    with pytest.raises(ListenError, match="is not a loopback address"):
        await server.start()
    assert not exists(socket_path)


@pytest.mark.parametrize(
    "token",
    [None, "", "short", "a" * 31, "has a newline\nin it, but is long enough", "ümlaut-but-it-is-long-enough-indeed"],
)
async def test_tcp_without_a_good_token_is_refused(socket_path: Path, token: str | None) -> None:
    server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path, tcp=("127.0.0.1", 0), token=token)
    with pytest.raises(ListenError, match="needs a token"):
        await server.start()
    assert not exists(socket_path)


async def test_a_port_in_use_leaves_no_listener(socket_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path, tcp=taken.getsockname(), token=TOKEN)
        with pytest.raises(ListenError, match="cannot listen on"):
            await server.start()
    assert not exists(socket_path)
    assert server.tcp_address is None
