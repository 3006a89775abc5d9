"""One leased work: its content, progress, questions, and the report that ends it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import aclosing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from aghbus.client.core.core import Core
from aghbus.client.core.ids import derived_id, new_id
from aghbus.client.core.method import Asynchronous, Blocking, Method
from aghbus.client.core.refusals import (
    ActorNotAllowed,
    Conflict,
    InvalidTransition,
    LeaseLost,
    NotFound,
    SecretLike,
    WorkClosed,
    WorkContainerMismatch,
)
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.http import run
from aghbus.host.tracing import carrier_in
from aghbus.protocol.agh.lifecycle import OPEN_STATES, TERMINAL_STATES
from aghbus.protocol.api.inbox import (
    InboxAckRequest,
    InboxItem,
    InboxLeaseRequest,
    InboxNackRequest,
    InboxNextRequest,
    InboxNextResponse,
)
from aghbus.protocol.api.messages import Event, Message
from aghbus.protocol.api.works import WorkActionRequest, WorkVerb
from aghbus.protocol.base.text import shorten

if TYPE_CHECKING:
    from aghbus.client.work.job_log import JobLog

ENDED: Final = (WorkClosed, ActorNotAllowed, WorkContainerMismatch, InvalidTransition, NotFound)
"""Refusals of an action that a retry cannot change: the work has ended, or is not (any longer) ours."""
REFUSED_PAUSE: Final = 60.0
"""Seconds after which a work is taken again whose acceptance the daemon refused."""
MESSAGE_CHARACTERS: Final = 500
"""Longest message of a failure that is made from an exception."""


class JobCanceled(ClientError):
    """The work of this job has ended: it was canceled, a deadline passed, or another consumer has its lease."""

    default_code = "work_closed"


class JobState:
    """What is known of one job, for every thread that has to do with it.

    `lease` is None once the job needs none, `acked`: the opening is acknowledged, `unread`: further messages of the work may be in
    the inbox. `canceled`: the work ended without our report, or (`lost`) another consumer has its lease. `on_event` gets the events
    of the work; None when some may be missing. `on_end` is told whether the opening is in the inbox again.
    """

    def __init__(self, item: InboxItem, lease: str | None) -> None:
        self.item = item
        self.lease = lease
        envelope: dict[str, Any] = msgspec.json.decode(item.message.envelope)
        self.body: dict[str, Any] = envelope.get("body") or {}
        self.trace = carrier_in(envelope.get("ext"))
        self.canceled = False
        self.lost = False
        self.reporting = False
        self.ended = False
        self.acked = False
        self.unread = item.attempts > 1
        self.on_cancel: Callable[[], object] = _nothing
        self.on_event: Callable[[Event | None], object] = _nothing
        self.on_end: Callable[[bool], object] = _nothing

    def cancel(self, *, lost: bool = False) -> None:
        """The work has ended without our report, or the lease is lost."""
        if not self.canceled and not self.reporting and not self.ended:
            self.canceled, self.lost = True, lost
            self.on_cancel()

    def end(self, *, returned: bool = False) -> None:
        """The message is acknowledged, or `returned`: it is in the inbox again, now or when its lease runs out."""
        self.ended = True
        self.on_end(returned)


def _nothing(*_: object) -> None:
    pass


class JobCore:
    """The steps of one job."""

    def __init__(self, core: Core, state: JobState) -> None:
        self.core = core
        self.state = state
        message = state.item.message
        assert message.work_id is not None
        self.work_id, self.channel, self.seq = message.work_id, message.channel, state.item.seq
        self._asked = 0

    async def accept(self) -> bool:
        """Accept the work, unless an earlier worker did. False when it has ended, or the daemon refuses: then the job has ended."""
        state = self.state.item.work_state  # as the job was leased
        try:
            if state == "submitted":
                await self.act("accept", WorkActionRequest())
            if state in OPEN_STATES and not self.state.canceled:
                return True
        except JobCanceled:
            pass
        except RefusedByDaemon as error:
            if error.is_transient:
                raise
            await self.release(delay=REFUSED_PAUSE, error=error.message)
            return False
        await self.drop()
        return False

    async def renew(self, seconds: float) -> None:
        """Keep the lease for `seconds` from now on. The job is canceled when it is lost."""
        lease = self.state.lease
        if lease is None:
            return
        form = InboxLeaseRequest(lease=lease, visibility=seconds)
        try:
            await self.core.ask("POST", f"/v1/inbox/{self.seq}/lease", form, InboxItem)
        except (LeaseLost, Conflict, NotFound):
            if self.state.lease == lease:  # it was not acknowledged meanwhile
                self.state.cancel(lost=not await self.has_ended())

    async def has_ended(self) -> bool:
        """Whether the work has ended, or the daemon does not know it."""
        try:
            return (await self.core.work(self.work_id, self.channel)).state in TERMINAL_STATES
        except NotFound:
            return True

    async def update(self, message: str | None = None, *, result: dict[str, Any] | None = None) -> None:
        """Report progress: trace `working`. It resets the progress deadline of the work. Raises JobCanceled."""
        await self.act("update", WorkActionRequest(message=message, result=result))

    async def ask(self, question: str, *, result: dict[str, Any] | None = None, timeout: float | None = None) -> str:
        """Ask the initiator, and wait for the answer. Raises JobCanceled, and TimeoutError after `timeout` seconds.

        The n-th question of a job has a fixed id: a job that is repeated after a crash, and asks the same, gets the answer
        that was given meanwhile.
        """
        self._asked += 1
        action = WorkActionRequest(message=question, result=result)
        action.id = derived_id("msg_", "ask", self.channel, self.work_id, self.state.item.message.id, str(self._asked))
        try:
            seq = await self.act("need-input", action)
        except Conflict:  # another question was asked in this place before
            action.id = new_id("msg_")
            seq = await self.act("need-input", action)
        return await self.answer(seq, timeout)

    async def complete(
        self, message: str | None = None, *, result: dict[str, Any] | None = None, artifacts: list[Any] | None = None
    ) -> bool:
        """End the work as completed, then acknowledge its messages. False when it had ended before."""
        return await self.end("complete", WorkActionRequest(message=message, result=result, artifacts=artifacts))

    async def fail(
        self, message: str | None = None, *, result: dict[str, Any] | None = None, artifacts: list[Any] | None = None
    ) -> bool:
        """End the work as failed, then acknowledge its messages. False when it had ended before."""
        return await self.end("fail", WorkActionRequest(message=message, result=result, artifacts=artifacts))

    async def reject(self, message: str | None = None, *, reason: str = "busy") -> bool:
        """Refuse the work, which ends it as failed, then acknowledge its messages. False when it had ended before."""
        return await self.end("reject", WorkActionRequest(message=message, reason=reason))

    async def refuse(self, message: str) -> bool:
        """End a work that this worker cannot carry out: rejected, or failed if an earlier worker has accepted it. False when it
        had ended before."""
        if self.state.item.work_state == "submitted":
            return await self.reject(message, reason="unsupported_profile")
        return await self.fail(message)

    async def release(self, *, delay: float = 0.0, error: str | None = None) -> None:
        """Return the job to the inbox: it is ready for any worker after `delay` seconds, as a further attempt."""
        form = InboxNackRequest(lease=self.state.lease, delay=delay, error=error)
        try:
            await self.core.ask("POST", f"/v1/inbox/{self.seq}/nack", form, InboxItem)
        except RefusedByDaemon:
            pass  # the lease is lost: another worker has it, or it is ready
        finally:
            self.state.end(returned=True)

    async def failed(self, error: BaseException) -> None:
        """End the work as failed because of an exception."""
        try:
            await self.fail(text_of(error))
        except SecretLike:
            await self.fail(type(error).__name__)

    async def drop(self) -> None:
        """End a job that was canceled: settle it, or if its work goes on return it to the inbox, unless another consumer has it."""
        if await self.has_ended():
            await self.settle()
        else:
            await self.release(error="the worker has dropped the job")

    async def settle(self) -> None:
        """Acknowledge every message of the ended work."""
        try:
            if not self.state.acked:
                await self.acknowledge()
            if self.state.unread or self.state.canceled:
                await self.read()
        finally:
            self.state.end()

    async def acknowledge(self) -> None:
        """Acknowledge the opening, under our lease if there is one. Who does that before the end of the work must remember the
        job."""
        lease, self.state.lease, self.state.acked = self.state.lease, None, True
        await self._acknowledge(self.seq, lease)

    async def read(self, channel: str | None = None, work_id: str | None = None) -> None:
        """Acknowledge the other messages of the work that have arrived, or those of another work."""
        channel, work_id = channel or self.channel, work_id or self.work_id
        self.state.unread &= work_id != self.work_id
        while (item := await self._next(work_id)) is not None and item.message.channel == channel:
            await self._acknowledge(item.seq)
        if item is not None:  # of another work with the same id
            again = InboxNackRequest(lease=item.lease, delay=0.0)
            with suppress(NotFound, Conflict):
                await self.core.ask("POST", f"/v1/inbox/{item.seq}/nack", again, InboxItem)

    async def _next(self, work_id: str) -> InboxItem | None:
        form = InboxNextRequest(work_id=work_id, visibility=60.0, concurrent=True)
        found: InboxNextResponse = await self.core.ask("POST", "/v1/inbox/next", form, InboxNextResponse)
        return found.item

    async def _acknowledge(self, seq: int, lease: str | None = None) -> None:
        with suppress(NotFound, Conflict, LeaseLost):  # removed by retention, dead, or handled by another consumer
            await self.core.ask("POST", f"/v1/inbox/{seq}/ack", InboxAckRequest(lease=lease), InboxItem)

    async def end(self, verb: WorkVerb, action: WorkActionRequest) -> bool:
        """End the work by an action, then acknowledge its messages. False when it had ended before."""
        self.state.reporting = True  # the event of our own report cancels nothing
        try:
            await self.act(verb, action)
        except JobCanceled:
            await self.settle()
            return False
        except BaseException:
            self.state.reporting = False
            raise
        await self.settle()
        return True

    async def act(self, verb: WorkVerb, action: WorkActionRequest) -> int:
        """One action on the work; the sequence of its envelope. Raises JobCanceled."""
        if self.state.ended:
            raise RuntimeError("the job has ended already")
        action.channel = self.channel
        try:
            sent = await self.core.act(self.work_id, verb, action)
        except ENDED as error:
            self.state.canceled = True
            raise JobCanceled(f"the work {self.work_id} has ended: {error.message}", error.hint, error.code) from None
        if sent.work_state in TERMINAL_STATES:
            self.state.lease, self.state.acked = None, True  # by the daemon, with the end of the work
        return sent.seq

    async def answer(self, since: int, timeout: float | None = None) -> str:
        """The first say of the initiator after the question with the sequence `since`. Raises JobCanceled, TimeoutError."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        async with aclosing(self.core.watch(self.work_id, since, deadline)) as events:
            async for event in events:
                if event is not None and event.message is not None:
                    messages = [event.message]
                else:
                    messages = await self.core.heard(self.work_id, self.channel, "say", since)
                for message in messages:
                    if (text := _said(message)) is not None and message.channel == self.channel:
                        await self._acknowledge(message.seq)
                        return text
                may_have_ended = event is None or (event.work is not None and event.work.after in TERMINAL_STATES)
                if may_have_ended and await self.has_ended():
                    break
        self.state.cancel()
        raise JobCanceled(f"the work {self.work_id} has ended", "the question was not answered")


def text_of(error: BaseException) -> str:
    """What happened, in one message."""
    return shorten(f"{type(error).__name__}: {error}".encode(errors="replace").decode(), MESSAGE_CHARACTERS)


def _said(message: Message) -> str | None:
    """The text of a say that was received in a work and had effect."""
    if (message.direction, message.kind) != ("in", "say") or message.outcome not in ("advanced", "unchanged"):
        return None
    return str((msgspec.json.decode(message.envelope).get("body") or {}).get("text") or "")


class JobSurface:
    """A job of either kind: what was asked, by whom, and the steps that report on it."""

    core: JobCore

    def __init__(self, core: JobCore) -> None:
        self.core = core

    @property
    def message(self) -> Message:
        """The message that opened the work, with its envelope."""
        return self.core.state.item.message

    @property
    def work_id(self) -> str:
        """The id of the work."""
        return self.core.work_id

    @property
    def sender(self) -> str:
        """The peer id of the initiator; `message.trust` says whether a signature shows it."""
        return self.message.sender

    @property
    def body(self) -> dict[str, Any]:
        """The body of the opening: `text`, `intent` and `artifacts` of a say, `capability` of a capability."""
        return self.core.state.body

    @property
    def trace(self) -> dict[str, str]:
        """The trace that the work belongs to (docs/operations.md): pass it as `ext` of a message to continue it elsewhere."""
        return self.core.state.trace

    @property
    def text(self) -> str:
        """The text of the opening; empty for a capability. It is the peer's: treat it as untrusted input."""
        return str(self.body.get("text") or "")

    @property
    def attempt(self) -> int:
        """1 for the first time; more when a worker took this work before and did not report: look at what it left behind."""
        return self.core.state.item.attempts

    @property
    def canceled(self) -> bool:
        """Whether the work ended without our report, or the lease is lost: stop working on it."""
        return self.core.state.canceled

    @property
    def log(self) -> JobLog:
        """A logger (`aghbus.job`) whose lines name the work, its initiator and the attempt, which are in `extra`, too."""
        from aghbus.client.work.job_log import JobLog  # logging is slow to load

        return JobLog(self.work_id, self.sender, self.attempt)

    @property
    def ended(self) -> bool:
        """Whether the job was reported, rejected or released."""
        return self.core.state.ended

    update = Method(JobCore.update)
    ask = Method(JobCore.ask)
    complete = Method(JobCore.complete)
    fail = Method(JobCore.fail)
    reject = Method(JobCore.reject)
    release = Method(JobCore.release)


class Job(JobSurface, Blocking):
    """One leased work. As a context manager it is completed at the end of the block, or failed by an exception."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        run(_leave(self.core, error))


class AsyncJob(JobSurface, Asynchronous):
    """One leased work, for asyncio. As a context manager it is completed at the end of the block, or failed by an exception."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await _leave(self.core, error)


async def _leave(job: JobCore, error: BaseException | None) -> None:
    if job.state.ended:
        return
    if error is None:
        await job.complete()
    elif isinstance(error, JobCanceled):
        await job.drop()
    elif isinstance(error, Exception):
        await job.failed(error)
    else:
        await job.release(error=type(error).__name__)
