"""Letting the store's threads have the interpreter lock while the event loop is busy.

A thread that waits for the lock asks for it after `sys.getswitchinterval()`, 5 ms by default. A loop that is busy but turns to its
selector more often than that lets go of the lock for a microsecond at each turn: too short for a waiting thread to wake up in, and
every time it begins to wait anew. So such a loop starves every other thread. Under a flood of refused messages, commits of 1 to 40
seconds were measured (docs/adr/0002-writer-on-the-loop.md); with this they take some milliseconds. A loop that waits in its
selector keeps nobody waiting: there the disk is late, and sleeping would only hold up what else comes.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

STARVED_SECONDS: Final = 0.002  # ours: what takes longer may be waiting for the lock, not for the disk
ROOM_SECONDS: Final = 0.0002  # ours: enough to wake up, take the lock a few times and hand the result over
BUSY: Final = 0.5  # ours: share of the time; a loop that was idle for more of it has let go of the lock for long enough
LEAST: Final = (
    8  # ours: room is made once in so many turns however idle the loop seems: it may have been kept from its processor
)


async def with_room(work: Awaitable[T]) -> T:
    """The result of `work`, which a thread does. While it is late and the loop busy, it sleeps for moments with the lock free."""
    room = _Room(asyncio.get_running_loop())
    try:
        return await work
    finally:
        room.timer.cancel()


class _Room:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._used = time.thread_time()
        self._skipped = 0
        self.timer = loop.call_later(STARVED_SECONDS, self._make)

    def _make(self) -> None:
        if self._busy():
            time.sleep(ROOM_SECONDS)
        self.timer = self._loop.call_later(STARVED_SECONDS, self._make)

    def _busy(self) -> bool:
        """Whether the loop's thread was computing since the last turn, so that the other one may have been kept waiting."""
        before, self._used = self._used, time.thread_time()
        if self._used - before < BUSY * STARVED_SECONDS and self._skipped < LEAST:
            self._skipped += 1
            return False
        self._skipped = 0
        return True
