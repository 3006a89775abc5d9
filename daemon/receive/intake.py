"""Accepting messages: NATS bytes → parse → rate limits → queue. Then `Committer` decides and commits them in batches, and
`OutcomeHandler` acts on the outcomes.

A message is parsed when it comes, so that garbage never takes a place in the queue. The queue is bounded: a message that does not
fit is rejected (specification, section 5, Overload), which means that it is counted, and neither stored nor answered; the sender's
retry brings it again. After one the next are checked before they are parsed.
"""

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.metrics import NO_ENVELOPE
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.nats.events import InboundMessage
from aghbus.daemon.receive.discovery_messages import DiscoveryMessages
from aghbus.daemon.receive.receipt_policy import ReceiptPolicy
from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.receive.refused import RefusedMessages
from aghbus.daemon.receive.rejections import Rejections
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import PARTS, Lane
from aghbus.daemon.state.own_instance import OwnInstance
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.protocol.agh.delivery.acks import ANSWER_TO
from aghbus.protocol.agh.delivery.order import AFTER_SETTLED
from aghbus.protocol.agh.envelope import DISCOVERY_KINDS, KINDS, Envelope, parse
from aghbus.protocol.agh.errors import NotTarget, ProtocolError
from aghbus.protocol.agh.identifiers import channel_of_subject
from aghbus.protocol.agh.partial_parse import origin_in, partial_parse, readable
from aghbus.protocol.agh.receipt_target import ReceiptTarget
from aghbus.protocol.agh.trust.tags import TAG
from aghbus.store.engine.commit.state import InMemoryState

_BATCH: Final = 256  # messages decided in one job: some milliseconds of the event loop
_SIGNED: Final = 64  # of them with a signature, and as many begun ahead: a contact's message waits for these
_BATCH_BYTES: Final = 4 * 1024 * 1024  # of the messages decided in one job, for the same reason
QUEUE_BYTES: Final = 64 * 1024 * 1024  # of the messages in the queue: four thousand of the largest would be gigabytes
SENDER_SHARE: Final = 0.75  # for one sender, of the part of the queue that its lane may fill
_CHECKS: Final = 256  # messages after a rejected one that are checked before they are parsed, which costs a fifth of it
IDENTITY: Final = "identity"
"""Why messages are rejected while another daemon has our peer id."""
_RECEIVED: Final = {kind: f"received.{kind}" for kind in KINDS}  # names of counters


class ReceiveQueue:
    """Messages that wait for the transaction of their batch, contacts' first. A message that does not fit is rejected."""

    def __init__(self, settings: LiveSettings, limits: RateLimits) -> None:
        """`limits` tells the lane of a message before its signature is verified."""
        self._settings = settings
        self._limits = limits
        self._first: Final[deque[ReceivedMessage]] = deque(maxlen=1)  # what came to the empty queue, whatever its lane
        self._lanes: Final[dict[Lane, deque[ReceivedMessage]]] = {lane: deque() for lane in PARTS}  # in this order
        self.depth = 0  # messages
        self._bytes = 0  # of the messages
        self._shares: dict[str, int] = {}  # messages by sender, "" for refused ones
        self._arrival: asyncio.Future[None] | None = None  # what `wait` waits for

    def put(self, received: ReceivedMessage) -> bool:
        """Add a message; False when there is no room for it."""
        depth, sender, queue = self.depth, received.sender, self._first
        if depth:
            lane = self.lane(received)
            if not self.has_room(sender, len(received.raw), lane):
                return False
            queue = self._lanes[lane]
        elif self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        queue.append(received)
        self.depth = depth + 1
        self._bytes += len(received.raw)
        self._shares[sender] = self._shares.get(sender, 0) + 1
        return True

    def has_room(self, sender: str, size: int, lane: Lane) -> bool:
        """Whether there is room for a message of `size` bytes."""
        most, share = self._settings.current.receive.queue * PARTS[lane], self._shares.get(sender, 0)
        fits = self.depth < most and self._bytes + size <= QUEUE_BYTES * PARTS[lane]
        return not self.depth or (fits and share < max(1, int(most * SENDER_SHARE)))

    @property
    def others(self) -> int:
        """The messages in the lane of others."""
        return len(self._lanes["other"])

    def lane(self, received: ReceivedMessage) -> Lane:
        """The lane of a message before its signature is verified (`RateLimits.lane`)."""
        envelope = received.envelope
        if envelope is None:
            return "other"
        to_us, signed, copy = envelope.to is not None, envelope.proof is not None, received.copy
        return self._limits.lane(received.sender, received.raw, received.tag, to_us=to_us, signed=signed, copy=copy)

    def wait(self) -> asyncio.Future[None]:
        """Wait until a message comes to the empty queue."""
        self._arrival = asyncio.get_running_loop().create_future()
        return self._arrival

    def take(self) -> tuple[list[ReceivedMessage], list[tuple[Envelope, str]]]:
        """The next batch, which leaves the queue, and its envelopes that claim a key, each with its tag. But for the first message
        it is of one lane, so that contacts wait for no signature of others."""
        queue, shares = self._first, self._shares
        for lane in self._lanes.values():
            if lane:
                queue = lane
                break
        batch: list[ReceivedMessage] = []
        claiming: list[tuple[Envelope, str]] = []
        size = 0
        while (queue or self._first) and len(batch) < _BATCH and len(claiming) < _SIGNED and size < _BATCH_BYTES:
            received = (self._first or queue).popleft()
            batch.append(received)
            size += len(received.raw)
            shares[received.sender] -= 1
            if not shares[received.sender]:
                del shares[received.sender]
            if received.envelope is not None and (received.envelope.proof is not None or "@" in received.sender):
                claiming.append((received.envelope, received.tag))
        self.depth -= len(batch)
        self._bytes -= size
        return batch, claiming

    def upcoming(self) -> Iterator[Envelope]:
        """The signed envelopes of about one batch, which stay in the queue."""
        queued = islice(chain(self._first, *self._lanes.values()), _BATCH)
        envelopes = (one.envelope for one in queued if one.envelope is not None)
        return islice((one for one in envelopes if one.proof is not None), _SIGNED)


class Intake:
    """Accepts messages: `offer` takes each from the broker, in the callback of its subscription."""

    def __init__(
        self,
        context: DaemonContext,
        memory: InMemoryState,
        limits: RateLimits,
        receipts: ReceiptPolicy,
        refused: RefusedMessages,
        rejections: Rejections,
        queue: ReceiveQueue,
        discovery: DiscoveryMessages,
        instance: OwnInstance,
    ) -> None:
        self._identity = context.identity
        self._clock = context.clock
        self._counters = context.counters
        self._ids, self._processed = memory.log.ids, memory.dedup.keys
        self._limits = limits
        self._receipts = receipts
        self._refused = refused
        self._rejections = rejections
        self._queue = queue
        self._discovery = discovery
        self._instance = instance
        self._checks_left = 0  # messages that are checked before they are parsed

    def offer(self, message: InboundMessage) -> None:
        """Take one message from the broker; never raises for its content."""
        self._counters["received"] += 1
        if self._checks_left and self._drop_unparsed(message):
            return
        now_ms = self._clock.millis()
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
        reply, settled, tag, headers = message.reply, "", "", message.headers
        if headers is not None:
            reply, settled, tag = headers.get(ANSWER_TO, reply), headers.get(AFTER_SETTLED, ""), headers.get(TAG, "")
        identity = self._identity
        own_id = identity.receiver_of(envelope) if identity.keys else identity.self_id
        key = self._ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
        copy = key in self._processed
        if copy and envelope.to is None and envelope.kind not in DISCOVERY_KINDS:
            self._drop_copy(message, envelope)
            return
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
            key,
            copy,
            tag,
        )
        rejection: str | None = self._limits.check(envelope, tag, copy=copy)
        if rejection is None:
            if envelope.kind in DISCOVERY_KINDS:
                self._discovery.handle(received, envelope)
                return
            if self._instance.gives_way:
                rejection = IDENTITY
            elif self._queue.put(received):
                return
        self._reject(rejection or "queue", received)

    def _reject(self, reason: str, received: ReceivedMessage) -> None:
        self._checks_left = _CHECKS
        self._rejections.reject(reason, received, self._queue.lane(received))

    def _drop_unparsed(self, message: InboundMessage) -> bool:
        """Reject a message that would be rejected after it was parsed; whether it was."""
        queue = self._queue
        refusal = self._limits.refusal(message, self._is_copy, queue.has_room, queue.others)
        if refusal is None:
            self._checks_left -= 1
            return False
        self._checks_left = _CHECKS
        self._counters.received[NO_ENVELOPE, "rejected"] += 1
        self._rejections.drop(*refusal, message.subject, message.settlement)
        return True

    def _drop_copy(self, message: InboundMessage, envelope: Envelope) -> None:
        """A broadcast that was processed before: nobody waits for an answer to it."""
        self._spend_refused(message.data)
        self._counters.add("ignored.duplicate")
        self._counters.received[envelope.kind, "duplicate"] += 1
        if message.settlement is not None:
            message.settlement.ack()

    def _spend_refused(self, raw: bytes) -> None:
        if not self._limits.spend_refused(raw):
            self._checks_left = _CHECKS

    def _is_copy(self, sender: str, message_id: str) -> bool:
        return self._ids.dedup_key(self._identity.workspace, sender, message_id) in self._processed

    def _offer_refused(self, message: InboundMessage, error: ProtocolError, now_ms: int) -> None:
        self._counters.add("refused")
        self._counters.add(f"refused.{error.reason}")
        self._counters.received[NO_ENVELOPE, "refused"] += 1
        self._spend_refused(message.data)
        target, own_id = None, self._identity.self_id
        document = readable(message.data, error)
        error.release()
        if not isinstance(error, NotTarget):
            target, own_id = self._receipt_target(document)
        if target is not None and not self._receipts.may_refuse(target.sender):
            target = None
        keep = self._refused.may_keep("other")
        if target is None and not keep:
            self._refused.skip()
            if message.settlement is not None:
                message.settlement.ack()
            return
        received = ReceivedMessage(
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
        if not self._queue.put(received):
            self._reject("queue", received)

    def _receipt_target(self, document: dict[str, Any] | None) -> tuple[ReceiptTarget | None, str]:
        """Whom a receipt about a refused document would go to, as far as it can be read, and from which of our ids."""
        for own_id in self._identity.own_ids:
            if (target := partial_parse(document, own_id, self._identity.joined)) is not None:
                return target, own_id
        return None, self._identity.self_id
