"""The relay between a host's standard streams and `POST /mcp` of the daemon: one line is one message.

Requests run in threads, because a tool may wait for a minute. While the daemon restarts, requests wait for it; one that it may
have carried out already is not repeated, and its error says so. The relay keeps nothing but the id of a legacy session, which
outlives the daemon's process, and what session.py notes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext

from aghbus.cli.mcp.link import Link
from aghbus.cli.mcp.messages import (
    INTERNAL_ERROR,
    PARSE_ERROR,
    Message,
    answer_to,
    error,
    headers_of,
    is_request,
    may_repeat,
    params_of,
    parse,
)
from aghbus.cli.mcp.session import HostSession, with_subscriptions
from aghbus.client.api import Retry
from aghbus.client.errors import ClientError, Unreachable
from aghbus.client.events import messages as event_data
from aghbus.client.http import Connection, Incoming, exchange, iterate, run
from aghbus.protocol.base.annotations import Any

MAX_IN_FLIGHT = 64
"""Requests at a time; more wait for one of them to end."""
LAST_ANSWERS = 1.5
"""Seconds that requests have once the host has closed its end: a pipe of requests is answered. Hosts that leave wait 2 s."""
_CALL_SECONDS = 700.0  # between two pieces of a response: a person may be asked meanwhile


class Relay:
    """One host's connection. `deliver` writes one message to the host; `host` takes note of each message of the host first."""

    def __init__(
        self,
        link: Link,
        deliver: Callable[[bytes], None],
        host: HostSession,
        timeout: float,
        headers: Mapping[str, str],
    ) -> None:
        """A request waits `timeout` seconds for a daemon that is away. `headers`
        say to the daemon which session it is, and whose messages that is told of."""
        self._link = link
        self._deliver = deliver
        self._host = host
        self._timeout = timeout
        self._headers = headers
        self._session = ""
        self._slots = threading.BoundedSemaphore(MAX_IN_FLIGHT)
        self._lock = threading.Lock()
        self._in_flight: dict[object, _Flight] = {}

    def run(self, lines: Iterable[bytes]) -> None:
        """Relay every line until the host closes its end; requests that are not answered soon after that are ended."""
        for line in lines:
            if line.strip():
                self._take(line)
        end = time.monotonic() + LAST_ANSWERS
        for flight in list(self._in_flight.values()):
            flight.ended.wait(max(0.0, end - time.monotonic()))
            flight.cancel()

    def _take(self, line: bytes) -> None:
        message = parse(line)
        if message is None:
            self._deliver(error(None, PARSE_ERROR, "Parse error: a line must be one JSON object"))
            return
        if (answer := self._host.received(message)) is not None:
            self._deliver(answer)
            return
        if message.get("method") == "notifications/cancelled":
            flight = self._in_flight.get(_key(params_of(message).get("requestId")))
            if flight is not None:
                flight.cancel()
            return
        flight = _Flight()
        if is_request(message):
            self._in_flight[_key(message["id"])] = flight
        if message.get("method") == "initialize":  # later messages have the id of its session
            self._send(line, message, flight)
        else:
            threading.Thread(target=self._send, args=(line, message, flight), daemon=True).start()

    def _send(self, line: bytes, message: Message, flight: _Flight) -> None:
        """Only requests take a slot: an answer of the host may be what a request in a slot waits for."""
        try:
            with self._slots if is_request(message) else nullcontext():
                if not flight.canceled:
                    self._post(line, message, flight)
        except ClientError as failure:
            if is_request(message) and not flight.canceled:
                hint = f" ({failure.hint})" if failure.hint else ""
                self._deliver(error(message["id"], INTERNAL_ERROR, failure.message + hint))
        finally:
            if self._in_flight.get(_key(message.get("id"))) is flight:
                del self._in_flight[_key(message.get("id"))]
            flight.ended.set()

    def _post(self, line: bytes, message: Message, flight: _Flight) -> None:
        retry = Retry(self._timeout)
        while True:
            connection: Connection | None = None
            try:
                connection = flight.connection = self._link.open_once(_CALL_SECONDS)
                self._exchange(connection, line, message, flight)
                return
            except Unreachable as failure:
                if flight.canceled:
                    return
                if connection is not None and not may_repeat(message):
                    why = "the daemon stopped during the call: look whether it was done before you repeat it"
                    raise Unreachable(why) from None
                retry.pause(failure)

    def _exchange(self, connection: Connection, line: bytes, message: Message, flight: _Flight) -> None:
        headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        headers |= {**self._headers, "Content-Length": str(len(line)), **headers_of(message, self._session)}
        self._relay(run(exchange(connection, "POST", "/mcp", [line], headers)), message, flight)

    def _relay(self, response: Incoming, message: Message, flight: _Flight) -> None:
        answer = b""
        try:
            if message.get("method") == "initialize":
                self._session = response.headers.get("mcp-session-id", "")
            if response.headers.get("content-type") == "text/event-stream":
                for data in event_data(iterate(response.pieces())):
                    if not flight.canceled:
                        self._deliver(data)
            elif (answer := answer_to(message, run(response.body()))) and not flight.canceled:
                self._deliver(with_subscriptions(answer) if message.get("method") == "initialize" else answer)
        finally:
            response.close()
        self._host.answered(message, answer)


class _Flight:
    """A request that the daemon has not answered yet."""

    def __init__(self) -> None:
        self.canceled = False
        self.ended = threading.Event()
        self.connection: Connection | None = None

    def cancel(self) -> None:
        """End it without an answer: the daemon sees a closed connection."""
        self.canceled = True
        if self.connection is not None:
            self.connection.abort()


def _key(request_id: Any) -> object:
    """A key for a dictionary: an id is a string or a number, but a host may send anything."""
    return (type(request_id), repr(request_id))
