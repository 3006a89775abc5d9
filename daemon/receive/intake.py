"""Accepting messages: NATS bytes → parse → rate limits → queue. Then `Committer` decides and commits them in batches, and
`OutcomeHandler` acts on the outcomes.

A message is parsed when it comes, so that garbage never takes a place in the queue. The queue is bounded: a message that does not
fit is rejected (specification, section 5, Overload), which means that it is counted, and neither stored nor answered; the sender's
retry brings it again.
"""

from typing import Any, Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.metrics import NO_ENVELOPE, Counters
from aghbus.daemon.nats.events import InboundMessage
from aghbus.daemon.receive.discovery_messages import DiscoveryMessages
from aghbus.daemon.receive.queue import ReceiveQueue
from aghbus.daemon.receive.receipts import Receipts
from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.receive.refused import RefusedMessages
from aghbus.daemon.receive.rejections import Rejections
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.protocol.agh.delivery.acks import ANSWER_TO
from aghbus.protocol.agh.delivery.order import AFTER_SETTLED
from aghbus.protocol.agh.envelope import DISCOVERY_KINDS, KINDS, parse
from aghbus.protocol.agh.errors import NotTarget, ProtocolError
from aghbus.protocol.agh.identifiers import channel_of_subject
from aghbus.protocol.agh.partial_parse import origin_in, partial_parse, readable
from aghbus.protocol.agh.receive import ReceiptTarget

_RECEIVED: Final = {kind: f"received.{kind}" for kind in KINDS}  # names of counters


class Intake:
    """Accepts messages: `offer` takes each from the broker, in the callback of its subscription."""

    def __init__(
        self,
        identity: Identity,
        clock: Clock,
        limits: RateLimits,
        receipts: Receipts,
        refused: RefusedMessages,
        rejections: Rejections,
        queue: ReceiveQueue,
        discovery: DiscoveryMessages,
        counters: Counters,
    ) -> None:
        self._identity = identity
        self._clock = clock
        self._limits = limits
        self._receipts = receipts
        self._refused = refused
        self._rejections = rejections
        self._queue = queue
        self._discovery = discovery
        self._counters = counters

    def offer(self, message: InboundMessage) -> None:
        """Take one message from the broker; never raises for its content."""
        self._counters["received"] += 1
        now_ms = self._clock.millis()
        if self._limits.processing.strained and (refused := self._limits.refusal(message.data)) is not None:
            self._counters.received[NO_ENVELOPE, "rejected"] += 1
            self._rejections.drop("processing", *refused, message.subject, message.settlement)
            return
        try:
            envelope = parse(message.data, now_ms // 1000)
            place = channel_of_subject(message.subject)
            if place != (envelope.workspace_id, envelope.channel):
                wrong = "workspace_id" if place is not None and place[0] != envelope.workspace_id else "channel"
                raise NotTarget("does not match the NATS subject", wrong)
        except ProtocolError as error:
            self._offer_refused(message, error, now_ms)
            return
        self._counters[_RECEIVED[envelope.kind]] += 1
        if ARMED:
            failpoint("receive.parsed")
        # With a stream, NATS' own reply subject is for its confirmation: the sender's is in a header.
        reply, settled = message.reply, ""
        if message.headers is not None:
            reply, settled = message.headers.get(ANSWER_TO, reply), message.headers.get(AFTER_SETTLED, "")
        identity = self._identity
        own_id = identity.receiver_of(envelope) if identity.keys else identity.self_id
        received = ReceivedMessage(
            message.subject,
            message.data,
            now_ms,
            own_id,
            message.settlement,
            envelope,
            envelope.sender,
            reply,
            settled,
        )
        if (rejection := self._limits.check(envelope)) is not None:
            self._rejections.reject(rejection, received)
        elif envelope.kind in DISCOVERY_KINDS:
            self._discovery.handle(received, envelope)
        else:
            self._enqueue(received)

    def _offer_refused(self, message: InboundMessage, error: ProtocolError, now_ms: int) -> None:
        self._counters.add("refused")
        self._counters.add(f"refused.{error.reason}")
        self._counters.received[NO_ENVELOPE, "refused"] += 1
        self._limits.spend_refused(message.data)
        target, own_id = None, self._identity.self_id
        document = readable(message.data, error)
        error.release()
        if not isinstance(error, NotTarget):
            target, own_id = self._receipt_target(document)
        if target is not None and not self._receipts.may_refuse(target.sender):
            target = None
        keep = self._refused.may_keep("unknown")
        if target is None and not keep:
            self._refused.skip()
            if message.settlement is not None:
                message.settlement.ack()
            return
        self._enqueue(
            ReceivedMessage(
                message.subject,
                message.data,
                now_ms,
                own_id,
                message.settlement,
                error=error,
                target=target,
                origin=origin_in(document, message.subject, self._identity.own_ids),
                keep=keep,
            )
        )

    def _receipt_target(self, document: dict[str, Any] | None) -> tuple[ReceiptTarget | None, str]:
        """Whom a receipt about a refused document would go to, as far as it can be read, and from which of our ids."""
        for own_id in self._identity.own_ids:
            if (target := partial_parse(document, own_id, self._identity.joined)) is not None:
                return target, own_id
        return None, self._identity.self_id

    def _enqueue(self, received: ReceivedMessage) -> None:
        if not self._queue.put(received):
            self._rejections.reject("queue", received)
