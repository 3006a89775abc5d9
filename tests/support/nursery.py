"""Processes of `aghd` without the half second of imports that each of them would spend: forked off one that has done it.

Run as a module it reads one request a line and answers each with one line: `{"argv", "env", "log"}` starts a daemon and answers its
process id, `{"reap"}` waits for the end of one and answers its wait status. What is forked runs the same `entry` as `aghd`, in a
session, an environment and a state of randomness of its own.
"""

import atexit
import contextlib
import gc
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any


class Child:
    """One daemon: the part of `subprocess.Popen` that tests use."""

    def __init__(self, nursery: "Nursery", argv: list[str], pid: int) -> None:
        self.args = argv
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        self._lock = threading.Lock()
        self._ends = os.pidfd_open(
            pid
        )  # it stays in the table of processes until it is reaped: it cannot be another one

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        return self._look(0)

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        code = self._look(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def send_signal(self, number: int) -> None:
        """Unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def _look(self, timeout: float | None) -> int | None:
        if self.returncode is None:
            poller = select.poll()
            poller.register(self._ends, select.POLLIN)
            if not poller.poll(None if timeout is None else 1000 * timeout):
                return None
            with self._lock:
                if self.returncode is None:
                    self.returncode = os.waitstatus_to_exitcode(self._nursery.ask(reap=self.pid))
                    os.close(self._ends)
        return self.returncode


class Nursery:
    """The process that has imported everything, one for each process of tests, started when it is first needed.

    `opened` by the suite alone: the benchmarks start the daemons that they measure as a user does.
    """

    def __init__(self) -> None:
        self.opened = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, argv: list[str], env: dict[str, str], log: Path) -> Child:
        """`aghd` with these arguments and this environment; what it prints is appended to `log`."""
        return Child(self, argv, self.ask(argv=argv, env=env, log=str(log)))

    def ask(self, **request: Any) -> int:
        """One request, one answer."""
        with self._lock:
            if self._process is None:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.support.nursery"],
                    cwd=Path(__file__).parents[2],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
                atexit.register(self._process.communicate)
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            return int(self._process.stdout.readline())


NURSERY = Nursery()


def _serve() -> dict[str, Any] | None:
    """Until there are no more requests (None); in a child, the request that it was forked for."""
    for line in sys.stdin.buffer:
        request = json.loads(line)
        if "reap" in request:
            answer = os.waitpid(request["reap"], 0)[1]
        else:
            answer = os.fork()
            if answer == 0:
                return dict(request)
        os.write(1, b"%d\n" % answer)
    return None


def _become(request: dict[str, Any]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(request["env"])
    log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    random.seed()


if __name__ == "__main__":
    import aghbus.daemon.process  # noqa: F401 - what takes the time
    from aghbus.daemon.main import entry

    gc.freeze()
    if (mine := _serve()) is not None:
        _become(mine)
        sys.exit(entry(mine["argv"]))
