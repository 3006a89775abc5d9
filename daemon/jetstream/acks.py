"""Acknowledgements of deliveries to the broker: in order, over losses of the link.

An ack that is lost with a connection leads to one more delivery, which deduplication handles; none is sent before the commit.
"""

import asyncio
from typing import Final

import msgspec

from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.nats.link import Link, LinkError

ACK: Final = "+ACK"
NAK: Final = "-NAK"
_MAX_ACKED: Final = (
    16_384  # acked sequences that are kept; a broker that was killed has forgotten the acks of its last moments
)
_LINK_WAIT: Final = 1.0  # seconds between two checks of a link that is down
_FLUSH_WAIT: Final = 10.0  # seconds for the broker to take what fills the buffer
_BATCH: Final = 256  # acks published as one piece
_RETRY_DELAY: Final = 0.05  # seconds; a connection may be lost before the link knows it


def nak_after(delay: float) -> str:
    """A negative acknowledgement: deliver again after `delay` seconds (ADR-15 of NATS' architecture)."""
    return f'{NAK} {{"delay": {int(delay * 1_000_000_000)}}}'


class AckQueue:
    """A queue of small publishes, and the task that empties it."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._queue: list[str] = []  # the frames of the publishes
        self._filled = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, subject: str, data: str) -> None:
        """Publish `data`, in ASCII, to `subject` after everything that was put before; returns immediately."""
        if not self._queue:
            self._empty.clear()
            self._filled.set()
        self._queue.append(f"PUB {subject} {len(data)}\r\n{data}\r\n")

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
        while batch := self._queue[:_BATCH]:
            if self._link.put("".join(batch).encode()):
                del self._queue[: len(batch)]
            else:
                await self._link.flush(_FLUSH_WAIT)
        self._empty.set()


class PendingAcks:
    """The deliveries of one consumer by stream sequence, in digits: pending until settled; the last acked ones are remembered."""

    def __init__(self, acks: AckQueue) -> None:
        self.acks = acks
        self.acked: dict[str, bool] = {}  # False: pending
        self._before: dict[str, bool] = {}  # what `acked` was before it became too large
        self._limit = _MAX_ACKED

    def accept(self, sequence: str, reply: str) -> "Delivery | None":
        """The settlement of a new delivery; None for one that is pending, and for one that was acked, which is acked again."""
        known = self.acked.get(sequence)
        if known is None and not self._before.get(sequence):
            if len(self.acked) >= self._limit:
                self._forget()
            self.acked[sequence] = False
            return Delivery(self, sequence, reply)
        if known is not False:
            self.acks.put(reply, ACK)
        return None

    def _forget(self) -> None:
        self._before, self.acked = self.acked, {one: False for one, acked in self.acked.items() if not acked}
        self._limit = _MAX_ACKED + len(self.acked)

    def drop(self) -> None:
        """The stream is gone: its pending deliveries can no longer be settled."""
        self.acked.clear()


class Delivery(msgspec.Struct, eq=False, gc=False):
    """The Settlement of one delivered message; only the first call has an effect."""

    pending: PendingAcks
    sequence: str
    reply: str

    def ack(self) -> None:
        """Acknowledge: it is committed, or needs no commit."""
        pending, sequence = self.pending, self.sequence
        if pending.acked.get(sequence) is False:
            pending.acked[sequence] = True
            pending.acks.put(self.reply, ACK)

    def nak(self, delay: float) -> None:
        """It could not be stored: deliver it again after `delay` seconds."""
        if self.pending.acked.get(self.sequence) is False:
            del self.pending.acked[self.sequence]
            self.pending.acks.put(self.reply, nak_after(delay))
