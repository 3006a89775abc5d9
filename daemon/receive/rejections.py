"""Rejected messages: counted, and neither stored nor answered (specification, section 5, Overload)."""

import logging
from typing import Final

from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.receive.held_back import HeldBack
from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import Lane, Lanes
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.spans import trace_ids
from aghbus.protocol.agh.envelope import Envelope

STORE: Final = "store"
"""Why a message is rejected while the store cannot write."""
_NAK_DELAY: Final = (
    1.0  # seconds until a stream delivers a message again that the store could not take, or that came early
)
EARLY_AT_ONCE: Final = 128
"""Early messages of contacts that a stream keeps for us: an eighth of `jetstream.max_in_flight`."""
EARLY_SECONDS: Final = 60
"""Age from which on an early message leaves the stream."""


class Rejections:
    """Rejects messages. The sender's retry brings them again.

    A message of a stream is acknowledged to it: one that waited there would take a place of `jetstream.max_in_flight` from all
    other senders. While the store cannot write, all of them wait in the stream. A message of a contact that came before its
    predecessor waits for it there a short time: the stream may have them in another order.
    """

    def __init__(self, context: DaemonContext, lanes: Lanes, limited: LimitedPeers, held_back: HeldBack) -> None:
        self.held_back = held_back
        self._lanes = lanes
        self._limited = limited
        self._clock = context.clock
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self._early_since = 0.0  # when the first of `_early` was given back
        self._early = 0

    def postpone(self, received: ReceivedMessage, envelope: Envelope) -> None:
        """The message came before its predecessor: a stream gives it to us again soon, or its sender does."""
        self._counters.add("receive.early")
        self._counters.received[envelope.kind, "early"] += 1
        self.held_back.note(envelope, received.key)
        if received.settlement is None:
            return
        now = self._clock.monotonic()
        if now - self._early_since >= _NAK_DELAY:
            self._early_since, self._early = now, 0
        is_young = received.received_ms // 1000 - envelope.ts < EARLY_SECONDS
        if is_young and self._early < EARLY_AT_ONCE and self._lanes.is_contact(received.sender):
            self._early += 1
            received.settlement.nak(_NAK_DELAY)
        else:
            received.settlement.ack()

    def reject(self, reason: str, received: ReceivedMessage, lane: Lane) -> None:
        """Drop the message of this lane, for `reason`, before it is stored or answered."""
        if received.envelope is not None:
            self._counters.received[received.envelope.kind, "rejected"] += 1
        self.drop(reason, received.sender, lane, received.subject, received.settlement, received.envelope)

    def drop(
        self,
        reason: str,
        sender: str,
        lane: Lane,
        subject: str,
        settlement: Settlement | None,
        envelope: Envelope | None = None,
    ) -> None:
        """As `reject`, for a message that need not be parsed: cheap, because a flood passes here."""
        counters = self._counters
        counters["overload"] += 1
        limit = reason.partition(".")[0]
        counters[f"overload.{limit}"] += 1
        counters.rejected[limit, lane] += 1
        if settlement is not None and reason == STORE:
            settlement.nak(_NAK_DELAY)
        elif settlement is not None:
            settlement.ack()
        if self._limited.note(reason, sender, lane, self._clock.monotonic()):
            key, sentence = f"overload.{reason}", f"overload: messages are rejected: {reason}"
            who = {"sender": sender, "lane": lane, "subject": subject}
            self._log_limiter.event(logging.WARNING, key, sentence, **who, **trace_ids(envelope))
