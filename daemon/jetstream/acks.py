"""What we tell the broker about messages it has handed us: acknowledgements in order, over link losses.

An ack that is lost with a connection means one more delivery, which deduplication settles; none is ever sent too early.
"""

import asyncio
from collections import OrderedDict, deque
from itertools import islice
from typing import Final

from aghbus.daemon.nats.link import BadPublish, Link, LinkError, PayloadTooLarge

ACK: Final = b"+ACK"
NAK: Final = b"-NAK"
_REMEMBERED: Final = 16_384  # acked sequences; a broker that was killed has forgotten the acks of its last moments
_RETRY: Final = 1.0  # seconds between two looks at a link that is down
_TOGETHER: Final = 256  # ours, of acks in one piece: a batch of the intake
_PAUSE: Final = 0.05  # seconds before the next try: the link's own first pause between two attempts


def nak_after(delay: float) -> bytes:
    """A refusal for now: deliver again after `delay` seconds (ADR-15 of NATS' architecture)."""
    return NAK + b' {"delay": %d}' % int(delay * 1_000_000_000)


class Acks:
    """A queue of small publishes and the task that empties it; `put` returns at once."""

    def __init__(self, link: Link) -> None:
        self.refused = 0  # what could not be published on any connection: its subject came from a stranger
        self._link = link
        self._queue: deque[tuple[str, bytes]] = deque()
        self._bell = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def put(self, subject: str, data: bytes) -> None:
        """Publish `data` to `subject`, after everything that was put before."""
        if not self._queue:
            self._empty.clear()
            self._bell.set()
        self._queue.append((subject, data))

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
                await asyncio.sleep(_PAUSE)  # a connection may be gone before the link knows it, and still counts as up
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
        while self._queue:
            batch = list(islice(self._queue, _TOGETHER))
            if self._posted(batch):
                continue
            for entry in batch:
                await self._publish_one(entry)
        self._empty.set()

    def _posted(self, batch: list[tuple[str, bytes]]) -> bool:
        """Publish the first that wait in one piece; False where one of them is impossible, or there is no room now."""
        try:
            if not self._link.post_all(batch):
                return False
        except (BadPublish, PayloadTooLarge):
            return False
        for _ in batch:
            self._queue.popleft()
        return True

    async def _publish_one(self, entry: tuple[str, bytes]) -> None:
        queue = self._queue
        if not queue or queue[0] is not entry:
            return  # forgotten meanwhile
        try:
            await self._link.publish(*entry)
        except (BadPublish, PayloadTooLarge):
            self.refused += 1  # tried again it would hold up everything behind it for ever
        if queue and queue[0] is entry:
            queue.popleft()


class Hands:
    """What one consumer has put into our hands, by stream sequence: held until settled; and acked, as far back as we remember."""

    def __init__(self, acks: Acks) -> None:
        self._acks = acks
        self._held: set[int] = set()
        self._acked: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, sequence: int) -> bool:
        return sequence in self._held

    def take(self, sequence: int, reply: str) -> bool:
        """Whether a delivery is news. What we hold is settled later; what we have acked, and the broker forgot, is acked again."""
        if sequence in self._held:
            return False
        if sequence in self._acked:
            self._acks.put(reply, ACK)
            return False
        self._held.add(sequence)
        return True

    def settle(self, sequence: int, reply: str, word: bytes) -> None:
        """Tell the broker `word` about a delivery; nothing happens when it is not in our hands any more."""
        if sequence not in self._held:
            return
        self._held.discard(sequence)
        self._acks.put(reply, word)
        if word is ACK:
            self._acked[sequence] = None
            if len(self._acked) > _REMEMBERED:
                self._acked.popitem(last=False)

    def drop(self) -> None:
        """The stream is gone: what we hold of it can no longer be settled."""
        self._held.clear()


class Delivery:
    """One delivered message (a Settlement), until it is settled; a second word about it does nothing."""

    __slots__ = ("_hands", "_reply", "_sequence")

    def __init__(self, hands: Hands, sequence: int, reply: str) -> None:
        self._hands = hands
        self._sequence = sequence
        self._reply = reply

    def ack(self) -> None:
        """It is committed, or needs no commit."""
        self._hands.settle(self._sequence, self._reply, ACK)

    def nak(self, delay: float) -> None:
        """It could not be taken now: again after `delay` seconds."""
        self._hands.settle(self._sequence, self._reply, nak_after(delay))
