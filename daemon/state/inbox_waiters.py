"""Agents that wait for a message of the inbox: each new message is leased to one of them in the transaction that stores it.

So the message costs one commit instead of two, and one message wakes one consumer, however many wait. What is leased to one that
has gone away meanwhile is given back.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from aghbus.protocol.api.inbox import InboxItem
from aghbus.store.engine.transaction import Transaction

Take = Callable[[Transaction, int | None], InboxItem | None]


class Consumer:
    """One that asks, for any message or for those of one work. `take` leases the oldest that suits it, which
    may be one of that sequence that its job has just delivered; `give_back` undoes that."""

    def __init__(self, work_id: str | None, take: Take, give_back: Callable[[InboxItem], None]) -> None:
        self.work_id = work_id
        self.served: asyncio.Future[InboxItem | None] = asyncio.get_running_loop().create_future()
        self.gone = False  # nobody asks for it any more
        self._take = take
        self._give_back = give_back
        self._held: InboxItem | None = None  # leased to it, and not handed on yet

    def lease(self, tx: Transaction, fresh: int | None = None) -> InboxItem | None:
        """The oldest message that suits it, or `fresh`. It has to be handed on: see `hand_on` and `leave`."""
        item = self._take(tx, fresh)
        if item is not None:
            tx.after_commit(partial(self._leased, item))
        return item

    def _leased(self, item: InboxItem) -> None:
        if self.gone:
            self._give_back(item)
        else:
            self._held = item

    def hand_on(self) -> None:
        """What is leased to it is in the hands of whoever asked."""
        self._held = None

    def leave(self) -> None:
        """Nobody asks any more: what was leased and not handed on goes back, now or when its commit is through."""
        self.gone = True
        held, self._held = self._held, None
        if held is not None:
            self._give_back(held)

    def end(self, item: InboxItem | None) -> None:
        """With what it was given, or None: it has to look again."""
        if not self.served.done():
            self.served.set_result(item)

    async def wait(self, consumers: "Consumers", seconds: float) -> InboxItem | None:
        """What it is given within `seconds`; None when it has to look again, or the time is up."""
        await asyncio.wait([self.served], timeout=seconds)
        consumers.leave(self)
        return await self.served


class Consumers:
    """All of them, the one that has waited longest first."""

    def __init__(self) -> None:
        self._waiting: dict[Consumer, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = float("inf")

    @property
    def count(self) -> int:
        """How many there are to offer a message to."""
        return len(self._waiting)

    def join(self, tx: Transaction, consumer: Consumer) -> None:
        """`consumer` has found nothing in `tx`, and waits for what comes later.

        Not when it was told to look again: the job that joins may run twice.
        """
        if consumer.gone or consumer.served.done():
            return
        self._waiting[consumer] = None
        tx.after_rollback(partial(self.leave, consumer))

    def leave(self, consumer: Consumer) -> None:
        """It waits no longer; without effect once something is leased to it, which it gets when that is committed."""
        if consumer in self._waiting:
            del self._waiting[consumer]
            consumer.end(None)

    def offer(self, tx: Transaction, messages: Iterable[tuple[int, str | None]]) -> None:
        """Messages of these sequences and works (None: of no work) are ready in `tx`: each is leased to somebody who waits for it.

        Whoever takes an older one, whose lease has run out, leaves the new one to the next.
        """
        for seq, work_id in messages:
            for consumer in tuple(self._waiting):
                if consumer.work_id is None or consumer.work_id == work_id:
                    taken = self._serve(tx, consumer, seq)
                    if taken is None or taken.seq == seq:
                        break

    def _serve(self, tx: Transaction, consumer: Consumer, fresh: int) -> InboxItem | None:
        item = consumer.lease(tx, fresh)
        if item is not None:
            del self._waiting[consumer]
            tx.after_rollback(partial(consumer.end, None))
            tx.after_commit(partial(consumer.end, item))
        return item

    def ring(self) -> None:
        """Something else has made messages ready, or the daemon drains: everybody looks again."""
        waiting, self._waiting = self._waiting, {}
        for consumer in waiting:
            consumer.end(None)

    def ring_in(self, seconds: float) -> None:
        """A lease was given that runs out in so many seconds. Those who wait already do not know of it."""
        loop = asyncio.get_running_loop()
        at = loop.time() + max(seconds, 0.0)
        if not self._waiting or at >= self._rings_at:
            return  # whoever asks later sees the lease, and so does everybody at the ring before
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at, self._timer = at, loop.call_at(at, self._ring_now)

    def _ring_now(self) -> None:
        self._rings_at, self._timer = float("inf"), None
        self.ring()
