"""Rejected messages: counted, and neither stored nor answered (specification, section 5, Overload)."""

import logging
from dataclasses import dataclass
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.standing import Standing, Standings

NAK_DELAY: Final = 1.0
"""Seconds until a stream delivers a message again that was rejected or came early."""


@dataclass(frozen=True, slots=True, eq=False)
class Rejections:
    """Rejects messages. The sender's retry, or the stream, brings them again."""

    standings: Standings
    limited: LimitedPeers
    clock: Clock
    counters: Counters
    log_limiter: EventLimiter

    def reject(self, reason: str, received: ReceivedMessage) -> None:
        """Drop the message, for `reason`, before it is stored or answered."""
        sender = received.sender
        if received.envelope is not None:
            self.counters.received[received.envelope.kind, "rejected"] += 1
        self.drop(reason, sender, self.standings.of(sender, None), received.subject, received.settlement)

    def drop(self, reason: str, sender: str, standing: Standing, subject: str, settlement: Settlement | None) -> None:
        """As `reject`, for a message that was not parsed: cheap, because a flood passes here."""
        counters = self.counters
        counters["overload"] += 1
        counters[f"overload.{reason.partition('.')[0]}"] += 1
        if settlement is not None:
            settlement.nak(NAK_DELAY)
        if self.limited.note(reason, sender, standing, self.clock.monotonic()):
            key, sentence = f"overload.{reason}", f"overload: messages are rejected: {reason}"
            self.log_limiter.event(logging.WARNING, key, sentence, sender=sender, standing=standing, subject=subject)
