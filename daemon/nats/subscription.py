"""One subscription of the link, over all the connections it lives through.

What the broker sends is handed to the subscriber as it is parsed: nothing waits in between, and core NATS has no flow control. So
a subscriber that cannot finish at once has a bounded queue of its own, and says what became of what found no room there.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from aghbus.daemon.nats.events import CallbackFailed, InboundMessage, LinkEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from aghbus.daemon.nats.connection import NatsConnection


class Subscription:
    """Made by `Link.subscribe`. `received` counts from its making, over all reconnects."""

    def __init__(
        self,
        subject: str,
        callback: Callable[[InboundMessage], None],
        on_event: Callable[[LinkEvent], None],
        on_end: Callable[[Subscription], None],
    ) -> None:
        """`on_end` is told of the unsubscription."""
        self.subject = subject
        self.received = 0
        self._callback = callback
        self._on_event = on_event
        self._on_end = on_end
        self._connection: NatsConnection | None = None
        self._sid = 0
        self._ended = False

    @property
    def attached(self) -> bool:
        """Whether SUB was sent on the connection of this moment."""
        return self._connection is not None

    async def attach(self, connection: NatsConnection) -> None:
        """Subscribes on a new connection; LinkDown when that is lost already."""
        if self._ended or self._connection is connection:
            return
        self._connection = connection
        try:
            self._sid = await connection.subscribe(self.subject, self._deliver)
        except BaseException:
            self._connection = None
            raise

    def detach(self) -> None:
        """After the end of a connection."""
        self._connection = None

    async def unsubscribe(self) -> None:
        """Ends the subscription; what is still on its way is not delivered any more."""
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

    def _deliver(self, message: InboundMessage) -> None:
        """Called in the middle of the connection's read loop, which nothing that the subscriber raises may end."""
        self.received += 1
        try:
            self._callback(message)
        except (Exception, asyncio.CancelledError) as error:  # the latter of a future that it looked at
            self._on_event(CallbackFailed(self.subject, error))
