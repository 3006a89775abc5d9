"""One event stream that resumes: after a restart of the daemon it continues behind the last event that was returned."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final, Protocol

import msgspec

from aghbus.client.core.operation import Call
from aghbus.client.core.refusals import refusal
from aghbus.client.core.threads import Threads
from aghbus.client.errors import Unreachable
from aghbus.client.events import IDLE_TIMEOUT, EventParser
from aghbus.client.http import Connection, Incoming, target

PAUSE: Final = 0.05
"""Seconds between the end of a stream and the next connection."""
_STREAM: Final = {"Accept": "text/event-stream"}


class _Position(msgspec.Struct):
    seq: int


class Opener(Protocol):
    """The part of the core that a stream needs."""

    runtime: Threads

    async def answer(self, call: Call) -> Incoming:
        """The answer to a call, its body unread."""
        ...


class EventSubscription:
    """The stream at `path` after the sequence `since`; None: from where the daemon begins, at every connection."""

    def __init__(
        self,
        core: Opener,
        path: str,
        query: list[tuple[str, object]],
        since: int | None,
        timeout: float | None = None,
    ) -> None:
        self._core = core
        self._path = path
        self._query = [(name, value) for name, value in query if name != "since"]
        self._since = since
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._connection: Connection | None = None
        self._stopped = False

    def stop(self) -> None:
        """End `events`, from any thread."""
        self._stopped = True
        if self._connection is not None:
            self._connection.abort()

    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    async def events(self) -> AsyncGenerator[tuple[bytes, bytes], None]:
        """Name and data of every event; `gap` events, too. Raises TimeoutError after the timeout, and ClientError.

        A gap does not move the position: the envelopes that retention kept of the missing range still follow it.
        """
        while not self.is_stopped():
            try:
                async with aclosing(self._until_lost()) as events:
                    async for name, data in events:
                        yield name, data
            except Unreachable:
                if self._connection is None and not self.is_stopped():  # for longer than a call may take
                    raise
            if not self.is_stopped():
                await self._core.runtime.sleep(PAUSE)

    async def _until_lost(self) -> AsyncGenerator[tuple[bytes, bytes], None]:
        where = target(self._path, [*self._query, ("since", None if self._since is None else str(self._since))])
        self._connection = None
        response = await self._core.answer(Call("GET", where, headers=_STREAM))
        try:
            self._connection = response.connection
            if self.is_stopped():
                return
            parser = EventParser()
            self._limit()
            async for piece in response.pieces():
                for name, data in parser.feed(piece):
                    if name == b"problem":
                        raise refusal(500, msgspec.json.decode(data))
                    if self._is_new(name, data):
                        yield name, data
                if self.is_stopped():
                    return
                self._limit()
        except Unreachable:
            if self._deadline is not None and time.monotonic() >= self._deadline:
                raise TimeoutError("nothing happened in time") from None
            raise
        finally:
            response.close()

    def _is_new(self, name: bytes, data: bytes) -> bool:
        if name == b"gap":
            return True
        seq = msgspec.json.decode(data, type=_Position).seq
        if self._since is not None and seq <= self._since:
            return False
        self._since = seq
        return True

    def _limit(self) -> None:
        left = IDLE_TIMEOUT if self._deadline is None else self._deadline - time.monotonic()
        assert self._connection is not None
        self._connection.limit(max(0.001, min(IDLE_TIMEOUT, left)))
