"""From the outbox to the broker: committed messages are published in order, and again until they are answered.

Published means that the broker has passed the message on to a subscriber, nothing more (specification, section 7); one that nobody
subscribes to stays queued. The same bytes of a directed message are published again until its receiver's daemon acknowledges the
commit, a receipt or trace answers it, it expires, or the limit of tries is reached; then it is given up, its work is closed and the
agent is notified. Receivers deduplicate by id.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.nats.carrier import Carrier
from aghbus.daemon.nats.link import Link, LinkError
from aghbus.daemon.send.closing import UNREPEATED, WorkCloser
from aghbus.daemon.send.delivery_times import DeliveryTimes
from aghbus.daemon.send.retry_timer import RetryTimer
from aghbus.daemon.send.settled_predecessors import with_settled_headers
from aghbus.daemon.send.unconfirmed import Unconfirmed
from aghbus.daemon.send.unresponsive_peers import FIRST_PAUSE, UnresponsivePeers
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.tags import Tags
from aghbus.protocol.base.backoff import exponential_delay
from aghbus.protocol.base.rate_limit import TokenBuckets
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import outbox, retry
from aghbus.store.tables.outbox import Outgoing
from aghbus.store.tables.retry import Failed, RetrySchedule

_log = logging.getLogger("aghbus.node")

_BATCH: Final = 1024  # envelopes between two confirmations, at most
_MAX_FRESH: Final = 1024  # envelopes kept in memory until they are published; more are read from the store again
_LONGEST: Final = 30.0  # seconds between two checks for due retries: the wall clock may be set while we wait
_SHORTEST: Final = 0.05  # seconds between two checks
_NOT_ACCEPTED_DELAY: Final = 0.5  # seconds before a message that the broker did not take is published again
_JITTER: Final = 0.25  # of a pause between two tries, both ways
_EXPEDITES: Final = 3.0  # times in a row that a join of a peer expedites its retries: anybody may greet under its name
_EXPEDITES_PER_SECOND: Final = 1 / 15  # thereafter
_DAMAGED: Final = "the stored envelope is damaged"


class _Due(NamedTuple):
    """The retries that are due."""

    rows: list[Outgoing]
    back: frozenset[str] = frozenset()  # subjects of returned peers: everything pending for them is due
    complete: bool = True  # whether `rows` are all that is due


class Publisher:
    """Two tasks: `run` publishes queued messages while the link is up, `retry` publishes unanswered ones again."""

    def __init__(
        self,
        context: DaemonContext,
        carrier: Carrier,
        link: Link,
        store: Store,
        clock_changes: ClockChanges,
        presence: PresenceTable,
        tags: Tags,
        closer: WorkCloser,
        notifier: Notifier,
        waiters: InboxWaiters,
    ) -> None:
        self._carrier = carrier
        self._link = link
        self._store = store
        self._identity = context.identity
        self._settings = context.settings
        self._clock = context.clock
        self._clock_changes = clock_changes
        self._presence = presence
        self._tags = tags
        self._closer = closer
        self._notifier = notifier
        self._waiters = waiters
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self.delivery_times = DeliveryTimes()
        self._fresh: deque[Outgoing] = deque()
        self._queued = asyncio.Event()
        self.unconfirmed = Unconfirmed(context.counters, self._queued.set)
        self._timer = RetryTimer()
        self._reload = True
        self.unresponsive = UnresponsivePeers(context.clock, self._timer.trigger)
        self._turn = asyncio.Lock()  # one task at a time publishes to unresponsive peers
        self._reconnected = False  # messages published before may be lost: they go out again before anything new
        self._expedited = TokenBuckets(_EXPEDITES, _EXPEDITES_PER_SECOND)
        self._idle = asyncio.Event()
        self._idle.set()

    def enqueue(self, rows: Sequence[Outgoing]) -> None:
        """Publish the rows that a commit has just queued, in order: at once, unless earlier ones wait."""
        self.delivery_times.committed(rows)
        for row in rows:
            if row.expires_at < self._timer.expires_from:
                self._timer.track(row.expires_at)
            if not self._hand_over(row):
                self._fresh.append(row)
                self._idle.clear()
        if not self._fresh:
            return
        if self._link.state != "up" or len(self._fresh) > _MAX_FRESH:
            self._fresh.clear()  # read from the store later: neither an outage nor a slow broker fills our memory
            self._reload = True
        self._queued.set()

    def link_up(self) -> None:
        """The link is up: publish again in order what is unanswered, then everything that the store has as queued."""
        self.unconfirmed.reconnected()
        self._reload = self._reconnected = True
        self._idle.clear()
        self._queued.set()
        self._timer.trigger()

    def peer_seen(self, subject: str, peer_id: str, *, joined: bool) -> None:
        """The peer on `subject` has greeted. If it has `joined`, or had no subscriber before, retry its pending messages now."""
        waits = joined or self.unresponsive.is_absent(subject)
        if waits and self._expedited.spend(subject, self._clock.monotonic()):
            self.unresponsive.peer_joined(subject, acknowledges=self._presence.acknowledges(peer_id))

    def no_subscriber(self, seq: int) -> None:
        """The broker reports that it has nobody to pass on message `seq` to. Only for messages on their way: anybody may say so."""
        self.unresponsive.no_subscriber(seq)
        row = self.unconfirmed.find(seq)
        if row is None or row.recipient is None or row.message_id.startswith(UNREPEATED):
            return
        self.unconfirmed.no_subscriber(seq)
        if (acknowledges := self._presence.acknowledges(row.recipient)) is not True:
            self.unresponsive.unsubscribed(row.subject, acknowledges=acknowledges)

    # publishing at once

    def _hand_over(self, row: Outgoing) -> bool:
        """Give a first try to the carrier; False when it has to wait for earlier messages, or cannot be sent without waiting."""
        if self._reload or not self._idle.is_set() or self._link.state != "up":
            return False
        if (unresponsive := self.unresponsive.subjects.get(row.subject)) is not None and unresponsive.holds:
            return False
        if row.attempts or len(self.unconfirmed.handed) >= _MAX_FRESH or row.expires_at <= self._clock.millis() // 1000:
            return False
        if ARMED:
            failpoint("publish.before")
        if not self._carrier.hand_over(self._tagged(row) if "@" in row.sender else row):
            return False
        if ARMED:
            failpoint("publish.handed")
        self.unconfirmed.hand(row)
        return True

    async def _confirm(self) -> None:
        """Record what was handed over until now, and has no answer, as published, once the broker has it. Raises LinkError."""
        seqs = self.unconfirmed.without_answer()
        if not seqs:
            return
        try:
            await self._carrier.confirm()
        except LinkError:
            self.unconfirmed.forget_handed()
            raise
        failpoint("publish.confirmed")
        rows, unsubscribed = self.unconfirmed.confirmed(seqs)
        if rows:
            self._note_published(rows, len(rows), unsubscribed)

    # publishing

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._queued.wait()
            self._queued.clear()
            self.unconfirmed.stop_timer()
            if self._link.state != "up":
                continue
            try:
                await self._confirm()
                await self._empty()
            except (LinkError, StoreUnavailable) as error:
                self._publish_again()
                self._counters.add("outbox.interrupted")
                self._log_limiter.event(logging.INFO, "outbox", "publishing interrupted", cause=str(error))

    def _publish_again(self) -> None:
        """Reload from the store soon what was being published. The link need not go down for this: the PONG may be late."""
        self._reload = True
        self._idle.clear()
        asyncio.get_running_loop().call_later(_NOT_ACCEPTED_DELAY, self._queued.set)

    async def drained(self, timeout: float) -> bool:
        """Wait until nothing is left to publish and to confirm; False when `timeout` seconds passed before."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
                await self._confirm()
        except (TimeoutError, LinkError):
            return False
        return True

    async def _empty(self) -> None:
        while self._reload or self._fresh:
            if self._reload:
                await self._publish_stored()
            batch = [self._fresh.popleft() for _ in range(min(_BATCH, len(self._fresh)))]
            await self._publish_in_turn(batch)
        self._idle.set()

    async def _publish_stored(self) -> None:
        """Publish everything that the store has as queued, oldest first; the fresh rows are among them."""
        store = self._store
        if not store.writable and not await store.probe():  # without a record it would be published again and again
            raise StoreUnavailable("the store cannot write", hint="see `aghctl status`")
        await self._confirm()  # the store has it as queued
        self._reload = False
        self._fresh.clear()
        if self._reconnected:
            self._reconnected = False
            for subject, peer_id in await store.write(retry.subjects):
                self.unresponsive.peer_joined(subject, acknowledges=self._presence.acknowledges(peer_id))
        after = 0
        while rows := await store.write(partial(outbox.load_queued, after_seq=after, limit=_BATCH)):
            await self._publish_in_turn(rows)
            after = rows[-1].seq

    async def _publish_in_turn(self, rows: list[Outgoing]) -> None:
        """Publish, but not while `retry` is publishing older messages to the same unresponsive peer."""
        if not self.unresponsive.affects(rows):
            await self._publish(rows)
            return
        await self._confirm()  # earlier messages to the same peers are among those that wait
        async with self._turn:
            await self._publish(rows)

    async def _publish(self, rows: list[Outgoing], catching_up: frozenset[str] = frozenset()) -> None:
        """Publish those of `rows` that may go out now. On the subjects of `catching_up` they are all that is due."""
        now = self._clock.millis() // 1000
        fresh = [row for row in rows if row.expires_at > now]
        if len(fresh) < len(rows):
            self._timer.trigger()  # `retry` gives up the expired ones
        if not fresh:
            return
        tried = fresh  # an older message sent along with them does not count as a try
        if self.unresponsive.affects(fresh):
            fresh = await self._store.write(lambda tx: self._in_order(tx, fresh, catching_up))
        if any(row.attempts for row in fresh):
            fresh = await self._store.write(lambda tx: with_settled_headers(tx, fresh, self._identity))
        if not fresh:
            return
        failpoint("publish.before")
        going = {row.seq: row for row in fresh}
        self.unconfirmed.carry(going)
        try:
            carried = await self._carrier.carry(
                [self._tagged(row) if "@" in row.sender else row for row in fresh if row.raw]
            )
        finally:
            unsubscribed = self.unconfirmed.carried(going)
        failpoint("publish.confirmed")
        taken = set(carried.published)
        impossible = carried.impossible + [(row.seq, _DAMAGED) for row in fresh if not row.raw]
        counted = {row.seq for row in tried}
        if self.unresponsive.subjects:
            counted.update(seq for seq in taken - unsubscribed if self.unresponsive.taken(seq))
        rows = [row for row in fresh if row.seq in taken and row.seq in counted]
        self._note_published(rows, len(taken), unsubscribed, impossible)
        if len(taken) + len(impossible) < len(fresh):
            self._counters.add("outbox.not_accepted", len(fresh) - len(taken) - len(impossible))
            self._reload = True
            await asyncio.sleep(_NOT_ACCEPTED_DELAY)

    def _tagged(self, row: Outgoing) -> Outgoing:
        tag = self._tags.make(row.sender, row.recipient, row.raw)
        return msgspec.structs.replace(row, tag=tag) if tag else row

    def _note_published(
        self,
        rows: list[Outgoing],
        count: int,
        unsubscribed: frozenset[int],
        impossible: Sequence[tuple[int, str]] = (),
    ) -> None:
        """The broker has had `count` messages. Record `rows`, which are tries of theirs, and those that it will never take. It had
        nobody to pass on the `unsubscribed` ones to."""
        self._counters.add("outbox.published", count - len(unsubscribed))
        if unsubscribed:
            self._counters.add("outbox.no_subscriber", len(unsubscribed))
        at, pauses = self._clock.monotonic(), {row.seq: self._pause(row, row.seq not in unsubscribed) for row in rows}
        job = partial(self._record, at=at, pauses=pauses, impossible=impossible, unsubscribed=unsubscribed)
        recording = self._store.submit_deferred(job)
        recording.add_done_callback(self._recorded)

    def _recorded(self, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, StoreUnavailable):
            self._publish_again()  # it was published, but no retry is recorded
        elif error is not None:
            _log.error("published messages could not be recorded", exc_info=error)

    def _record(
        self,
        tx: Transaction,
        at: float,
        pauses: dict[int, float | None],
        impossible: Sequence[tuple[int, str]],
        unsubscribed: frozenset[int],
    ) -> None:
        """The messages of `pauses` were published at monotonic second `at`."""
        at_ms = self._clock_changes.now_after_clock_check(tx) - int(1000 * (self._clock.monotonic() - at))
        schedules: list[RetrySchedule] = []
        for seq, pause in pauses.items():
            next_ms = None if pause is None else at_ms + int(1000 * pause)
            if seq not in unsubscribed:
                schedules.append(RetrySchedule(seq, next_ms))
            else:
                retry.unsubscribed(tx, seq, next_ms)
            if next_ms is None:
                tx.memory.flows.settle(tx, seq)  # nobody answers it
        retry.published(tx, schedules, at_ms)
        if due := [pause for pause in pauses.values() if pause is not None]:
            tx.after_commit(partial(self._timer.due_at, at + min(due)))
        for seq, why in impossible:
            self.give_up(tx, seq, "dead", why)

    def _in_order(self, tx: Transaction, rows: list[Outgoing], catching_up: frozenset[str]) -> list[Outgoing]:
        tx.after_commit(self._timer.trigger)  # for the messages that got a later due time
        now_ms = self._clock_changes.now_after_clock_check(tx)
        return self.unresponsive.in_order(tx, rows, catching_up, self._settings.current.retry.ceiling, now_ms)

    # retries

    def _pause(self, row: Outgoing, passed_on: bool) -> float | None:
        """Seconds until a message just published for the `row.attempts + 1`-th time is retried; None for never.

        Only what can be answered is retried: every peer answers work, and a daemon that acknowledges answers everything; and what
        was not passed on to anybody.
        """
        if row.recipient is None or row.message_id.startswith(UNREPEATED):
            return None
        if passed_on and not row.answerable and self._presence.acknowledges(row.recipient) is False:
            return None
        policy = self._settings.current.retry
        pause = exponential_delay(row.attempts + 1, policy.first, policy.ceiling)
        return pause * (1 + _JITTER * (2 * self._clock.fraction() - 1))

    async def retry(self) -> None:
        """Publish due messages again and give up expired ones, until cancelled."""
        while True:
            self._timer.clear()
            failed = False
            try:
                async with self._turn:
                    due = await self._store.write(self._take_due)
                    if due.rows:
                        self._counters.add("outbox.retried", sum(row.attempts > 0 for row in due.rows))
                        await self._publish(due.rows, due.back)
                    if due.complete:
                        self.unresponsive.clear(due.back)
            except (LinkError, StoreUnavailable) as error:
                self._log_limiter.event(logging.INFO, "retry", "retry interrupted", cause=str(error))
                # Neither a store that recovers nor a broker that was slow triggers the timer.
                soon = isinstance(error, StoreUnavailable) or self._link.state == "up"
                self._timer.check_at(self._clock.monotonic() + _NOT_ACCEPTED_DELAY if soon else None)
                failed = True
            with contextlib.suppress(TimeoutError):
                while not await self._triggered(failed=failed):
                    pass  # the next check is earlier than before

    async def _triggered(self, *, failed: bool) -> bool:
        """Wait; True when triggered. Raises TimeoutError when the next check is due."""
        left = min(self._timer.next_check - self._clock.monotonic(), _LONGEST)
        if not failed:  # else the expired messages that were not given up would end the wait immediately
            left = min(left, self._timer.seconds_to_expiry(self._clock.millis() / 1000))
        async with asyncio.timeout(max(left, _SHORTEST)):
            return await self._timer.wait()

    def _take_due(self, tx: Transaction) -> _Due:
        policy, now_ms = self._settings.current.retry, self._clock_changes.now_after_clock_check(tx)
        longest = (1 + _JITTER) * max(policy.first, policy.ceiling, FIRST_PAUSE)
        retry.pull_in(tx, now_ms, now_ms + int(1000 * longest))
        if self._timer.may_have_expired(self._clock.seconds()):
            self._give_up_expired(tx)
        if self._link.state != "up":
            tx.after_commit(partial(self._timer.check_at, None))
            return _Due([])
        back = self.unresponsive.expedite(tx, now_ms)
        rows: list[Outgoing] = []
        due = retry.due(tx, now_ms, _BATCH)
        stopped = self._stop_ended(tx, due)
        for row in due:
            if row.seq in stopped:
                continue
            if row.attempts < policy.limit:
                rows.append(row)
                if row.attempts and row.recipient is not None:
                    self.unresponsive.mark(row.subject, acknowledges=self._presence.acknowledges(row.recipient))
            else:
                self.give_up(tx, row.seq, "dead", f"no answer after {row.attempts} tries")
        next_ms = retry.next_due_ms(tx)
        next_at = None if next_ms is None else self._clock.monotonic() + (next_ms - now_ms) / 1000
        tx.after_commit(partial(self._timer.check_at, next_at))
        return _Due(rows, back, retry.count_due(tx, now_ms) == len(rows))

    def _stop_ended(self, tx: Transaction, due: list[Outgoing]) -> set[int]:
        """Which of `due` are not repeated, as their work has ended: another implementation would open it again after a restart.
        A daemon of this project takes the end only after them."""
        to = {row.subject: row.recipient for row in due if row.attempts and row.answerable}
        subjects = [one for one, peer in to.items() if peer and self._presence.acknowledges(peer) is False]
        return {seq for subject in subjects for seq in retry.stop_ended(tx, subject)}

    def _give_up_expired(self, tx: Transaction) -> None:
        for seq in retry.stale(tx, self._clock.seconds(), _BATCH):
            self.give_up(tx, seq, "expired", "no answer before it expired")
        tx.after_commit(partial(self._timer.expired_from, retry.stale_from(tx)))

    def give_up(self, tx: Transaction, seq: int, state: str, why: str, reason: str | None = None) -> None:
        """End an unanswered message as `refused`, `expired` or `dead`. `reason` is the code with which its receiver refused it."""
        failed = retry.give_up(tx, seq, state, why, reason)
        if failed is not None:
            rows = self.after_failure(tx, failed)
            tx.after_commit(lambda: self._gave_up(rows))

    def after_failure(self, tx: Transaction, failed: Failed) -> list[Outgoing]:
        """Our message was refused or given up: so is what follows it in the work that it should have opened, which is canceled.
        Returns the outbox rows."""
        self._release(tx, failed)
        rows: list[Outgoing] = []
        for seq in retry.followers(tx, failed):
            follower = retry.give_up(tx, seq, "dead", f"its work was not opened: {failed.detail}")
            rows += [] if follower is None else self.after_failure(tx, follower)
        return rows + self._closer.after_failure(tx, failed)

    def _release(self, tx: Transaction, failed: Failed) -> None:
        """The next message of the flow does not wait for one that ended without effect."""
        if tx.memory.flows.is_last(failed.seq):
            if retry.is_settled(tx, failed.workspace_id, failed.message_id):
                tx.memory.flows.settle(tx, failed.seq)
        elif retry.release_next(tx, failed.seq, self._clock_changes.now_after_clock_check(tx)):
            tx.after_commit(partial(self._timer.due_at, self._clock.monotonic()))

    def _gave_up(self, rows: list[Outgoing]) -> None:
        self.enqueue(rows)
        self._notifier.notify(max((row.seq for row in rows), default=0))
        self._waiters.wake_all()
