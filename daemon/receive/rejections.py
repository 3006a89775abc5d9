"""Rejected messages: counted, and neither stored nor answered (specification, section 5, Overload)."""

import logging
from typing import Final

from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import Lane, Lanes
from aghbus.daemon.state.limited_peers import LimitedPeers

STORE: Final = "store"
"""Why a message is rejected while the store cannot write."""
_NAK_DELAY: Final = 1.0  # seconds until a stream delivers a message again that the store could not take


class Rejections:
    """Rejects messages. The sender's retry brings them again.

    A message of a stream is acknowledged to it: one that waited there would take a place of `jetstream.max_in_flight` from all
    other senders. While the store cannot write, all of them wait in the stream.
    """

    def __init__(self, context: DaemonContext, lanes: Lanes, limited: LimitedPeers) -> None:
        self._lanes = lanes
        self._limited = limited
        self._clock = context.clock
        self._counters = context.counters
        self._log_limiter = context.log_limiter

    def reject(self, reason: str, received: ReceivedMessage) -> None:
        """Drop the message, for `reason`, before it is stored or answered."""
        sender = received.sender
        if received.envelope is not None:
            self._counters.received[received.envelope.kind, "rejected"] += 1
        self.drop(reason, sender, self._lanes.of(sender, None), received.subject, received.settlement)

    def drop(self, reason: str, sender: str, lane: Lane, subject: str, settlement: Settlement | None) -> None:
        """As `reject`, for a message that was not parsed: cheap, because a flood passes here."""
        counters = self._counters
        counters["overload"] += 1
        counters[f"overload.{reason.partition('.')[0]}"] += 1
        if settlement is not None and reason == STORE:
            settlement.nak(_NAK_DELAY)
        elif settlement is not None:
            settlement.ack()
        if self._limited.note(reason, sender, lane, self._clock.monotonic()):
            key, sentence = f"overload.{reason}", f"overload: messages are rejected: {reason}"
            self._log_limiter.event(logging.WARNING, key, sentence, sender=sender, lane=lane, subject=subject)
