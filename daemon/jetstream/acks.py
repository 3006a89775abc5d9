"""Acknowledgements of deliveries to the broker; none is sent before the commit.

One that is lost with its connection leads to one more delivery, which is acknowledged again and not offered.
"""

import contextlib
from typing import Final

import msgspec

from aghbus.daemon.nats.link import Link, LinkError

ACK: Final = "+ACK"
NAK: Final = "-NAK"
_MAX_ACKED: Final = (
    16_384  # acked sequences that are kept; a broker that was killed has forgotten the acks of its last moments
)


def nak_after(delay: float) -> str:
    """A negative acknowledgement: deliver again after `delay` seconds (ADR-15 of NATS' architecture)."""
    return f'{NAK} {{"delay": {int(delay * 1_000_000_000)}}}'


class PendingAcks:
    """The deliveries of one consumer by stream sequence, in digits: pending until settled; the last acked ones are remembered."""

    def __init__(self, link: Link) -> None:
        self.acked: dict[str, bool] = {}  # False: pending
        self._before: dict[str, bool] = {}  # what `acked` was before it became too large
        self._limit = _MAX_ACKED
        self._link = link

    def send(self, reply: str, data: str) -> None:
        """Answer a delivery with `data`, in ASCII. The broker's bound on pending deliveries bounds what is unsent."""
        with contextlib.suppress(LinkError):
            self._link.put(f"PUB {reply} {len(data)}\r\n{data}\r\n".encode())

    def accept(self, sequence: str, reply: str) -> "Delivery | None":
        """The settlement of a new delivery; None for one that is pending, and for one that was acked, which is acked again."""
        known = self.acked.get(sequence)
        if known is None and not self._before.get(sequence):
            if len(self.acked) >= self._limit:
                self._forget()
            self.acked[sequence] = False
            return Delivery(self, sequence, reply)
        if known is not False:
            self.send(reply, ACK)
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
            pending.send(self.reply, ACK)

    def nak(self, delay: float) -> None:
        """It could not be stored: deliver it again after `delay` seconds."""
        if self.pending.acked.get(self.sequence) is False:
            del self.pending.acked[self.sequence]
            self.pending.send(self.reply, nak_after(delay))
