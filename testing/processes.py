"""Daemons as child processes of one fork server (aghbus.daemon.fork_server), which ends them when this process ends."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType

from aghbus.client.errors import Unexpected
from aghbus.protocol.base.annotations import Any

POLL_INTERVAL = 0.01
"""Seconds between two looks whether a daemon has ended."""


@contextlib.contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Handle SIGINT after the block, which leaves no socket or process half made; a second SIGINT is handled at once."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    deferred: list[int] = []

    def defer(number: int, frame: FrameType | None) -> None:
        if deferred:
            handler(number, frame)
        deferred.append(number)

    signal.signal(signal.SIGINT, defer)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if deferred:
            signal.raise_signal(signal.SIGINT)


class DaemonProcess:
    """One `aghd` with the arguments `args`: the part of `subprocess.Popen` that is needed here. Threads may share it.

    It is there before `start`, so that it can be ended when Ctrl-C interrupts that. `pid` is 0 until `start` returns.
    """

    def __init__(self, args: Sequence[str]) -> None:
        self.args = args
        self.pid = 0
        self.returncode: int | None = None
        self._number = FORK_SERVER.new_number()
        self._lock = threading.Lock()

    def start(self, *, env: Mapping[str, str], log: str, folder: str) -> None:
        """Start it with this environment, in our working directory; what it prints is appended to the file `log`.

        `folder` is removed with the daemon if this process dies.
        """
        where = os.getcwd()  # noqa: PTH109 - pathlib is slow to load
        request = {"argv": list(self.args), "env": dict(env), "cwd": where, "log": log, "folder": folder}
        self.pid = FORK_SERVER.ask(self._number, request)

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None:
                self.returncode = FORK_SERVER.ask(FORK_SERVER.new_number(), {"poll": self._number})
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(POLL_INTERVAL)
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        FORK_SERVER.ask(FORK_SERVER.new_number(), {"signal": number, "to": self._number})

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """The fork server of this process, started when it is first needed. Threads may share it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._numbers = itertools.count(1)

    def new_number(self) -> int:
        """The number of a request."""
        return next(self._numbers)

    def ask(self, number: int, request: dict[str, Any]) -> Any:
        """The answer to a request. Raises Unexpected when the server has ended."""
        with self._lock, interrupts_deferred():
            if self._process is None:
                self._process = self._started()
            return self._exchange(self._process, {"number": number, **request})

    def _exchange(self, process: subprocess.Popen[bytes], request: dict[str, Any]) -> Any:
        assert process.stdin is not None and process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
        for line in process.stdout:
            answered, answer = json.loads(line)
            if answered == request["number"]:  # not of a request that Ctrl-C interrupted
                return answer
        self._errors.seek(0)
        why = self._errors.read().decode("utf-8", "replace").strip() or "no output"
        raise Unexpected(f"the process that starts the daemons has ended: {why}")

    def _started(self) -> subprocess.Popen[bytes]:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed at exit; a pipe would fill, or keep a reader of ours waiting
        atexit.register(self._close)
        return subprocess.Popen(  # its own session: Ctrl-C is for this process alone
            [sys.executable, "-P", "-m", "aghbus.daemon.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
        )

    def _close(self) -> None:
        if self._process is not None:
            self._process.communicate()
            self._errors.close()


FORK_SERVER = ForkServer()
