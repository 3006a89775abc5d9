"""Acknowledgements of deliveries to the broker: in order, over losses of the link.

An ack that is lost with a connection leads to one more delivery, which deduplication handles; none is sent before the commit.
"""

import asyncio
from typing import Final

import msgspec

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
        self._queue: list[tuple[str, bytes]] = []
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
            batch = self._queue[:_BATCH]
            try:
                published = self._link.publish_all_nowait(batch)
            except (BadPublish, PayloadTooLarge):
                published = False
            if published:
                del self._queue[: len(batch)]
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
            del queue[0]


class PendingAcks:
    """The deliveries of one consumer by stream sequence: pending until settled; the last acked ones are remembered."""

    def __init__(self, acks: AckQueue) -> None:
        self._acks = acks
        self._pending: set[int] = set()
        self._acked: set[int] = set()
        self._acked_before: set[int] = set()  # the _MAX_ACKED before those

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._pending

    def accept(self, sequence: int, reply: str) -> "Delivery | None":
        """The settlement of a new delivery; None for one that is pending, and for one that was acked, which is acked again."""
        if sequence in self._pending:
            return None
        if sequence in self._acked or sequence in self._acked_before:
            self._acks.put(reply, ACK)
            return None
        self._pending.add(sequence)
        return Delivery(self, sequence, reply)

    def ack(self, sequence: int, reply: str) -> None:
        """Acknowledge a pending delivery; does nothing when it is not pending any more."""
        pending, acked = self._pending, self._acked
        if sequence in pending:
            pending.remove(sequence)
            acked.add(sequence)
            self._acks.put(reply, ACK)
            if len(acked) >= _MAX_ACKED:
                self._acked, self._acked_before = set(), acked

    def nak(self, sequence: int, reply: str, delay: float) -> None:
        """Have a pending delivery delivered again after `delay` seconds; does nothing when it is not pending any more."""
        if sequence in self._pending:
            self._pending.remove(sequence)
            self._acks.put(reply, nak_after(delay))

    def drop(self) -> None:
        """The stream is gone: its pending deliveries can no longer be settled."""
        self._pending.clear()


class Delivery(msgspec.Struct, eq=False, gc=False):
    """The Settlement of one delivered message; only the first call has an effect."""

    pending: PendingAcks
    sequence: int
    reply: str

    def ack(self) -> None:
        """Acknowledge: it is committed, or needs no commit."""
        self.pending.ack(self.sequence, self.reply)

    def nak(self, delay: float) -> None:
        """It could not be stored: deliver it again after `delay` seconds."""
        self.pending.nak(self.sequence, self.reply, delay)
