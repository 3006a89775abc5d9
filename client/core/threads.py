"""The runtime of the core for callers that block: connections, pauses, signals and background threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

from aghbus.client.http import Connection, Endpoint, run


class Signal:
    """Set once or repeatedly by any thread, awaited by one."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """End the current or the next `wait`."""
        self._event.set()

    async def wait(self, timeout: float) -> None:
        """Wait until the signal is set, at most `timeout` seconds, and clear it."""
        self._event.wait(timeout)
        self._event.clear()


class Threads:
    """Every step blocks, and background work runs in threads."""

    def signal(self) -> Signal:
        """A new signal."""
        return Signal()

    async def connect(self, endpoint: Endpoint, timeout: float) -> Connection:
        """A connection whose every step may take `timeout` seconds. Raises Unreachable."""
        return endpoint.resolved().open(timeout)

    async def sleep(self, seconds: float) -> None:
        """A pause."""
        time.sleep(seconds)  # noqa: ASYNC251 - every step of this class blocks

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Run `work` in the background. Returns a function that cancels it where that is possible: a thread must end itself."""
        threading.Thread(target=lambda: run(work()), name="aghbus-client", daemon=True).start()
        return lambda: None
