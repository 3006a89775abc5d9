"""`aghctl a2a join`: takes the works of one daemon and gives each to an A2A agent as a task."""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import httpx
import msgspec

from aghbus.client.core.core import Core
from aghbus.client.errors import ClientError, RefusedByDaemon, UsageError
from aghbus.client.http import Endpoint
from aghbus.client.work.clients import AsyncClient
from aghbus.client.work.feed import LEASE, Feed
from aghbus.client.work.job import JobCore, JobState
from aghbus.client.work.journal import Journal
from aghbus.gateways.a2a.join.agent import Access, Agent, Away
from aghbus.gateways.a2a.join.card import Card, CardKeys, CardRefused, Pins, card_url, checked, fetch_card
from aghbus.gateways.a2a.join.reports import Settings
from aghbus.gateways.a2a.join.task import JoinedWork
from aghbus.gateways.base.metrics import Metrics
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.base.backoff import Backoff
from aghbus.protocol.formats.a2a.outward import Skill, skills_of, whole_agent

SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
ANNOUNCED: Final = 180.0
"""Seconds for which the agent's skills stay announced when this process dies."""
CARD_EVERY: Final = 60.0
"""Seconds between two looks at the card."""
RETURN_PAUSE: Final = 15.0
"""Seconds for which a work is left whose journal cannot be written."""
METRICS: Final = {
    "events_total": ("lines of the log, by event", "event"),
    "running": ("works whose task is under way",),
}
"""The metrics below `aghbus_a2a_join_`; docs/adapters/a2a.md names them."""
END_SECONDS: Final = 5.0
"""Seconds for leaving the works at the end of the process."""


class JoinOptions(NamedTuple):
    """`url` of the agent, `capabilities` (empty: all skills of its card), and what the command line says besides."""

    url: str
    access: Access
    capabilities: tuple[str, ...] = ()
    concurrency: int = 4
    others: bool = False
    binding: str | None = None
    card_key: str | None = None
    accept_card: bool = False
    resend: bool = False
    metrics: tuple[str, int] | None = None


class Joiner:
    """One `aghctl a2a join`. `folder` has the journal and the accepted cards, `emit` writes a line of the log, and `command` makes
    a command line that a person can paste."""

    def __init__(
        self,
        options: JoinOptions,
        endpoint: Endpoint,
        timeout: float,
        folder: str,
        emit: Callable[..., None],
        command: Callable[[str], str],
    ) -> None:
        """Raises UsageError."""
        self.options = options
        self._url = card_url(options.url)
        options.access.check(self._url, "URL")
        try:
            options.access.headers()
        except Away as error:
            raise UsageError(str(error)) from None
        self._print, self._command = emit, command
        self._metrics = Metrics("aghbus_a2a_join", METRICS)
        self._client = AsyncClient(endpoint, timeout=timeout)
        self._client.core.patience = math.inf  # works wait for a daemon that is away
        self._impatient = Core(self._client.core.runtime, timeout)
        self._journal = Journal(folder)
        self._pins = Pins(folder)
        self._jobs: dict[asyncio.Task[None], JoinedWork] = {}
        self._refused = ""  # why the card is not accepted (any more)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._serving: asyncio.Task[None] | None = None
        self.signal: signal.Signals | None = None

    async def run(self) -> None:
        """Serve until `stop` or a signal. Raises ClientError."""
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                asyncio.get_running_loop().add_signal_handler(number, self.stop, number)
        with contextlib.ExitStack() as stack:
            if self.options.metrics is not None:
                self._emit("metrics", port=stack.enter_context(self._metrics.served(*self.options.metrics)))
            self._serving = asyncio.create_task(self._serve())
            try:
                await self._serving
            except asyncio.CancelledError:
                if not self._serving.cancelled():
                    raise

    def stop(self, number: signal.Signals | None = None) -> None:
        """Take no more works, and leave those that run to the next process: the journal has them."""
        self.signal = number
        if self._serving is not None:
            self._serving.cancel()

    def _emit(self, event: str, **more: Any) -> None:
        self._metrics.count("events_total", event)
        self._print(event, **more)

    async def _serve(self) -> None:
        async with self.options.access.http_client() as http:
            keys = CardKeys(self.options.card_key, self.options.access, http)
            card, agent = await self._first_card(http, keys)
            skills = self._skills(card)
            await self._announce(skills, ANNOUNCED)
            ids = tuple(skill.id for skill in skills)
            feed = Feed(self._impatient, ids, others=self.options.others, takes=self.options.concurrency)
            feed.is_free, feed.on_waiting, feed.on_refused = self._is_free, self._note_waiting, self._note_refused
            await feed.open()
            settings = Settings(agent, self._client, self._emit, feed.named, self.options.resend)
            keeping = [
                asyncio.create_task(self._keep_announced(skills)),
                asyncio.create_task(self._watch(http, keys, feed)),
            ]
            try:
                await self._recover(feed, settings)
                self._emit("ready", agent=card.name, url=agent.url, binding=agent.binding, capabilities=list(ids))
                await self._take_works(feed, settings)
            finally:
                await self._end(keeping)
                await feed.close()
                with contextlib.suppress(
                    ClientError, TimeoutError
                ):  # the daemon may be away, and forgets them by itself
                    async with asyncio.timeout(END_SECONDS):
                        await self._announce(skills, 0)
                await agent.close()
                self._client.close()

    # the card

    async def _first_card(self, http: httpx.AsyncClient, keys: CardKeys) -> tuple[Card, Agent]:
        """The accepted card, and its agent; one that is away is waited for. Raises CardRefused, UsageError."""
        backoff, away = Backoff(0.5, 30.0), False
        while True:
            try:
                card = await fetch_card(http, self._url, self.options.access)
                agent = Agent(card.content, self.options.access, http, self._url, self.options.binding)
                found = await checked(card, self._pins, keys, accept=self.options.accept_card, hint=self._hint())
            except Away as error:
                if not away:
                    self._emit("away", message=f"the card of the agent: {error}")
                away = True
                await asyncio.sleep(backoff.next())
                continue
            if found != "same":
                self._emit("card", agent=card.name, sha256=card.sha256, accepted=found)
            return card, agent

    def _hint(self) -> str:
        return f"look at it, then accept it with: {self._command(f'a2a join {self.options.url} --accept-card')}"

    async def _watch(self, http: httpx.AsyncClient, keys: CardKeys, feed: Feed) -> None:
        """Look at the card again and again; while it is not the accepted one, no work is taken."""
        while True:
            await asyncio.sleep(CARD_EVERY)
            try:
                card = await fetch_card(http, self._url, self.options.access)
                found = await checked(card, self._pins, keys, accept=False, hint=self._hint())
            except CardRefused as error:
                if self._refused != error.message:
                    self._refused = error.message
                    self._emit("problem", message=f"no work is taken: {error.message}; {error.hint}")
                continue
            except (Away, UsageError):
                continue  # works find out by themselves
            if found == "signed":
                message = "it changed, and is signed by the accepted key: its skills count after a restart"
                self._emit("card", agent=card.name, sha256=card.sha256, accepted=found, message=message)
            if self._refused:
                self._refused = ""
                self._emit("back")
                feed.wake()

    def _skills(self, card: Card) -> list[Skill]:
        skills, wanted = skills_of(card.content), self.options.capabilities
        if not wanted:
            return skills
        known = {skill.id: skill for skill in skills}
        return [known.get(name) or whole_agent(name, card.content) for name in wanted]

    async def _announce(self, skills: list[Skill], seconds: float) -> None:
        """Announce the skills; those that the operator has in the daemon's catalog stay as they are."""
        for skill in skills:
            with contextlib.suppress(RefusedByDaemon):
                await self._client.announce_capability(skill.id, **skill.record, expires_in=seconds)

    async def _keep_announced(self, skills: list[Skill]) -> None:
        while True:
            await asyncio.sleep(ANNOUNCED / 3)
            await self._announce(skills, 0 if self._refused else ANNOUNCED)

    # works

    def _is_free(self, _capability: str | None) -> bool:
        """Whether a work may be taken: not while the agent is away, so that others may get it, and not with another card."""
        return not self._refused and all(job.away_since is None for job in self._jobs.values())

    def _note_waiting(self, item: InboxItem) -> None:
        told = {"from": item.message.sender, "message": f"its peer is not admitted: {self._command('requests')}"}
        self._emit("waiting", work_id=item.message.work_id, **told)

    def _note_refused(self, item: InboxItem, why: str) -> None:
        told = {"from": item.message.sender, "reason": "unsupported_profile", "message": why}
        self._emit("rejected", work_id=item.message.work_id, **told)

    async def _recover(self, feed: Feed, settings: Settings) -> None:
        """Go on with the works of a dead process."""
        for entry in self._journal.abandoned():
            item = msgspec.json.decode(msgspec.json.encode(entry.records[0]["item"]), type=InboxItem)
            core = JobCore(self._client.core, JobState(item, item.lease))
            feed.adopt(core)
            await core.renew(LEASE)
            if core.state.lost:  # it has run out: the feed gives it to us, or to another process
                entry.leave()
                core.state.end(returned=True)
                continue
            self._start(JoinedWork(core, entry, settings), feed, recovered=True)

    async def _take_works(self, feed: Feed, settings: Settings) -> None:
        while True:
            await self._slots.acquire()
            if (leased := await feed.lease()) is None:
                return
            core, item = JobCore(self._client.core, leased.state), leased.state.item
            try:
                found = self._journal.left(item.seq, item.message.id)
                entry = found or self._journal.begin(
                    seq=item.seq, url=self.options.url, item=msgspec.json.decode(msgspec.json.encode(item))
                )
            except OSError as error:
                self._emit("problem", work_id=core.work_id, message=f"the journal: {error.strerror}")
                with contextlib.suppress(ClientError):
                    await leased.release(delay=RETURN_PAUSE, error=error.strerror)
                self._slots.release()
                continue
            task = self._start(JoinedWork(core, entry, settings), feed, recovered=found is not None)
            task.add_done_callback(lambda _: self._slots.release())

    def _start(self, job: JoinedWork, feed: Feed, *, recovered: bool) -> asyncio.Task[None]:
        task = asyncio.create_task(self._carry_out(job, recovered=recovered))
        self._jobs[task] = job
        self._metrics.set("running", len(self._jobs))

        def on_end(_: object) -> None:
            del self._jobs[task]
            self._metrics.set("running", len(self._jobs))
            feed.wake()

        task.add_done_callback(on_end)
        return task

    async def _carry_out(self, job: JoinedWork, *, recovered: bool) -> None:
        try:
            if (url := job.entry.records[0].get("url")) == self.options.url:
                await job.run(recovered=recovered)
            else:
                await job.core.fail(f"its task is at {url}, which is not joined any more")
                job.entry.remove()
        except Exception as error:  # the journal keeps it for the next process that gets its lease
            job.emit("problem", message=f"{type(error).__name__}: {error}")
        finally:
            job.entry.leave()
            if not job.core.state.ended:
                job.core.state.end(returned=True)

    async def _end(self, keeping: list[asyncio.Task[None]]) -> None:
        running: list[asyncio.Task[Any]] = [*self._jobs, *keeping]
        for task in running:
            task.cancel()
        if self._jobs:
            self._emit("stopping", running=len(self._jobs))
        await asyncio.wait(running, timeout=END_SECONDS)
