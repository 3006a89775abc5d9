"""The works that wait in the inbox, taken one by one: each is leased, accepted, and kept leased until it is reported."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from aghbus.client.api import LAST_PAUSE
from aghbus.client.core.core import Core
from aghbus.client.core.ids import new_lease
from aghbus.client.core.refusals import Conflict, LeaseLost, NotFound, SecretLike, Unavailable
from aghbus.client.core.watch import Watch
from aghbus.client.errors import ClientError, Unreachable, UsageError
from aghbus.client.work.job import JobCore, JobState
from aghbus.protocol.agh.bodies import asked_capability
from aghbus.protocol.agh.envelope import OPENING_KINDS
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.api.inbox import InboxItem, InboxLeaseRequest, InboxResponse
from aghbus.protocol.api.messages import Event, Message
from aghbus.protocol.api.peers import CapabilitiesResponse
from aghbus.protocol.api.queries import MAX_LIMIT, InboxQuery, NoParameters
from aghbus.protocol.api.status import StatusResponse
from aghbus.protocol.base.text import escape, shorten

LEASE: Final = 60.0
"""Seconds after which the work of a dead worker is ready again."""
POLL: Final = 5.0
"""Seconds between two looks at the inbox: what another consumer returns, or an operator requeues, makes no event."""
ADMISSION_POLL: Final = 1.0
"""The same while works wait until their peers are admitted."""
POLL_SHARE: Final = 20
"""How many times as long as it takes to look at the inbox it is not looked at again."""

NAME_CHARACTERS: Final = 100
"""Most characters of a capability of a peer in our answer."""
UNWANTED: Final = "\0"
"""In place of a capability: the work is not for this consumer."""

Accept = Callable[[Message], bool]


class Feed:
    """Works for this daemon, for one consumer. `capabilities` are those that it serves (empty: all).

    Works that ask for another capability that the daemon announces are left to other consumers; those that ask for none are
    for every one. Those that ask for what the daemon does not announce are refused, with the list of what it does; with
    `needs_name` those that ask for none, too. `accept` may leave works in the inbox. So are works of peers that were not
    admitted, unless `others` is true: the daemon tells their initiators, once, that they wait. `takes`: how many works this
    consumer carries out at a time.
    """

    def __init__(
        self,
        core: Core,
        capabilities: Sequence[str] = (),
        accept: Accept | None = None,
        lease: float = LEASE,
        *,
        others: bool = False,
        needs_name: bool = False,
        takes: int = 1,
    ) -> None:
        self._core = core
        self._needs_name = needs_name
        self._takes = takes
        self._capabilities = capabilities
        self._accept = accept
        self._lease = lease
        self._others = others
        self._announced: dict[str, None] = {}
        self._candidates: dict[int, str | None] = {}  # the capability that each asks for
        self._untold: set[int] = set()  # works of peers that were not admitted
        self._told: set[int] = set()
        self._taking: dict[int, str | None] = {}
        self._jobs: dict[tuple[str, str | None], JobCore] = {}
        self._stopped = self._closed = self._gap = False
        self._list_at = 0.0
        self.leave: Callable[[], int] = lambda: 0
        """How many of the waiting works `pick` leaves in the inbox; `wake` tells that it is another number now."""
        self.is_free: Callable[[str | None], bool] = lambda capability: True
        """Whether a work that asks for `capability` may be taken now; `wake` tells that another one may."""
        self.on_waiting: Callable[[InboxItem], object] = _log_waiting
        """Gets each work that waits until its peer is admitted."""
        self.on_refused: Callable[[InboxItem, str], object] = _log_refused
        """Gets each work that was refused because of what it asks for, and the reason."""
        self.on_other: Callable[[Event], object] = lambda event: None
        """Gets each event without a work, and each in a work that is not one of the jobs."""
        self._wake, self._pulse = core.runtime.signal(), core.runtime.signal()
        self._watch: Watch | None = None
        self._cancel: Callable[[], object] = lambda: None

    async def open(self, core: Core | None = None) -> None:
        """Begin to follow the daemon, asking by `core`. Raises UsageError when it does not announce a capability, ClientError."""
        core = core or self._core
        await self._look_up(core)
        for capability in self._capabilities:
            if capability not in self._announced:
                status: StatusResponse = await core.ask("GET", "/v1/status", NoParameters(), StatusResponse)
                hint = f"start it with: aghd run --name {status.name} --capability {capability}"
                raise UsageError(f"the daemon {status.name} does not announce the capability {capability}", hint)
        self._watch = self._core.runtime.watch
        self._watch.listen(self._on_event, self._core.opening, takes=self._takes)
        self._cancel = self._core.runtime.start(self._renew)

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
        if self._watch is not None:
            self._watch.forget(self._on_event, takes=self._takes)
            self._watch = None
        self._cancel()

    def wake(self) -> None:
        """Let `pick` look again."""
        self._wake.set()

    async def lease(self) -> JobCore | None:
        """The next work, leased; None once stopped."""
        while (picked := await self.pick()) is not None:
            if (job := await self.take(picked[0])) is not None:
                return job
        return None

    async def pick(self) -> tuple[int, str | None] | None:
        """The next work to `take`: the sequence of its opening, and the capability that it asks for. None once stopped."""
        looked = False
        while not self._stopped:
            try:
                if self._gap or time.monotonic() >= self._list_at:
                    await self._list()
                    looked = True
                waiting = sorted(seq for seq, asked in self._candidates.items() if self.is_free(asked))
                left = self.leave()
                if len(waiting) > left:
                    if not left or looked:
                        asked = self._taking[waiting[left]] = self._candidates.pop(waiting[left])
                        if not self._is_unserved(asked) or not await self._is_announced(asked):
                            return waiting[left], asked
                        del self._taking[waiting[left]]
                        continue
                    self._list_at = 0.0  # others may have taken some of them
                    continue
                if self._untold:
                    if (job := await self.take(self._untold.pop())) is not None:  # its peer was admitted just now
                        await job.release(delay=0)
                    continue
            except (Unreachable, Unavailable):
                self._gap = True  # look at the works that run, too, when the daemon is back
                await self._core.runtime.sleep(LAST_PAUSE)
            else:
                await self._wake.wait(min(POLL, max(0.0, self._list_at - time.monotonic())))
            looked = False
        return None

    def adopt(self, job: JobCore) -> None:
        """Keep a job leased, and tell it of its events, that an earlier process took. Renew its lease first if it has one."""
        self._add(job)
        job.state.unread = True

    async def _is_announced(self, asked: str | None) -> bool:
        """Whether a process of ours announces a capability since we began: its works are for that one."""
        await self._look_up(self._core)
        return asked in self._announced

    async def _look_up(self, core: Core) -> None:
        """Learn what the daemon announces."""
        found: CapabilitiesResponse = await core.ask("GET", "/v1/capabilities", NoParameters(), CapabilitiesResponse)
        self._announced = dict.fromkeys(record.id for record in found.capabilities)

    def named(self, body: dict[str, Any]) -> str | None:
        """The capability that the opening with this body asks for."""
        return asked_capability(body, self._announced)

    # taking

    async def take(self, seq: int, *, accept: bool = False) -> JobCore | None:
        """The work, leased, and with `accept` accepted if possible; None when another consumer has it, or the daemon is away.
        Several may be taken at a time."""
        accept = accept and not self._is_unserved(self._taking.get(seq))
        form = InboxLeaseRequest(lease=new_lease(), visibility=self._lease, others=self._others, accept=accept)
        try:
            item: InboxItem = await self._core.ask("POST", f"/v1/inbox/{seq}/lease", form, InboxItem)
        except (LeaseLost, Conflict, NotFound):  # of another consumer, who may die; acknowledged, dead, or removed
            return None
        except ClientError as error:
            if error.is_transient:
                self._gap = True
                return None
            if not accept:
                raise
            return await self.take(seq)  # its job tells that it cannot be accepted
        finally:
            self._taking.pop(seq, None)
        if item.lease != form.lease:  # of a peer that was not admitted
            self._told.add(seq)
            self.on_waiting(item)
            return None
        job = JobCore(self._core, JobState(item, form.lease))
        if self._is_unserved(asked := self.named(job.state.body)):
            await self._refuse(job, "no capability" if asked is None else shorten(asked, NAME_CHARACTERS))
            return None
        self._add(job)
        job.state.unread |= not self._core.runtime.watch.knows(job.work_id, seq)
        return job

    def _is_unserved(self, asked: str | None) -> bool:
        served = self._capabilities
        return bool(served) and asked not in served and (asked is not None or self._needs_name)

    async def _refuse(self, job: JobCore, asked: str) -> None:
        """Refuse a work that asks for what nobody serves here."""
        why = f"the work names {asked}; this peer serves {', '.join(self._announced)}"
        try:
            refused = await job.refuse(why)
        except SecretLike:
            refused = await job.refuse(why.replace(asked, "an unknown capability"))
        if refused:
            self.on_refused(job.state.item, why)

    def _add(self, job: JobCore) -> None:
        self._jobs[job.channel, job.work_id] = job
        job.state.on_end = lambda returned: self._forget(job, returned)

    def _forget(self, job: JobCore, returned: bool) -> None:
        self._jobs.pop((job.channel, job.work_id), None)
        if returned:
            self._list_at = 0.0
            self._wake.set()

    # following

    async def _list(self) -> None:
        """Find what is ready in the inbox and, after a gap in the events, the works that ended meanwhile."""
        gap, self._gap = self._gap, False
        began, again = time.monotonic(), POLL
        since: int | None = 0
        self._candidates.clear()
        waiting: set[int] = set()
        while since is not None:
            query = InboxQuery(states=frozenset({"ready", "leased"}), since=since, limit=MAX_LIMIT)
            page: InboxResponse = await self._core.ask("GET", "/v1/inbox", query, InboxResponse)
            for item in page.items:
                wait = item.available_ms / 1000 - time.time() if item.state == "ready" else POLL
                if item.message.outcome == "opened" and (asked := self._asked(item.message)) is not UNWANTED:
                    if wait > 0:
                        again = min(again, wait)
                    elif item.lane == "other" and not self._others:
                        waiting.add(item.seq)
                    elif item.work_state not in TERMINAL_STATES or not self.leave():
                        self._candidates[item.seq] = asked
            since = page.next_since
        self._told &= waiting
        self._untold = waiting - self._told
        if waiting:
            again = min(again, ADMISSION_POLL)
        now = time.monotonic()
        self._list_at = now + max(again, POLL_SHARE * (now - began))
        for job in list(self._jobs.values()) if gap else ():
            if await job.has_ended():
                job.state.cancel()
            job.state.unread = True
            job.state.on_event(None)

    def _asked(self, message: Message) -> str | None:
        """The capability that an opening asks for; UNWANTED when it is not for this consumer."""
        if message.direction != "in" or message.kind not in OPENING_KINDS or message.damaged:
            return UNWANTED
        if (message.channel, message.work_id) in self._jobs or message.seq in self._taking:
            return UNWANTED
        asked = self.named(msgspec.json.decode(message.envelope).get("body") or {})
        if self._capabilities and asked in self._announced and asked not in self._capabilities:
            return UNWANTED
        return asked if self._accept is None or self._accept(message) else UNWANTED

    def _on_event(self, event: Event | None) -> None:
        if event is None or event.message is None:
            self._gap = True
        elif event.work is None:
            self.on_other(event)
            return
        elif event.work.outcome == "opened":
            try:
                if (asked := self._asked(event.message)) is not UNWANTED:
                    self._candidates[event.message.seq] = asked
            except Exception:  # of `accept`: the one who lists the inbox gets it
                self._gap = True
        else:
            if (job := self._jobs.get((event.message.channel, event.work.work_id))) is not None:
                if event.work.after in TERMINAL_STATES:
                    job.state.cancel()
                job.state.unread |= event.message.direction == "in" and event.message.kind in OPENING_KINDS
                job.state.on_event(event)
            else:
                self.on_other(event)
            return
        self._wake.set()

    async def _renew(self) -> None:
        """Keep the leases of all running jobs."""
        while not self._closed:
            await self._pulse.wait(self._lease / 3)
            for job in list(self._jobs.values()):
                with suppress(ClientError):  # the daemon is away: the next renewal retries
                    await job.renew(self._lease)


def _log_waiting(item: InboxItem) -> None:
    import logging  # slow to load

    logger = logging.getLogger("aghbus.client")
    logger.warning("work %s waits: its peer is not admitted (aghctl requests)", item.message.work_id)


def _log_refused(item: InboxItem, why: str) -> None:
    import logging  # slow to load

    logging.getLogger("aghbus.client").warning("work %s is refused: %s", item.message.work_id, escape(why))


async def jobs(
    core: Core, capabilities: Sequence[str], accept: Accept | None, lease: float, *, others: bool
) -> AsyncGenerator[JobCore, None]:
    """The works of a feed, one at a time. A work that the block did not report is completed before the next one."""
    feed = Feed(core, capabilities, accept, lease, others=others)
    await feed.open()
    try:
        while (picked := await feed.pick()) is not None:
            if (job := await feed.take(picked[0], accept=True)) is None:
                continue
            try:
                if not await job.accept():
                    continue
            except (Unreachable, Unavailable):
                job.state.end(returned=True)
                continue
            yield job
            if not job.state.ended:
                await job.complete()
    finally:
        await feed.close()
