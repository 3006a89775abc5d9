"""The durable consumer of one channel: it keeps our place in the stream while we are away.

A push consumer with explicit acks and flow control; docs/jetstream.md has the measurements, and why messages do not come through
the client library's subscriptions. The subject it pushes to belongs to this daemon's store, so that the broker refuses a second
daemon under the same peer id.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.jetstream.acks import NAK, AckQueue, PendingAcks
from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.jetstream import ConsumerConfig, ConsumerInfo
from aghbus.daemon.nats.link import InboundMessage, JetStreamError, Link, LinkTimeout, Subscription
from aghbus.protocol.agh.identifiers import route_token
from aghbus.protocol.agh.nats.jetstream import consumer_config
from aghbus.protocol.agh.nats.names import durable_name, own_subjects, provisioned_delivery

_NOT_FOUND: Final = 10014
_IN_USE: Final = 10013  # the consumer pushes to another subject, which has a subscriber
FLUSH_TIMEOUT: Final = 5.0
"""Seconds for the broker to begin or end a subscription."""
_MAX_FLOW_SUBJECT: Final = 512  # characters: the server ends a connection over a line too long
_ACK_PREFIX: Final = "$JS.ACK."
_SEQUENCE_DIGITS: Final = 20  # of 64 bits
_MAX_REQUESTED: Final = 65_536  # stream sequences between the oldest and the newest delivery that are asked for again


class ConsumerState(msgspec.Struct, frozen=True):
    """The consumer as of the last check: counts of messages, and the stream sequence up to which all are settled."""

    pending: int = 0
    ack_pending: int = 0
    redelivered: int = 0
    ack_floor: int = 0


class DurableConsumer:
    """One channel's consumer. `check` creates and repairs it."""

    def __init__(
        self,
        link: Link,
        acks: AckQueue,
        *,
        peer_id: str,
        delivery_token: str,
        workspace_id: str,
        channel: str,
        observe: bool,
        settings: JetStreamSettings,
        flush_timeout: float = FLUSH_TIMEOUT,
    ) -> None:
        """`delivery_token` is a random value of our store that no other program knows. `flush_timeout` in seconds is how
        long the broker may take to begin or end the subscription.
        """
        self.channel = channel
        self.peer_id = peer_id
        self.name = durable_name(workspace_id, channel, route_token(peer_id))
        self.state = ConsumerState()
        self.duplicates = 0  # deliveries of messages that were pending or acked already
        self._link = link
        self._acks = acks
        self._flush_timeout = flush_timeout
        store_token = hashlib.sha256(f"{delivery_token} {peer_id}".encode()).hexdigest()[:24]
        self._provisioned = provisioned_delivery(peer_id, workspace_id, channel)
        self._expected = consumer_config(
            self.name,
            filters=own_subjects(peer_id, workspace_id, channel, observe=observe),
            deliver_to=f"{self._provisioned}.{store_token}",
            ack_wait=settings.ack_wait,
            max_in_flight=settings.max_in_flight,
        )
        self._flow_prefix = f"$JS.FC.{STREAM}.{self.name}."
        self._pending = PendingAcks(acks)
        self._ack_prefix = ""  # of the last delivery's reply subject: what comes before the stream sequence
        self._stream = ""  # the `created` of the stream that we were last attached to
        self._connection = -1  # the link's count of reconnects when lost deliveries were last requested
        self._subscription: Subscription | None = None
        self._closed = False

    @property
    def attached(self) -> bool:
        """Whether messages come: the consumer was there at the last look, and the subscription is live."""
        return self._subscription is not None and self._subscription.attached

    @property
    def is_provisioned(self) -> bool:
        """Whether the operator made the consumer: then our permissions cover little of JetStream's API."""
        return self._subscription is not None and self._subscription.subject == self._provisioned

    async def check(self, stream: str, offer: Callable[[InboundMessage], None]) -> None:
        """Ensure the consumer on the stream created at `stream`, and the subscription, whose messages go to `offer`. Raises
        JetStreamError, LinkError."""
        self._offer = offer
        if self._stream and stream != self._stream:
            self._acks.clear()
            self._pending.drop()
            self._pending = PendingAcks(self._acks)
        info = await self._ensure(stream)
        known, self._stream = self._stream == stream, stream
        self.state = _state(info)
        if not known or self._connection != self._link.reconnects:
            await self._request_lost(info)
            self._connection = self._link.reconnects
        deliver_to = str(info.config.deliver_subject)
        if self._subscription is not None and self._subscription.subject != deliver_to:
            await self._unsubscribe()  # the operator replaced our consumer by one of theirs, or the reverse
        if self._subscription is None and not self._closed:
            self._subscription = self._link.subscribe(deliver_to, self._delivered)
            await self._link.flush(self._flush_timeout)

    async def close(self) -> None:
        """Stop receiving; pending messages can still be settled. The consumer stays, it keeps our place. Raises LinkTimeout."""
        self._closed = True
        await self._unsubscribe()

    async def delete(self) -> None:
        """Delete the consumer, and with it our place in the stream; to be closed before. Raises JetStreamError, LinkError."""
        await self._link.jetstream(lambda js: js.delete_consumer(STREAM, self.name))

    async def _unsubscribe(self) -> None:
        """Drain the subscription. Raises LinkTimeout: the connection counts as lost then, and the subscription with it."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        try:
            async with asyncio.timeout(self._flush_timeout):
                await subscription.drain()
        except TimeoutError:
            raise LinkTimeout(f"the broker did not end a subscription within {self._flush_timeout:g} s") from None

    # creation

    async def _ensure(self, stream: str) -> ConsumerInfo:
        try:
            info: ConsumerInfo = await self._link.jetstream(lambda js: js.consumer_info(STREAM, self.name))
        except JetStreamError as error:
            if error.code != _NOT_FOUND:
                raise
            return await self._put({**self._expected, **self._start(stream)})
        different = _differences(info.config, self._expected)
        if info.config.deliver_subject == self._provisioned:
            self._accept(different)
            return info
        return await self._put({**info.config.as_dict(), **self._expected}) if different else info

    def _accept(self, different: set[str]) -> None:
        """The operator's consumer (docs/security/broker.md) is used as it is if it delivers what we need."""
        for key in ("filter_subjects", "ack_policy", "flow_control"):
            if key in different:
                hint = "delete it, and make it as `aghctl nats permissions --format json` says"
                raise JetStreamError(0, f"the consumer {self.name} has another {key} than it needs ({hint})")

    def _start(self, stream: str) -> dict[str, Any]:
        """A new consumer starts with new messages; one that replaces a lost consumer, after what that one had settled."""
        if not self._stream:
            return {"deliver_policy": "new"}
        if stream != self._stream:
            return {"deliver_policy": "all"}
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.state.ack_floor + 1}

    async def _put(self, config: dict[str, object]) -> ConsumerInfo:
        """Create or update: one request of the API."""
        wanted = ConsumerConfig.from_response(config)
        try:
            return await self._link.jetstream(lambda js: js.add_consumer(STREAM, wanted))
        except JetStreamError as error:
            if error.code != _IN_USE:
                raise
            raise JetStreamError(
                error.code,
                f"another daemon receives as {self.peer_id} on channel {self.channel}:"
                " give one of them another --peer-id, or wait some minutes for a connection that died",
            ) from None

    async def _request_lost(self, info: ConsumerInfo) -> None:
        """Have everything that was delivered to an earlier process or connection delivered again now, in order.

        Without this it comes after `ack_wait`, later than newer messages. A NAK names the delivery by its stream sequence; one
        for a message that is not pending does nothing.
        """
        delivered = info.delivered
        if delivered is None or not self.state.ack_pending:
            return
        first, last = self.state.ack_floor + 1, delivered.stream_seq
        if last - first >= _MAX_REQUESTED:
            return
        lost = [sequence for sequence in range(first, last + 1) if self._pending.acked.get(str(sequence)) is not False]
        if not lost:
            return
        prefix, suffix = f"$JS.ACK.{STREAM}.{self.name}.1", f"{delivered.consumer_seq}.0.0"
        for sequence in lost[:-1]:
            self._acks.put(f"{prefix}.{sequence}.{suffix}", NAK)
        await self._acks.drained(self._flush_timeout)
        # The broker answers the last one after it has processed all of them: nothing newer is delivered before.
        await self._link.request(f"{prefix}.{lost[-1]}.{suffix}", NAK.encode(), self._flush_timeout)

    # receiving

    def _delivered(self, message: InboundMessage) -> None:
        headers = message.headers
        if headers is not None and not message.data and "Status" in headers:
            flow_subject = message.reply or headers.get("Nats-Consumer-Stalled", "")
            if self._is_flow_control(flow_subject):
                self._acks.put(flow_subject, "")  # everything before it was received
            return
        reply = message.reply
        rest = reply.removeprefix(self._ack_prefix)
        if rest == reply:  # the first delivery, and one that is repeated
            prefix = before_sequence(reply)
            if not prefix:
                return  # not from the stream: anyone may be able to publish to the delivery subject
            self._ack_prefix, rest = prefix, reply.removeprefix(prefix)
        sequence = first_sequence(rest)
        if not sequence:
            return
        delivery = self._pending.accept(sequence, reply)
        if delivery is None:
            self.duplicates += 1
            return
        message.settlement = delivery
        message.reply = ""  # that was the broker's, for the settlement; the sender's is in a header
        self._offer(message)

    def _is_flow_control(self, subject: str) -> bool:
        """Whether `subject` belongs to this consumer's flow control: no other peer may direct what we publish."""
        plain = subject.isprintable() and " " not in subject
        return plain and len(subject) <= _MAX_FLOW_SUBJECT and subject.startswith(self._flow_prefix)


def _differences(config: ConsumerConfig, expected: dict[str, Any]) -> set[str]:
    """Keys in which `config` differs from `expected`, which is in the API's form; durations are compared in milliseconds."""
    wanted = ConsumerConfig.from_response(dict(expected))

    def value(of: ConsumerConfig, key: str) -> object:
        found = getattr(of, key)
        return round(found * 1000) if isinstance(found, float) else found

    return {key for key in expected if value(config, key) != value(wanted, key)}


def _state(info: ConsumerInfo) -> ConsumerState:
    return ConsumerState(
        pending=info.num_pending or 0,
        ack_pending=info.num_ack_pending or 0,
        redelivered=info.num_redelivered or 0,
        ack_floor=info.ack_floor.stream_seq if info.ack_floor else 0,
    )


def before_sequence(reply: str) -> str:
    """What comes before the stream sequence in the reply subject of a delivery, in either form of ADR-15 of NATS; empty for others.

    `$JS.ACK`, stream, consumer, count of deliveries, stream sequence, and three more; or with domain and account before the
    stream, and perhaps more after.
    """
    parts = reply.split(".")
    if len(parts) < 9 or len(parts) == 10 or not reply.startswith(_ACK_PREFIX):
        return ""
    at = 5 if len(parts) == 9 else 7
    return ".".join(parts[:at]) + "." if first_sequence(parts[at]) else ""


def first_sequence(tokens: str) -> str:
    """The sequence with which the tokens of a subject begin, in digits; empty for others."""
    first = tokens.partition(".")[0]
    return first if len(first) <= _SEQUENCE_DIGITS and first.isdigit() and first.isascii() else ""
