"""Follows the daemon's server-sent events across restarts of the daemon: no event is lost or repeated.

Every reconnect resumes after the last sequence returned. A gap event does not move that position: the envelopes that retention
kept of the missing range still follow it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator

from aghbus.client.api import FIRST_PAUSE, Api, Retry, read_object
from aghbus.client.errors import ClientError, Unreachable
from aghbus.client.http import Query, Response, request, target
from aghbus.protocol.base.annotations import Any

IDLE_TIMEOUT = 45.0
"""Seconds without a byte after which the connection counts as lost: three of the daemon's keep-alive intervals."""
EVENTS = "/v1/events"


def follow(
    api: Api,
    query: Query,
    since: int | None,
    on_lost: Callable[[str], None],
    path: str = EVENTS,
    on_idle: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Events of the stream at `path` after the sequence `since` (None: from where the daemon begins), without end.

    `on_idle` is called at each keep-alive of the daemon, every 15 seconds without an event.

    When the connection is lost `on_lost` is called with the reason; reconnecting is tried for `api.timeout` seconds before
    Unreachable is raised. The first connection must succeed immediately. Raises RefusedByDaemon for a bad query.
    """
    response = _connect(api, path, query, since)
    while True:
        try:
            for event in _events(response, on_idle):
                if event.get("type") == "gap":
                    yield event
                elif since is None or event["seq"] > since:
                    since = event["seq"]
                    yield event
            why = "the daemon ended the stream"
        except Unreachable as error:
            why = error.message
        finally:
            response.close()
        on_lost(why)
        response = _reconnect(api, path, query, since)


def subscribe(api: Api, query: Query, idle: float) -> Response:
    """The events from now on, whose body `messages` splits; reading it raises Unreachable after `idle` seconds without a byte."""
    return _connect(api, EVENTS, query, None, idle)


def _connect(api: Api, path: str, query: Query, since: int | None, idle: float = IDLE_TIMEOUT) -> Response:
    where = target(path, [*query, ("since", None if since is None else str(since))])
    headers = {"Accept": "text/event-stream", **({} if since is None else {"Last-Event-ID": str(since)})}
    response = request(api.endpoint, "GET", where, (), headers, idle)
    if response.status != 200:
        read_object(response)
    return response


def _reconnect(api: Api, path: str, query: Query, since: int | None) -> Response:
    time.sleep(FIRST_PAUSE)  # a daemon that ends every stream immediately is not asked without pause
    retry = Retry(api.timeout)
    while True:
        try:
            return _connect(api, path, query, since)
        except ClientError as error:
            retry.pause(error)


def _events(response: Response, on_idle: Callable[[], None]) -> Iterator[dict[str, Any]]:
    parser = EventParser()
    for piece in response.pieces():
        found = parser.feed(piece)
        for _, data in found:
            yield json.loads(data)
        if not found:
            on_idle()


def messages(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The data of each server-sent event in a body that arrives in `pieces`; comments and an unfinished end are dropped."""
    parser = EventParser()
    for piece in pieces:
        for _, data in parser.feed(piece):
            yield data


class EventParser:
    """Server-sent events in a body that arrives in pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[tuple[bytes, bytes]]:
        """Name and data of every event that `piece` completes."""
        found = []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                self._name = line[6:].removeprefix(b" ")
            elif not line and self._data:
                found.append((self._name, b"\n".join(self._data)))
                self._name, self._data = b"", []
        return found
