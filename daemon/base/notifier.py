"""Waking tasks that wait for a commit: event streams, inbox readers, work watchers."""

import asyncio


class Notifier:
    """Wakes its waiters on each notification, and once more when it is closed. `seq` is the highest committed sequence.

    A waiter that compares `seq` or `count` with the value it saw before it waits cannot miss a notification: everything runs
    on one event loop.
    """

    def __init__(self, seq: int = 0) -> None:
        self.seq = seq
        self.closed = False
        self.count = 0  # notifications so far
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self, seq: int = 0) -> None:
        """A commit up to `seq` has happened, or a change without a new sequence (0)."""
        if seq > self.seq:
            self.seq = seq
        self.count += 1
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def close(self) -> None:
        """Wake all waiters for the last time."""
        self.closed = True
        self.notify()

    def next(self) -> asyncio.Future[None]:
        """A future that is done at the next notification; done already when closed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.closed:
            future.set_result(None)
        else:
            self._waiters.add(future)
            future.add_done_callback(self._waiters.discard)
        return future

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the next notification; False after `timeout` seconds without one. Returns immediately when closed."""
        future = self.next()
        timer = asyncio.get_running_loop().call_later(timeout, _time_out, future) if timeout is not None else None
        try:
            await future
            return True
        except TimeoutError:
            return False
        finally:
            if timer is not None:
                timer.cancel()


def _time_out(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_exception(TimeoutError())
