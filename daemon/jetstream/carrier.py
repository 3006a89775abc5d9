"""From the outbox into the stream: each message published with its id and confirmed by the stream, many in flight at a time.

A message counts as published when the stream has confirmed it. A message that the stream refuses for now stays in the outbox. A
stream that refuses gets one message at a time, at growing intervals, because each publish also reaches the peers of core NATS.
"""

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.jetstream.confirmations import (
    MESSAGE_ID,
    NO_STREAM,
    NOT_STORED,
    ONLY_IN_STREAM,
    Confirmations,
    Outcome,
)
from aghbus.daemon.jetstream.stream import STREAM
from aghbus.daemon.nats.ack_inboxes import AckInboxes
from aghbus.daemon.nats.carrier import Carried
from aghbus.daemon.nats.jetstream import JetStreamContext, translate_error
from aghbus.daemon.nats.link import BadPublish, JetStreamError, Link, PayloadTooLarge
from aghbus.protocol.agh.delivery.acks import ANSWER_TO
from aghbus.protocol.agh.delivery.order import AFTER_SETTLED
from aghbus.protocol.agh.identifiers import channel_of_subject
from aghbus.protocol.agh.nats.names import durable_name
from aghbus.protocol.agh.trust.tags import TAG
from aghbus.protocol.base.backoff import Backoff
from aghbus.store.tables.outbox import Outgoing

_OPEN_WAIT: Final = 5.0  # seconds for the stream to be there, before a batch goes back to the outbox
_CONFIRM_WAIT: Final = 10.0  # seconds without a single confirmation, before the rest goes back
_FIRST_PAUSE: Final = 0.5  # seconds before a stream that refused gets the next message; doubled each time
_LONGEST_PAUSE: Final = 5.0  # seconds, so that it continues soon after there is room
_BATCH_BYTES: Final = 4_194_304  # of envelopes that are unconfirmed at a time
_CLOCK_MARGIN: Final = 60  # seconds that the stream keeps a message after it is stale by our clock
_MAX_SEQUENCES: Final = 65_536  # messages whose stream sequence is known

_REFUSED: Final = 0  # in place of a stream sequence: the stream has no copy
_MESSAGE_TOO_LARGE: Final = 10054


class JetStreamCarrier:
    """A Carrier: many publishes at a time."""

    def __init__(
        self,
        link: Link,
        *,
        ack_inboxes: AckInboxes,
        confirm_root: str,
        window: int,
        seconds: Callable[[], int],
        on_refused: Callable[[JetStreamError], None],
        on_accepted: Callable[[], None],
    ) -> None:
        """Receivers acknowledge in `ack_inboxes`, the stream confirms below `confirm_root`. At most `window`
        messages are unconfirmed; `seconds` is Unix time.

        `on_refused` is called with the reason when the stream did not take something, `on_accepted` when it did after that.
        """
        self._link = link
        self._ack_inboxes = ack_inboxes
        self._confirmations = Confirmations(link, confirm_root)
        self._window = window
        self._seconds = seconds
        self._on_refused = on_refused
        self._on_accepted = on_accepted
        self._open = asyncio.Event()
        self._has_ttl = False
        self._pause = 0.0
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._unconfirmed: set[asyncio.Future[Outcome]] = set()
        # By outbox sequence and whether the copy says that its predecessor is settled: its stream sequence, or _REFUSED.
        self._sequences: OrderedDict[tuple[int, bool], int] = OrderedDict()

    @property
    def unconfirmed(self) -> int:
        """Messages published and not yet confirmed."""
        return len(self._unconfirmed)

    # the stream, as the profile sees it

    def open(self, *, has_ttl: bool) -> None:
        """The stream is there; `has_ttl` when its messages may have a time to live."""
        self._has_ttl = has_ttl
        self._open.set()

    def shut(self, *, forget: bool) -> None:
        """The stream is not there; with `forget`, its messages are gone too, and the unconfirmed ones stay in the outbox."""
        self._open.clear()
        if forget:
            self._sequences.clear()
            for confirmation in self._unconfirmed:
                confirmation.cancel()

    # carrying

    def hand_over(self, _row: Outgoing) -> bool:
        """Not possible: the stream confirms each message."""
        return False

    async def confirm(self) -> None:
        """Nothing is handed over."""

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        """`rows` in order. Raises LinkError when the link is lost on the way."""
        carried = Carried([], [])
        if not await wait_set(self._open, _OPEN_WAIT):
            return carried
        waiting = list(rows)
        if self._pause:
            await asyncio.sleep(self._pause)
            await self._send(carried, waiting[:1])
            del waiting[:1]
        while waiting and not self._pause:
            count = self._batch_size(waiting)
            await self._send(carried, waiting[:count])
            del waiting[:count]
        return carried

    def _batch_size(self, rows: Sequence[Outgoing]) -> int:
        """How many of `rows` go out before their confirmations are waited for; at least one."""
        sizes = itertools.accumulate(len(row.raw) for row in rows[: self._window])
        return max(1, sum(size <= _BATCH_BYTES for size in sizes))

    async def _send(self, carried: Carried, rows: Sequence[Outgoing]) -> None:
        refused = await self._link.jetstream(lambda js: self._publish_all(js, carried, rows))
        if refused is not None:
            self._pause = self._backoff.next()
            self._on_refused(refused)
        elif self._pause and carried.published:
            self._pause = 0.0
            self._backoff.reset()
            self._on_accepted()

    async def _publish_all(
        self, js: JetStreamContext, carried: Carried, rows: Sequence[Outgoing]
    ) -> JetStreamError | None:
        """Publish `rows` and wait for their confirmations. Returns why the stream refused one of them for now."""
        confirmations: dict[asyncio.Future[Outcome], Outgoing] = {}
        floors: dict[str, int] = {}
        try:
            for row in rows:
                try:
                    confirmation = await self._publish(row, await self._headers(js, row, floors))
                except (PayloadTooLarge, BadPublish) as error:
                    carried.impossible.append((row.seq, str(error)))
                else:
                    confirmations[confirmation] = row
                    self._unconfirmed.add(confirmation)
            failpoint("publish.handed")
            silent = await _until_done(confirmations)
            refused = [self._conclude(carried, row, confirmation) for confirmation, row in confirmations.items()]
            return next((error for error in refused if error is not None), silent)
        finally:
            self._unconfirmed -= confirmations.keys()
            for confirmation in confirmations:
                confirmation.cancel()

    async def _publish(self, row: Outgoing, headers: dict[str, str]) -> asyncio.Future[Outcome]:
        """Publish one message. Raises PayloadTooLarge, BadPublish; LinkDown."""
        reply, confirmation = self._confirmations.expect(headers)
        try:
            try:
                await self._link.publish(row.subject, row.raw, headers or None, reply)
            except PayloadTooLarge:  # headers are optional
                headers.clear()
                await self._link.publish(row.subject, row.raw, None, reply)
        except BaseException:
            confirmation.cancel()
            raise
        return confirmation

    def _conclude(
        self, carried: Carried, row: Outgoing, confirmation: asyncio.Future[Outcome]
    ) -> JetStreamError | None:
        """Note the outcome of one message in `carried`. Returns the error after which it is tried again."""
        if not confirmation.done() or confirmation.cancelled():
            return None
        match confirmation.result():
            case JetStreamError(code=code) as error if code == _MESSAGE_TOO_LARGE:
                carried.impossible.append((row.seq, f"refused by the stream {STREAM}: {error}"))
            case JetStreamError() as error:
                self._remember(row, _REFUSED)
                return error
            case sequence:
                if sequence != NOT_STORED:
                    self._remember(row, sequence)
                carried.published.append(row.seq)
        return None

    def _remember(self, row: Outgoing, sequence: int) -> None:
        self._sequences[_copy(row)] = sequence
        if len(self._sequences) > _MAX_SEQUENCES:
            self._sequences.popitem(last=False)

    async def _headers(self, js: JetStreamContext, row: Outgoing, floors: dict[str, int]) -> dict[str, str]:
        headers: dict[str, str] = {}
        if reply := self._ack_inboxes.reply(row):
            headers[ANSWER_TO] = reply
        if row.tag:
            headers[TAG] = row.tag
        sequence = self._sequences.get(_copy(row))
        # None of the three can hold a space but the last one, so that the join is unambiguous.
        message_id = f"{row.workspace_id} {row.sender} {row.message_id}"
        if row.settled:  # the copy in the stream has no such header: this is another one
            headers[AFTER_SETTLED] = row.settled
            message_id = f"settled {message_id}"
        if sequence == _REFUSED:
            pass  # peers have seen the id, and may have stored something else under it
        elif sequence is None or not row.attempts:
            headers[MESSAGE_ID] = message_id
        elif sequence > await self._floor(js, row, floors):
            headers[ONLY_IN_STREAM] = NO_STREAM
        if self._has_ttl:
            headers["Nats-TTL"] = str(max(1, row.expires_at - self._seconds() + _CLOCK_MARGIN))
        return headers

    async def _floor(self, js: JetStreamContext, row: Outgoing, floors: dict[str, int]) -> int:
        """The stream sequence up to which the receiver's consumer has settled everything; -1 without a consumer.

        The stream still keeps a message after it for its receiver: another copy would only take room. A message up to it was
        settled without an answer to us, or stored before there was that consumer: it is stored once more, without the id that
        the stream would recognize. `floors` caches the answers during one batch.
        """
        workspace_id, channel = channel_of_subject(row.subject) or ("", "")
        name = durable_name(workspace_id, channel, row.subject.rpartition(".")[2])
        if name not in floors:
            try:
                floors[name] = (await js.consumer_info(STREAM, name)).ack_floor.stream_seq
            except Exception as error:
                failed = translate_error(error)
                if not isinstance(failed, JetStreamError):
                    raise failed from None
                floors[name] = -1
        return floors[name]


def _copy(row: Outgoing) -> tuple[int, bool]:
    """The key of a message's copy in the stream: the one whose header settles its predecessor is another copy."""
    return row.seq, bool(row.settled)


async def _until_done(confirmations: Iterable[asyncio.Future[Outcome]]) -> JetStreamError | None:
    """Wait for all of them, as long as some come. Returns an error when none has come for long."""
    waiting = set(confirmations)
    while waiting:
        done, waiting = await asyncio.wait(waiting, timeout=_CONFIRM_WAIT)
        if not done:
            return JetStreamError(0, f"the stream has confirmed nothing for {_CONFIRM_WAIT:g} s")
    return None
