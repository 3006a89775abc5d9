"""One subscription of the link, over all the connections it lives through, with its losses counted.

nats-py gives each subscription a queue and a task that calls the subscriber. Core NATS has no flow control: what finds the queue
full is dropped by the library, one error each, and counted here. What is in the queue when a connection ends is delivered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aghbus.daemon.link_events import CallbackFailed, InboundMessage, LinkEvent, SlowConsumer

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

    from aghbus.daemon.nats_connection import NatsConnection


class Subscription:
    """Made by `Link.subscribe`. Counters run from its making, over all reconnects."""

    def __init__(
        self,
        subject: str,
        callback: Callable[[InboundMessage], None],
        on_event: Callable[[LinkEvent], None],
        limits: tuple[int, int],
        on_end: Callable[[Subscription], None],
    ) -> None:
        """`limits` are the messages and bytes that may wait for `callback`; `on_end` is told of the unsubscription."""
        self.subject = subject
        self.received = 0
        self.dropped = 0
        self.slow_events = 0
        self._callback = callback
        self._on_event = on_event
        self._limits = limits
        self._on_end = on_end
        self._connection: NatsConnection | None = None
        self._sid = 0
        self._overflowing = False
        self._ended = False

    @property
    def attached(self) -> bool:
        """Whether SUB was sent on the connection of this moment."""
        return self._connection is not None

    @property
    def queued(self) -> int:
        """Messages received that wait for the callback."""
        return self._connection.queued(self._sid) if self._connection else 0

    @property
    def queued_bytes(self) -> int:
        """Payload bytes of the messages that wait."""
        return self._connection.queued_bytes(self._sid) if self._connection else 0

    async def attach(self, connection: NatsConnection) -> None:
        """Subscribes on a new connection; LinkDown when that is lost already."""
        if self._ended or self._connection is connection:
            return
        self._connection = connection
        try:
            self._sid = await connection.subscribe(
                self.subject, self._deliver, self._count_drop, msgs_limit=self._limits[0], bytes_limit=self._limits[1]
            )
        except BaseException:
            self._connection = None
            raise

    def detach(self) -> None:
        """After the end of a connection, which has handed out what waited."""
        self._connection = None
        self._end_overflow()

    async def unsubscribe(self) -> None:
        """Ends the subscription; what waits in the queue is not delivered any more."""
        self._retire()
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.unsubscribe(self._sid)

    async def drain(self) -> None:
        """Ends the subscription, but only after the callback had all that the broker has sent until then."""
        self._retire()
        if self._connection is not None:
            try:
                await self._connection.drain(self._sid)
            finally:
                self.detach()

    def _retire(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(self)

    async def _deliver(self, message: Msg) -> None:
        self._hand_out(message)
        if self._overflowing and self.queued == 0:
            self._end_overflow()

    def _hand_out(self, message: Msg) -> None:
        self.received += 1
        try:
            self._callback(InboundMessage(message.subject, message.data, message.reply, message.headers))
        except Exception as error:
            self._on_event(CallbackFailed(self.subject, error))

    def _count_drop(self) -> None:
        """The library calls this once for each message that it drops."""
        self.dropped += 1
        if not self._overflowing:
            self._overflowing = True
            self.slow_events += 1
            self._on_event(SlowConsumer(self.subject, self.dropped, over=False))

    def _end_overflow(self) -> None:
        if self._overflowing:
            self._overflowing = False
            self._on_event(SlowConsumer(self.subject, self.dropped, over=True))
