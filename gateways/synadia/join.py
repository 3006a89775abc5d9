"""Agents of theirs for our peers: those that are present are capabilities of this daemon, and works for these become prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Final

import msgspec
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from synadia_ai.agents import Agent, Agents, Identity, NatsAgentError

from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.work.feed import LEASE, Feed
from aghbus.client.work.job import JobCore, JobState
from aghbus.client.work.journal import Journal, JournalEntry
from aghbus.gateways.synadia.joined_job import (
    RESTARTED,
    RETURN_PAUSE,
    JoinedJob,
    JoinOptions,
    address_of,
    report,
)
from aghbus.gateways.synadia.process import Bridge
from aghbus.protocol.agh.bodies import asked_capability
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.messages import Message
from aghbus.protocol.base.text import escape, shorten
from aghbus.protocol.formats.synadia import names

LOOK: Final = 5.0
"""Seconds between two looks at which agents are present; sooner when one begins to beat."""
HEARTBEATS: Final = "agents.hb.*.*.*"
FORGET: Final = 3 * LOOK
"""Seconds after which an agent that does not answer is gone: one answer may be lost."""
ANNOUNCED: Final = 60.0
"""Seconds for which the daemon announces a capability without hearing of it again."""
REPORT_SECONDS: Final = 5.0
"""For the works to be reported that the bridge ends because it stops; the others stay in the journal."""
MAX_SUMMARY: Final = 300
OUTCOME: Final = "the answer of the agent, and its files"


class _Present:
    """An agent that was seen, and how much it does for us."""

    def __init__(self, agent: Agent, seen: float) -> None:
        self.agent = agent
        self.seen = seen
        self.running = 0
        self.used = 0.0


class Joining:
    """Gives works to their agents. `run` returns after a signal."""

    def __init__(self, bridge: Bridge, options: JoinOptions, journal: Journal) -> None:
        signer = bridge.broker.signer
        self._bridge = bridge
        self._options = options
        self._journal = journal
        self._agents = Agents(nc=bridge.nats, identity=None if signer is None else Identity(signer=signer))
        self._present: dict[names.Address, _Present] = {}
        self._ignored: set[names.Address] = set()
        self._routes = dict(options.routes)
        self._announced: set[str] = set()
        self._feed = Feed(bridge.client.core, (), self._is_ours, others=options.others, takes=options.concurrency)
        self._feed.is_free = self._is_free
        self._feed.on_waiting = self._on_waiting
        self._unknown = asyncio.Event()
        """Set by the heartbeat of an agent that was not seen yet."""
        self._slots = asyncio.Semaphore(options.concurrency)
        self._jobs: dict[asyncio.Task[None], JoinedJob] = {}
        self._background: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Give works until the bridge stops."""
        await self._look()
        await self._feed.open()
        try:
            for entry in self._journal.abandoned():
                await self._recover(entry)
            ready = {name: [str(one) for one in self._matching(name)] for name in sorted(self._routes)}
            self._bridge.emit("ready", broker=self._bridge.broker.servers, capabilities=list(ready))
            for name, agents in ready.items():
                self._bridge.emit("route", capability=name, agents=agents)
            tasks = [asyncio.create_task(self._keep_looking()), asyncio.create_task(self._take())]
            stop = asyncio.create_task(self._bridge.stopping.wait())
            await asyncio.wait({*tasks, stop}, return_when=asyncio.FIRST_COMPLETED)
            self._feed.stop()
            for task in (*tasks, stop):
                if task.done():
                    task.result()
                task.cancel()
            await self._withdraw()
            await self._drain()
        finally:
            await self._feed.close()
            await self._agents.close()

    # who is present

    async def _keep_looking(self) -> None:
        await self._bridge.nats.subscribe(HEARTBEATS, cb=self._on_heartbeat)
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK):
                    await self._unknown.wait()
            await self._look()
            self._unknown.clear()

    async def _on_heartbeat(self, message: Msg) -> None:
        at = names.address(*message.subject.split(".")[2:])
        if at is not None and at not in self._ignored and at not in self._present:
            self._unknown.set()

    async def _look(self) -> None:
        """Find the agents, and announce the capabilities of those that are present."""
        try:
            found = await self._agents.discover()
        except (NatsAgentError, NatsError, ValueError, RecursionError) as error:  # or an answer is no JSON
            self._bridge.note(f"agents cannot be found: {error}")
            return
        now = time.monotonic()
        self._ignored.clear()
        for agent in found:
            at = address_of(agent)
            if at is None:
                continue
            if names.MARK in agent.metadata:
                self._ignored.add(at)
            elif at in self._present:
                self._present[at].agent, self._present[at].seen = agent, now
            elif self._options.every_agent or any(one.matches(at) for one in self._routes.values()):
                self._present[at] = _Present(agent, now)
                self._bridge.emit("found", agent=str(at), message=agent.description)
            else:
                self._ignored.add(at)
        for at in [at for at, one in self._present.items() if now - one.seen > FORGET and not one.running]:
            del self._present[at]
            self._bridge.emit("gone", agent=str(at))
        if self._options.every_agent:
            self._routes |= {one.capability: one for one in {names.Selector(at.agent) for at in self._present}}
        self._bridge.metrics.set("agents", len(self._present))
        await self._announce()
        self._feed.wake()

    def _matching(self, capability: str) -> list[names.Address]:
        selector = self._routes[capability]
        return sorted(at for at in self._present if selector.matches(at))

    async def _announce(self) -> None:
        """Announce each capability that has an agent, and withdraw the others."""
        for capability in self._routes:
            agents = self._matching(capability)
            if agents or capability in self._announced:
                await self._tell(capability, self._summary(agents), ANNOUNCED if agents else 0.0)

    async def _tell(self, capability: str, summary: str, seconds: float) -> None:
        try:
            await self._bridge.client.announce_capability(
                capability, summary=summary, outcome=OUTCOME, expires_in=seconds
            )
        except RefusedByDaemon as error:
            if error.code != "conflict":  # the operator announces it with a record of another text
                self._bridge.note(f"{capability} is not announced: {error.message}")
                return
        if seconds and capability not in self._announced:
            self._announced.add(capability)
            self._bridge.emit("announced", capability=capability)
        elif not seconds:
            self._announced.discard(capability)
            self._bridge.emit("withdrawn", capability=capability)

    def _summary(self, agents: list[names.Address]) -> str:
        """The same as long as the agents are the same: a changed record is another one."""
        said = [f"{at}: {self._present[at].agent.description}" for at in agents]
        return shorten(escape("; ".join(said)), MAX_SUMMARY) or "no agent is present"

    async def _withdraw(self) -> None:
        with suppress(ClientError, TimeoutError):
            async with asyncio.timeout(2.0):
                for capability in list(self._announced):
                    await self._tell(capability, "no agent is present", 0.0)

    # taking works

    def _capability_of(self, body: dict[str, Any]) -> str | None:
        """The capability of ours that an opening asks for; the only one for an opening that asks for none."""
        asked = asked_capability(body, self._routes)
        if asked is None and len(self._routes) == 1:
            return next(iter(self._routes))
        return asked if asked in self._routes else None

    def _is_ours(self, message: Message) -> bool:
        capability = self._capability_of(msgspec.json.decode(message.envelope).get("body") or {})
        return capability is not None and bool(self._matching(capability))

    def _is_free(self, asked: str | None) -> bool:
        if asked is None and len(self._routes) == 1:
            asked = next(iter(self._routes))
        return asked in self._routes and self._free_agent(asked) is not None

    def _free_agent(self, capability: str) -> _Present | None:
        """The agent with the fewest works, and of these the one that has had none for the longest time."""
        free = [
            one for at in self._matching(capability) if (one := self._present[at]).running < self._options.per_agent
        ]
        return min(free, key=lambda one: (one.running, one.used), default=None)

    def _on_waiting(self, item: InboxItem) -> None:
        self._bridge.emit(
            "waiting",
            work_id=item.message.work_id,
            **{"from": item.message.sender},
            message="its peer is not admitted: see `aghctl requests`",
        )

    async def _take(self) -> None:
        while True:
            await self._slots.acquire()
            if (picked := await self._feed.pick()) is None:
                return
            if (job := await self._feed.take(picked[0])) is None or not self._begun(job):
                self._slots.release()

    def _begun(self, job: JobCore) -> bool:
        """Whether the work is carried out now."""
        item = job.state.item
        capability = self._capability_of(job.state.body)
        one = None if capability is None else self._free_agent(capability)
        try:
            if one is None:
                raise OSError(0, "no agent is free")
            left = self._journal.left(item.seq, item.message.id)  # of a process that has died since we started
            if left is not None and left.phase != "taken":
                self._in_background(self._settle(job, left))
                return False
            if left is not None:
                left.remove()
            entry = self._journal.begin(seq=item.seq, item=_plain(item))
        except OSError as error:
            self._bridge.note(f"not taken: {error.strerror}", work_id=job.work_id)
            self._in_background(job.release(delay=RETURN_PAUSE, error=error.strerror))
            return False
        joined = JoinedJob(self._bridge, self._agents, job, entry, one.agent, self._options)
        one.running, one.used = one.running + 1, time.monotonic()
        self._bridge.metrics.count("running")
        joined.emit("taken", capability=capability, **{"from": item.message.sender})
        task = asyncio.create_task(self._carry_out(joined))
        self._jobs[task] = joined
        job.state.on_cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, task.cancel)
        task.add_done_callback(partial(self._on_end, one))
        return True

    async def _carry_out(self, joined: JoinedJob) -> None:
        """A whole work. What prevents it from being reported concerns only this one, which stays in the journal."""
        job = joined.job
        try:
            await joined.run()
        except asyncio.CancelledError:
            if job.state.canceled:
                joined.entry.remove()
                joined.emit("canceled", message="the agent is not told: its protocol has no way to")
                self._bridge.metrics.count("works_total", "canceled")
                await job.drop()
            else:
                await joined.fail_stopped()
        except Exception as error:
            self._bridge.note(f"{type(error).__name__}: {error}", work_id=job.work_id)
        finally:
            joined.entry.leave()
            if not job.state.ended:
                job.state.end(returned=True)

    def _on_end(self, one: _Present, task: asyncio.Task[None]) -> None:
        del self._jobs[task]
        one.running -= 1
        self._bridge.metrics.count("running", by=-1)
        self._slots.release()
        self._feed.wake()

    # beginning and end

    async def _recover(self, entry: JournalEntry) -> None:
        """Carry on with the work of a process that died."""
        item = msgspec.json.decode(msgspec.json.encode(entry.records[0]["item"]), type=InboxItem)
        job = JobCore(self._bridge.client.core, JobState(item, None if entry.phase == "finished" else item.lease))
        self._feed.adopt(job)
        self._bridge.emit("recovered", work_id=job.work_id, phase=entry.phase)
        if entry.phase != "finished":
            await job.renew(LEASE)
        await self._settle(job, entry)

    async def _settle(self, job: JobCore, entry: JournalEntry) -> None:
        """Report what has ended, return what was not prompted or is to be prompted again, and else fail it."""
        if entry.phase != "finished":
            if await job.has_ended():
                entry.remove()
                await job.settle()
                return
            if entry.phase == "taken" or self._options.resend:
                entry.remove()
                await job.release(delay=0, error="the bridge was restarted")
                return
            entry.write("finished", verb="fail", message=RESTARTED, artifacts=[])
        await report(self._bridge, job, entry)

    def _in_background(self, steps: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(steps)
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _drain(self) -> None:
        """Wait for the works that run, until a second signal or for so long; then end them."""
        if not self._jobs:
            return
        self._bridge.emit("stopping", running=len(self._jobs))
        waits: list[asyncio.Task[Any]] = [
            asyncio.create_task(self._bridge.hurry.wait()),
            asyncio.create_task(asyncio.wait(list(self._jobs))),
        ]
        await asyncio.wait(waits, timeout=self._options.drain, return_when=asyncio.FIRST_COMPLETED)
        for task in waits:
            task.cancel()
        left = list(self._jobs)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=REPORT_SECONDS)


def _plain(item: InboxItem) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(item))
    return found
