"""Agents that wait for an inbox message: each new message is leased to one of them in the transaction that stores it.

So a message costs one commit instead of two, and wakes one consumer, however many wait. A message leased to a consumer that has
disconnected meanwhile is given back.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.protocol.api.inbox import InboxItem
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import Reader
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import inbox, inbox_list, inbox_order

_EXPIRY_WAIT: Final = 0.5  # seconds that a read of the inbox waits for the store to write

Take = Callable[[Transaction, int | None], InboxItem | None]


async def expire_leases(store: Store, clock_changes: ClockChanges) -> Reader:
    """Return expired leases to the queue, and the store's reader.

    If the store cannot write within half a second, the expired leases stay: reads work without writes.
    """
    reader = store.reader
    if await inbox_list.some_expired(reader, clock_changes.now_millis()):
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(_EXPIRY_WAIT):
                await store.write(lambda tx: inbox.expire_leases(tx, clock_changes.now_after_clock_check(tx)))
    return reader


class InboxWaiter:
    """A consumer that waits for any message, or for those of one work.

    `take` leases the oldest message that matches, which may be the one of the given sequence that the same job has just
    delivered; `give_back` undoes that. With `admits` only messages match for which it is true.
    """

    def __init__(
        self,
        work_id: str | None,
        take: Take,
        give_back: Callable[[InboxItem], None],
        admits: inbox_order.Admits | None = None,
    ) -> None:
        self.work_id = work_id
        self.admits = admits
        self.served: asyncio.Future[InboxItem | None] = asyncio.get_running_loop().create_future()
        self.gone = False  # the client has disconnected
        self._take = take
        self._give_back = give_back
        self._held: InboxItem | None = None  # leased, and not delivered yet

    def lease(self, tx: Transaction, fresh: int | None = None) -> InboxItem | None:
        """Lease the oldest message that matches, or `fresh`. Must be followed by `mark_delivered` or `leave`."""
        item = self._take(tx, fresh)
        if item is not None:
            tx.after_commit(partial(self._leased, item))
        return item

    def _leased(self, item: InboxItem) -> None:
        if self.gone:
            self._give_back(item)
        else:
            self._held = item

    def mark_delivered(self) -> None:
        """The leased message was delivered to the client."""
        self._held = None

    def leave(self) -> None:
        """The client is gone: give back a message that was leased and not delivered, now or after its commit."""
        self.gone = True
        held, self._held = self._held, None
        if held is not None:
            self._give_back(held)

    def end(self, item: InboxItem | None) -> None:
        """End the wait with the leased message, or with None: it has to query the inbox again."""
        if not self.served.done():
            self.served.set_result(item)

    async def wait(self, waiters: "InboxWaiters", seconds: float) -> InboxItem | None:
        """The message leased within `seconds`; None when it has to query the inbox again, or after that time."""
        timer = asyncio.get_running_loop().call_later(seconds, waiters.leave, self)
        try:
            return await self.served
        finally:
            timer.cancel()


class InboxWaiters:
    """All waiting consumers, in the order in which they began to wait."""

    def __init__(self) -> None:
        self.closed = False  # the daemon shuts down: no new waits
        self.waiting: Final[dict[InboxWaiter, None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._wakes_at = float("inf")

    def join(self, tx: Transaction | None, waiter: InboxWaiter) -> None:
        """`waiter` has found nothing in `tx` (None: in memory), and waits. No effect if its wait has ended: the job that joins
        may run twice."""
        if waiter.gone or waiter.served.done():
            return
        self.waiting[waiter] = None
        if tx is not None:
            tx.undo.append(partial(self.leave, waiter))

    def leave(self, waiter: InboxWaiter) -> None:
        """`waiter` waits no longer. No effect after a lease: it gets that message with the commit."""
        if waiter in self.waiting:
            del self.waiting[waiter]
            waiter.end(None)

    def offer(self, tx: Transaction, messages: Iterable[tuple[int, str | None]]) -> None:
        """Lease each new message of `tx`, by sequence and work (None: of no work), to a waiter that matches.

        A waiter may lease an older message, whose lease has run out; the new one is then offered to the next.
        """
        for seq, work_id in messages:
            for waiter in tuple(self.waiting):
                if waiter.work_id in (None, work_id) and (waiter.admits is None or waiter.admits(tx, seq)):
                    taken = self._serve(tx, waiter, seq)
                    if taken is None or taken.seq == seq:
                        break

    def _serve(self, tx: Transaction, waiter: InboxWaiter, fresh: int) -> InboxItem | None:
        item = waiter.lease(tx, fresh)
        if item is not None:
            del self.waiting[waiter]
            tx.undo.append(partial(waiter.end, None))
            tx.after_commit(partial(waiter.end, item))
        return item

    def wake_all(self) -> None:
        """Messages may be ready for another reason, or the daemon shuts down: every waiter queries the inbox again."""
        waiting = tuple(self.waiting)
        self.waiting.clear()
        for waiter in waiting:
            waiter.end(None)

    def wake_in(self, seconds: float) -> None:
        """Wake all when a lease of `seconds` runs out: the consumers that wait already do not know of it."""
        loop = asyncio.get_running_loop()
        at = loop.time() + max(seconds, 0.0)
        if not self.waiting or at >= self._wakes_at:
            return  # later consumers see the lease, and the earlier wake-up finds it for all
        if self._timer is not None:
            self._timer.cancel()
        self._wakes_at, self._timer = at, loop.call_at(at, self._wake_now)

    def _wake_now(self) -> None:
        self._wakes_at, self._timer = float("inf"), None
        self.wake_all()
