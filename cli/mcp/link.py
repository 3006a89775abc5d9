"""The way from the relay to its daemon: where it was found, and connections that are kept between requests."""

from __future__ import annotations

from collections.abc import Callable

from aghbus.client.errors import Unreachable
from aghbus.client.http import Connection, Endpoint, take


class Link(Endpoint):
    """The daemon, which is looked for when it is not where it was. For any number of threads."""

    def __init__(self, find: Callable[[], Endpoint]) -> None:
        """`find` finds the daemon, or raises Unreachable."""
        super().__init__()
        self._find = find
        self._found: Endpoint | None = None
        self._kept: list[Connection] = []

    def open(self, timeout: float) -> Connection:
        """A connection that was kept, or a new one that will be: for a request that may be repeated. On a kept one, a daemon that
        closed it cannot be told from one that died with the request."""
        connection = take(self._kept) or self._new(timeout, self._kept)
        connection.limit(timeout)
        return connection

    def open_once(self, timeout: float) -> Connection:
        """A new connection, for one request."""
        return self._new(timeout, None)

    def _new(self, timeout: float, kept: list[Connection] | None) -> Connection:
        if (found := self._found) is not None:
            try:
                return Connection(found.connect(timeout), found, kept)
            except Unreachable:
                self._found = None
        found = self._found = self._find()
        return Connection(found.connect(timeout), found, kept)
