"""Runs the operator's command: reads its output, enforces the time limit, and terminates all processes that it started."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import IO, Any, Literal, NamedTuple

from aghbus.cli.worker import process_group as worker_group

TAIL_BYTES = 65_536
"""Bytes kept of each output stream: both, escaped as JSON, fit an envelope of 1 MiB."""
LINE_BYTES = 4_096
"""How many bytes are searched for the last line."""
TICK = 0.1
"""Seconds between two checks of the clock and the process while there is no output."""
OUTPUT_GRACE = 0.5
"""Seconds for which output of child processes is read after the command itself has exited."""
_RECEIVE_BYTES = 65_536

StopReason = Literal["timeout", "canceled", "stopped"]


class OutputTail:
    """The last `keep` bytes of a stream (up to twice as many are buffered), and the total size."""

    __slots__ = ("_data", "_keep", "total")

    def __init__(self, keep: int = TAIL_BYTES) -> None:
        self._data = bytearray()
        self._keep = keep
        self.total = 0

    def add(self, data: bytes) -> None:
        """Append data."""
        self.total += len(data)
        self._data += data
        if len(self._data) > 2 * self._keep:
            del self._data[: -self._keep]

    @property
    def truncated(self) -> bool:
        """Whether `text` lacks the beginning."""
        return self.total > TAIL_BYTES

    def complete(self) -> bytes | None:
        """The whole stream; None when it was longer than `keep`."""
        return bytes(self._data) if self.total <= self._keep else None

    def text(self) -> str:
        """The last `TAIL_BYTES`; bytes that are not UTF-8 become U+FFFD."""
        return bytes(self._data[-TAIL_BYTES:]).decode("utf-8", "replace")

    def last_line(self) -> str:
        """The last line that is not blank; carriage returns end lines too (progress bars). Unescaped."""
        text = bytes(self._data[-LINE_BYTES:]).decode("utf-8", "replace")
        lines = text.replace("\r", "\n").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class ProcessExit(NamedTuple):
    """How a command ended: return code as in Popen (negative: a signal), the reason why we stopped it, and run time in seconds."""

    code: int
    stopped: StopReason | None
    seconds: float


class Process:
    """A running command. `run` reads its output until it has ended; `stop` may be called from any thread."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: IO[Any],
        token: str,
        keep: int = TAIL_BYTES,
        supervised: bool = False,
    ) -> None:
        """Start the command in its own session and process group; keep `keep` bytes of its output. `supervised`: the command is a
        child of what is started, with which it dies. Raises OSError."""
        self.stdout, self.stderr = OutputTail(keep), OutputTail()
        self._latest = self.stdout
        self._token = token
        self._stop: StopReason | None = None
        self._lock = threading.Lock()
        self._began = time.monotonic()
        self._popen = subprocess.Popen(  # noqa: S603 - the operator's own argument list; nothing of a peer is in it
            list(command),
            cwd=cwd,
            env=dict(env),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.pid = self._popen.pid
        self._supervisor = self.pid if supervised else 0

    @property
    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    def last_line(self) -> str:
        """The last line of the stream that was written to last; unescaped."""
        return self._latest.last_line()

    def stop(self, reason: StopReason) -> None:
        """Stop the command; the first reason given counts."""
        with self._lock:
            self._stop = self._stop or reason

    def run(self, time_limit: float, grace: float) -> ProcessExit:
        """Read until the command has ended. After `time_limit` seconds or `stop`, send SIGTERM to all its processes, and
        SIGKILL `grace` seconds later."""
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while not self._exited() and self._stop is None:
                self._read(selector, min(TICK, max(0.0, time_limit - self.seconds)))
                if self.seconds >= time_limit and not self._exited():
                    self.stop("timeout")
            if self._stop is not None:
                self._end(selector, grace)
            self._terminate_rest(selector)
            seconds = self.seconds
            code = self._popen.wait()
        for stream in (self._popen.stdout, self._popen.stderr):
            assert stream is not None
            stream.close()
        return ProcessExit(code, self._stop, seconds)

    def _register(self, selector: selectors.BaseSelector) -> None:
        for stream, tail in ((self._popen.stdout, self.stdout), (self._popen.stderr, self.stderr)):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ, tail)

    def _exited(self) -> bool:
        """Whether the command has exited. It is not reaped yet: while it is a zombie, its group id is not reused."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _read(self, selector: selectors.BaseSelector, timeout: float) -> None:
        if not selector.get_map():  # all output is closed: only the exit is awaited
            time.sleep(min(timeout, worker_group.POLL_INTERVAL))
            return
        for key, _ in selector.select(timeout):
            try:
                data = os.read(key.fd, _RECEIVE_BYTES)
            except BlockingIOError:
                continue
            if not data:
                selector.unregister(key.fileobj)
                continue
            key.data.add(data)
            self._latest = key.data

    def _end(self, selector: selectors.BaseSelector, grace: float) -> None:
        """Terminate the process group and processes that left it. Reading continues, so that no process blocks on a full pipe."""
        if not worker_group.send(signal.SIGTERM, self._token, self.pid, spared=self._supervisor):
            worker_group.send(signal.SIGTERM, self._token, self.pid)  # there is no command yet
        deadline = time.monotonic() + grace
        while worker_group.living_pids(self._token, self.pid) and time.monotonic() < deadline + worker_group.KILL_WAIT:
            if time.monotonic() >= deadline:
                worker_group.send(signal.SIGKILL, self._token, self.pid)
            self._read(selector, TICK)

    def _terminate_rest(self, selector: selectors.BaseSelector) -> None:
        """Read the remaining output, then kill the processes left in the group, so that none outlives the report."""
        deadline = time.monotonic() + OUTPUT_GRACE
        while selector.get_map() and time.monotonic() < deadline:
            self._read(selector, TICK)
        with contextlib.suppress(PermissionError):  # the remaining processes belong to another user
            os.killpg(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + OUTPUT_GRACE
        while selector.get_map() and time.monotonic() < deadline:  # a detached child may keep the pipe open
            self._read(selector, TICK)
