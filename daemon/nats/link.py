"""The link: a NATS connection that is restored after every loss, with its subscriptions.

    connecting ──► up ──► down ──► up …        closed is final and reachable from every state

Each round of attempts calls `resolve`, tries every server, those that the cluster announced too, subscribes everything again, and
is up once a PONG confirms that. A PING every 15 s measures the round trip and detects dead connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Literal, TypeVar

from aghbus.daemon.base.logs import event
from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.nats.client import NatsClient, publish_frame, publish_frames
from aghbus.daemon.nats.connection import NatsConnection
from aghbus.daemon.nats.events import (
    BadPublish,
    ConnectFailed,
    InboundMessage,
    JetStreamError,
    LinkDown,
    LinkError,
    LinkEvent,
    LinkProblem,
    LinkTimeout,
    NoJetStream,
    NoResponders,
    PayloadTooLarge,
    ServerInfo,
)
from aghbus.daemon.nats.jetstream import JetStreamContext
from aghbus.daemon.nats.options import NatsOptions
from aghbus.daemon.nats.servers import ServerPool
from aghbus.daemon.nats.subscription import Subscription
from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.agh.nats.names import INBOX_PREFIX
from aghbus.protocol.base.backoff import exponential_delay
from aghbus.protocol.base.text import escape

__all__ = [
    "BadPublish",
    "InboundMessage",
    "JetStreamError",
    "Link",
    "LinkDown",
    "LinkError",
    "LinkEvent",
    "LinkProblem",
    "LinkTimeout",
    "NoJetStream",
    "NoResponders",
    "PayloadTooLarge",
    "ServerInfo",
    "Subscription",
]

_log = logging.getLogger("aghbus.link")

T = TypeVar("T")

LinkState = Literal["connecting", "up", "down", "closed"]

JETSTREAM_TIMEOUT = 5.0
"""Seconds for an answer of JetStream; the client library's own default."""

_FIRST_DELAY = 0.05  # seconds before the second attempt; doubled each time, with jitter
LOOPBACK_CEILING = 2.0
"""Seconds between attempts at most when the servers are on this machine: all daemons reconnect within a few seconds."""
REMOTE_CEILING = 30.0
"""Seconds between attempts at most otherwise: a thousand peers must not overload a broker that is starting."""

KEEPALIVE = 15.0
"""Seconds between two keepalive PINGs. A dead connection is detected within this time and PONG_WAIT."""
PONG_WAIT = 10.0
"""Seconds for the PONG; then the connection counts as lost."""
_STEADY = 5.0  # seconds up after which the backoff starts from the beginning


class Link:
    """One link over many connections. Callbacks are plain functions, called on the event loop; they must not block."""

    def __init__(
        self,
        resolve: Callable[[], Awaitable[NatsOptions]],
        *,
        name: str,
        on_up: Callable[[Link], None] = lambda _link: None,
        on_down: Callable[[Link, str], None] = lambda _link, _reason: None,
        on_error: Callable[[LinkEvent], None] = lambda _event: None,
        no_echo: bool = True,
        inbox_prefix: str = INBOX_PREFIX,
        ceiling: float | None = None,
        keepalive: float = KEEPALIVE,
        pong_wait: float = PONG_WAIT,
    ) -> None:
        """`resolve` returns where to connect and is called before every round of attempts; an exception counts as a failed attempt.

        `on_up` is called when everything is subscribed, `on_down` (with the reason) when a connection that was up is lost,
        `on_error` with errors that do not end the connection. Replies to requests go to subjects below `inbox_prefix`.
        `ceiling` in seconds replaces the two that depend on where the servers are.
        """
        self._resolve = resolve
        self._servers = ServerPool(name, no_echo, inbox_prefix, self._report)
        self._on_up = on_up
        self._on_down = on_down
        self._on_error = on_error
        self._ceiling = ceiling
        self._keepalive = keepalive
        self._pong_wait = pong_wait
        self.state: LinkState = "connecting"  # until the first success, then up or down; closed after `close`
        self.changed_at = time.time()  # Unix seconds: since when it is up, or not up
        self._up = asyncio.Event()
        self._connection: NatsConnection | None = None
        self._runner: asyncio.Task[None] | None = None
        self._subscriptions: list[Subscription] = []
        self._rtt: float | None = None
        self.max_payload = (
            MAX_ENVELOPE_BYTES  # bytes with headers that the server takes, as known from the last connection
        )
        self.last_error: LinkProblem | None = None
        self.reconnects = 0  # of a connection that was up
        self.slow_consumer_events = 0  # of them, those that the server ended because we read too slowly

    # state

    @property
    def server(self) -> ServerInfo | None:
        """The server we are connected to, None while not up."""
        return self._connection.info if self._connection and self.state == "up" else None

    @property
    def subscriptions(self) -> tuple[Subscription, ...]:
        """Every live subscription."""
        return tuple(self._subscriptions)

    @property
    def client(self) -> NatsClient:
        """The client of the current connection; LinkDown without one."""
        return self._require_connection().client

    def rtt_ms(self) -> float | None:
        """The last measured round trip in milliseconds, None before the first."""
        return None if self._rtt is None else self._rtt * 1000

    # life

    def start(self) -> None:
        """Begins to connect, in a separate task; does not raise if no server is reachable."""
        if self._runner is None and self.state != "closed":
            self._runner = asyncio.create_task(self._run(), name="nats-link")

    async def ended(self) -> None:
        """Waits until the link is closed. Raises the exception that ended its loop, if any."""
        if self._runner is not None:
            await asyncio.wait({self._runner})
            if not self._runner.cancelled():
                self._runner.result()

    async def wait_up(self, timeout: float) -> bool:
        """Waits until the link is up; False when `timeout` seconds have passed."""
        return await wait_set(self._up, timeout)

    async def drain(self, timeout: float) -> None:
        """Stops receiving: unsubscribes, and waits until the callbacks had the messages on their way. Publishing continues."""
        subscriptions = tuple(self._subscriptions)
        with contextlib.suppress(TimeoutError, LinkError):
            async with asyncio.timeout(timeout):
                await asyncio.gather(*(sub.drain() for sub in subscriptions))

    async def close(self, drain_timeout: float) -> None:
        """Drains within `drain_timeout` seconds, sends the published messages, and closes the link."""
        deadline = asyncio.get_running_loop().time() + drain_timeout
        if self.state == "up":
            await self.drain(drain_timeout)
            with contextlib.suppress(LinkError):
                await self.flush(max(0.0, deadline - asyncio.get_running_loop().time()))
        self.state = "closed"
        self._up.clear()
        if self._runner is not None:
            self._runner.cancel()
            await asyncio.gather(self._runner, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    # use

    def subscribe(self, subject: str, callback: Callable[[InboundMessage], None]) -> Subscription:
        """Subscribes, again after every reconnect; after a `flush` the broker has the subscription.

        `callback` gets each message as it is read, and has to bound its memory. Raises BadPublish for an invalid
        subject: the link could never come up with it.
        """
        if not _can_be_subscribed(subject):
            raise BadPublish(f"{escape(subject)!r} is not a subject")
        subscription = Subscription(subject, callback, self._report, self._subscriptions.remove)
        self._subscriptions.append(subscription)
        if self._connection is not None:
            with contextlib.suppress(LinkDown):  # the next connection attaches it
                subscription.attach(self._connection)
        return subscription

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        """Buffers a message; that the broker has it is known after `flush`.

        Raises LinkDown, PayloadTooLarge (headers counted), BadPublish. Waits only while 2 MiB are buffered.
        """
        await self._require_connection().publish(subject, data, reply, headers)

    def publish_nowait(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        reply: str = "",
        *,
        flush: bool = True,
    ) -> bool:
        """As `publish`, for callers that cannot wait: False while 2 MiB are buffered.

        With `flush` the message is written to the socket immediately, otherwise in the next loop iteration.
        """
        if self._connection is None:
            raise self._down()
        client = self._connection.client
        frame = publish_frame(client.max_payload, subject, data, reply, headers)
        return client.put(frame, flush=flush, bounded=True)

    def publish_all_nowait(self, messages: Sequence[tuple[str, bytes]]) -> bool:
        """`publish_nowait` without `flush` for these subjects and payloads, in order; none of them if it is False or raises."""
        if self._connection is None:
            raise self._down()
        client = self._connection.client
        return client.put(publish_frames(client.max_payload, messages), bounded=True)

    def put(self, frames: bytes) -> None:
        """Buffers frames that the caller has made, and checked, for the next turn of the loop; LinkDown. For few bytes: they may
        exceed the bound of the buffer.
        """
        if self._connection is None:
            raise self._down()
        self._connection.client.put(frames)

    async def flush(self, timeout: float) -> None:
        """Returns when the broker has everything that was published and subscribed before; LinkTimeout, LinkDown."""
        self._rtt = await self._require_connection().ping(timeout)

    async def request(self, subject: str, data: bytes, timeout: float) -> InboundMessage:
        """The first reply to a request; NoResponders, LinkTimeout, LinkDown (immediately when the connection is lost)."""
        return await self._require_connection().request(subject, data, timeout)

    async def jetstream(
        self, operation: Callable[[JetStreamContext], Awaitable[T]], timeout: float = JETSTREAM_TIMEOUT
    ) -> T:
        """The result of `operation` on the client library's JetStream context, whose requests wait `timeout` seconds.

        Raises JetStreamError; LinkTimeout, LinkDown (immediately when the connection is lost).
        """
        return await self._require_connection().jetstream(operation, timeout)

    # the loop

    def _require_connection(self) -> NatsConnection:
        """The connection that is up or being subscribed: a message may arrive, and be answered, before the link counts as up."""
        if self._connection is None:
            raise self._down()
        return self._connection

    def _down(self) -> LinkDown:
        return LinkDown(f"the NATS link is {self.state}" + (f": {self.last_error.cause}" if self.last_error else ""))

    async def _run(self) -> None:
        failures = 0
        while True:
            ceiling = self._ceiling or REMOTE_CEILING
            problem: LinkProblem | None = None
            try:
                options = await self._resolve()
                ceiling = self._ceiling or (LOOPBACK_CEILING if options.loopback else REMOTE_CEILING)
                connection = await self._servers.connect(options)
                await self._resubscribe(connection)
            except ConnectFailed as error:
                problem = error.problem
            except Exception as error:
                problem = _resolve_problem(error)
            if self.state == "closed":  # the library swallows a cancellation in the middle of an attempt
                return
            if problem is None:
                lasted = await self._stay_up(connection)
                failures = 0 if lasted > _STEADY else failures + 1
                await asyncio.sleep(self._delay(failures, ceiling) if failures else 0)
                continue
            failures += 1
            self._note(problem)
            await asyncio.sleep(ceiling if problem.code == "auth" else self._delay(failures, ceiling))

    def _delay(self, failures: int, ceiling: float) -> float:
        """Exponential from the first delay to the ceiling, with jitter of up to half."""
        return exponential_delay(failures, _FIRST_DELAY, ceiling) * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    async def _resubscribe(self, connection: NatsConnection) -> None:
        """All subscriptions, and the PONG after them; a failure here is a failed attempt."""
        self._connection = connection
        try:
            for subscription in tuple(self._subscriptions):
                subscription.attach(connection)
            self._rtt = await connection.ping(self._pong_wait)
        except LinkError as error:
            self._connection = None
            await connection.close()
            raise ConnectFailed(LinkProblem("lost", escape(str(error)), "", time.time())) from None

    async def _stay_up(self, connection: NatsConnection) -> float:
        """Run the connected phase; return its duration in seconds."""
        since = time.monotonic()
        info = connection.info
        self.max_payload = info.max_payload
        self.state, self.changed_at = "up", time.time()
        level = logging.INFO if self.last_error is None else logging.WARNING  # as the loss that it ends was logged
        self.last_error = None
        self._up.set()
        event(_log, level, "link up", server=info.name, url=info.url, version=info.version)
        self._guarded(lambda: self._on_up(self))
        reason = await self._until_lost(connection)
        self.state, self.changed_at = "down", time.time()
        self._up.clear()
        self.reconnects += 1
        self._connection = None
        self.slow_consumer_events += "slow consumer" in reason.lower()
        self.last_error = LinkProblem("lost", reason, "reconnecting", time.time())
        await connection.close()
        for subscription in self._subscriptions:
            subscription.detach()
        event(_log, logging.WARNING, "link lost", server=info.name, reason=reason)
        self._guarded(lambda: self._on_down(self, reason))
        return time.monotonic() - since

    async def _until_lost(self, connection: NatsConnection) -> str:
        while True:
            self._servers.remember(connection)
            await asyncio.wait({connection.lost}, timeout=self._keepalive)
            if connection.lost.done():
                return str(connection.lost.result())
            try:
                self._rtt = await connection.ping(self._pong_wait)
            except LinkError as error:
                return str(error)

    def _note(self, problem: LinkProblem) -> None:
        """Logs a new failure as a warning, a repeated one at debug level: the loop may repeat it for days."""
        last, self.last_error = self.last_error, problem
        repeated = last is not None and (last.code, last.cause) == (problem.code, problem.cause)
        level = logging.DEBUG if repeated else logging.WARNING
        event(_log, level, "link not connected", cause=problem.cause, hint=problem.hint)

    def _report(self, what: LinkEvent) -> None:
        self._guarded(lambda: self._on_error(what))

    def _guarded(self, call: Callable[[], None]) -> None:
        """Runs a user's callback; an exception is a bug, logged, and must not end the loop."""
        try:
            call()
        except Exception:
            _log.exception("link callback failed")


def _resolve_problem(error: Exception) -> LinkProblem:
    """The exception of `resolve`, with its cause and hint if it has them."""
    cause, hint = getattr(error, "cause", None) or error, getattr(error, "hint", "")
    if not str(cause):
        cause = type(error).__name__
    return LinkProblem("resolve", escape(str(cause)), escape(str(hint)), time.time())


def _can_be_subscribed(subject: str) -> bool:
    """Parts without white space; `*` as a whole one, `>` as the last."""
    parts = subject.removesuffix(".>").split(".") if subject != ">" else ["all"]
    return all(parts) and not any(
        char.isspace() or char == ">" or (char == "*" and part != "*") for part in parts for char in part
    )
