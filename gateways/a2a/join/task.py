"""One work as one task of an A2A agent, with a journal so that a restart goes on with the same task and sends nothing twice.

Phases of its file (client/work/journal.py), each on disk before what follows it:

    taken      the message and its lease                     before the work is sent
    sending    the message that begins the task goes out     before it does
    unsent     the agent has certainly not got it            before the next attempt
    task       the ids of task and context                   before the work is accepted
    asked      the id of our message with the question
    ended      how the work ends                             before that is reported
    canceling  the work has ended here                       before the agent is told

In `sending` it is looked whether the agent lists a task of our context. Further messages to the task: see conversation.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

import msgspec

from aghbus.client.work.job import JobCanceled, JobCore
from aghbus.client.work.journal import JournalEntry
from aghbus.gateways.a2a.join.agent import (
    SEND_SECONDS,
    AgentError,
    Away,
    Lost,
    NoSuchTask,
    NotSupported,
    Refused,
)
from aghbus.gateways.a2a.join.conversation import FIRST_RETRY, LAST_RETRY, SAYS, SENT, CannotSend, Conversation
from aghbus.gateways.a2a.join.reports import Settings
from aghbus.gateways.base.actions import act
from aghbus.protocol.api.works import WorkActionRequest
from aghbus.protocol.base.backoff import Backoff
from aghbus.protocol.formats.a2a import outward
from aghbus.protocol.formats.a2a.parts import Json

ACCEPT_AFTER: Final = 15.0
"""Seconds after which a work is accepted although the agent has not answered; more than a connection takes."""
KEEPALIVE: Final = 30.0
"""Seconds without an event after which the task is looked at, and the initiator is told that it is still worked on."""
UPDATE_EVERY: Final = 1.0
"""Seconds between two progress reports: of an agent that says more, the latest counts."""
FIRST_POLL, LAST_POLL = 0.5, 10.0
LOOKS: Final = 4
"""How often it is looked for a task whose message may have arrived, and for an ended one, before that is given up."""
CANCEL_PATIENCE: Final = 600.0
"""Seconds for which an agent that is away is told that its task is canceled."""
LAST_ANSWER: Final = 60.0
"""Seconds for the answer to a message whose work was canceled meanwhile: it names the task to cancel."""
MAX_STREAMED: Final = 64 << 20
"""Most bytes of artifacts that come piece by piece: of a longer one the work fails."""


class JoinedWork(Conversation):
    """One work. `run` returns when it is over, or (cancelled) when the process ends; the journal then has the rest."""

    def __init__(self, core: JobCore, entry: JournalEntry, settings: Settings) -> None:
        super().__init__(core, entry, settings)
        self._sending: asyncio.Task[Json] | None = None
        self._stream: AsyncGenerator[Json, None] | None = None
        self._told = self._unsaid = ""
        self._began = time.monotonic()
        self._updated = self._began - UPDATE_EVERY
        self._streamed = 0
        self._resumed = False
        """Whether pieces of artifacts may be missing, or be there twice: a stream began while the task ran."""

    @property
    def phase(self) -> str:
        """The phase of the journal."""
        return str(next(one["phase"] for one in reversed(self.entry.records) if one["phase"] not in SAYS))

    async def run(self, *, recovered: bool = False) -> None:
        """Carry the work out, from where the journal says."""
        if recovered:
            self.emit("recovered", phase=self.phase)
            if self.phase == "canceling" or await self.core.has_ended():
                self.core.state.canceled = True
        try:
            if not self.core.state.canceled and await self._carried_out():
                self.entry.remove()
            elif not self.core.state.lost:
                await self._withdraw()
        finally:
            if self._sending is not None:
                self._sending.cancel()
                await asyncio.gather(self._sending, return_exceptions=True)
            await self._close_stream()

    async def _carried_out(self) -> bool:
        """Whether the work has ended as the agent says; otherwise it was canceled, or its lease is lost."""
        steps = asyncio.create_task(self._steps())
        self.core.state.on_cancel = steps.cancel
        try:
            await steps
        except JobCanceled:
            return False
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                if self._sending is not None:  # the process ends: let the agent name the task
                    await asyncio.wait({self._sending}, timeout=1.0)
                raise
            return False
        return True

    async def _steps(self) -> None:
        update = None
        try:
            if self.phase in ("taken", "unsent"):
                update = await self._open()
            elif self.phase == "sending":
                update = await self._look_for_task()
            elif self.phase == "ended":
                await self._report()
                return
            if update is not None and "message" in update:
                await self._end(outward.outcome_of_message(update["message"]), await self._unheard({}))
                return
            task = await self._talked(update)
            if outward.state_of(task) == outward.REJECTED and not self._accepted:
                await self._refuse(outward.outcome_of(task).message or "")
            else:
                await self._end(outward.outcome_of(task), await self._unheard(task))
        except Refused as error:
            await self._refuse(f"the agent refused: {error}")
        except CannotSend as error:
            await self._refuse(str(error))

    async def _talked(self, update: Json | None) -> Json:
        """The ended task. Meanwhile the agent gets what the initiator says."""
        following, passing = asyncio.create_task(self._follow(update)), asyncio.create_task(self._pass_on())
        try:
            await asyncio.wait({following, passing}, return_when=asyncio.FIRST_COMPLETED)
            if passing.done():
                passing.result()
            return following.result()
        finally:
            tasks = (following, passing, *self._deliveries)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    # sending

    async def _open(self) -> Json | None:
        """Begin the task; the first event of its stream, or None for one that was begun before."""
        message = await self._opening_message()
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            self.entry.write("sending")
            try:
                return await self._send(message)
            except Away as error:
                self.entry.write("unsent")
                await self._tell_away(error)
            except Lost as error:
                self.emit("problem", message=f"the answer to the message is lost: {error}")
                return await self._look_for_task()
            await asyncio.sleep(backoff.next())

    async def _send(self, message: Json) -> Json:
        """Send the message that begins the task; the first event of the answer, whose stream is kept. The work is accepted when the
        agent takes its time."""
        self._sending = asyncio.create_task(self._first_event(message))
        if not (await asyncio.wait({self._sending}, timeout=ACCEPT_AFTER))[0]:
            await self._accept()
        update = await asyncio.shield(self._sending)
        self._back()
        return update

    async def _first_event(self, message: Json) -> Json:
        stream = self._agent.send(message, self.core.state.trace)
        try:
            async with asyncio.timeout(SEND_SECONDS):
                update = await anext(stream)
            if "message" not in update:
                task_id, context_id = outward.task_in(update)
                if not task_id:
                    raise Lost("the answer names no task")
                self._keep_task(task_id, context_id)
        except BaseException as error:
            await stream.aclose()
            if isinstance(error, StopAsyncIteration | TimeoutError):
                raise Lost("the agent did not answer the message") from None
            raise
        self._stream = stream
        return update

    def _keep_task(self, task_id: str, context_id: str) -> None:
        self.entry.write("task", task_id=task_id, context_id=context_id)
        self.emit("sent", task=task_id)

    async def _look_for_task(self) -> Json | None:
        """Find the task of a message that may have arrived. Without `--resend` it is not sent again; with it, the first event of
        the answer."""
        context, looks = outward.derived(self._opening_id, "context"), 0
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            try:
                if found := await self._agent.tasks_of(context):
                    self._back()
                    self._keep_task(str(found[0]["id"]), context)
                    return None  # a list has no artifacts: the task is looked at
                looks, why = looks + 1, "it shows no task for it"
            except NotSupported:
                looks, why = LOOKS, "it cannot list its tasks"
            except Refused as error:
                looks, why = LOOKS, f"it does not list its tasks: {error}"
            except (Away, Lost) as error:
                await self._tell_away(error)
            if looks >= LOOKS:
                break
            await asyncio.sleep(backoff.next())
        if self._settings.resend:
            return await self._open()
        again = "it was not sent again, since the agent might do it twice (aghctl a2a join --resend allows that)"
        await self._accept()
        raise CannotSend(f"it is not known whether the agent has got this work: {why}; {again}")

    async def _opening_message(self) -> Json:
        """Raises CannotSend for artifacts that are not there, or too large."""
        body = self.core.state.body
        files = await self._files(body.get("artifacts") or ())
        envelope = msgspec.json.decode(self.core.state.item.message.envelope)
        return outward.opening_message(self._opening_id, envelope, self._settings.capability(body), files)

    # following

    async def _follow(self, update: Json | None) -> Json:
        """Follow the task over every loss of the connection; the ended task. `update` is the event that is known already."""
        task_id, backoff = self._task_id, Backoff(FIRST_POLL, LAST_POLL)
        task, streams = dict[str, Any](id=task_id), self._agent.streams
        while True:
            before, began = outward.status_key(task), time.monotonic()
            try:
                if update is not None:
                    task, update = outward.merged(task, update), None
                elif self._stream is None:
                    task, self._resumed = await self._agent.get(task_id), False
                self._back()
                if not await self._look_at(task):
                    if self._stream is None and streams and self._question is None:
                        self._stream, self._resumed = self._agent.subscribe(task_id), True
                    task = await self._read_stream(task)
                if outward.state_of(task) in outward.ENDED:
                    return await self._whole(task)
            except (Away, Lost) as error:
                await self._close_stream()
                await self._tell_away(error)
            except NoSuchTask:
                raise Refused("it does not know the task any more, perhaps since it was restarted") from None
            except NotSupported:  # the task has ended meanwhile, or there are no streams in spite of the card
                await self._close_stream()
                streams = False
            moved = outward.status_key(task) != before or self._look_again.is_set()
            if moved or time.monotonic() - began >= KEEPALIVE:
                backoff.reset()
            await self._pause(backoff.next())

    async def _pause(self, seconds: float) -> None:
        """Wait until the task is to be looked at again."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._look_again.wait()
        self._look_again.clear()

    async def _read_stream(self, task: Json) -> Json:
        """The task after all events of the stream, if there is one, which is closed then."""
        waiting: asyncio.Future[Json] | None = None
        try:
            while self._stream is not None:
                waiting = waiting or asyncio.ensure_future(anext(self._stream))
                await asyncio.wait({waiting}, timeout=UPDATE_EVERY if self._unsaid else KEEPALIVE)
                if not waiting.done():
                    if not self._unsaid:
                        break
                    await self._progress(task)
                    continue
                event, waiting = waiting.result(), None
                self._back()
                task = outward.merged(task, event)
                self._streamed += outward.artifact_size(event)
                if self._streamed > MAX_STREAMED:
                    await self._cancel_task(self._task_id)
                    raise CannotSend(f"the artifacts of the agent are larger than {MAX_STREAMED} bytes together")
                if await self._look_at(task):
                    break
        except StopAsyncIteration:
            pass
        finally:
            if waiting is not None:
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await self._close_stream()
        return task

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.aclose()

    async def _whole(self, task: Json) -> Json:
        """The ended task as the agent keeps it, if a stream may lack pieces of it, or its history counts."""
        if not self._resumed and self.entry.last("saying") is None:
            return task
        backoff = Backoff(FIRST_POLL, LAST_POLL)
        for _ in range(LOOKS):
            try:
                kept = await self._agent.get(self._task_id)
            except (Away, Lost) as error:
                await self._tell_away(error)
                await asyncio.sleep(backoff.next())
            except Refused:
                break
            else:
                self._back()
                return kept if outward.state_of(kept) in outward.ENDED else task
        return task

    async def _look_at(self, task: Json) -> bool:
        """Do what the state of the task asks for. True when it has ended."""
        state = outward.state_of(task)
        answered = self._answered(task) if state in outward.ASKS else SENT
        if answered == SENT:
            self._no_question()
        if state in outward.ENDED:
            return True
        if (
            state != outward.SUBMITTED or time.monotonic() - self._began >= ACCEPT_AFTER
        ):  # it may still be rejected before
            await self._accept()
            if answered not in ("", SENT):
                await self._ask(task)
            elif state:
                await self._progress(task)
        self._looked.set()
        return False

    async def _progress(self, task: Json) -> None:
        """Report what the agent says, at most once in UPDATE_EVERY, and that it still works, once in KEEPALIVE."""
        key, now = outward.status_key(task), time.monotonic()
        text = None if outward.state_of(task) in outward.ASKS else outward.progress_of(task)
        if text is not None and key != self._told:
            self._unsaid = key
        new = bool(self._unsaid)
        if now - self._updated < (UPDATE_EVERY if new else KEEPALIVE):
            return
        action = WorkActionRequest(message=text)
        if new:
            action.id = self._id("update", key)
        self._told, self._unsaid, self._updated = key, "", now
        await act(self.core, "update", action)
        self.emit("working", **({"message": text} if text else {}))

    # the end

    async def _cancel_task(self, task_id: str) -> None:
        try:
            await self._agent.cancel(task_id)
            self.emit("canceled", task=task_id)
        except AgentError as error:
            self.emit("problem", message=f"the agent did not cancel the task: {error}")

    async def _withdraw(self) -> None:
        """The work has ended here: cancel the task, if the agent has one."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait({self._sending}, timeout=LAST_ANSWER)
        deadline, backoff = time.monotonic() + CANCEL_PATIENCE, Backoff(FIRST_RETRY, LAST_RETRY)
        ended = self.entry.last("ended") is not None
        while not ended and self.phase not in ("taken", "unsent"):
            try:
                known = self.entry.last("task")
                found = [] if known else await self._agent.tasks_of(outward.derived(self._opening_id, "context"))
                task_id = str(known["task_id"] if known else found[0]["id"] if found else "")
                if self.phase != "canceling":
                    self.entry.write("canceling")
                if task_id:
                    await self._agent.cancel(task_id)
                    self.emit("canceled", task=task_id)
                else:
                    self.emit(
                        "problem", message="the work is canceled; whether the agent has a task for it is not known"
                    )
                break
            except (Away, Lost) as error:
                if time.monotonic() > deadline:
                    self.emit("problem", message=f"the agent could not be told that the work is canceled: {error}")
                    break
            except AgentError as error:  # it has ended, or cannot be canceled
                self.emit("problem", message=f"the agent did not cancel the task: {error}")
                break
            await asyncio.sleep(backoff.next())
        await self.core.settle()
        self.emit("dropped")
        self.entry.remove()
