"""Agents that wait for a message of the inbox: each new message is leased to one of them in the transaction that stores it.

So the message costs one commit instead of two, and one message wakes one consumer, however many wait.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from aghbus.protocol.control import InboxItem
from aghbus.store.transaction import Transaction

Take = Callable[[Transaction], InboxItem | None]


class Consumer:
    """One that waits, for any message or for those of one work. `take` leases the oldest that suits it."""

    def __init__(self, work_id: str | None, take: Take) -> None:
        self.work_id = work_id
        self.take = take
        self.served: asyncio.Future[InboxItem | None] = asyncio.get_running_loop().create_future()
        self.gone = False  # nobody asks for it any more

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

    @property
    def some_wait(self) -> bool:
        """Whether there is anybody to offer a message to."""
        return bool(self._waiting)

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

    def offer(self, tx: Transaction, works: Iterable[str | None]) -> None:
        """Messages of these works (None: of no work) are ready in `tx`: each is leased to somebody who waits for it."""
        for work_id in works:
            for consumer in self._waiting:
                if consumer.work_id is None or consumer.work_id == work_id:
                    self._serve(tx, consumer)
                    break

    def _serve(self, tx: Transaction, consumer: Consumer) -> None:
        item = consumer.take(tx)
        if item is None:
            return
        del self._waiting[consumer]
        tx.after_rollback(partial(consumer.end, None))
        tx.after_commit(partial(consumer.end, item))

    def ring(self) -> None:
        """Something else has made messages ready, or the daemon drains: everybody looks again."""
        waiting, self._waiting = self._waiting, {}
        for consumer in waiting:
            consumer.end(None)
