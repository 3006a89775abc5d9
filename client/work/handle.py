"""Works that this side gives to peers: opening one, and following it to its end."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypedDict, cast

import msgspec

from aghbus.client.core.core import Core, WorkTimeout, continues
from aghbus.client.core.method import Asynchronous, Blocking, Method, StreamMethod
from aghbus.client.core.refusals import NotFound
from aghbus.client.errors import UsageError
from aghbus.protocol.agh.lifecycle import STANDSTILL, TERMINAL_STATES
from aghbus.protocol.api.messages import Event, OpenedWork, SendResponse
from aghbus.protocol.api.operations import Operations
from aghbus.protocol.api.queries import EventsQuery
from aghbus.protocol.api.works import Work

if TYPE_CHECKING:
    from typing_extensions import Unpack

Answering = Callable[[str], str | Awaitable[str]]
"""Answers a question of the peer that has a work."""
Progress = Callable[[str], object]
"""Gets the text of each progress report of a work."""
RECENT = 1.0
"""Seconds after a message of ours in which hardly anything else has happened."""


class Opening(TypedDict, total=False):
    """How a work is opened: `intent` names the capability that it asks for, and `on_question` answers questions of the peer.
    With an `id` that was used before, nothing is opened: the handle is that of the first time. Times in seconds.
    `WorkOpenRequest` of the API explains the others."""

    id: str | None
    intent: str | None
    hedge: bool
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
        self._said: int | None = opened.seq  # our last message, unless the work has moved on
        self._said_at = time.monotonic()
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
                except WorkTimeout as error:
                    raise WorkTimeout(self.work_id, timeout or 0.0, error.why) from None
                if work.state in TERMINAL_STATES or self._on_question is None:
                    return work
                answer = self._on_question(work.message or "")
                await self.say(await answer if isawaitable(answer) else answer)
        except WorkTimeout:
            raise
        except BaseException as error:
            error.add_note(f"the work {self.work_id} continues: {continues(self.work_id)}")
            raise

    async def _standstill(self, timeout: float | None) -> Work:
        said, self._said = self._said if time.monotonic() - self._said_at < RECENT else None, None
        told = None if self._on_progress is None else partial(self._tell, self._on_progress)
        return await self.core.standstill(self.work_id, self.channel, said, timeout, told)

    async def _tell(self, on_progress: Progress, work_id: str) -> None:
        """Tell of the reports that came since the last one, in the work that took the place of this one."""
        for message in await self.core.heard(work_id, self.channel, "trace", self._told):
            self._told = message.seq
            body = msgspec.json.decode(message.envelope).get("body") or {}
            if isinstance(text := body.get("message"), str) and body.get("state") not in STANDSTILL:
                on_progress(text)

    async def say(self, text: str) -> SendResponse:
        """Say something in the work: an answer to its question, or more about it."""
        said = await self.core.call(Operations.act_on_work, self.work_id, "say", message=text, channel=self.channel)
        self._said, self._said_at = said.seq, time.monotonic()
        return said

    async def cancel(self, reason: str | None = None) -> SendResponse:
        """Cancel the work. Raises WorkClosed when it has ended."""
        return await self.core.call(
            Operations.act_on_work, self.work_id, "cancel", message=reason, channel=self.channel
        )

    def events(self, timeout: float | None = None) -> AsyncGenerator[Event, None]:
        """The events of the work after its opening, up to its end, also those at the peers to which it is handed over. Raises
        TimeoutError after `timeout` seconds."""
        return self._events(self.work_id, self._opened, timeout)

    async def _events(self, work_id: str | None, since: int, timeout: float | None) -> AsyncGenerator[Event, None]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while work_id is not None:
            query = EventsQuery(work_id=work_id, channel=self.channel, since=since)
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            async with aclosing(self.core.events(query, timeout=left)) as events:
                async for event in events:
                    since = event.seq
                    yield event
                    if event.message is None or _ends(event):
                        now = await self.core.work(self.work_id, self.channel)
                        if now.work_id != work_id or now.state in TERMINAL_STATES:
                            work_id = now.work_id if now.work_id != work_id else None
                            break


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
        yield from self.events()


class AsyncWorkHandle(HandleSurface, Asynchronous):
    """A work that was opened, for asyncio; iterating gives its events up to its end."""

    async def __aiter__(self) -> AsyncGenerator[Event, None]:
        async with aclosing(self.events()) as events:
            async for event in events:
                yield event


async def start(
    core: Core, to: str | None = None, text: str = "", *, to_capability: str | None = None, **given: Unpack[Opening]
) -> HandleCore:
    """Open a work for the peer `to`, or for a capability: then the daemon chooses a peer, and another one if that one does not
    accept it. Waits for a peer with the capability if there is none. Raises TimeoutError."""
    if (to is None) == (to_capability is None):
        raise UsageError("either `to` or `to_capability` says who gets the work")
    fields = cast(dict[str, Any], {"reactions": "none", **given})
    asked, told = fields.pop("on_question", None), fields.pop("on_progress", None)
    if to_capability is not None:
        if fields.get("intent") is not None:
            raise UsageError("`to_capability` is what the work asks for: leave out `intent`")
        return HandleCore(core, await _open_for(core, to_capability, text, fields), asked, told)
    return HandleCore(core, await core.call(Operations.open_work, to=to, text=text, **fields), asked, told)


async def _open_for(core: Core, capability: str, text: str, fields: dict[str, Any]) -> OpenedWork:
    deadline = time.monotonic() + core.timeout
    while True:
        try:
            return await core.call(Operations.open_work, to_capability=capability, text=text, **fields)
        except NotFound:  # nobody is present, or one that answers was not seen yet
            left = max(0.0, deadline - time.monotonic())
            await core.wait_capability(capability, left, channel=fields.get("channel"))


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


def _ends(event: Event) -> bool:
    return event.work is not None and event.work.after in TERMINAL_STATES
