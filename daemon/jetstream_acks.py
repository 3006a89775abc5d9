"""What we tell the broker about messages it has handed us: acknowledgements in order, over link losses.

An ack that is lost with a connection means one more delivery, which deduplication settles; none is ever sent too early.
"""

import asyncio
from collections import deque
from typing import Final

from aghbus.daemon.link import Link, LinkError
from aghbus.daemon.link_events import Settlement

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
_RETRY: Final = 1.0  # seconds between two looks at a link that is down


def nak_after(delay: float) -> bytes:
    """A refusal for now: deliver again after `delay` seconds (ADR-15 of NATS' architecture)."""
    return NAK + b' {"delay": %d}' % int(delay * 1_000_000_000)


class Acks:
    """A queue of small publishes and the task that empties it; `put` returns at once."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._queue: deque[tuple[str, bytes]] = deque()
        self._bell = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, subject: str, data: bytes) -> None:
        """Publish `data` to `subject`, after everything that was put before."""
        self._queue.append((subject, data))
        self._empty.clear()
        self._bell.set()

    def forget(self) -> None:
        """Drop what waits: its stream is gone, and its sequences belong to other messages now."""
        self._queue.clear()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            try:
                await self._publish()
            except LinkError:
                self._bell.set()
                await self._link.wait_up(_RETRY)

    async def drained(self, timeout: float) -> bool:
        """Wait until everything is published; False when `timeout` seconds passed before."""
        try:
            async with asyncio.timeout(timeout):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def _publish(self) -> None:
        queue = self._queue
        while queue:
            subject, data = queue[0]
            await self._link.publish(subject, data)
            if queue and queue[0] == (subject, data):  # not forgotten meanwhile
                queue.popleft()
        self._empty.set()


class Delivery(Settlement):
    """One delivered message in our hands, until its first settlement; later ones do nothing."""

    __slots__ = ("_reply", "_sequence", "_settled")

    def __init__(self, settled: "Settled", sequence: int, reply: str) -> None:
        self._settled: Settled | None = settled
        self._sequence = sequence
        self._reply = reply

    def ack(self) -> None:
        """It is committed, or needs no commit."""
        self._settle(ACK)

    def nak(self, delay: float) -> None:
        """It could not be taken now: again after `delay` seconds."""
        self._settle(nak_after(delay))

    def _settle(self, word: bytes) -> None:
        settled, self._settled = self._settled, None
        if settled is not None:
            settled(self._sequence, self._reply, word)


class Settled:
    """Where deliveries of one consumer report: what is in our hands, by stream sequence."""

    def __init__(self, acks: Acks) -> None:
        self._acks = acks
        self.in_hand: set[int] = set()

    def __call__(self, sequence: int, reply: str, word: bytes) -> None:
        """The delivery `sequence` is settled with `word`; nothing happens when it is no longer ours to settle."""
        if sequence in self.in_hand:
            self.in_hand.discard(sequence)
            self._acks.put(reply, word)
