"""Yielding the interpreter lock (GIL) to the store's threads while the event loop is busy.

A thread that waits for the lock asks for it after `sys.getswitchinterval()`, 5 ms by default. A loop that is busy
but polls its selector more often than that releases the lock for a microsecond at each poll: too short for a
waiting thread to wake up in, and every time it begins to wait again. So such a loop starves every other thread.
Under a flood of rejected messages, commits of 1 to 40 seconds were measured (docs/adr/0002-writer-on-the-loop.md);
with this they take some milliseconds. A loop that waits in its selector starves no thread: there the disk is slow, and
sleeping would only delay other work.
"""

import asyncio
import time
from collections.abc import Awaitable
from typing import Final, TypeVar

T = TypeVar("T")

STARVED_SECONDS: Final = 0.002  # what takes longer may be waiting for the lock, not for the disk
YIELD_SECONDS: Final = 0.0002  # enough to wake up, take the lock a few times and hand the result over
BUSY_SHARE: Final = 0.5  # share of the time; a loop that was idle for more of it has released the lock for long enough
MAX_SKIPPED: Final = 8  # an idle loop yields once in so many checks: it may have lost its processor


async def yield_gil_while(work: Awaitable[T]) -> T:
    """The result of `work`, which a thread does. While that is late and the loop busy, the loop sleeps for moments
    without the lock."""
    yielding = _Yielding(asyncio.get_running_loop())
    try:
        return await work
    finally:
        yielding.timer.cancel()


class _Yielding:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._used = time.thread_time()
        self._skipped = 0
        self.timer = loop.call_later(STARVED_SECONDS, self._check)

    def _check(self) -> None:
        if self._is_busy():
            time.sleep(YIELD_SECONDS)
        self.timer = self._loop.call_later(STARVED_SECONDS, self._check)

    def _is_busy(self) -> bool:
        """Whether the loop's thread was computing since the last check, so that the other thread may have been kept
        waiting."""
        before, self._used = self._used, time.thread_time()
        if self._used - before < BUSY_SHARE * STARVED_SECONDS and self._skipped < MAX_SKIPPED:
            self._skipped += 1
            return False
        self._skipped = 0
        return True
