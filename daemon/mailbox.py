"""The agent's inbox as the API serves it: lease, ack, nack, and waiting without polling."""

import secrets
from typing import Final

from aghbus.daemon.core import Core
from aghbus.daemon.failpoints import failpoint
from aghbus.protocol.control import InboxItem, InboxList, InboxNackAsk, InboxNextAsk
from aghbus.store import audit, inbox
from aghbus.store.transaction import Transaction

_SHORTEST: Final = 0.01  # seconds between two tries for a message that is due: its consumer may hold the commit


class Mailbox:
    """Leases are taken in the store, so several consumers of one agent may compete."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self, states: frozenset[str], limit: int) -> InboxList:
        """Items in `states` (empty: ready and leased), oldest first, and the counts of all states."""
        return InboxList(
            items=await inbox.items(self._core.store.reader, states=states, limit=limit),
            counts=await inbox.counts(self._core.store.reader),
        )

    async def next(self, ask: InboxNextAsk) -> InboxItem | None:
        """The oldest ready message, leased to the caller; waits up to `ask.wait` seconds for one to come."""
        core = self._core
        deadline = core.clock.monotonic() + ask.wait
        while True:
            rings, now_ms = core.inbox_bell.rings, core.clock.millis()
            item = await self._lease(ask)
            left = deadline - core.clock.monotonic()
            if item is not None or left <= 0 or core.draining:
                return item
            pause = await self._until_due(left, now_ms)
            if core.inbox_bell.rings == rings:
                await core.inbox_bell.wait(pause)

    async def _lease(self, ask: InboxNextAsk) -> InboxItem | None:
        token = "lease_" + secrets.token_hex(8)

        def job(tx: Transaction) -> InboxItem | None:
            self._core.steps.settle(tx)
            now_ms, visible_ms = self._core.clock.millis(), int(ask.visibility * 1000)
            item = inbox.lease_next(tx, now_ms, visible_ms, token, work_id=ask.work_id)
            if item is None:
                return None
            audit.note_delivery(tx, now_ms, item, "acked" if ask.ack else "leased")
            return inbox.ack(tx, item.seq, token) if ask.ack else item

        item = await self._core.store.write(job)
        if item is not None:
            failpoint("inbox.leased")
        return item

    async def _until_due(self, left: float, after_ms: int) -> float:
        """Seconds until a lease runs out or a returned message is ready again, `left` at most.

        What was ready at `after_ms` and not leased then is of another work: its time is past, not to be waited for.
        """
        due_ms = await inbox.next_due_ms(self._core.store.reader, after_ms)
        if due_ms is None:
            return left
        return min(left, max(_SHORTEST, (due_ms - self._core.clock.millis()) / 1000))

    async def ack(self, seq: int, lease: str | None) -> InboxItem:
        """Done; refused when another lease holds it."""

        def job(tx: Transaction) -> InboxItem:
            return self._noted(tx, inbox.ack(tx, seq, lease), "acked")

        item = await self._core.store.write(job)
        failpoint("inbox.acked")
        return item

    async def nack(self, seq: int, ask: InboxNackAsk) -> InboxItem:
        """Back to ready after a delay; dead after too many attempts."""
        delay_ms = None if ask.delay is None else int(ask.delay * 1000)

        def job(tx: Transaction) -> InboxItem:
            self._core.steps.settle(tx)
            now_ms = self._core.clock.millis()
            item = inbox.nack(tx, seq, now_ms=now_ms, lease=ask.lease, delay_ms=delay_ms, error=ask.error)
            return self._noted(tx, item, "dead" if item.state == "dead" else "returned")

        item = await self._core.store.write(job)
        self._core.inbox_bell.ring()
        return item

    async def requeue(self, seq: int) -> InboxItem:
        """Ready at once, attempts forgotten."""
        item = await self._core.store.write(lambda tx: self._noted(tx, inbox.requeue(tx, seq), "requeued"))
        self._core.inbox_bell.ring()
        return item

    def _noted(self, tx: Transaction, item: InboxItem, outcome: str) -> InboxItem:
        audit.note_delivery(tx, self._core.clock.millis(), item, outcome)
        return item
