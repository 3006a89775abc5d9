"""Messages to the service manager that started the daemon: sd_notify(3), for systemd units with `Type=notify`."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from typing import Final

_INTERVAL: Final = 1.0  # seconds between two looks at the status
_MICROSECONDS: Final = 1_000_000


class ServiceManager:
    """The service manager of the environment. Without `NOTIFY_SOCKET` every call does nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Reads `NOTIFY_SOCKET` (a path, or `@` and an abstract name), `WATCHDOG_USEC` and `WATCHDOG_PID`."""
        named = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + named[1:] if named.startswith("@") else named if named.startswith("/") else ""
        self._watchdog = _watchdog_seconds(environment)

    async def report(self, status: Callable[[], str]) -> None:
        """Announce readiness; then repeat the watchdog message at half its time, and send each change of `status`.

        Runs on the event loop until cancelled, so that the watchdog detects a loop that is blocked.
        """
        if not self._address:
            return
        self._send("READY=1")
        shown = ""
        while True:
            if (now := status()) != shown:
                shown = now
                self._send(f"STATUS={now}")
            if self._watchdog is not None:
                self._send("WATCHDOG=1")
            await asyncio.sleep(_INTERVAL if self._watchdog is None else min(_INTERVAL, self._watchdog / 2))

    def stopping(self) -> None:
        """Announce that the daemon shuts down."""
        self._send("STOPPING=1", "STATUS=shutting down")

    def _send(self, *lines: str) -> None:
        """One datagram. What the manager does not take is lost: the next status or watchdog message follows soon."""
        if self._address:
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
                sock.setblocking(False)
                sock.sendto("\n".join(lines).encode(), self._address)


def _watchdog_seconds(environment: Mapping[str, str]) -> float | None:
    """The time in which systemd expects a sign of life (sd_watchdog_enabled(3)); None without one for this process."""
    period, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not period.isdecimal() or int(period) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(period) / _MICROSECONDS
