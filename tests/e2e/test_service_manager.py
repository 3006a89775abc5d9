"""`aghd` under a service manager: what it sends to NOTIFY_SOCKET, and that the units of deploy/systemd are closed enough."""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

import pytest

from tests.support.daemons import Daemon, Home
from tests.support.natsutil import NatsServer, pause
from tests.support.tools import require_tool

UNITS: Final = Path(__file__).parent.parent.parent / "deploy" / "systemd"
WAIT: Final = 60.0  # seconds for one message


class Manager:
    """The datagram socket of a service manager. A context manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(WAIT)

    def __enter__(self) -> Self:
        self._socket.bind("\0" + self.address[1:] if self.address.startswith("@") else self.address)
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def lines(self) -> Iterator[str]:
        """Every line as it arrives; a TimeoutError when none does."""
        while True:
            yield from self._socket.recv(4096).decode().split("\n")

    def until(self, wanted: Callable[[str], bool]) -> list[str]:
        """The lines up to the first that is `wanted`."""
        seen = []
        for line in self.lines():
            seen.append(line)
            if wanted(line):
                return seen
        raise AssertionError

    def status(self, text: str) -> list[str]:
        """The lines up to a status that contains `text`."""
        return self.until(lambda line: line.startswith("STATUS=") and text in line)

    def pending(self) -> list[str]:
        """The lines that were sent already."""
        self._socket.setblocking(False)
        seen: list[str] = []
        try:
            seen.extend(self.lines())
        except BlockingIOError:
            self._socket.settimeout(WAIT)
        return seen


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    address = str(tmp_path / "notify") if request.param == "path" else f"@aghbus-{secrets.token_hex(8)}"
    with Manager(address) as found:
        yield found


async def test_ready_then_the_state_of_the_broker_then_stopping(
    manager: Manager, tmp_path: Path, server: NatsServer
) -> None:
    daemon = Daemon(Home(tmp_path), "ops", "--nats", server.url, env={"NOTIFY_SOCKET": manager.address})
    daemon.start(wait=False)
    try:
        first = await asyncio.to_thread(manager.status, "ready: ops in ws_local")
        assert first[0] == "READY=1"
        assert "WATCHDOG=1" not in first  # nobody asked for it
        server.kill()
        await asyncio.to_thread(manager.status, "not ready: the broker link is down")
        await server.start()
        await asyncio.to_thread(manager.status, "ready: ops in ws_local")
    finally:
        assert daemon.stop() == 0
    assert manager.pending()[:2] == ["STOPPING=1", "STATUS=shutting down"]


def test_ready_does_not_wait_for_a_broker(tmp_path: Path) -> None:
    """Agents may hand over messages before: they stay in the outbox."""
    with Manager(str(tmp_path / "notify")) as manager, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # does not listen
        url = f"nats://127.0.0.1:{nobody.getsockname()[1]}"
        daemon = Daemon(Home(tmp_path), "ops", "--nats", url, env={"NOTIFY_SOCKET": manager.address})
        daemon.start(wait=False)
        try:
            assert manager.until(lambda line: line == "READY=1") == ["READY=1"]
            assert daemon.get("/v1/status")["ready"] is False
        finally:
            daemon.stop()


async def test_running_daemon_notifies_watchdog_and_paused_one_does_not(tmp_path: Path) -> None:
    with Manager(str(tmp_path / "notify")) as manager:
        env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "400000"}
        daemon = Daemon(Home(tmp_path), "ops", env=env).start(wait=False)
        assert daemon.process is not None
        try:
            for _ in range(3):
                await asyncio.to_thread(manager.until, lambda line: line == "WATCHDOG=1")
            await pause(daemon.process.pid)
            manager.pending()
            await asyncio.sleep(0.6)  # longer than the watchdog's time
            assert manager.pending() == []
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
            daemon.stop()


def test_a_watchdog_of_another_process_is_left_alone(tmp_path: Path) -> None:
    with Manager(str(tmp_path / "notify")) as manager:
        env = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}
        with Daemon(Home(tmp_path), "ops", env=env):
            manager.status("ready")
        assert "WATCHDOG=1" not in manager.pending()


@pytest.mark.parametrize("address", ["/nowhere/notify", "relative", "@", "vsock:2:1234"])
def test_a_manager_that_cannot_be_reached_does_not_stop_the_daemon(tmp_path: Path, address: str) -> None:
    with Daemon(Home(tmp_path), "ops", env={"NOTIFY_SOCKET": address}) as daemon:
        assert daemon.get("/readyz")["ready"]


@pytest.mark.parametrize(
    ("unit", "scope", "exposure"),
    [("aghd@.service", [], 15), ("aghd-backup@.service", [], 10), ("user/aghd@.service", ["--user"], 40)],
)
def test_the_units_stay_below_their_bound_of_exposure(
    tmp_path: Path, unit: str, scope: list[str], exposure: int
) -> None:
    analyze = require_tool("systemd-analyze")
    command = [
        analyze,
        *scope,
        "security",
        "--offline=true",
        "--no-pager",
        f"--threshold={exposure}",
        str(UNITS / unit),
    ]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Overall exposure level" in done.stdout
