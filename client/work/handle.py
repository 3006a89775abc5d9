"""Works that this side gives to peers: opening one, and following it to its end."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec

from aghbus.client.core.core import Core
from aghbus.client.core.method import Asynchronous, Blocking, Method, StreamMethod
from aghbus.client.errors import ClientError, UsageError
from aghbus.protocol.agh.lifecycle import STANDSTILL, TERMINAL_STATES
from aghbus.protocol.api.messages import Event, Message, OpenedWork, SendResponse
from aghbus.protocol.api.operations import Operations
from aghbus.protocol.api.queries import EventsQuery
from aghbus.protocol.api.works import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

Answering = Callable[[str], str | Awaitable[str]]
"""Answers a question of the peer that has a work."""
Progress = Callable[[str], object]
"""Gets the text of each progress report of a work."""


class WorkTimeout(ClientError, TimeoutError):
    """The time to wait for a work is over; `work_id` is its id, and it continues."""

    default_code = "timeout"

    def __init__(self, work_id: str, seconds: float) -> None:
        super().__init__(f"the work {work_id} has not ended after {seconds:g} s", _continues(work_id))
        self.work_id = work_id


class Opening(TypedDict, total=False):
    """How a work is opened: `intent` names the capability that it asks for, and `on_question` answers questions of the peer.
    Times in seconds. `WorkOpenRequest` of the API explains the others."""

    intent: str | None
    artifacts: list[Any] | None
    channel: str | None
    thread_id: str | None
    direct: bool
    work_id: str | None
    trace_id: str | None
    accept_within: float | None
    progress_within: float | None
    ext: dict[str, Any] | None
    on_question: Answering | None
    on_progress: Progress | None


class HandleCore:
    """The steps of a work that was opened."""

    def __init__(self, core: Core, opened: OpenedWork, on_question: Answering | None, on_progress: Progress | None):
        self.core = core
        self.work_id, self.channel = opened.work_id, opened.channel
        self._opened = self._told = opened.seq
        self._on_question = on_question
        self._on_progress = on_progress

    async def result(self, timeout: float | None = None) -> Work:
        """The work when it has ended; without `on_question` also when its target asks something (state `needs_input`).

        A failed work is a result, too. Raises WorkTimeout after `timeout` seconds; the work continues then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            while True:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    work = await self._standstill(left)
                except TimeoutError:
                    raise WorkTimeout(self.work_id, timeout or 0.0) from None
                if work.state in TERMINAL_STATES or self._on_question is None:
                    return work
                answer = self._on_question(work.message or "")
                await self.say(await answer if isawaitable(answer) else answer)
        except WorkTimeout:
            raise
        except BaseException as error:
            error.add_note(f"the work {self.work_id} continues: {_continues(self.work_id)}")
            raise

    async def _standstill(self, timeout: float | None) -> Work:
        if self._on_progress is None:
            return await self.core.wait(self.work_id, channel=self.channel, timeout=timeout)
        work = await self.core.work(self.work_id, self.channel)
        if work.state in STANDSTILL and work.last_seq <= self._told:
            return work
        query = EventsQuery(work_id=self.work_id, channel=self.channel, since=self._told)
        async with aclosing(self.core.events(query, timeout=timeout)) as events:
            async for event in events:
                self._told = max(self._told, event.seq)
                if event.message is None or (event.work is not None and event.work.after in STANDSTILL):
                    work = await self.core.work(self.work_id, self.channel)
                    if work.state in STANDSTILL:
                        return work
                elif (text := _progress(event.message)) is not None:
                    self._on_progress(text)
        raise AssertionError("a stream of events has no end")

    async def say(self, text: str) -> SendResponse:
        """Say something in the work: an answer to its question, or more about it."""
        return await self.core.call(Operations.act_on_work, self.work_id, "say", message=text, channel=self.channel)

    async def cancel(self, reason: str | None = None) -> SendResponse:
        """Cancel the work. Raises WorkClosed when it has ended."""
        return await self.core.call(
            Operations.act_on_work, self.work_id, "cancel", message=reason, channel=self.channel
        )

    def events(self, timeout: float | None = None) -> AsyncGenerator[Event, None]:
        """The events of the work after its opening, without end. Raises TimeoutError after `timeout` seconds."""
        query = EventsQuery(work_id=self.work_id, channel=self.channel, since=self._opened)
        return self.core.events(query, timeout=timeout)


class HandleSurface:
    """A work that was opened, with the steps that follow it."""

    core: HandleCore

    def __init__(self, core: HandleCore) -> None:
        self.core = core

    @property
    def id(self) -> str:
        """The id of the work."""
        return self.core.work_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} at {self.core.core.endpoint}>"

    result = Method(HandleCore.result)
    say = Method(HandleCore.say)
    cancel = Method(HandleCore.cancel)
    events = StreamMethod(HandleCore.events)


class WorkHandle(HandleSurface, Blocking):
    """A work that was opened; iterating gives its events up to its end."""

    def __iter__(self) -> Generator[Event, None, None]:
        for event in self.events():
            yield event
            if _ends(event):
                return


class AsyncWorkHandle(HandleSurface, Asynchronous):
    """A work that was opened, for asyncio; iterating gives its events up to its end."""

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        async with aclosing(self.events()) as events:
            async for event in events:
                yield event
                if _ends(event):
                    return


async def start(
    core: Core, to: str | None = None, text: str = "", *, to_capability: str | None = None, **given: Unpack[Opening]
) -> HandleCore:
    """Open a work for the peer `to`, or for a present peer with `to_capability`, which the work then asks for."""
    if (to is None) == (to_capability is None):
        raise UsageError("either `to` or `to_capability` says who gets the work")
    fields = cast(dict[str, Any], {"reactions": "none", **given})
    asked, told = fields.pop("on_question", None), fields.pop("on_progress", None)
    if to_capability is not None:
        if fields.get("intent") is not None:
            raise UsageError("`to_capability` is what the work asks for: leave out `intent`")
        to, fields["intent"] = await peer_with(core, to_capability, given.get("channel")), to_capability
    return HandleCore(core, await core.call(Operations.open_work, to=to or "", text=text, **fields), asked, told)


async def run(
    core: Core,
    to: str | None = None,
    text: str = "",
    *,
    to_capability: str | None = None,
    timeout: float | None = None,
    **given: Unpack[Opening],
) -> Work:
    """`start`, and its `result` within `timeout` seconds.

    `on_question` answers questions of the peer. Without it the work is returned in state `needs_input`: answer with
    `act_on_work(work.work_id, "say", message=…)`, then `wait`. Raises WorkTimeout; the work continues then.
    """
    return await (await start(core, to, text, to_capability=to_capability, **given)).result(timeout)


async def peers_with(core: Core, capability: str, channel: str | None) -> list[str]:
    """The present peers with a capability; waited for if there is none. Raises TimeoutError."""
    found = (await core.call(Operations.peers, capability=capability, channel=channel)).peers
    return [peer.peer_id for peer in found if peer.presence == "active"] or [await peer_with(core, capability, channel)]


async def peer_with(core: Core, capability: str, channel: str | None = None) -> str:
    """A present peer with a capability: a verified one before others, then the one seen last; waited for if there is none.

    Raises TimeoutError.
    """
    found = (await core.call(Operations.peers, capability=capability, channel=channel)).peers
    present = [peer for peer in found if peer.presence == "active"]
    if not present:
        return (await core.wait_capability(capability, core.timeout)).peer_id
    return max(present, key=lambda peer: (peer.trust == "verified", peer.last_seen_ms)).peer_id


def _continues(work_id: str) -> str:
    return f'client.wait("{work_id}") waits for it, client.act_on_work("{work_id}", "cancel") cancels it'


def _ends(event: Event) -> bool:
    return event.work is not None and event.work.after in TERMINAL_STATES


def _progress(message: Message) -> str | None:
    """The text of a trace of the target."""
    if message.kind != "trace" or message.direction != "in":
        return None
    text = (msgspec.json.decode(message.envelope).get("body") or {}).get("message")
    return text if isinstance(text, str) else None
