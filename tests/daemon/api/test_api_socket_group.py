"""`api.socket_group`: members of one group may use the API's socket, too."""

import asyncio
import errno
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from aghbus.daemon.api.http.listeners import ListenError, group_id, listen_unix
from tests.support.daemons import Daemon, Home, wait_for

GROUP: Final = 54_321  # needs no entry in the group database
OTHER: Final = 54_322
CLIENT: Final = """
import os, socket, sys
os.setgroups([int(gid) for gid in sys.argv[3:]])
os.setgid(int(sys.argv[2]))
os.setuid(54320)
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(20)
try:
    sock.connect(sys.argv[1])
    sock.sendall(b"GET /healthz HTTP/1.1\\r\\nHost: d\\r\\nConnection: close\\r\\n\\r\\n")
    print(sock.recv(100)[:12].decode())
except (PermissionError, BrokenPipeError, ConnectionRefusedError, ConnectionResetError) as error:
    print(type(error).__name__)
"""

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root can start a process of another user"
)


def client(path: Path, gid: int, *supplementary: int) -> str:
    """The start of the response, or the error, of a process of another user in these groups."""
    command = [sys.executable, "-c", CLIENT, str(path), str(gid), *map(str, supplementary)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@pytest.fixture
def path() -> Iterator[Path]:
    """A socket's path in a folder that every user can reach; pytest's own are closed to others."""
    folder = Path(tempfile.mkdtemp(prefix="aghbus-group-"))
    folder.chmod(0o755)
    yield folder / "d.sock"
    shutil.rmtree(folder)


def test_members_of_the_group_are_accepted_and_others_are_not(tmp_path: Path, path: Path) -> None:
    env = {"AGHD_API_SOCKET_GROUP": str(GROUP), "AGHD_API_SOCKET": str(path)}
    daemon = Daemon(Home(tmp_path), "ops", env=env).start(wait=False)
    try:
        wait_for(path.exists, 60, "the socket")
        wait_for(lambda: path.stat().st_mode & 0o777 == 0o660, 10, "its mode")
        wait_for(lambda: client(path, GROUP) == "HTTP/1.1 200", 10, "it to be listened at")
        assert client(path, OTHER, GROUP, OTHER + 1) == "HTTP/1.1 200"
        assert client(path, OTHER) == "PermissionError"
        path.chmod(0o666)  # as a careless operator might
        assert client(path, OTHER, OTHER + 1) in ("", "ConnectionResetError", "BrokenPipeError")
    finally:
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("group", "named", "hint"), [("54321", False, "api.socket"), ("no-such-group", True, "no-such-group")]
)
def test_a_group_that_cannot_be_served_stops_the_start(
    tmp_path: Path, path: Path, group: str, named: bool, hint: str
) -> None:
    env = {"AGHD_API_SOCKET_GROUP": group, **({"AGHD_API_SOCKET": str(path)} if named else {})}
    daemon = Daemon(Home(tmp_path), "ops", env=env).start(wait=False)
    assert daemon.process is not None
    assert daemon.process.wait(60) == 1
    assert "api.socket_group" in daemon.log.read_text()
    assert hint in daemon.log.read_text()


def test_the_own_group_works_where_chown_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under SystemCallFilter=~@privileged in the system unit."""

    def refused(*_arguments: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "chown", refused)
    listener = asyncio.run(listen_unix(path, private_folder=False, group=os.getegid()))
    assert path.stat().st_mode & 0o777 == 0o660
    listener.socket.close()
    listener.remove()
    with pytest.raises(ListenError, match="cannot be given"):
        asyncio.run(listen_unix(path, private_folder=False, group=GROUP))
    assert not path.exists()


def test_a_group_is_named_or_numbered() -> None:
    assert group_id("root") == 0
    assert group_id("54321") == GROUP
    with pytest.raises(ListenError, match="no group"):
        group_id("no-such-group")
