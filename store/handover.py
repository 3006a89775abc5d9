"""Letting the store's threads have the interpreter lock while the event loop is busy.

A thread that waits for the lock asks for it after `sys.getswitchinterval()`, 5 ms by default. A loop that is busy but turns to its
selector more often than that lets go of the lock for a microsecond at each turn: too short for a waiting thread to wake up in, and
every time it begins to wait anew. So such a loop starves every other thread. Under a flood of refused messages, commits of 1 to 40
seconds were measured (docs/adr/0002-writer-on-the-loop.md); with this they take some milliseconds.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

STARVED_SECONDS: Final = 0.002  # ours: what takes longer may be waiting for the lock, not for the disk
ROOM_SECONDS: Final = 0.0002  # ours: enough to wake up, take the lock a few times and hand the result over


async def with_room(work: Awaitable[T]) -> T:
    """The result of `work`, which a thread does. While it is late, the loop sleeps for moments in which the lock is free."""
    room = _Room(asyncio.get_running_loop())
    try:
        return await work
    finally:
        room.timer.cancel()


class _Room:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.timer = loop.call_later(STARVED_SECONDS, self._make)

    def _make(self) -> None:
        time.sleep(ROOM_SECONDS)
        self.timer = self._loop.call_later(STARVED_SECONDS, self._make)
