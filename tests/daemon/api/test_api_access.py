"""Access to the API: other users of the machine on the socket, and clients on TCP."""

import asyncio
import logging
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from aghbus.daemon.api.http import peer_credentials
from aghbus.daemon.api.http.connection import MAX_CONNECTIONS
from aghbus.daemon.api.http.listeners import ListenError
from aghbus.daemon.api.http.token_file import MAX_TOKEN_BYTES, read_token
from aghbus.daemon.api.server import ApiServer
from tests.support.api_harness import DEADLINE, Api
from tests.support.api_simulator import SimulatedDaemon
from tests.support.natsutil import wait_until

NOBODY = 65_534
TOKEN = "correct-horse-battery-staple-and-more"
CLIENT = """
import os, socket, sys
os.setuid(int(sys.argv[2]))
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
sock.connect(sys.argv[1])
try:
    sock.sendall(b"GET /v1/status HTTP/1.1\\r\\nHost: d\\r\\nConnection: close\\r\\n\\r\\n")
    print(sock.recv(100)[:12].decode())
except (BrokenPipeError, ConnectionResetError):
    print("")
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="aghbus-api-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def client_as(uid: int, path: Path) -> str:
    """The start of the response that a process of user `uid` gets on the socket, "" when it was rejected."""
    command = [sys.executable, "-c", CLIENT, str(path), str(uid)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, check=True)
    return done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
async def test_another_user_is_disconnected_even_on_a_world_writable_socket(
    open_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "aghbus.daemon.api")
    path, node = open_folder / "d.sock", SimulatedDaemon()
    server = ApiServer(node.handlers(), socket_path=path)
    await server.start()
    path.chmod(0o666)  # as a careless operator might
    try:
        for _ in range(10):
            assert await asyncio.to_thread(client_as, NOBODY, path) == ""
        assert node.calls == []
        assert await asyncio.to_thread(client_as, 0, path) == "HTTP/1.1 200"
        assert not server.connections
    finally:
        await server.stop(1.0)
    lines = [record for record in caplog.records if "another user" in record.message]
    assert 1 <= len(lines) <= 7  # bounded, and the suppressed ones are counted at the end
    assert lines[0].__dict__["aghbus_fields"]["uid"] == NOBODY


@pytest.mark.skipif(sys.platform != "linux", reason="the layout is that of Linux")
def test_the_kernel_reports_the_user_of_a_connection() -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    with here, there:
        assert peer_credentials.peer_uid(here) == os.geteuid()
        assert peer_credentials.is_ours(peer_credentials.peer_uid(here))
    assert peer_credentials.peer_uid(here) is None  # closed: the uid is unknown, and unknown is rejected


def test_the_credentials_of_other_systems_are_read_or_refused() -> None:
    xucred = struct.pack("=IIh", 0, 501, 2) + bytes(66)
    assert peer_credentials.uid_of_xucred(xucred) == 501
    assert peer_credentials.uid_of_xucred(struct.pack("=II", 7, 501)) is None
    assert peer_credentials.uid_of_xucred(b"") is None
    assert peer_credentials.uid_of_ucred(struct.pack("=iII", 1, 501, 20)) == 501
    assert peer_credentials.uid_of_ucred(b"\0" * 11) is None


def test_only_the_own_user_and_root_are_accepted() -> None:
    assert peer_credentials.is_ours(os.geteuid())
    assert peer_credentials.is_ours(0)
    assert not peer_credentials.is_ours(os.geteuid() + 1)
    assert not peer_credentials.is_ours(NOBODY)
    assert not peer_credentials.is_ours(None)


async def test_connections_on_tcp_do_not_count_on_the_socket(socket_path: Path) -> None:
    node = SimulatedDaemon()
    server = ApiServer(node.handlers(), socket_path=socket_path, tcp=("127.0.0.1", 0), token=TOKEN)
    await server.start()
    assert server.tcp_address is not None
    silent = [await asyncio.open_connection(*server.tcp_address) for _ in range(MAX_CONNECTIONS + 10)]
    try:
        await wait_until(lambda: len(server.connections) >= MAX_CONNECTIONS)
        assert (await Api(server, node, socket_path).get("/v1/status")).status == 200
    finally:
        for _, writer in silent:
            writer.close()
        await server.stop(1.0)


def test_a_token_file_is_made_once_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "api.token"
    before = os.umask(0)
    try:
        token = read_token(path, {}, make=True)
    finally:
        os.umask(before)
    assert len(token) >= 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_token(path, {}, make=True) == token == read_token(path, {}, make=False)


def test_a_token_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    for mode in (0o644, 0o604, 0o620, 0o602, 0o640, 0o440):
        path.chmod(mode)
        with pytest.raises(ListenError, match=f"has mode {mode:04o}.*chmod 600") as caught:
            read_token(path, {}, make=False)
        assert TOKEN not in str(caught.value)
    env = {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    assert read_token(path, env, make=False) == TOKEN  # an access list of systemd shows as the bits of the group
    path.chmod(0o444)
    with pytest.raises(ListenError, match="0444"):
        read_token(path, env, make=False)


def test_an_invalid_token_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ListenError, match="No such file"):
        read_token(tmp_path / "missing", {}, make=False)
    with pytest.raises(ListenError, match="Is a directory"):
        read_token(tmp_path, {}, make=False)
    path = tmp_path / "large"
    path.touch(0o600)
    path.write_text("x" * (MAX_TOKEN_BYTES + 1))
    with pytest.raises(ListenError, match="contains no token"):
        read_token(path, {}, make=False)
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ListenError):
        read_token(link, {}, make=True)  # never written through somebody's link
    assert not (tmp_path / "elsewhere").exists()
