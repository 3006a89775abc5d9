"""The durable consumer of one channel: it keeps our place in the stream while we are away.

A pull consumer with explicit acks: the broker delivers what we have requested, to a subject that only the request names.
docs/jetstream.md says why the requests do not come from the client library's subscriptions.
"""

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.jetstream.acks import NAK, PendingAcks
from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.jetstream import ConsumerConfig, ConsumerInfo
from aghbus.daemon.nats.link import InboundMessage, JetStreamError, Link, LinkError, LinkTimeout, Subscription
from aghbus.protocol.agh.identifiers import route_token
from aghbus.protocol.agh.nats.jetstream import NANOSECONDS, PROVISIONED, consumer_config
from aghbus.protocol.agh.nats.names import JETSTREAM_API, durable_name, inbox, own_subjects

_NOT_FOUND: Final = 10014
FLUSH_TIMEOUT: Final = 5.0
"""Seconds for the broker to begin or end a subscription."""
_BATCH: Final = 512  # messages of one request; the next request follows when half of them have come
_REQUEST_BYTES: Final = 8 * 1_048_576  # of one request: the broker ends a connection with 64 MiB that were not read
_REQUEST_EXPIRES: Final = 10 * NANOSECONDS  # before the link can notice that its connection is dead (nats/link.py)
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
        *,
        peer_id: str,
        workspace_id: str,
        channel: str,
        observe: bool,
        settings: JetStreamSettings,
        flush_timeout: float = FLUSH_TIMEOUT,
    ) -> None:
        """`flush_timeout` in seconds is how long the broker may take to begin or end the subscription."""
        self.channel = channel
        self.peer_id = peer_id
        self.name = durable_name(workspace_id, channel, route_token(peer_id))
        self.state = ConsumerState()
        self.is_provisioned = False  # made by the operator: then our permissions cover little of JetStream's API
        self.duplicates = 0  # deliveries of messages that were pending or acked already
        self._link = link
        self._flush_timeout = flush_timeout
        self._expected = consumer_config(
            self.name,
            filters=own_subjects(peer_id, workspace_id, channel, observe=observe),
            ack_wait=settings.ack_wait,
            max_in_flight=settings.max_in_flight,
        )
        self._inbox = ""  # where the messages of our requests come, on this connection
        self._requested = 0  # messages that we have requested and not got
        self._refusal = ""  # why the broker refused the last request
        self._pending = PendingAcks(link)
        self._stream = ""  # the `created` of the stream that we were last attached to
        self._connection = -1  # the link's count of reconnects when lost deliveries were last requested
        self._subscription: Subscription | None = None
        self._closed = False

    @property
    def attached(self) -> bool:
        """Whether messages come: the consumer was there at the last look, and the subscription is live."""
        return self._subscription is not None and self._subscription.attached

    async def check(self, stream: str, offer: Callable[[InboundMessage], None]) -> None:
        """Ensure the consumer on the stream created at `stream`, and our requests, whose messages go to `offer`. Raises
        JetStreamError, LinkError."""
        self._offer = offer
        if self._stream and stream != self._stream:
            self._pending.drop()
            self._pending = PendingAcks(self._link)
        refusal, self._refusal = self._refusal, ""
        received = self._subscription.received if self._subscription else 0
        info = await self._ensure(stream)
        again = self._stream != stream or self._connection != self._link.reconnects
        if again and info.num_waiting:  # no request of ours: one on an earlier connection has expired
            raise self._in_use()
        self._stream, self.state = stream, _state(info)
        if again:
            await self._request_lost(info)
            self._connection = self._link.reconnects
        if self._closed:
            return
        if self._subscription is None:
            self._inbox = f"{inbox(self.peer_id, 'deliver')}.{secrets.token_hex(12)}"
            self._subscription = self._link.subscribe(self._inbox, self._delivered)
            await self._link.flush(self._flush_timeout)
        if again or not (info.num_waiting or self._subscription.received > received):
            self._requested = 0  # the broker has no request of ours, and nothing is on its way
            self._request()
        if refusal:
            raise JetStreamError(0, f"the consumer {self.name} refuses our requests: {refusal}")

    def link_down(self) -> None:
        """The connection is lost, and our requests with it: the next one has another inbox. Under the same, the broker would
        go on with them, and deliver newer messages before those that were lost."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.unsubscribe()

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
        if info.config.deliver_subject:
            return await self._replace(stream, info)
        self.is_provisioned = info.config.description == PROVISIONED
        if not self.is_provisioned:
            return await self._put({**info.config.as_dict(), **self._expected}) if different else info
        for key in ("filter_subjects", "ack_policy"):
            if key in different:
                raise self._unusable(info, f"has another {key} than it needs")
        return info

    async def _replace(self, stream: str, info: ConsumerInfo) -> ConsumerInfo:
        """A push consumer, as earlier versions had it, gives way to ours, which starts after what that one had settled."""
        if str(info.config.deliver_subject).endswith(self.name):  # those of daemons had one token more
            raise self._unusable(info, "is a push consumer")
        if info.push_bound:
            raise self._in_use()
        self._stream, self.state = (
            stream,
            _state(info),
        )  # if the link is lost in between, the next check goes on from here
        await self.delete()
        return await self._put({**self._expected, **self._start(stream)})

    def _unusable(self, info: ConsumerInfo, why: str) -> JetStreamError:
        """The operator's consumer (docs/security/broker.md) is used as it is, or not at all."""
        start = ", ".join(f"{key} {value}" for key, value in _after(_state(info)).items())
        hint = f"delete it, and make it as `aghctl nats permissions --format json` says, but with {start}"
        return JetStreamError(0, f"the consumer {self.name} {why} ({hint})")

    def _in_use(self) -> JetStreamError:
        return JetStreamError(
            0,
            f"another daemon receives as {self.peer_id} on channel {self.channel}:"
            " give one of them another --peer-id, or wait ten seconds for a connection that died",
        )

    def _start(self, stream: str) -> dict[str, Any]:
        """A new consumer starts with new messages; one that replaces a lost consumer, after what that one had settled."""
        if not self._stream:
            return {"deliver_policy": "new"}
        if stream != self._stream:
            return {"deliver_policy": "all"}
        return _after(self.state)

    async def _put(self, config: dict[str, object]) -> ConsumerInfo:
        """Create or update: one request of the API."""
        wanted = ConsumerConfig.from_response(config)
        return await self._link.jetstream(lambda js: js.add_consumer(STREAM, wanted))

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
            await self._link.publish(f"{prefix}.{sequence}.{suffix}", NAK.encode())
        # The broker answers the last one after it has processed all of them: nothing newer is delivered before.
        await self._link.request(f"{prefix}.{lost[-1]}.{suffix}", NAK.encode(), self._flush_timeout)

    # receiving

    def _request(self) -> None:
        """Request more messages, unless enough are requested."""
        if self._requested > _BATCH // 2 or self._closed:
            return
        size = max(_REQUEST_BYTES, 2 * self._link.max_payload)  # room for one message at least
        request = json.dumps({"batch": _BATCH, "max_bytes": size, "expires": _REQUEST_EXPIRES})
        subject = f"{JETSTREAM_API}.CONSUMER.MSG.NEXT.{STREAM}.{self.name}"
        frame = f"PUB {subject} {self._inbox} {len(request)}\r\n{request}\r\n"
        with contextlib.suppress(LinkError):  # the next message brings the next attempt, or the next check
            self._link.put(frame.encode())
            self._requested += _BATCH

    def _ended(self, headers: Mapping[str, str]) -> None:
        """A request has expired, is full, or was refused. Those that are lost otherwise are noticed by `check`."""
        description, left = headers.get("Description", ""), headers.get("Nats-Pending-Messages", "")
        if description.startswith("Exceeded Max"):  # a limit of the server, or of the operator's consumer
            self._refusal = description
        if left.isdecimal():
            self._requested = max(0, self._requested - int(left))
            self._request()

    def _delivered(self, message: InboundMessage) -> None:
        headers = message.headers
        if headers is not None and not message.data and "Status" in headers:
            self._ended(headers)
            return
        self._requested -= 1
        self._request()
        sequence, reply = stream_sequence(message.reply), message.reply
        if not sequence:
            return  # not from the stream
        delivery = self._pending.accept(sequence, reply)
        if delivery is None:
            self.duplicates += 1
            return
        message.settlement = delivery
        message.reply = ""  # that was the broker's, for the settlement; the sender's is in a header
        self._offer(message)


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


def _after(state: ConsumerState) -> dict[str, Any]:
    """The start of a consumer that replaces one in that state."""
    return {"deliver_policy": "by_start_sequence", "opt_start_seq": state.ack_floor + 1}


def stream_sequence(reply: str) -> str:
    """The stream sequence in the reply subject of a delivery, in digits; empty for other subjects.

    ADR-15 of NATS: `$JS.ACK`, stream, consumer, count of deliveries, stream sequence, and three more; or with domain and account
    before the stream, and perhaps more after.
    """
    parts = reply.split(".")
    return parts[5 if len(parts) == 9 else 7] if len(parts) >= 9 and parts[1] == "ACK" else ""
