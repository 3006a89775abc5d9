"""The queue between the broker and the store: bounded in messages and in bytes, and shared by standing and sender."""

import asyncio
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.state.processing_budget import ProcessingBudget
from aghbus.daemon.state.standing import SHARES
from aghbus.protocol.agh.envelope import Envelope

_BATCH: Final = 256  # messages decided in one job: some milliseconds of the event loop
_BATCH_BYTES: Final = 4 * 1024 * 1024  # of the messages decided in one job, for the same reason
QUEUE_BYTES: Final = 64 * 1024 * 1024  # of the messages in the queue: four thousand of the largest would be gigabytes
SENDER_SHARE: Final = 0.75  # for one sender, of the part of the queue that its standing may fill
_FREE_FOR_ALL: Final = SENDER_SHARE * SHARES["unknown"]  # of the queue: up to there everybody is let in


class ReceiveQueue:
    """Messages that wait for the transaction of their batch. A message that does not fit is rejected."""

    def __init__(self, settings: LiveSettings, processing: ProcessingBudget) -> None:
        """`processing` tells the standing of a sender before its signature is verified."""
        self._settings = settings
        self._processing = processing
        self._queue: deque[ReceivedMessage] = deque()
        self._bytes = 0  # of the messages in the queue
        self._shares: dict[str, int] = {}  # messages in the queue by sender, "" for refused ones
        self._arrival: asyncio.Future[None] | None = None  # what `wait` waits for

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, received: ReceivedMessage) -> bool:
        """Add a message; False when there is no room for it."""
        queue, limit, sender = self._queue, self._settings.current.receive.queue, received.sender
        depth, size, share = len(queue), self._bytes + len(received.raw), self._shares.get(sender, 0)
        if depth >= int(limit * _FREE_FOR_ALL) or size > QUEUE_BYTES * _FREE_FOR_ALL:
            envelope = received.envelope
            part = SHARES[self._processing.standing(sender, signed=envelope is not None and envelope.proof is not None)]
            most = limit * part
            if depth >= most or size > QUEUE_BYTES * part or share >= max(1, int(most * SENDER_SHARE)):
                return False
        queue.append(received)
        if not depth and self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self._bytes = size
        self._shares[sender] = share + 1
        return True

    async def wait(self) -> None:
        """Wait until a message comes."""
        self._arrival = asyncio.get_running_loop().create_future()
        await self._arrival

    def take(self) -> list[ReceivedMessage]:
        """The next batch, which leaves the queue."""
        queue, shares = self._queue, self._shares
        batch: list[ReceivedMessage] = []
        size = 0
        while queue and len(batch) < _BATCH and size < _BATCH_BYTES:
            received = queue.popleft()
            batch.append(received)
            size += len(received.raw)
            shares[received.sender] -= 1
        self._bytes -= size
        if not queue:
            shares.clear()
        return batch

    def upcoming(self) -> Iterator[Envelope]:
        """The valid envelopes of about one batch, which stay in the queue."""
        return (one.envelope for one in islice(self._queue, _BATCH) if one.envelope is not None)
