"""The works of A2A callers at the daemon: opened, said to, canceled, read and followed. All of their state is the daemon's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, Final, NamedTuple, TypeVar

import msgspec

from aghbus.client import AsyncClient, Message, NotFound, Work
from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.formats.a2a.ids import Principal, belongs_to
from aghbus.protocol.formats.a2a.parts import Json
from aghbus.protocol.formats.a2a.tasks import STATES, TaskView

T = TypeVar("T")

PAGE: Final = 1000
"""Messages or works of one request to the daemon."""
REQUESTS: Final = 64
"""Requests to the daemon at a time, of the 256 connections that it serves."""
NO_HISTORY: Final = 1
"""`before` of an empty history."""


class Agent(NamedTuple):
    """What a gateway shows as one agent: a peer, or a capability that any peer may carry out. `name` is in its URL."""

    name: str
    peer: str | None = None
    capability: str | None = None

    @property
    def key(self) -> str:
        """What tells agents apart in derived ids."""
        return f"peer:{self.peer}" if self.peer else f"capability:{self.capability}"

    def has(self, work: Work) -> bool:
        """Whether a work of ours was opened by this agent's callers."""
        if self.peer is None:
            return work.capability == self.capability
        return self.is_peer(work.target) and work.capability is None

    def is_peer(self, peer_id: str) -> bool:
        """Whether a peer is the one of this agent, which may be named by its nickname."""
        return peer_id == self.peer or ("@" not in (self.peer or "") and peer_id.rpartition("@")[0] == self.peer)


class Bus:
    """The daemon, as callers of agents use it."""

    def __init__(self, client: AsyncClient, newest: int) -> None:
        """`newest` is the sequence of an envelope: those of new ones are higher."""
        self.client = client
        self.newest = newest
        self._turn = asyncio.Semaphore(REQUESTS)

    async def find(self, agent: Agent, caller: Principal, task_id: str) -> Work:
        """The work of a task as it is now. Raises NotFound, also for a task of another caller or agent."""
        if belongs_to(caller, task_id):
            async with self._turn:
                work = await self.client.core.work(task_id)
            if agent.has(work):
                return work
        raise NotFound(f"no task {task_id}")

    async def snapshot(self, task_id: str, work: Work) -> TaskView:
        """The task as it is now."""
        return (await self.replay(task_id, work, 0))[0]

    async def replay(self, task_id: str, work: Work, since: int) -> tuple[TaskView, list[Json]]:
        """The task as it is now, and the updates that its messages after `since` have led to."""
        view, updates = TaskView(task_id), list[Json]()
        for work_id in await self._attempts(task_id, work):
            if view.last_seq:
                if view.has_ended() and updates:
                    updates.pop()
                view.hand_over()
            updates += await self._read(view, work_id, since)
        if not view.opened_ms:  # retention has removed the messages
            view.context_id = work.thread_id or work.direct_id or ""
            view.state, view.changed_ms = STATES[work.state], work.updated_ms
        return view, updates

    async def follow(self, view: TaskView, work_id: str, *, may_move: bool) -> AsyncGenerator[list[Json], None]:
        """What happens in a task after `view`, which follows it, up to its end: the updates of one or more messages. `work_id` is
        that of the present attempt, `may_move` whether another peer may get it."""
        while not view.has_ended():
            present, work_id = work_id, ""
            async with aclosing(self.client.core.watch(present, None)) as events:
                async for event in events:
                    if event is None:
                        updates = await self._read(view, present)
                    elif event.seq > view.last_seq and event.message is not None:
                        updates = _apply(view, event.message)
                    else:
                        continue
                    if view.has_ended() and may_move:
                        work_id = await self._successor(view.task_id, present)
                    yield updates[:-1] if work_id else updates
                    if view.has_ended():
                        break
            if work_id:
                view.hand_over()

    async def _read(self, view: TaskView, work_id: str, since: int = 0) -> list[Json]:
        """Let `view` have the messages of a work after its last one: the updates from those after `since`."""
        updates = list[Json]()
        while True:
            async with self._turn:
                page = (await self.client.messages(work_id=work_id, since=view.last_seq, limit=PAGE)).messages
            for message in page:
                found = _apply(view, message)
                updates += found if message.seq > since else []
            if len(page) < PAGE:
                return updates

    async def _attempts(self, task_id: str, work: Work) -> list[str]:
        """The ids of the works at all peers that had a task, the present one last."""
        if work.work_id == task_id:
            return [task_id]
        async with self._turn:
            found = await self.client.work(task_id, before=NO_HISTORY)
        return [*(attempt.work_id for attempt in found.attempts), found.work.work_id]

    async def _successor(self, task_id: str, ended: str) -> str:
        """The id of the work at the peer that has a task now; empty if that is none."""
        async with self._turn:
            work = await self.client.core.work(task_id)
        return "" if work.work_id == ended else work.work_id

    async def works(
        self, agent: Agent, caller: Principal, states: frozenset[State], since_ms: int | None
    ) -> list[Work]:
        """The works of a caller's tasks, latest change first. All works of the daemon are looked through."""
        found, before = dict[str, Work](), None
        while True:
            async with self._turn:
                page = await self.client.works(
                    states=states, role="initiator", updated_since_ms=since_ms, limit=PAGE, before=before
                )
            for work in page.works:
                task_id = work.first_id or work.work_id
                if belongs_to(caller, task_id) and agent.has(work):
                    found.setdefault(task_id, work)
            if (before := page.next_before) is None:
                return [*found.values()]

    async def call(self, step: Coroutine[Any, Any, T]) -> T:
        """The result of one request, when it is its turn."""
        async with self._turn:
            return await step


def _apply(view: TaskView, message: Message) -> list[Json]:
    return view.apply(message, {} if message.damaged else msgspec.json.decode(message.envelope))
