"""Finds and signals the processes of one command, and no others.

A command runs in its own process group, with a random token in its environment (`JOB_VARIABLE`). The group
identifies the command's children; the token identifies processes that left the group (setsid), and those of a killed worker.
Both are read from `/proc` (proc(5)). A pidfd is held while a process is examined and signalled, so that a reused pid is
never signalled.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

JOB_VARIABLE = "AGH_JOB"
"""The environment variable that holds a command's token."""
POLL_INTERVAL = 0.05
"""Seconds between two checks of processes that are being terminated."""
KILL_WAIT = 10.0
"""Seconds to wait after SIGKILL for processes that do not end immediately: stuck in the kernel, or another user's (sudo)."""
_PROC = Path("/proc")


def living_pids(token: str, group: int = 0) -> list[int]:
    """Pids of the living processes that carry `token` or belong to process group `group` (0: no group)."""
    return [pid for pid in _pids() if _belongs(pid, token, group)]


def send(number: signal.Signals, token: str, group: int = 0, spared: int = 0) -> int:
    """Signal every living process of the command but `spared`; how many there were."""
    count = 0
    for pid in _pids():
        if pid == spared:
            continue
        try:
            handle = os.pidfd_open(pid)
        except OSError:
            continue
        try:
            if _belongs(pid, token, group):
                signal.pidfd_send_signal(handle, number)
                count += 1
        except OSError:
            pass  # ended meanwhile, or another user's
        finally:
            os.close(handle)
    return count


def end(token: str, group: int, grace: float) -> int:
    """Send SIGTERM, and SIGKILL after `grace` seconds, until no process is left; how many there were."""
    count = send(signal.SIGTERM, token, group)
    deadline = time.monotonic() + grace
    while living_pids(token, group) and time.monotonic() < deadline + KILL_WAIT:
        if time.monotonic() >= deadline:
            send(signal.SIGKILL, token, group)
        time.sleep(POLL_INTERVAL)
    return count


def start_time(pid: int) -> int | None:
    """Start time in clock ticks since boot; with the pid it identifies a process. None: no such process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def is_same_process(pid: int, started: int | None) -> bool:
    """Whether `pid` is still the process that started at `started`, not a later one with the same pid."""
    return started is not None and start_time(pid) == started


def _pids() -> Iterator[int]:
    return (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit())


def _belongs(pid: int, token: str, group: int) -> bool:
    fields = _stat(pid)
    if not fields or fields[0] in ("Z", "X"):  # a zombie has ended
        return False
    if group and int(fields[2]) == group:
        return True
    try:
        environment = (_PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return False
    return f"{JOB_VARIABLE}={token}".encode() in environment.split(b"\0")


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the third on (state, parent, group, …); the name before them may contain anything."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes().decode("utf-8", "replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()
