"""A sandbox for daemons: temporary folders and an embedded broker, all removed afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from types import FrameType, TracebackType

from aghbus.client.api import Api
from aghbus.client.errors import ClientError, Unexpected
from aghbus.client.http import Endpoint
from aghbus.host.file_lock import is_locked
from aghbus.host.locations import Locations, locate

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

START_SECONDS = 30.0
"""For a daemon and its broker to be ready; a second on an idle machine."""
STOP_SECONDS = 12.0
"""For a daemon to stop after SIGTERM: its own deadline is 10 s; and for the broker after its last member."""
POLL_INTERVAL = 0.02
"""Poll interval in seconds."""
LONGEST_ROOT = 60
"""Longest path of the folder in bytes: socket paths below it are limited to 104 bytes on some systems."""
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_OURS = ("AGHD_", "AGHCTL_", "NATS_", "XDG_")


class Sandbox:
    """Daemons in one temporary folder. Leaving the context stops them, waits for their broker to exit and removes the folder.

    SIGINT, SIGTERM and SIGHUP leave the context; later signals are ignored, so that the clean-up is complete.
    """

    def __init__(self, env: Mapping[str, str]) -> None:
        root = tempfile.mkdtemp(prefix="aghctl-demo-")
        if len(os.fsencode(root)) > LONGEST_ROOT:
            os.rmdir(root)  # noqa: PTH106 - pathlib is slow to load
            root = tempfile.mkdtemp(prefix="aghctl-demo-", dir="/tmp")
        self.root = root
        self.env = {name: value for name, value in env.items() if not name.startswith(_OURS)}
        for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
            self.env[variable] = f"{root}/{variable[4:7].lower()}"
        os.mkdir(self.env["XDG_RUNTIME_DIR"], 0o700)  # noqa: PTH102 - pathlib is slow to load
        self._running: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        for number in _ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup's SIGHUP stays ignored
                signal.signal(number, _interrupt)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _ignore_ending()
        self._close()

    def places(self, name: str) -> Locations:
        """The paths of the instance `name` in the sandbox."""
        return locate(name, self.env, uid=os.getuid(), home=self.root)

    def start(self, name: str, *arguments: str) -> Api:
        """Start a daemon and return its API client; call `until_ready` before using it."""
        command = [sys.executable, "-m", "aghbus.daemon", "run", "--name", name, "--quiet", *arguments]
        with open(f"{self.root}/{name}.log", "ab") as log:  # noqa: PTH123 - pathlib is slow to load
            self._running.append(
                subprocess.Popen(  # noqa: S603 - our own daemon; its own session, so that only aghctl handles Ctrl-C
                    command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
            )
        return Api(Endpoint(path=self.places(name).socket_path), START_SECONDS)

    def until_ready(self, api: Api) -> None:
        """Wait until the daemon is ready. Raises Unexpected when a daemon exits or the wait times out."""

        def ready() -> bool:
            if any(process.poll() is not None for process in self._running):
                raise Unexpected(f"a sandbox daemon exited: {self._output_tail()}", "try `aghctl doctor`")
            try:
                return bool(api.get("/v1/status")["ready"])
            except ClientError:
                return False

        if not eventually(ready, START_SECONDS):
            raise Unexpected(f"the sandbox daemons were not ready within {START_SECONDS:.0f} s", "try `aghctl doctor`")

    def _close(self) -> None:
        for process in self._running:
            if process.poll() is None:
                process.terminate()
        for process in self._running:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        broker = self.places("any").broker_dir
        eventually(
            lambda: not is_locked(f"{broker}/guard.lock") and not is_locked(f"{broker}/server.lock"), STOP_SECONDS
        )
        shutil.rmtree(self.root, ignore_errors=True)

    def _output_tail(self) -> str:
        words: list[str] = []
        for entry in sorted(os.listdir(self.root)):  # noqa: PTH208 - pathlib is slow to load
            if entry.endswith(".log"):
                with open(f"{self.root}/{entry}", encoding="utf-8", errors="replace") as log:  # noqa: PTH123 - as above
                    words += log.read().splitlines()[-2:]
        return " / ".join(words) or "no output"


def _interrupt(number: int, frame: FrameType | None) -> None:
    _ignore_ending()
    raise KeyboardInterrupt


def _ignore_ending() -> None:
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)


def eventually(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll `condition`; whether it became true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL)
    return True
