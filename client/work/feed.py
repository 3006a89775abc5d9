"""The works that wait in the inbox, taken one by one: each is leased, accepted, and kept leased until it is reported."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from aghbus.client.api import LAST_PAUSE
from aghbus.client.core.core import Core
from aghbus.client.core.ids import new_id
from aghbus.client.core.operation import query_of
from aghbus.client.core.refusals import Conflict, LeaseLost, NotFound, Unavailable
from aghbus.client.core.subscription import Subscription
from aghbus.client.errors import ClientError, RefusedByDaemon, Unreachable, UsageError
from aghbus.client.work.job import ENDED, JobCore, JobState
from aghbus.protocol.agh.envelope import CONVERSATION_KINDS, OPENING_KINDS
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.api.inbox import InboxItem, InboxLeaseRequest, InboxResponse
from aghbus.protocol.api.messages import Event, Message
from aghbus.protocol.api.peers import CapabilitiesResponse
from aghbus.protocol.api.queries import EventsQuery, InboxQuery, NoParameters
from aghbus.protocol.api.works import WorkStepRequest

LEASE: Final = 60.0
"""Seconds after which the work of a dead worker is ready again."""
POLL: Final = 5.0
"""Seconds between two looks at works that another consumer has."""

Accept = Callable[[Message], bool]


class Feed:
    """Works for this daemon, for one consumer. `capabilities` are those that it serves (empty: all).

    A work belongs to a capability that the daemon announces when its opening names it: by its intent, or because it carries
    its record. Works that name none are for every consumer. `accept` may refuse others: they stay in the inbox.
    """

    def __init__(
        self, core: Core, capabilities: Sequence[str] = (), accept: Accept | None = None, lease: float = LEASE
    ) -> None:
        self._core = core
        self._capabilities = capabilities
        self._accept = accept
        self._lease = lease
        self._announced: frozenset[str] = frozenset()
        self._candidates: dict[int, tuple[float, Message]] = {}
        self._jobs: dict[int, JobCore] = {}
        self._stopped = self._closed = False
        self._gap = True
        self._wake, self._pulse = core.runtime.signal(), core.runtime.signal()
        self._cancels: list[Callable[[], object]] = []
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        """Begin to follow the daemon. Raises UsageError when it does not announce a capability, and ClientError."""
        found: CapabilitiesResponse = await self._core.ask(
            "GET", "/v1/capabilities", NoParameters(), CapabilitiesResponse
        )
        self._announced = frozenset(record.id for record in found.capabilities)
        for capability in self._capabilities:
            if capability not in self._announced:
                hint = f"start it with: aghd run --capability {capability}"
                raise UsageError(f"the daemon does not announce the capability {capability}", hint)
        query = query_of(EventsQuery(kinds=CONVERSATION_KINDS))
        self._subscription = Subscription(self._core, "/v1/events", query, await self._core.position())
        self._cancels = [self._core.runtime.start(work) for work in (self._follow, self._renew)]

    def stop(self) -> None:
        """Take no more works; those that run stay leased until `close`."""
        self._stopped = True
        self._wake.set()

    async def close(self) -> None:
        """Stop, and return the works that were not reported to the inbox."""
        self.stop()
        self._closed = True
        for job in list(self._jobs.values()):
            with suppress(ClientError):
                await job.release(error="the worker has stopped")
        self._pulse.set()
        if self._subscription is not None:
            self._subscription.stop()
        for cancel in self._cancels:
            cancel()

    async def next(self) -> JobCore | None:
        """The next work, leased and accepted; None once stopped."""
        while not self._stopped:
            try:
                if self._gap:
                    await self._list()
                if (job := await self._take_one()) is not None:
                    return job
            except (Unreachable, Unavailable):
                await self._core.runtime.sleep(LAST_PAUSE)
            else:
                await self._wake.wait(POLL)
        return None

    def named(self, message: Message, body: dict[str, object]) -> str | None:
        """The announced capability that an opening names."""
        record = body.get("capability")
        names = (body.get("intent"), record.get("id") if isinstance(record, dict) else None)
        return next((name for name in names if isinstance(name, str) and name in self._announced), None)

    # taking

    async def _take_one(self) -> JobCore | None:
        for seq, (due, message) in sorted(self._candidates.items()):
            if self._stopped:
                return None
            if due <= time.monotonic() and (job := await self._take(seq, message)) is not None:
                return job
        return None

    async def _take(self, seq: int, message: Message) -> JobCore | None:
        job = await self._leased(seq, message)
        if job is None:
            return None
        try:
            work = await self._core.work(job.work_id, job.channel)
            if work.state == "submitted":
                await self._core.step(job.work_id, "accept", WorkStepRequest(channel=job.channel))
            if work.state not in TERMINAL_STATES and not job.state.canceled:
                return job
        except ENDED:
            pass
        except RefusedByDaemon as error:
            await job.release(delay=self._lease, error=error.message)
            return None
        except BaseException:
            self._jobs.pop(seq, None)  # the lease runs out
            raise
        await job.settle()
        return None

    async def _leased(self, seq: int, message: Message) -> JobCore | None:
        form = InboxLeaseRequest(lease=new_id("lease_"), visibility=self._lease)
        try:
            item: InboxItem = await self._core.ask("POST", f"/v1/inbox/{seq}/lease", form, InboxItem)
        except LeaseLost:  # of another consumer, who may die
            self._candidates[seq] = (time.monotonic() + POLL, message)
            return None
        except (Conflict, NotFound):  # acked, dead, or removed
            self._candidates.pop(seq, None)
            return None
        job = JobCore(self._core, JobState(item, form.lease))
        job.state.on_end = lambda: self._forget(seq)
        self._candidates.pop(seq, None)
        self._jobs[seq] = job  # before the work is accepted, so that no cancellation is missed
        return job

    def _forget(self, seq: int) -> None:
        self._jobs.pop(seq, None)

    # following

    async def _list(self) -> None:
        """Find what waits in the inbox, at the start and after a gap, and the works that ended meanwhile."""
        self._gap = False
        since: int | None = 0
        while since is not None:
            query = InboxQuery(states=frozenset({"ready", "leased"}), since=since, limit=1000)
            page: InboxResponse = await self._core.ask("GET", "/v1/inbox", query, InboxResponse)
            for item in page.items:
                if item.message.outcome == "opened" and item.seq not in self._jobs:
                    self._consider(item.message)
            since = page.next_since
        for job in list(self._jobs.values()):
            with suppress(NotFound):
                if (await self._core.work(job.work_id, job.channel)).state in TERMINAL_STATES:
                    job.state.cancel()

    def _consider(self, message: Message) -> None:
        if message.direction != "in" or message.kind not in OPENING_KINDS or message.damaged:
            return
        body = msgspec.json.decode(message.envelope).get("body") or {}
        named = self.named(message, body)
        if self._capabilities and named is not None and named not in self._capabilities:
            return
        if self._accept is None or self._accept(message):
            self._candidates[message.seq] = (0.0, message)

    async def _follow(self) -> None:
        assert self._subscription is not None
        while not self._closed:
            with suppress(ClientError):  # the daemon is away for long
                async with aclosing(self._subscription.events()) as events:
                    async for _, data in events:
                        self._on_event(msgspec.json.decode(data, type=Event))
            if not self._closed:
                await self._core.runtime.sleep(LAST_PAUSE)

    def _on_event(self, event: Event) -> None:
        if event.message is None:
            self._gap = True
        elif event.work is not None and event.work.outcome == "opened":
            self._consider(event.message)
        elif event.work is not None and event.work.after in TERMINAL_STATES:
            for job in list(self._jobs.values()):
                if (job.channel, job.work_id) == (event.message.channel, event.work.work_id):
                    job.state.cancel()
            return
        else:
            return
        self._wake.set()

    async def _renew(self) -> None:
        """Keep the leases of all running jobs."""
        while not self._closed:
            await self._pulse.wait(self._lease / 3)
            for seq, job in list(self._jobs.items()):
                form = InboxLeaseRequest(lease=job.state.lease, visibility=self._lease)
                try:
                    await self._core.ask("POST", f"/v1/inbox/{seq}/lease", form, InboxItem)
                except (LeaseLost, Conflict, NotFound):
                    job.state.cancel()
                except ClientError:
                    continue  # the daemon is away: the next renewal retries


async def jobs(
    core: Core, capabilities: Sequence[str], accept: Accept | None, lease: float
) -> AsyncGenerator[JobCore, None]:
    """The works of a feed, one at a time. A work that the block did not report is completed before the next one."""
    feed = Feed(core, capabilities, accept, lease)
    await feed.open()
    try:
        while (job := await feed.next()) is not None:
            yield job
            if not job.state.ended:
                await job.complete()
    finally:
        await feed.close()
