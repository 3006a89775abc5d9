"""One work as one task of an A2A agent, with a journal so that a restart goes on with the same task and sends nothing twice.

Phases of its file (client/work/journal.py), each on disk before what follows it:

    taken      the message and its lease                     before the work is sent
    sending    the message that begins the task goes out     before it does
    unsent     the agent has certainly not got it            before the next attempt
    task       the ids of task and context                   before the work is accepted
    asked      the key of the question                       before an answer is waited for
    answering  that key, and the answer                      before it goes out
    ended      how the work ends                             before that is reported
    canceling  the work has ended here                       before the agent is told

After an answer, `task` follows `answering`. In `sending` it is looked whether the agent lists a task of our context.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

import msgspec

from aghbus.client.core.refusals import NotFound
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
from aghbus.gateways.a2a.join.reports import Settings, WorkReports
from aghbus.protocol.api.artifact_uri import parse_uri
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
FIRST_RETRY, LAST_RETRY = 0.5, 30.0
LOOKS: Final = 4
"""How often it is looked for a task whose message may have arrived, before that is given up."""
CANCEL_PATIENCE: Final = 600.0
"""Seconds for which an agent that is away is told that its task is canceled."""
LAST_ANSWER: Final = 60.0
"""Seconds for the answer to a message whose work was canceled meanwhile: it names the task to cancel."""
MAX_INPUT_BYTES: Final = 8 << 20
"""Most bytes of artifacts that a message takes along."""


class _CannotSend(Exception):
    """The work cannot be a message; the text says why."""


class JoinedWork(WorkReports):
    """One work. `run` returns when it is over, or (cancelled) when the process ends; the journal then has the rest."""

    def __init__(self, core: JobCore, entry: JournalEntry, settings: Settings) -> None:
        super().__init__(core, entry, settings)
        self._agent = settings.agent
        self._sending: asyncio.Task[Json] | None = None
        self._stream: AsyncGenerator[Json, None] | None = None
        self._told = self._unsaid = ""
        self._began = time.monotonic()
        self._updated = self._began - UPDATE_EVERY

    async def run(self, *, recovered: bool = False) -> None:
        """Carry the work out, from where the journal says."""
        if recovered:
            self.emit("recovered", phase=self.entry.phase)
            if self.entry.phase == "canceling" or await self.core.has_ended():
                self.core.state.canceled = True
        if not self.core.state.canceled:
            steps = asyncio.create_task(self._steps())
            self.core.state.on_cancel = steps.cancel
            try:
                await steps
            except JobCanceled:
                pass
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    await self._finish_sending()
                    raise
            else:
                self.entry.remove()
                return
        if not self.core.state.lost:
            await self._withdraw()

    async def _finish_sending(self) -> None:
        """At the end of the process: let the agent name the task of a message that is on its way."""
        if self._sending is not None:
            await asyncio.wait({self._sending}, timeout=1.0)

    async def _steps(self) -> None:
        phase, update = self.entry.phase, None
        try:
            if phase in ("taken", "unsent"):
                update = await self._open()
            elif phase == "sending":
                update = await self._look_for_task()
            elif phase == "ended":
                await self._report(self.entry.records[-1])
                return
            elif phase == "answering":
                update = await self._answer_again(self.entry.records[-1])
            if update is not None and "message" in update:
                await self._end(outward.outcome_of_message(update["message"]))
                return
            await self._follow(update)
        except Refused as error:
            await self._refuse(f"the agent refused: {error}")
        except _CannotSend as error:
            await self._refuse(str(error))
        finally:
            if self._stream is not None:
                await self._stream.aclose()

    # sending

    async def _open(self) -> Json:
        """Begin the task; the first event of its stream."""
        message = await self._opening_message()
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            self.entry.write("sending")
            try:
                return await self._send(message, accept=True)
            except Away as error:
                self.entry.write("unsent")
                await self._tell_away(error)
            except Lost as error:
                self.emit("problem", message=f"the answer to the message is lost: {error}")
                return await self._look_for_task()
            await asyncio.sleep(backoff.next())

    async def _send(self, message: Json, *, accept: bool = False) -> Json:
        """Send a message; the first event of the answer, whose stream is kept. With `accept` the work is accepted when the agent
        takes its time."""
        self._sending = asyncio.create_task(self._first_event(message))
        waits = ACCEPT_AFTER if accept else None
        done, _ = await asyncio.wait({self._sending}, timeout=waits)
        if not done:
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
        if (known := self.entry.last("task")) is None:
            self.emit("sent", task=task_id)
        elif known["task_id"] != task_id:
            raise Refused("the answer to a question began another task")
        self.entry.write("task", task_id=task_id, context_id=context_id)

    async def _look_for_task(self) -> Json:
        """Find the task of a message that may have arrived. Without `--resend` it is not sent again."""
        context, looks = outward.derived(self._opening_id, "context"), 0
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            try:
                if found := await self._agent.tasks_of(context):
                    self._back()
                    self._keep_task(str(found[0]["id"]), context)
                    return {"task": found[0]}
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
        raise _CannotSend(f"it is not known whether the agent has got this work: {why}; {again}")

    async def _opening_message(self) -> Json:
        """Raises _CannotSend for artifacts that are not there, or too large."""
        body, files, size = self.core.state.body, dict[str, bytes](), 0
        for reference in body.get("artifacts") or ():
            uri = reference.get("uri") if isinstance(reference, dict) else None
            if not isinstance(uri, str) or (place := parse_uri(uri)) is None:
                continue
            content = b""
            try:
                async with aclosing(self._settings.client.get_artifact(*place)) as pieces:
                    async for piece in pieces:
                        content += piece
                        if size + len(content) > MAX_INPUT_BYTES:
                            raise _CannotSend(
                                f"the artifacts of the work are larger than {MAX_INPUT_BYTES} bytes together"
                            )
            except NotFound:
                raise _CannotSend(f"the artifact {uri} is not in the object store") from None
            size += len(content)
            files[uri] = content
        envelope = msgspec.json.decode(self.core.state.item.message.envelope)
        return outward.opening_message(self._opening_id, envelope, self._settings.capability(body), files)

    # following

    async def _follow(self, update: Json | None) -> None:
        """Follow the task to its end, over every loss of the connection. `update` is the event that is known already."""
        task_id, backoff = str((self.entry.last("task") or {})["task_id"]), Backoff(FIRST_POLL, LAST_POLL)
        task, streams = dict[str, Any](id=task_id), self._agent.streams
        while True:
            before = outward.status_key(task)
            try:
                if update is not None:
                    task, update = outward.merged(task, update), None
                elif self._stream is None:
                    task = await self._agent.get(task_id)
                self._back()
                if await self._look_at(task):
                    return
                if self._stream is None and streams and outward.state_of(task) not in outward.ASKS:
                    self._stream = self._agent.subscribe(task_id)
                if (found := await self._read_stream(task)) is None:
                    return
                task = found
            except (Away, Lost) as error:
                self._stream = None
                await self._tell_away(error)
            except NoSuchTask:
                raise Refused("it does not know the task any more, perhaps since it was restarted") from None
            except NotSupported:  # the task has ended meanwhile, or there are no streams in spite of the card
                self._stream, streams = None, False
            if outward.status_key(task) != before:
                backoff.reset()
            await asyncio.sleep(backoff.next() if self._stream is None else 0)

    async def _read_stream(self, task: Json) -> Json | None:
        """The task after all events of the stream, if there is one; None when the work is over. An answer to a question has a
        stream of its own, which is there then."""
        if (stream := self._stream) is None:
            return task
        async with aclosing(self._each(stream)) as events:
            async for event in events:
                task = outward.merged(task, event)
                if await self._look_at(task):
                    return None
                if self._stream is not stream:
                    return task
        self._stream = None
        return task

    async def _each(self, stream: AsyncGenerator[Json, None]) -> AsyncGenerator[Json, None]:
        """The events of a stream until it ends or is silent; it is closed then, and if nobody wants more."""
        async with aclosing(stream):
            while True:
                try:
                    async with asyncio.timeout(KEEPALIVE):
                        event = await anext(stream)
                except (StopAsyncIteration, TimeoutError):
                    return
                self._back()
                yield event

    async def _look_at(self, task: Json) -> bool:
        """Do what the state of the task asks for. True when the work is over."""
        state = outward.state_of(task)
        if state == outward.REJECTED and not self._accepted:
            await self._refuse(outward.outcome_of(task).message or "")
        elif state in outward.ENDED:
            await self._end(outward.outcome_of(task))
        if state in outward.ENDED:
            return True
        if state == outward.SUBMITTED and time.monotonic() - self._began < ACCEPT_AFTER:
            return False  # it may still be rejected
        await self._accept()
        if state in outward.ASKS:
            await self._ask(task)
        elif state:
            await self._progress(task)
        return False

    async def _progress(self, task: Json) -> None:
        """Report what the agent says, at most once in UPDATE_EVERY, and that it still works, once in KEEPALIVE."""
        key, text, now = outward.status_key(task), outward.progress_of(task), time.monotonic()
        if key not in (self._told, self._unsaid):
            self._unsaid = key
        new = bool(self._unsaid) and text is not None
        if now - self._updated < (UPDATE_EVERY if new else KEEPALIVE):
            return
        action = WorkActionRequest(message=text, replace_secrets=True)
        if new:
            action.id = self._id("update", key)
        self._told, self._unsaid, self._updated = key, "", now
        await self.core.act("update", action)
        self.emit("working", **({"message": text} if text else {}))

    # questions

    async def _ask(self, task: Json) -> None:
        """Hand a question on, and its answer back. Returns also when the task goes on without one."""
        key, (text, result, ext) = outward.status_key(task), outward.question_of(task)
        action = WorkActionRequest(message=text, result=result, ext=ext, id=self._id("ask", key), replace_secrets=True)
        since = await self.core.act("need-input", action)
        if (self.entry.last("asked") or {}).get("key") != key:
            self.entry.write("asked", key=key)
            self.emit("asked", message=text)
        answer, backoff = asyncio.create_task(self.core.answer(since)), Backoff(1.0, KEEPALIVE)
        try:
            while not (await asyncio.wait({answer}, timeout=backoff.next()))[0]:
                with suppress(Away, Lost):
                    now = await self._agent.get(str(task["id"]))
                    if outward.status_key(now) != key:  # a login, or an answer that came to the agent in another way
                        self._keep_going(task)
                        return
            said = answer.result()
        finally:
            answer.cancel()
        self.entry.write("answering", key=key, text=said)
        self.emit("answered")
        await self._answer(task, key, said)

    def _keep_going(self, task: Json) -> None:
        self.entry.write("task", task_id=task["id"], context_id=task.get("contextId", ""))

    async def _answer(self, task: Json, key: str, text: str) -> Json | None:
        """Send an answer; the first event, or None when the task shows that it has it."""
        message, backoff = outward.answer_message(self._opening_id, key, text, task), Backoff(FIRST_RETRY, LAST_RETRY)
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None
        while True:
            try:
                update = await self._send(message)
                if "message" in update:  # an answer beside the task, which goes on
                    self._keep_going(task)
                    return None
                return update
            except Away as error:
                await self._tell_away(error)
            except Lost as error:
                await self._tell_away(error)
                if await self._has_answer(message, key, str(task["id"])):
                    self._keep_going(task)
                    return None
            await asyncio.sleep(backoff.next())

    async def _answer_again(self, record: Json) -> Json | None:
        """After a restart: send an answer again if the agent has not got it."""
        known = self.entry.last("task") or {}
        task = {"id": known["task_id"], "contextId": known["context_id"]}
        message = outward.answer_message(self._opening_id, record["key"], record["text"], task)
        if await self._has_answer(message, record["key"], task["id"]):
            self._keep_going(task)
            return None
        return await self._answer(task, record["key"], record["text"])

    async def _has_answer(self, message: Json, key: str, task_id: str) -> bool:
        """Whether the agent has got an answer. Raises _CannotSend when that cannot be known."""
        backoff = Backoff(FIRST_RETRY, LAST_RETRY)
        while True:
            try:
                task = await self._agent.get(task_id)
            except (Away, Lost) as error:
                await self._tell_away(error)
                await asyncio.sleep(backoff.next())
                continue
            self._back()
            if outward.status_key(task) != key:
                return True
            found = outward.has_message(task, message["messageId"])
            if found is None and not self._settings.resend:
                raise _CannotSend(
                    "it is not known whether the agent has got the answer, and it shows no history of the task"
                )
            return bool(found)

    async def _withdraw(self) -> None:
        """The work has ended here: cancel the task, if the agent has one."""
        if self._sending is not None and not self._sending.done():
            await asyncio.wait({self._sending}, timeout=LAST_ANSWER)
        deadline, backoff = time.monotonic() + CANCEL_PATIENCE, Backoff(FIRST_RETRY, LAST_RETRY)
        ended = self.entry.last("ended") is not None
        while not ended and self.entry.phase not in ("taken", "unsent"):
            try:
                known = self.entry.last("task")
                found = [] if known else await self._agent.tasks_of(outward.derived(self._opening_id, "context"))
                task_id = str(known["task_id"] if known else found[0]["id"] if found else "")
                if self.entry.phase != "canceling":
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
