"""The runtime of the core for callers that block: connections, the event stream, pauses, signals and background threads."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakSet, finalize

from aghbus.client.core.watch import Signal, Watch
from aghbus.client.http import Connection, Endpoint, run, take

CONNECT_SECONDS = 1.0
"""How long the kernel may take to connect on this machine, which is its work alone."""

_connections: WeakSet[Connection] = WeakSet()
os.register_at_fork(after_in_child=lambda: _close([*_connections]))


class Threads:
    """What a client has of one daemon, for any number of threads: kept connections and an event stream. Every step blocks, and
    background work runs in threads. A child process has none of the connections of its parent."""

    connection = Connection
    """The class of connections."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._kept: list[Connection] = []
        self._watch: tuple[object, Watch] | None = None
        finalize(self, _close, self._kept)

    @property
    def watch(self) -> Watch:
        """The event stream for those that wait here."""
        place = self._place()
        if self._watch is None or self._watch[0] != place:
            self._watch = place, Watch(self)
        return self._watch[1]

    def kept(self) -> Connection | None:
        """A connection that is free."""
        return take(self._kept)

    async def connect(self, timeout: float) -> Connection:
        """A new connection whose every step may take `timeout` seconds. Raises Unreachable."""
        endpoint = self.endpoint.resolved()
        connection = self.connection(endpoint.connect(min(timeout, CONNECT_SECONDS)), endpoint, self._kept)
        connection.limit(timeout)
        _connections.add(connection)
        return connection

    def close(self) -> None:
        """Close the connections that are free, and the event stream. Further calls make new ones."""
        _close(self._kept)
        if self._watch is not None:
            self._watch[1].close()

    def signal(self) -> Signal:
        """A new signal."""
        return Signal()

    async def sleep(self, seconds: float) -> None:
        """A pause."""
        time.sleep(seconds)  # noqa: ASYNC251 - every step of this class blocks

    def start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], object]:
        """Run `work` in the background. Returns a function that cancels it where that is possible: a thread must end itself."""
        threading.Thread(target=lambda: run(work()), name="aghbus-client", daemon=True).start()
        return lambda: None

    def _place(self) -> object:
        """Where an event stream is read: only those in the same place can wait for it."""
        return os.getpid()


def _close(connections: list[Connection]) -> None:
    while connections:
        connections.pop().close()
