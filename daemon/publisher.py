"""From the outbox to the broker: everything committed as queued goes out in order, pipelined, confirmed by one PONG a batch.

Published means the broker has it, nothing more (spec section 7). What the link loses on the way is still queued in the
store and goes out again, the same bytes, when the link is back; receivers deduplicate by id.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterable
from typing import Final

from aghbus.daemon.core import Core
from aghbus.daemon.link import BadPublish, LinkError, PayloadTooLarge
from aghbus.store import outbox
from aghbus.store.outbox import Outgoing
from aghbus.store.transaction import Transaction

_BATCH: Final = 1024  # envelopes between two confirmations, at most
_CONFIRM_WAIT: Final = 10.0  # seconds for the broker's PONG; then the link counts as lost
_RETRY: Final = 1.0  # seconds between attempts while the store cannot say what is queued


class Publisher:
    """One task that empties the outbox whenever something is queued and the link is up."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._fresh: deque[Outgoing] = deque()
        self._bell = asyncio.Event()
        self._reload = True
        self._idle = asyncio.Event()
        self._idle.set()

    def enqueue(self, rows: Iterable[Outgoing]) -> None:
        """What a commit has just queued, in order."""
        self._fresh.extend(rows)
        if self._fresh:
            self._idle.clear()
            self._bell.set()

    def link_up(self) -> None:
        """The link is (back) up: everything still queued in the store goes out."""
        self._reload = True
        self._idle.clear()
        self._bell.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            if self._core.link.state != "up":
                continue
            try:
                await self._empty()
            except LinkError as error:
                self._reload = True  # what was under way is still queued in the store
                self._core.counters.add("outbox.interrupted")
                self._core.noise.event(logging.INFO, "outbox", "publishing interrupted", cause=str(error))

    async def drained(self, timeout: float) -> bool:
        """Wait until nothing is left to publish; False when `timeout` seconds passed before."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _empty(self) -> None:
        while self._reload or self._fresh:
            if self._reload:
                await self._publish_stored()
            batch = [self._fresh.popleft() for _ in range(min(_BATCH, len(self._fresh)))]
            await self._publish(batch)
        self._idle.set()

    async def _publish_stored(self) -> None:
        """Everything that the store has as queued, oldest first; what is fresh is part of it or comes after."""
        self._reload = False
        self._fresh.clear()
        after = 0
        while rows := await outbox.queued(self._core.store.reader, after, _BATCH):
            await self._publish(rows)
            after = rows[-1].seq

    async def _publish(self, rows: list[Outgoing]) -> None:
        now = self._core.clock.seconds()
        confirmed: list[int] = []
        stale = False
        for row in rows:
            if row.expires_at <= now:
                stale = True
            elif await self._hand_over(row):
                confirmed.append(row.seq)
        if stale:
            self._core.behind(lambda tx: self._expire(tx, now))
        if confirmed:
            await self._core.link.flush(_CONFIRM_WAIT)
            self._core.counters.add("outbox.published", len(confirmed))
            self._core.behind(lambda tx: outbox.mark_published(tx, confirmed, self._core.clock.millis()))

    def _expire(self, tx: Transaction, now: int) -> None:
        expired = outbox.expire(tx, now)
        tx.after_commit(lambda: self._core.counters.add("outbox.expired", len(expired)))

    async def _hand_over(self, row: Outgoing) -> bool:
        """Into the connection's buffer; an envelope that this broker can never take is dead, with the reason."""
        try:
            await self._core.link.publish(row.subject, row.raw)
        except (PayloadTooLarge, BadPublish) as error:
            why = str(error)
            self._core.counters.add("outbox.dead")
            self._core.log.error("an envelope cannot be published seq=%d cause=%s", row.seq, why)
            self._core.behind(lambda tx: outbox.mark_dead(tx, row.seq, why))
            return False
        return True
