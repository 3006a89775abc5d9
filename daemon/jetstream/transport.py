"""From the outbox into the stream: each message published with its id and confirmed by the stream, many on their way at a time.

A message counts as published when the stream has confirmed it. What the stream refuses now stays in the outbox; a stream that
refuses is asked again with one message at a time, at growing pauses, because each publish also reaches the peers of core NATS.
"""

import asyncio
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.jetstream.api import JetStreamApi, JetStreamError, NoJetStream, read_error
from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.link import BadPublish, InboundMessage, Link, LinkDown, PayloadTooLarge
from aghbus.daemon.nats.transport import Carried
from aghbus.protocol.acks import ANSWER_TO
from aghbus.protocol.base.backoff import Backoff
from aghbus.protocol.identifiers import channel_of_subject
from aghbus.protocol.nats.names import durable_name, inbox
from aghbus.store.tables.outbox import Outgoing

_OPEN_WAIT: Final = 5.0  # seconds for the stream to be there, before a batch goes back to the outbox
_CONFIRM_WAIT: Final = 10.0  # seconds without a single confirmation, before the rest goes back
_TICK: Final = 0.25  # seconds between two looks whether the link is still the same
_FIRST_PAUSE: Final = 0.5  # seconds before a stream that refused is asked again; doubled each time
_LONGEST_PAUSE: Final = 5.0  # seconds, so that it goes on soon after there is room
_CLOCK_MARGIN: Final = 60  # seconds that the stream keeps a message after it is stale by our clock
_REMEMBERED: Final = 65_536  # messages of which we know the place in the stream

_NOT_THIS_STREAM: Final = 10060
_MESSAGE_TOO_LARGE: Final = 10054
_NEVER: Final = frozenset({_MESSAGE_TOO_LARGE})  # error codes after which the same message need not be tried again


class Confirmation(msgspec.Struct):
    """What a stream answers to a publish."""

    stream: str = ""
    seq: int = 0
    error: dict[str, Any] | None = None


_decode: Final = msgspec.json.Decoder(Confirmation).decode


class _Batch:
    """One call of `carry` under way."""

    def __init__(self) -> None:
        self.carried = Carried([], [])
        self.open = 0
        self.refused: JetStreamError | None = None
        self.changed = asyncio.Event()


class JetStreamCarrier:
    """A Carrier. `answered` gets what else comes to our reply subjects: the receivers' commit acknowledgements."""

    def __init__(
        self,
        link: Link,
        api: JetStreamApi,
        *,
        us: str,
        window: int,
        seconds: Callable[[], int],
        answered: Callable[[InboundMessage], None],
        refused: Callable[[JetStreamError], None],
        taken: Callable[[], None],
    ) -> None:
        """Answers come to inboxes of the peer `us`. At most `window` messages are unconfirmed at a time; `seconds` is Unix time.

        `refused` is called with why the stream did not take something now, `taken` when it took something after that.
        """
        self._link = link
        self._api = api
        self._window = window
        self._seconds = seconds
        self._answered = answered
        self._refused = refused
        self._taken = taken
        # Two, since a receiver is told where to acknowledge, and must not be able to confirm in the stream's name.
        mark = secrets.token_hex(12)
        self._root = f"{inbox(us, 'pub')}.{mark}"
        self._ack_root = f"{inbox(us, 'ack')}.{mark}"
        self._numbers = itertools.count(1)
        self._flights: dict[str, tuple[_Batch, Outgoing]] = {}
        self._open = asyncio.Event()
        self._expires = False
        self._pause = 0.0
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._places: OrderedDict[int, int] = OrderedDict()  # outbox sequence to stream sequence
        self._replies = [link.subscribe(f"{root}.*.*", self._replied) for root in (self._root, self._ack_root)]

    # the stream, as the profile sees it

    def open(self, *, expires: bool) -> None:
        """The stream is there; `expires` when its messages may have a life of their own."""
        self._expires = expires
        self._open.set()

    def shut(self, *, forget: bool) -> None:
        """The stream is not there; with `forget` nor is what was in it, and what is on its way goes back to the outbox."""
        self._open.clear()
        if forget:
            self._places.clear()
            for batch, _row in self._flights.values():
                batch.open -= 1
                batch.changed.set()
            self._flights.clear()

    async def close(self) -> None:
        """Ends the subscriptions for confirmations and acknowledgements."""
        for subscription in self._replies:
            await subscription.unsubscribe()

    # carrying

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        """`rows` in order. Raises LinkError when the link is lost on the way."""
        batch = _Batch()
        if not await self._is_open():
            return batch.carried
        waiting = list(rows)
        if self._pause:
            await asyncio.sleep(self._pause)
            await self._send(batch, waiting[:1])
            del waiting[:1]
        if not self._pause:
            await self._send(batch, waiting)
        return batch.carried

    async def _is_open(self) -> bool:
        try:
            async with asyncio.timeout(_OPEN_WAIT):
                await self._open.wait()
        except TimeoutError:
            return False
        return True

    async def _send(self, batch: _Batch, rows: Sequence[Outgoing]) -> None:
        epoch = self._link.reconnects
        kept: dict[str, int] = {}
        try:
            for row in rows:
                await self._until(batch, epoch, lambda: len(self._flights) < self._window)
                if batch.refused is not None:
                    break
                await self._publish(batch, row, kept)
            failpoint("publish.handed")
            await self._until(batch, epoch, lambda: batch.open == 0)
        finally:
            self._abandon(batch)
        self._conclude(batch)

    async def _until(self, batch: _Batch, epoch: int, reached: Callable[[], bool]) -> None:
        """Wait for confirmations until `reached`. Ends early when none comes for long: what is open then is not taken."""
        quiet = 0.0
        while not reached() and quiet < _CONFIRM_WAIT:
            if self._link.reconnects != epoch or self._link.state != "up":
                raise LinkDown("the NATS link was lost before the stream had confirmed")
            batch.changed.clear()
            try:
                async with asyncio.timeout(_TICK):
                    await batch.changed.wait()
                quiet = 0.0
            except TimeoutError:
                quiet += _TICK
        if not reached():
            batch.refused = JetStreamError(0, f"the stream has confirmed nothing for {_CONFIRM_WAIT:g} s")

    def _abandon(self, batch: _Batch) -> None:
        if batch.open:
            for reply in [reply for reply, (owner, _) in self._flights.items() if owner is batch]:
                del self._flights[reply]
            batch.open = 0

    def _conclude(self, batch: _Batch) -> None:
        if batch.refused is not None:
            self._pause = self._backoff.next()
            self._refused(batch.refused)
        elif self._pause and batch.carried.published:
            self._pause = 0.0
            self._backoff.reset()
            self._taken()

    # one message

    async def _publish(self, batch: _Batch, row: Outgoing, kept: dict[str, int]) -> None:
        place = f"{next(self._numbers)}.{row.seq}"
        reply, answer_to = f"{self._root}.{place}", f"{self._ack_root}.{place}"
        headers = await self._headers(row, answer_to, kept)
        self._flights[reply] = (batch, row)
        batch.open += 1
        try:
            try:
                await self._link.publish(row.subject, row.raw, headers, reply)
            except (
                PayloadTooLarge
            ):  # perhaps only with its headers, which it can do without; then one inbox does for both
                self._flights[answer_to] = self._flights.pop(reply)
                reply = answer_to
                await self._link.publish(row.subject, row.raw, None, reply)
        except (PayloadTooLarge, BadPublish) as error:
            del self._flights[reply]
            batch.open -= 1
            batch.carried.impossible.append((row.seq, str(error)))

    async def _headers(self, row: Outgoing, answer_to: str, kept: dict[str, int]) -> dict[str, str]:
        headers: dict[str, str] = {}
        if row.recipient is not None:
            headers[ANSWER_TO] = answer_to
        place = self._places.get(row.seq) if row.attempts else None
        if place is None:
            # None of the three can hold a space but the last one, so that the join is unambiguous.
            headers["Nats-Msg-Id"] = f"{row.workspace_id} {row.sender} {row.message_id}"
        elif await self._keeps(row, place, kept):
            headers["Nats-Expected-Stream"] = "-"  # the stream refuses this copy; peers of core NATS get it
        if self._expires:
            headers["Nats-TTL"] = str(max(1, row.expires_at - self._seconds() + _CLOCK_MARGIN))
        return headers

    async def _keeps(self, row: Outgoing, place: int, kept: dict[str, int]) -> bool:
        """Whether the stream still keeps a message, stored at `place`, for its receiver; or that receiver has no consumer.

        Then another copy in the stream would only take room. What the receiver's consumer is past has been settled without
        an answer to us, or was stored before there was that consumer: it is stored once more, without the id that the
        stream would know again. `kept` remembers the consumers' floors during one batch.
        """
        workspace_id, channel = channel_of_subject(row.subject) or ("", "")
        name = durable_name(workspace_id, channel, row.subject.rpartition(".")[2])
        if name not in kept:
            try:
                info = await self._api.call(f"CONSUMER.INFO.{STREAM}.{name}")
                kept[name] = int(info["ack_floor"]["stream_seq"])
            except JetStreamError:
                kept[name] = -1
        return kept[name] < place

    def _replied(self, message: InboundMessage) -> None:
        confirmation = _read(message)
        if confirmation is None:
            self._answered(message)
            return
        flight = self._flights.pop(message.subject, None)
        if flight is None:
            return
        batch, row = flight
        batch.open -= 1
        self._confirmed(batch, row, confirmation)
        if batch.open == 0 or len(self._flights) < self._window:
            batch.changed.set()

    def _confirmed(self, batch: _Batch, row: Outgoing, confirmation: Confirmation | NoJetStream) -> None:
        if isinstance(confirmation, NoJetStream):
            batch.refused = confirmation
            return
        error = read_error(confirmation.error) if confirmation.error is not None else None
        if error is None:
            self._places[row.seq] = confirmation.seq
            if len(self._places) > _REMEMBERED:
                self._places.popitem(last=False)
        if error is None or error.code == _NOT_THIS_STREAM:
            batch.carried.published.append(row.seq)
        elif error.code in _NEVER:
            batch.carried.impossible.append((row.seq, f"refused by the stream {STREAM}: {error}"))
        else:
            batch.refused = error


def _read(message: InboundMessage) -> Confirmation | NoJetStream | None:
    """The confirmation in a reply, or that nobody is there to confirm; None for anything else."""
    if not message.data:
        status = (message.headers or {}).get("Status")
        return NoJetStream(f"nothing keeps the subject {message.subject}") if status == "503" else None
    try:
        confirmation = _decode(message.data)
    except (msgspec.DecodeError, RecursionError):
        return None
    return confirmation if confirmation.stream or confirmation.error else None
