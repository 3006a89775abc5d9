"""Acknowledgements of deliveries to the broker: in order, over losses of the link.

An ack that is lost with a connection leads to one more delivery, which deduplication handles; none is sent before the commit.
"""

import asyncio
from collections import OrderedDict, deque
from itertools import islice
from typing import Final

from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.nats.link import BadPublish, Link, LinkError, PayloadTooLarge

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
_MAX_ACKED: Final = (
    16_384  # acked sequences that are kept; a broker that was killed has forgotten the acks of its last moments
)
_LINK_WAIT: Final = 1.0  # seconds between two checks of a link that is down
_BATCH: Final = 256  # acks published as one piece
_RETRY_DELAY: Final = 0.05  # seconds; a connection may be lost before the link knows it


def nak_after(delay: float) -> bytes:
    """A negative acknowledgement: deliver again after `delay` seconds (ADR-15 of NATS' architecture)."""
    return NAK + b' {"delay": %d}' % int(delay * 1_000_000_000)


class AckQueue:
    """A queue of small publishes, and the task that empties it."""

    def __init__(self, link: Link) -> None:
        self.refused = 0  # entries whose subject cannot be published to
        self._link = link
        self._queue: deque[tuple[str, bytes]] = deque()
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, subject: str, data: bytes) -> None:
        """Publish `data` to `subject` after everything that was put before; returns immediately."""
        if not self._queue:
            self._empty.clear()
            self._filled.set()
        self._queue.append((subject, data))

    def clear(self) -> None:
        """Drop everything: the stream is gone, and its sequences belong to other messages now."""
        self._queue.clear()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            try:
                await self._publish()
            except LinkError:
                self._filled.set()
                await asyncio.sleep(_RETRY_DELAY)
                await self._link.wait_up(_LINK_WAIT)

    async def drained(self, timeout: float) -> bool:
        """Wait until everything is published; False when `timeout` seconds passed before."""
        return await wait_set(self._empty, timeout)

    async def _publish(self) -> None:
        while self._queue:
            batch = list(islice(self._queue, _BATCH))
            try:
                published = self._link.publish_all_nowait(batch)
            except (BadPublish, PayloadTooLarge):
                published = False
            if published:
                for _ in batch:
                    self._queue.popleft()
            else:  # one of them is impossible, or the buffer is full
                for entry in batch:
                    await self._publish_one(entry)
        self._empty.set()

    async def _publish_one(self, entry: tuple[str, bytes]) -> None:
        queue = self._queue
        if not queue or queue[0] is not entry:
            return  # cleared meanwhile
        try:
            await self._link.publish(*entry)
        except (BadPublish, PayloadTooLarge):
            self.refused += 1  # a retry would block all others
        if queue and queue[0] is entry:
            queue.popleft()


class PendingAcks:
    """The deliveries of one consumer by stream sequence: pending until settled; the last acked ones are remembered."""

    def __init__(self, acks: AckQueue) -> None:
        self._acks = acks
        self._pending: set[int] = set()
        self._acked: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._pending

    def accept(self, sequence: int, reply: str) -> bool:
        """Whether a delivery is new. A pending one is settled later; one that was acked is acked again."""
        if sequence in self._pending:
            return False
        if sequence in self._acked:
            self._acks.put(reply, ACK)
            return False
        self._pending.add(sequence)
        return True

    def answer(self, sequence: int, reply: str, word: bytes) -> None:
        """Send `word` about a pending delivery; does nothing when it is not pending any more."""
        if sequence not in self._pending:
            return
        self._pending.discard(sequence)
        self._acks.put(reply, word)
        if word is ACK:
            self._acked[sequence] = None
            if len(self._acked) > _MAX_ACKED:
                self._acked.popitem(last=False)

    def drop(self) -> None:
        """The stream is gone: its pending deliveries can no longer be settled."""
        self._pending.clear()


class Delivery:
    """The Settlement of one delivered message; only the first call has an effect."""

    __slots__ = ("_pending", "_reply", "_sequence")

    def __init__(self, pending: PendingAcks, sequence: int, reply: str) -> None:
        self._pending = pending
        self._sequence = sequence
        self._reply = reply

    def ack(self) -> None:
        """Acknowledge: it is committed, or needs no commit."""
        self._pending.answer(self._sequence, self._reply, ACK)

    def nak(self, delay: float) -> None:
        """It could not be stored: deliver it again after `delay` seconds."""
        self._pending.answer(self._sequence, self._reply, nak_after(delay))
