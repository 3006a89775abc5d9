"""On TCP daemon and client prove that they know the token; a process that does not know it never gets it."""

import asyncio
import contextlib
import http.client
import os
import signal
import socket
import stat
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from aghbus.client import Client
from aghbus.client.api import Api
from aghbus.client.errors import ClientError, Unexpected
from aghbus.client.http import Endpoint
from aghbus.daemon.api.server import ApiServer
from aghbus.protocol.api.tcp_proof import SCHEME, challenge_of, proof
from tests.support.api_simulator import SimulatedDaemon
from tests.support.cluster import free_ports
from tests.support.daemons import Daemon, Home, wait_for

TOKEN = "correct-horse-battery-staple-and-more"
NONCE = "0" * 32


@contextlib.contextmanager
def impostor(answer: bytes) -> Iterator[tuple[int, bytearray]]:
    """A process on a port of ours that answers everything with `answer`; yields the port and what it has received."""
    received = bytearray()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(5)
                    while piece := connection.recv(65_536):
                        received.extend(piece)
                        connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listener.getsockname()[1], received
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def api(port: int, token: str = TOKEN) -> Api:
    return Api(Endpoint(host="127.0.0.1", port=port, token=token), 5.0)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer\r\nContent-Length: 2\r\n\r\n{}",
        f"HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: {SCHEME} nonce={NONCE}, proof={'0' * 64}\r\n\r\n".encode(),
        b"no HTTP\r\n\r\n",
    ],
)
def test_a_process_without_the_token_gets_neither_token_nor_request(answer: bytes) -> None:
    with impostor(answer) as (port, received):
        with pytest.raises(Unexpected):
            api(port).post("/v1/messages", {"text": "confidential"})
        assert SCHEME.encode() in received
        assert TOKEN.encode() not in received
        assert b"confidential" not in received
        assert b"/v1/messages" not in received


@contextlib.asynccontextmanager
async def listening(socket_path: Path) -> AsyncIterator[int]:
    """The port of a server on TCP."""
    server = ApiServer(SimulatedDaemon().handlers(), socket_path=socket_path, tcp=("127.0.0.1", 0), token=TOKEN)
    await server.start()
    assert server.tcp_address is not None
    try:
        yield server.tcp_address[1]
    finally:
        await server.stop(1.0)


async def test_who_knows_the_token_is_served_and_others_are_not(socket_path: Path) -> None:
    async with listening(socket_path) as port:
        assert "name" in await asyncio.to_thread(api(port).get, "/v1/status")
        with pytest.raises(ClientError) as refused:
            await asyncio.to_thread(api(port, "another-token-entirely").get, "/v1/status")
        assert refused.value.code == "unproven"


async def test_proofs_are_not_passed_on_by_another_port(socket_path: Path) -> None:
    async with listening(socket_path) as port:

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(writer), contextlib.closing(far_writer):
                head = await reader.readuntil(b"\r\n\r\n")
                far_writer.write(head.replace(str(relay_port).encode(), str(port).encode()))
                writer.write(await far_reader.read(65_536))

        async with await asyncio.start_server(relay, "127.0.0.1", 0) as between:
            relay_port = between.sockets[0].getsockname()[1]
            with pytest.raises(ClientError) as refused:
                await asyncio.to_thread(api(relay_port).get, "/v1/status")
        assert refused.value.code == "unproven"


async def test_a_proof_is_of_one_connection(socket_path: Path) -> None:
    async with listening(socket_path) as port:
        address = ("127.0.0.1", port)

        async def ask(
            authorization: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
        ) -> tuple[int, str]:
            """The status of the response, and its challenge."""
            lines = ("GET /healthz HTTP/1.1", f"Host: 127.0.0.1:{port}", f"Authorization: {authorization}", "", "")
            writer.write("\r\n".join(lines).encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length: ")[2].split("\r\n")[0]))
            challenge = head.partition("www-authenticate: ")[2].split("\r\n")[0]
            return int(head.split()[1]), challenge.replace(SCHEME.lower(), SCHEME)

        first, second = await asyncio.open_connection(*address), await asyncio.open_connection(*address)
        status, challenge = await ask(f"{SCHEME} nonce={NONCE}", *first)
        found = challenge_of(challenge)
        assert (status, found is not None) == (401, True)
        assert found is not None
        assert found[1] == proof(TOKEN, "daemon", address, NONCE, found[0])
        ours = f"{SCHEME} proof={proof(TOKEN, 'client', address, NONCE, found[0])}"
        assert (await ask(f"{SCHEME} proof={found[1]}", *first))[0] == 401  # the daemon's own proof, sent back
        assert (await ask(ours, *second))[0] == 401
        assert (await ask(ours, *first))[0] == 200
        assert (await ask(f"{SCHEME} nonce=short", *first))[0] == 401
        for _, writer in (first, second):
            writer.close()


def test_cli_sends_proof_and_state_folders_are_0700_at_any_umask(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    before = os.umask(0)
    try:
        with Daemon(home, "ops", "--api-tcp", address):
            done = home.ctl("--name", "ops", "--api", f"http://{address}", "status", "-o", "json")
            assert done.returncode == 0, done
            home.ctl_json("--name", "other", "key", "generate")
            folders = [tmp_path / "state", *(path for path in (tmp_path / "state").rglob("*") if path.is_dir())]
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in folders if path.exists()}
    assert {"state/aghbus/instances/ops", "state/aghbus/instances/other", "state/aghbus/broker"} <= modes.keys()
    assert set(modes.values()) == {0o700}, modes


def test_the_token_changes_at_sighup_and_what_was_proved_before_counts_no_more(tmp_path: Path) -> None:
    home, (port,) = Home(tmp_path), free_ports(1)
    token = tmp_path / "state/aghbus/instances/ops/api.token"
    with Daemon(home, "ops", "--api-tcp", f"127.0.0.1:{port}") as ops:
        old = token.read_text().strip()

        def status(bearer: str) -> int:
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=10)) as connection:
                connection.request("GET", "/v1/version", headers={"Authorization": f"Bearer {bearer}"})
                return connection.getresponse().status

        assert status(old) == 200
        kept = Client(Endpoint(host="127.0.0.1", port=port, token=old), timeout=20)
        kept.version()
        assert ops.process is not None
        token.write_text("too short\n")
        os.kill(ops.process.pid, signal.SIGHUP)
        wait_for(lambda: "the token of the API is not reloaded" in ops.log.read_text(), 30, "the refusal")
        assert status(old) == 200
        token.write_text("f" * 64 + "\n")
        os.kill(ops.process.pid, signal.SIGHUP)
        wait_for(lambda: status("f" * 64) == 200, 30, "the new token")
        assert status(old) == 401
        with pytest.raises(ClientError):
            kept.version()
        kept.close()
        assert home.ctl("--name", "ops", "--api", f"http://127.0.0.1:{port}", "status").returncode == 0
