"""Waking those who wait for something that a commit made true: event streams, inbox readers, work watchers."""

import asyncio


class Announcer:
    """A bell with a number: it rings when the highest committed sequence grows, and once more when the daemon drains.

    A waiter that compares `seq` or `rings` with what it knew before it waits cannot miss a ring: everything runs on one loop.
    """

    def __init__(self, seq: int) -> None:
        self.seq = seq
        self.closed = False
        self.rings = 0
        self._waiters: set[asyncio.Future[None]] = set()

    def ring(self, seq: int = 0) -> None:
        """Something was committed (up to `seq`), or changed without a new sequence (0)."""
        if seq > self.seq:
            self.seq = seq
        self.rings += 1
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """No more rings will come; everybody who waits is let go."""
        self.closed = True
        self.ring()

    def next_ring(self) -> asyncio.Future[None]:
        """Done at the next ring; at once when closed. Whoever waits for several bells waits for all from one moment on."""
        ring: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.closed:
            ring.set_result(None)
        else:
            self._waiters.add(ring)
            ring.add_done_callback(self._waiters.discard)
        return ring

    async def wait(self, timeout: float | None = None) -> bool:
        """Until the next ring; False when `timeout` seconds passed without one. Returns at once when closed."""
        ring = self.next_ring()
        timer = asyncio.get_running_loop().call_later(timeout, _give_up, ring) if timeout is not None else None
        try:
            await ring
            return True
        except TimeoutError:
            return False
        finally:
            if timer is not None:
                timer.cancel()


def _give_up(ring: asyncio.Future[None]) -> None:
    if not ring.done():
        ring.set_exception(TimeoutError())
