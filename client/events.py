"""Server-sent events of the daemon, followed across its restarts: no event is lost or repeated.

Every reconnect resumes after the last sequence returned. A gap event does not move that position: the envelopes that retention
kept of the missing range still follow it.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator

from aghbus.client.api import FIRST_PAUSE, Api, Retry, error_of, read_object
from aghbus.client.errors import ClientError, Unreachable
from aghbus.client.http import Incoming, Query, iterate, request, target
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
    retry: Retry | None = None

    async def connect(since: int | None) -> Incoming:
        while True:
            try:
                return _connect(api, path, query, since, IDLE_TIMEOUT)
            except ClientError as error:
                if retry is None:
                    raise
                retry.pause(error)

    async def lost(why: str) -> None:
        nonlocal retry
        on_lost(why)
        # A daemon that ends every stream immediately is not asked without pause.
        time.sleep(FIRST_PAUSE)  # noqa: ASYNC251 - nothing else runs here
        retry = Retry(api.timeout)

    for _, data in iterate(resumed(connect, since, lost, on_idle=on_idle)):
        yield json.loads(data)


def subscribe(api: Api, query: Query, idle: float) -> Incoming:
    """The events from now on, whose body `messages` splits; reading it raises Unreachable after `idle` seconds without a byte."""
    return _connect(api, EVENTS, query, None, idle)


def _connect(api: Api, path: str, query: Query, since: int | None, idle: float) -> Incoming:
    where, headers = stream_at(path, query, since)
    response = request(api.endpoint, "GET", where, (), headers, idle)
    if response.status != 200:
        read_object(response)
    return response


def stream_at(path: str, query: Query, since: int | None) -> tuple[str, dict[str, str]]:
    """Target and headers of the request for a stream after `since`."""
    where = target(path, [*query, ("since", None if since is None else str(since))])
    return where, {"Accept": "text/event-stream", **({} if since is None else {"Last-Event-ID": str(since)})}


async def resumed(
    connect: Callable[[int | None], Awaitable[Incoming]],
    since: int | None,
    on_lost: Callable[[str], Awaitable[None]],
    deadline: float | None = None,
    on_idle: Callable[[], object] = lambda: None,
) -> AsyncGenerator[tuple[bytes, bytes], None]:
    """Name and data of every event after `since`, without end; `gap` events, too. Without `since` each connection begins where the
    daemon begins. `connect` connects after a sequence. Raises TimeoutError after `deadline`, and ClientError."""
    while True:
        stream = await connect(since)
        found, why = arrivals(stream, deadline), "the daemon ended the stream"
        try:
            async for events in found:
                for name, seq, data in events:
                    if name != b"gap":
                        if since is not None and seq <= since:
                            continue
                        since = seq
                    yield name, data
                if not events:
                    on_idle()
        except Unreachable as error:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError("nothing happened in time") from None
            why = error.message
        finally:
            await found.aclose()
            stream.close()
        await on_lost(why)


async def arrivals(
    stream: Incoming, deadline: float | None = None
) -> AsyncGenerator[list[tuple[bytes, int, bytes]], None]:
    """Name, sequence and data of the events that arrive together, none for a comment, until the daemon ends the stream.

    Raises Unreachable when it is lost, or after `deadline`, and the error of an event `problem`.
    """
    parser, pieces = EventParser(), stream.pieces()
    while True:
        left = IDLE_TIMEOUT if deadline is None else deadline - time.monotonic()
        stream.connection.limit(max(0.001, min(IDLE_TIMEOUT, left)))
        if (piece := await anext(pieces, None)) is None:
            return
        events = parser.feed(piece)
        for name, _, data in events:
            if name == b"problem":
                raise error_of(500, json.loads(data))
        yield events


def messages(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The data of each server-sent event in a body that arrives in `pieces`; comments and an unfinished end are dropped."""
    parser = EventParser()
    for piece in pieces:
        for _, _, data in parser.feed(piece):
            yield data


class EventParser:
    """Server-sent events in a body that arrives in pieces."""

    def __init__(self) -> None:
        self._rest = b""
        self._name, self._seq = b"", 0
        self._data: list[bytes] = []

    def feed(self, piece: bytes) -> list[tuple[bytes, int, bytes]]:
        """Name, sequence (0 without one) and data of every event that `piece` completes."""
        found = []
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in (line.removesuffix(b"\r") for line in lines):
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                self._name = line[6:].removeprefix(b" ")
            elif line.startswith(b"id:"):
                self._seq = int(line[3:]) if line[3:].strip().isdigit() else 0
            elif not line and self._data:
                found.append((self._name, self._seq, b"\n".join(self._data)))
                self._name, self._seq, self._data = b"", 0, []
        return found
