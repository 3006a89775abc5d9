"""Starts daemons by fork, without the half second of imports that each would spend: `python -m aghbus.daemon.fork_server`.

For tests and demonstrations (docs/testing.md). Requests and answers are lines of JSON on standard input and output; an answer
is `[number, answer]`, with the `number` of its request:

- `{"argv", "env", "cwd", "log", "folder"}` starts `aghd` with these arguments, in a session of its own, and answers its
  process id; what it prints is appended to the file `log`. The number of this request is that of the daemon.
- `{"poll": number}` answers the exit code of a daemon, negative for a signal, or null while it runs; 0 for one that is not known.
- `{"signal": signal, "to": number}` sends a signal to a daemon that runs, and answers null.

Standard input ends with the process that asks, however that dies. Then the daemons are stopped, and their folders removed.
"""

import gc
import json
import os
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final, NoReturn

STOP_SECONDS: Final = 12.0
"""For a daemon to stop after SIGTERM: its own deadline is 10 s. Then it is killed."""
REMOVE_SECONDS: Final = 6.0
"""For a folder to be removed: the broker in it stops after its last daemon."""
_POLL: Final = 0.02  # seconds


class _Stopped(Exception):
    """SIGTERM, which ends the server as the end of its input does."""


class ForkServer:
    """The process ids of the daemons that were started and have not ended, and the folders to remove."""

    def __init__(self) -> None:
        self._running: dict[int, int] = {}
        self._folders: set[str] = set()

    def serve(self) -> dict[str, Any] | None:
        """Answer requests until there are no more, stop everything, and return None; in a daemon's process its request."""
        signal.signal(signal.SIGTERM, _stop)
        try:
            for line in sys.stdin.buffer:
                request: dict[str, Any] = json.loads(line)
                answer: int | None = None
                if "poll" in request:
                    answer = self._poll(request["poll"])
                elif "signal" in request:
                    self._send(request["signal"], request["to"])
                else:
                    answer = _fork()
                    if answer == 0:
                        return request
                    self._running[request["number"]] = answer
                    self._folders.add(request["folder"])
                os.write(1, json.dumps([request["number"], answer]).encode() + b"\n")
        except (_Stopped, BrokenPipeError):
            pass
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._stop_all()
        return None

    def _poll(self, number: int) -> int | None:
        if number not in self._running:
            return 0
        found, status = os.waitpid(self._running[number], os.WNOHANG)
        if not found:
            return None
        del self._running[number]
        return os.waitstatus_to_exitcode(status)

    def _send(self, signal_number: int, number: int) -> None:
        if number in self._running:
            os.kill(self._running[number], signal_number)

    def _stop_all(self) -> None:
        for number in self._running:
            self._send(signal.SIGTERM, number)
        deadline = time.monotonic() + STOP_SECONDS
        while None in [self._poll(number) for number in list(self._running)] and time.monotonic() < deadline:
            time.sleep(_POLL)
        for number in self._running:
            self._send(signal.SIGKILL, number)
        deadline = time.monotonic() + REMOVE_SECONDS
        while any(Path(folder).exists() for folder in self._folders) and time.monotonic() < deadline:
            for folder in self._folders:
                shutil.rmtree(folder, ignore_errors=True)
            time.sleep(_POLL)


def _fork() -> int:
    """As os.fork; SIGTERM ends the child from its beginning on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return pid
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _stop(number: int, frame: object) -> NoReturn:
    raise _Stopped


def _become(request: dict[str, Any]) -> None:
    """Make this process that of a daemon."""
    os.setsid()
    os.chdir(request["cwd"])
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
    import aghbus.daemon.broker.embedded
    import aghbus.daemon.process  # noqa: F401 - what takes the time
    from aghbus.daemon.main import entry

    gc.freeze()
    if (mine := ForkServer().serve()) is not None:
        _become(mine)
        sys.exit(entry(mine["argv"]))
