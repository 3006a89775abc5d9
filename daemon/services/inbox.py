"""The agent's inbox as the API serves it: lease, ack, nack, and waiting without polling."""

import secrets
from dataclasses import dataclass, field
from functools import partial
from typing import Final, cast

from msgspec.structs import replace

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.services.admission import Admission
from aghbus.daemon.services.works import WorkService
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiter, InboxWaiters, expire_leases
from aghbus.daemon.state.lanes import Lanes
from aghbus.daemon.state.own_instance import OwnInstance
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.protocol.api.inbox import (
    LEASE,
    InboxAckRequest,
    InboxItem,
    InboxLeaseRequest,
    InboxNackRequest,
    InboxNextRequest,
    InboxNextResponse,
    InboxResponse,
)
from aghbus.protocol.api.leases import ENTROPY_BYTES, holder_of, lease_token
from aghbus.protocol.api.queries import InboxQuery
from aghbus.protocol.api.works import WorkActionRequest
from aghbus.protocol.base.errors import InvalidRequest, Unavailable
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox, inbox_list

_MAX_RENEWALS: Final = 10_000
_SHORTEST: Final = 0.01  # seconds between two attempts to lease a message that is due


@dataclass(frozen=True, slots=True, eq=False)
class InboxService:
    """The inbox of the daemon's agent. Leases are taken in the store, so several consumers may compete."""

    waiters: InboxWaiters
    clock: Clock
    store: Store
    clock_changes: ClockChanges
    counters: Counters
    lanes: Lanes
    identity: Identity
    admission: Admission
    instance: OwnInstance
    works: WorkService
    _renewals: dict[str, int] = field(default_factory=dict)  # by lease, the latest last: when it was renewed, in ms

    async def list_items(self, query: InboxQuery) -> InboxResponse:
        """One page of items in the states of `query` (none: all but acked), oldest first, and the counts of all states."""
        reader = await expire_leases(self.store, self.clock_changes)
        memory = self.store.memory.inbox
        others = {sender: count for sender, (count, _) in memory.messages.senders.items() if self.is_other(sender)}
        senders = None
        if query.contacts:
            senders = ({*memory.messages.senders} | {*memory.reactions.senders}) - others.keys()
        page = await inbox_list.items(
            reader, states=query.states, since=query.since, limit=query.limit, senders=senders
        )
        counts = await inbox_list.counts(reader, memory)
        items = [self._in_lane(item) for item in page.items]
        return InboxResponse(items=items, next_since=page.next_since, counts=counts, others=sum(others.values()))

    def is_other(self, sender: str) -> bool:
        """Whether the sender of an unread message is no contact, no target of an own work, and not we."""
        known = sender in self.identity.signers or sender in self.store.memory.inbox.reactions.senders
        return not known and not self.lanes.is_contact(sender)

    async def next(self, request: InboxNextRequest) -> InboxNextResponse:
        """The oldest ready message, leased to the caller; waits up to `request.wait` seconds for one."""
        return await self.next_under(self.new_lease(), request)

    async def next_under(self, lease: str, request: InboxNextRequest) -> InboxNextResponse:
        """As `next`, under a token of `new_lease`: messages that it leased before hold no later ones back."""
        self._check_identity()
        deadline, consumer = self.clock.monotonic() + request.wait, None
        take = partial(self._lease, request=request, lease=lease)
        admits = None if request.others else self._admits
        try:
            while True:
                waits = self.clock.monotonic() < deadline and not self.waiters.closed
                consumer = InboxWaiter(request.work_id, take, lambda held: self.give_back(held.seq, lease), admits)
                item, due_ms = None, None
                if waits and not self.store.memory.inbox.has_any(request.work_id):
                    self.waiters.join(None, consumer)  # nothing is ready or leased for it: there is nothing to write
                else:
                    item, due_ms = await self.store.write(partial(self._lease_or_join, consumer=consumer, waits=waits))
                if item is None and waits:  # a message leased to it meanwhile is its own, even after the deadline
                    item = await consumer.wait(self.waiters, self._until_due(deadline, due_ms))
                if item is not None:
                    failpoint("inbox.leased")
                if item is not None or not waits:
                    consumer.mark_delivered()
                    return InboxNextResponse(item=item)
        finally:
            if consumer is not None:
                self.waiters.leave(consumer)
                consumer.leave()

    def new_lease(self) -> str:
        """A token for leases."""
        return lease_token("inbox.next", self.clock.millis(), secrets.token_bytes(ENTROPY_BYTES))

    def _lease_or_join(
        self, tx: Transaction, consumer: InboxWaiter, waits: bool
    ) -> tuple[InboxItem | None, int | None]:
        """A message if one is ready, and when the next one is due."""
        item = consumer.lease(tx)
        if item is None and waits:
            self.waiters.join(tx, consumer)
        return item, inbox.due_ms(tx)

    def _lease(self, tx: Transaction, fresh: int | None, request: InboxNextRequest, lease: str) -> InboxItem | None:
        if self.instance.gives_way:
            return None
        now_ms, visible_ms = self.clock_changes.now_after_clock_check(tx), int(request.visibility * 1000)
        item = inbox.lease_next(
            tx,
            now_ms,
            visible_ms,
            lease,
            request.work_id,
            ack=request.ack,
            fresh=fresh,
            concurrent=request.concurrent,
            admits=None if request.others else self._admits,
        )
        if item is None:
            return None
        audit.note_delivery(tx, now_ms, item.seq, "acked" if request.ack else "leased")
        if not request.ack:
            tx.after_commit(partial(self.waiters.wake_in, request.visibility))
        return self._in_lane(item)

    def _admits(self, tx: Transaction, seq: int) -> bool:
        """Whether an unread message is none of others; what a handle did not sign is."""
        _, sender, _, _ = tx.memory.inbox.group(seq)
        if sender in self.identity.signers or not self.lanes.is_contact(sender):
            return sender in self.identity.signers
        return "@" not in sender or self._in_lane(inbox.item(tx, seq)).lane != "other"

    def give_back(self, seq: int, lease: str) -> None:
        """Return a message that did not reach its client, or whose client ended, as if it had never been leased."""
        self.counters.add("inbox.given_back")
        self.store.write_deferred(partial(self._return, seq=seq, lease=lease), start_commit=True)

    def _return(self, tx: Transaction, seq: int, lease: str) -> None:
        now_ms = self.clock_changes.now_after_clock_check(tx)
        item = inbox.give_back(tx, seq, lease)
        if item is not None:
            audit.note_delivery(tx, now_ms, item.seq, "returned")
            tx.after_commit(self.waiters.wake_all)

    def _until_due(self, deadline: float, due_ms: int | None) -> float:
        """Seconds until a lease expires or a returned message is ready again, up to `deadline`; 0 once the daemon drains."""
        left = 0.0 if self.waiters.closed else max(0.0, deadline - self.clock.monotonic())
        return left if due_ms is None else min(left, max(_SHORTEST, self.clock_changes.seconds_until(due_ms)))

    async def lease(self, seq: int, request: InboxLeaseRequest) -> InboxItem:
        """Lease one ready message, or renew its lease. Refused when another lease is the current one.

        Without `request.others` a message of a peer that was not admitted is returned as it is, and its sender is told.
        """
        return await self._lease_one(seq, request, in_order=False)

    async def lease_in_order(self, seq: int, request: InboxLeaseRequest) -> InboxItem:
        """As `lease`, but refused when an earlier message of its work or thread is leased elsewhere or waits."""
        return await self._lease_one(seq, request, in_order=True)

    async def _lease_one(self, seq: int, request: InboxLeaseRequest, *, in_order: bool) -> InboxItem:
        def job(tx: Transaction, batch: Batch) -> InboxItem:
            now_ms, visible_ms = self.clock_changes.now_after_clock_check(tx), int(request.visibility * 1000)
            item, new = inbox.lease(tx, seq, request.lease, now_ms, visible_ms, in_order=in_order)
            if not request.others and self._in_lane(item).lane == "other":
                self.admission.answer(tx, item)
                return self._in_lane(inbox.give_back(tx, seq, request.lease) or item)
            if new:
                self._check_identity()
            else:
                tx.after_commit(partial(self._note_renewal, request.lease, now_ms))
            tx.after_commit(partial(self.waiters.wake_in, request.visibility))
            if request.accept and item.work_state == "submitted" and item.message.work_id is not None:
                action = WorkActionRequest(channel=item.message.channel)
                item.work_state = self.works.act(tx, batch, item.message.work_id, "accept", action).work_state
            return self._noted(tx, item, "leased") if new else self._in_lane(item)

        if LEASE.fullmatch(request.lease) is None:
            raise InvalidRequest("lease: must be 8 to 128 characters of A-Z, a-z, 0-9, '.', '_' and '-'")
        item = await self.works.sender.send_all(job)
        failpoint("inbox.leased")
        return item

    def _note_renewal(self, lease: str, now_ms: int) -> None:
        self._renewals.pop(lease, None)
        self._renewals[lease] = now_ms
        if len(self._renewals) > _MAX_RENEWALS:
            del self._renewals[next(iter(self._renewals))]

    def _check_identity(self) -> None:
        """Raises Unavailable while another daemon with our peer id hands out the same messages."""
        if self.instance.gives_way:
            hint = "`aghctl status` says which one; stop one of them, or start this one with --take-over"
            raise Unavailable("another daemon with our peer id, started earlier, hands out messages", hint=hint)

    async def ack(self, seq: int, request: InboxAckRequest) -> InboxItem:
        """Acknowledge a message. Refused when another lease is the current one."""

        def job(tx: Transaction) -> InboxItem:
            return self._noted(tx, inbox.ack(tx, seq, request.lease), "acked")

        item = await self.store.write(job)
        failpoint("inbox.acked")
        return item

    async def nack(self, seq: int, request: InboxNackRequest) -> InboxItem:
        """Return a message to the queue after a delay; it is dead after too many attempts."""
        delay_ms = None if request.delay is None else int(request.delay * 1000)

        def job(tx: Transaction) -> InboxItem:
            now_ms = self.clock_changes.now_after_clock_check(tx)
            item = inbox.nack(tx, seq, now_ms=now_ms, lease=request.lease, delay_ms=delay_ms, error=request.error)
            tx.after_commit(self.waiters.wake_all)
            return self._noted(tx, item, "dead" if item.state == "dead" else "returned")

        return await self.store.write(job)

    async def requeue(self, seq: int) -> InboxItem:
        """Make a dead or acknowledged message ready immediately, with no attempts counted."""

        def job(tx: Transaction) -> InboxItem:
            held = inbox.item(tx, seq).is_held
            item = inbox.requeue(tx, seq)
            if held:
                self.admission.tell_release(tx, item)
            tx.after_commit(self.waiters.wake_all)
            return self._noted(tx, item, "requeued")

        return await self.store.write(job)

    def _noted(self, tx: Transaction, item: InboxItem, outcome: str) -> InboxItem:
        audit.note_delivery(tx, self.clock.millis(), item.seq, outcome)
        return self._in_lane(item)

    def _in_lane(self, item: InboxItem) -> InboxItem:
        message = item.message
        own = message.direction == "out"
        lane = "contact" if own else self.lanes.of(message.sender, cast(Trust, message.trust))
        holder, since_ms = holder_of(item.lease) or (None, None)
        renewed_ms = None if item.lease is None else self._renewals.get(item.lease)
        return replace(item, lane=lane, leased_by=holder, leased_ms=since_ms, renewed_ms=renewed_ms)
