"""The durable consumer of one channel: it keeps our place in the stream while we are away.

A push consumer with explicit acks and flow control: the measurements of docs/jetstream.md put it at three times a pull consumer.
The subject it pushes to belongs to this daemon's store, so that a second daemon under the same peer id is refused by the broker.
"""

import asyncio
import hashlib
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from aghbus.daemon.config.settings import JetStreamSettings
from aghbus.daemon.jetstream.acks import NAK, Acks, Delivery, Hands
from aghbus.daemon.jetstream.api import CONSUMER_NOT_FOUND, JetStreamApi, JetStreamError
from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.link import InboundMessage, Link, LinkTimeout, Subscription
from aghbus.protocol.acks import ANSWER_TO
from aghbus.protocol.identifiers import route_token
from aghbus.protocol.nats.jetstream import consumer_config
from aghbus.protocol.nats.names import durable_name, own_subjects, provisioned_delivery

_IN_USE: Final = 10013  # the consumer pushes to another subject, and somebody is subscribed there
_FLUSH_WAIT: Final = 5.0  # seconds for the broker to have a subscription, or its end
_FLOW_CHARS: Final = 512  # ours, of a subject for flow control: the server ends a connection over a line too long
_PART: Final = r"[^.]*\."
# Stream, consumer, count of deliveries, stream sequence, three more; or with domain and account before, and perhaps more behind.
_DELIVERY: Final = re.compile(
    rf"\$JS\.ACK\.(?:(?:{_PART}){{3}}([0-9]{{1,20}})(?:\.[^.]*){{3}}|(?:{_PART}){{5}}([0-9]{{1,20}})(?:\.[^.]*){{3,}})"
).fullmatch
_MOST_REFUSED: Final = 65_536  # stream sequences looked through for those that a lost connection or process had in hand


class Place(msgspec.Struct, frozen=True):
    """Where the consumer stood when it was last looked at: counts of messages, and the last settled stream sequence."""

    pending: int = 0
    ack_pending: int = 0
    redelivered: int = 0
    ack_floor: int = 0


class DurableConsumer:
    """One channel's. `check` makes it, mends it and knows whether it is right; messages go to `offer` with a settlement."""

    def __init__(
        self,
        link: Link,
        api: JetStreamApi,
        acks: Acks,
        *,
        us: str,
        instance: str,
        workspace_id: str,
        channel: str,
        observe: bool,
        settings: JetStreamSettings,
        offer: Callable[[InboundMessage], None],
    ) -> None:
        self.channel = channel
        self.name = durable_name(workspace_id, channel, route_token(us))
        self.place = Place()
        self.repeated = 0  # deliveries of what was still in our hands, or acked
        self._link = link
        self._api = api
        self._acks = acks
        self._offer = offer
        self.us = us
        mark = hashlib.sha256(f"{instance} {us}".encode()).hexdigest()[:24]
        self._provisioned = provisioned_delivery(us, workspace_id, channel)
        self._wanted = consumer_config(
            self.name,
            filters=own_subjects(us, workspace_id, channel, observe=observe),
            deliver_to=f"{self._provisioned}.{mark}",
            ack_wait=settings.ack_wait,
            max_in_flight=settings.max_in_flight,
        )
        self._flow = f"$JS.FC.{STREAM}.{self.name}."
        self._hands = Hands(acks)
        self._stream = ""  # `created` of the stream that we were last attached to
        self._connection = -1  # the link's count of reconnects when we last took up what was lost
        self._subscription: Subscription | None = None
        self._closed = False

    @property
    def attached(self) -> bool:
        """Whether messages come: the consumer was there at the last look, and the subscription is live."""
        return self._subscription is not None and self._subscription.attached

    async def check(self, stream: str) -> None:
        """Make sure of the consumer on the stream created at `stream`. Raises JetStreamError, LinkError."""
        if self._stream and stream != self._stream:
            self._acks.forget()
            self._hands.drop()
            self._hands = Hands(self._acks)
        info = await self._ensured(stream)
        known, self._stream = self._stream == stream, stream
        self.place = _place(info)
        if not known or self._connection != self._link.reconnects:
            await self._take_up(info)
            self._connection = self._link.reconnects
        deliver_to = str(info["config"]["deliver_subject"])
        if self._subscription is not None and self._subscription.subject != deliver_to:
            await self._unsubscribe()  # the operator has put one of his in the place of ours, or the reverse
        if self._subscription is None and not self._closed:
            self._subscription = self._link.subscribe(deliver_to, self._delivered)
            await self._link.flush(_FLUSH_WAIT)

    async def close(self) -> None:
        """Stop receiving; what is in our hands can still be settled. The consumer stays, it keeps our place. Raises LinkTimeout."""
        self._closed = True
        await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        """After what was on its way. Raises LinkTimeout: the connection is as good as lost, and the subscription ends with it."""
        subscription, self._subscription = self._subscription, None
        if subscription is None:
            return
        try:
            async with asyncio.timeout(_FLUSH_WAIT):
                await subscription.drain()
        except TimeoutError:
            raise LinkTimeout(f"the broker did not end a subscription within {_FLUSH_WAIT:g} s") from None

    # making

    async def _ensured(self, stream: str) -> dict[str, Any]:
        try:
            info = await self._api.call(f"CONSUMER.INFO.{STREAM}.{self.name}")
        except JetStreamError as error:
            if error.code != CONSUMER_NOT_FOUND:
                raise
            return await self._put({**self._wanted, **self._start(stream)})
        config: dict[str, Any] = info["config"]
        if config.get("deliver_subject") == self._provisioned:
            self._accept(config)
            return info
        if all(config.get(key) == value for key, value in self._wanted.items()):
            return info
        return await self._put({**config, **self._wanted})

    def _accept(self, config: Mapping[str, Any]) -> None:
        """The operator made it, since we may not (docs/security/broker.md): taken as it is, if it keeps what we need."""
        for key in ("filter_subjects", "ack_policy", "flow_control"):
            if config.get(key) != self._wanted[key]:
                hint = "delete it, and make it as `aghctl nats permissions --format json` says"
                raise JetStreamError(0, f"the consumer {self.name} has another {key} than it needs ({hint})")

    def _start(self, stream: str) -> dict[str, Any]:
        """Where a new consumer begins: with what comes from now on; or, if one was lost under us, with what it had not settled."""
        if not self._stream:
            return {"deliver_policy": "new"}
        if stream != self._stream:
            return {"deliver_policy": "all"}
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": self.place.ack_floor + 1}

    async def _put(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Create or update, the API makes no difference."""
        ask = {"stream_name": STREAM, "config": config, "action": ""}
        try:
            return await self._api.call(f"CONSUMER.CREATE.{STREAM}.{self.name}", ask)
        except JetStreamError as error:
            if error.code != _IN_USE:
                raise
            raise JetStreamError(
                error.code,
                f"another daemon receives as {self.us} on channel {self.channel}:"
                " give one of them another --peer-id, or wait some minutes for a connection that died",
            ) from None

    async def _take_up(self, info: Mapping[str, Any]) -> None:
        """Have what was delivered to a process or a connection that is gone delivered again at once, in its order.

        Else it comes only after `ack_wait`, behind everything newer. A NAK names the delivery by its stream sequence; one for
        a message that is not pending does nothing.
        """
        first, last = self.place.ack_floor + 1, int(info["delivered"]["stream_seq"])
        if not self.place.ack_pending or last - first >= _MOST_REFUSED:
            return
        any_delivery = int(info["delivered"]["consumer_seq"])
        lost = [
            f"$JS.ACK.{STREAM}.{self.name}.1.{sequence}.{any_delivery}.0.0"
            for sequence in range(first, last + 1)
            if sequence not in self._hands
        ]
        for subject in lost[:-1]:
            self._acks.put(subject, NAK)
        await self._acks.drained(_FLUSH_WAIT)
        for subject in lost[
            -1:
        ]:  # answered once the broker has dealt with all: only then nothing newer comes before them
            await self._api.request(subject, NAK, timeout=_FLUSH_WAIT)

    # receiving

    def _delivered(self, message: InboundMessage) -> None:
        headers = message.headers
        if headers and not message.data and "Status" in headers:
            stalled = message.reply or headers.get("Nats-Consumer-Stalled", "")
            if self._is_flow(stalled):
                self._acks.put(stalled, b"")  # flow control: we have had all that came before
            return
        sequence = stream_sequence(message.reply)
        if sequence is None:
            return  # somebody else published to our delivery subject
        hands = self._hands
        if not hands.take(sequence, message.reply):
            self.repeated += 1
            return
        message.settlement = Delivery(hands, sequence, message.reply)
        message.reply = headers.get(ANSWER_TO, "") if headers else ""  # the broker's own is for the settlement
        self._offer(message)

    def _is_flow(self, subject: str) -> bool:
        """Whether flow control may listen there: a stranger's message must not have us publish anywhere else, or break our line."""
        plain = subject.isprintable() and " " not in subject
        return plain and len(subject) <= _FLOW_CHARS and subject.startswith(self._flow)


def _place(info: Mapping[str, Any]) -> Place:
    return Place(
        pending=int(info["num_pending"]),
        ack_pending=int(info["num_ack_pending"]),
        redelivered=int(info["num_redelivered"]),
        ack_floor=int(info["ack_floor"]["stream_seq"]),
    )


def stream_sequence(reply: str) -> int | None:
    """The stream sequence in the reply subject of a delivery, of either form (ADR-15 of NATS' architecture); else None."""
    found = _DELIVERY(reply)
    return None if found is None else int(found[1] or found[2])
