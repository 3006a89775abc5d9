"""One subscription of the link, over all the connections it lives through.

Messages are given to the subscriber as they are parsed: there is no queue in between, and core NATS has no flow control.
A subscriber that cannot finish immediately has its own bounded queue, and decides about messages that do not fit.
"""

from __future__ import annotations

from collections.abc import Callable

from aghbus.daemon.nats.connection import NatsConnection
from aghbus.daemon.nats.events import CallbackFailed, InboundMessage, LinkEvent


class Subscription:
    """Made by `Link.subscribe`. `received` counts messages over all reconnects."""

    def __init__(
        self,
        subject: str,
        callback: Callable[[InboundMessage], None],
        on_event: Callable[[LinkEvent], None],
        on_end: Callable[[Subscription], None],
    ) -> None:
        """`on_end` is called at the unsubscription."""
        self.subject = subject
        self.received = 0
        self.callback = callback
        self._on_event = on_event
        self._on_end = on_end
        self._connection: NatsConnection | None = None
        self._sid = 0
        self._ended = False

    @property
    def attached(self) -> bool:
        """Whether SUB was sent on the current connection."""
        return self._connection is not None

    def attach(self, connection: NatsConnection) -> None:
        """Subscribes on a new connection; LinkDown when that is lost already."""
        if not self._ended and self._connection is not connection:
            self._sid = connection.client.listen(self.subject, self)
            self._connection = connection

    def detach(self) -> None:
        """After the end of a connection."""
        self._connection = None

    def unsubscribe(self) -> None:
        """Ends the subscription; messages on their way are dropped."""
        self._end()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.unsubscribe(self._sid)

    async def drain(self) -> None:
        """Ends the subscription after the callback had everything that the broker has sent until then."""
        self._end()
        if self._connection is not None:
            try:
                await self._connection.drain(self._sid)
            finally:
                self.detach()

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._on_end(self)

    def failed(self, error: BaseException) -> None:
        """The callback has raised `error`."""
        self._on_event(CallbackFailed(self.subject, error))
