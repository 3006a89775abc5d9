"""One work that an agent of theirs carries out: from a leased message to the end of the work. Each step is in the journal first."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from contextlib import aclosing, suppress
from typing import Any, Final, NamedTuple

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from pydantic import ValidationError
from synadia_ai.agents import Agent, Agents, Attachment, Envelope, NatsAgentError, Query, ResponseChunk

from aghbus.client.core.refusals import Conflict, SecretLike
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.work.job import JobCanceled, JobCore
from aghbus.client.work.journal import JournalEntry
from aghbus.gateways.base.actions import act
from aghbus.gateways.synadia.process import Bridge
from aghbus.protocol.api.artifact_uri import parse_uri
from aghbus.protocol.api.works import WorkActionRequest, WorkVerb
from aghbus.protocol.base.refused_text import without_refused
from aghbus.protocol.base.text import is_blank, shorten
from aghbus.protocol.formats.synadia import names, prompt
from aghbus.protocol.formats.synadia.reply import with_files

REPORT_PAUSE: Final = 1.0
"""Seconds between two progress reports, each of which is a message in the store."""
ALIVE_PAUSE: Final = 30.0
"""Seconds after which an agent that only shows that it is there is a progress report, too."""
PROBE_PAUSE: Final = 10.0
"""Seconds without a message after which it is looked whether the agent is still there."""
MAX_ANSWER: Final = 16 << 20
"""Characters of an answer."""
MAX_ARTIFACTS: Final = 100
"""References in the end of a work."""
OVERHEAD: Final = 4_096
"""Bytes of a prompt besides its text and the content of attachments."""
NO_LIMIT: Final = 366 * 86_400.0
"""Seconds: this bridge has limits of its own, which do not count the time of questions."""
RETURN_PAUSE: Final = 5.0
"""Seconds for which a work is left whose agent has just gone."""
RESTARTED: Final = "the bridge was restarted while the agent worked: it may have done its part, and was not asked again"
STOPPED: Final = "the bridge was stopped while the agent worked: it may have done its part"
GONE: Final = "the agent has gone, or its host was stopped, while it worked"


class JoinOptions(NamedTuple):
    """Times in seconds. `resend`: prompt again after a restart, where the agent may have done its part."""

    routes: dict[str, names.Selector]
    every_agent: bool
    concurrency: int
    per_agent: int
    others: bool
    resend: bool
    time_limit: float
    idle_timeout: float
    answer_within: float
    drain: float


class Failed(Exception):
    """The work ends as failed, for this reason."""


class JoinedJob:
    """`run` carries the work out; its task is cancelled when the work has ended by others, or the bridge stops."""

    def __init__(
        self, bridge: Bridge, agents: Agents, job: JobCore, entry: JournalEntry, agent: Agent, options: JoinOptions
    ) -> None:
        self._bridge = bridge
        self._agents = agents
        self.job = job
        self.entry = entry
        self._agent = agent
        self._options = options
        self._text: list[str] = []
        self._length = 0
        self._heard = self._reported = time.monotonic()
        self._begun = False
        self._changed = asyncio.Event()
        self._artifacts: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []
        self._asking: asyncio.Task[None] | None = None

    def emit(self, event: str, **more: Any) -> None:
        """Print an event of this work."""
        self._bridge.emit(event, work_id=self.job.work_id, **more)

    async def run(self) -> None:
        """Accept the work, prompt the agent, and report the end. Raises ClientError and OSError."""
        if not await present(self._agents, self._agent):
            await self._return("its agent has gone")
        elif await self.job.accept():
            await self._carry_out()
        else:
            self.entry.remove()
            self.emit("dropped")

    async def _return(self, why: str) -> None:
        self.entry.remove()
        await self.job.release(delay=RETURN_PAUSE, error=why)
        self.emit("returned", message=why)

    async def _carry_out(self) -> None:
        try:
            envelope = await self._envelope()
        except ValueError as error:
            await self._finish("fail", f"the work cannot be a prompt: {error}")
            return
        self.entry.write("starting", agent=str(address_of(self._agent)))
        self.emit("prompted", agent=str(address_of(self._agent)))
        try:
            await self._prompt(envelope)
            message, whole = prompt.answer("".join((*self._text, *self._notes)))
            if whole is not None:
                await self._keep(prompt.ANSWER_NAME, whole)
            verb: WorkVerb = "complete"
        except Failed as error:
            verb, message = "fail", str(error)
            if text := "".join(self._text):
                await self._keep(prompt.ANSWER_NAME, text.encode("utf-8", "replace"))
        await self._finish(verb, message)

    async def _finish(self, verb: WorkVerb, message: str | None) -> None:
        if verb == "fail":
            message = shorten(prompt.clean(message or ""), prompt.MAX_REPORT)
        self.entry.write("finished", verb=verb, message=message, artifacts=list(self._artifacts.values()))
        await report(self._bridge, self.job, self.entry)

    async def fail_stopped(self) -> None:
        """End the work because the bridge stops, after `run` was cancelled."""
        if self.entry.phase == "taken" or (self.entry.phase == "starting" and self._options.resend):
            await self._return(STOPPED)
        elif self.entry.phase == "starting":
            await self._finish("fail", STOPPED)

    # prompting

    async def _envelope(self) -> Envelope:
        body, job = self.job.state.body, self.job
        text, attachments, elsewhere = prompt.prompt_text(body), list[Attachment](), dict[str, str]()
        endpoint = self._agent.prompt_endpoint
        room = min(self._bridge.nats.max_payload, endpoint.max_payload_bytes or 1 << 30) - OVERHEAD - len(text.encode())
        for number, reference in enumerate(body.get("artifacts") or [], 1):
            found = reference if isinstance(reference, dict) else {}
            name, uri = str(found.get("name") or f"artifact {number}"), str(found.get("uri") or reference)
            octets = await self._fetched(uri, room * 3 // 4) if endpoint.attachments_ok is not False else None
            if octets is None:
                elsewhere[name] = uri
                continue
            name = names.artifact_name(name, [one.filename for one in attachments])  # it may become a path there
            attachments.append(Attachment.from_bytes(name, octets))
            room -= len(attachments[-1].content) + len(name) + 64
        self._bridge.metrics.count("attachments_total", by=len(attachments))
        about = {"work_id": job.work_id, "from": job.state.item.message.sender, "attempt": job.state.item.attempts}
        return Envelope(prompt=with_files(text, elsewhere), attachments=attachments or None, **{names.MARK: about})

    async def _fetched(self, uri: str, most: int) -> bytes | None:
        """The content of an artifact of the bus; None if it is elsewhere, is gone, or has more than `most` bytes."""
        if (parts := parse_uri(uri)) is None or most <= 0:
            return None
        octets = b""
        try:
            async with aclosing(self.job.core.get_artifact(*parts)) as pieces:
                async for piece in pieces:
                    octets += piece
                    if len(octets) > most:
                        return None
        except ClientError:
            return None
        return octets

    async def _prompt(self, envelope: Envelope) -> None:
        """Prompt the agent until the end of its response. Raises Failed."""
        steps: list[Coroutine[Any, Any, None]] = [self._read(envelope), self._watch(), self._report()]
        tasks = [asyncio.create_task(step) for step in steps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            if self._asking is not None:
                tasks.append(self._asking)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, envelope: Envelope) -> None:
        try:
            stream = self._agent.prompt(envelope, timeout=NO_LIMIT, max_wait_s=NO_LIMIT)
            async with aclosing(stream) as chunks:  # type: ignore[type-var]  # it is a generator
                async for chunk in chunks:
                    self._heard, self._begun = time.monotonic(), True
                    if isinstance(chunk, ResponseChunk):
                        await self._take(chunk)
                    elif isinstance(chunk, Query):
                        await self._on_query(chunk)
        except (NatsAgentError, NatsError) as error:
            raise Failed(f"the agent: {error}") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise Failed(f"the agent: attachments: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except (ValueError, RecursionError):
            raise Failed("the agent: a chunk is not JSON in UTF-8, or has too many levels or digits") from None

    async def _take(self, chunk: ResponseChunk) -> None:
        if chunk.text:
            self._text.append(prompt.clean(chunk.text))
        self._length += len(chunk.text)
        if self._length > MAX_ANSWER:
            raise Failed(f"the answer of the agent is longer than {MAX_ANSWER} characters")
        for attachment in chunk.attachments or []:
            await self._store(attachment)
        self._changed.set()

    async def _store(self, attachment: Attachment) -> str | None:
        """Keep an attachment as an artifact of the work; its URI, or None and a note in the answer."""
        name = names.artifact_name(attachment.filename, self._artifacts)
        octets = prompt.content(attachment.content)
        if octets is None or len(self._artifacts) >= MAX_ARTIFACTS:
            why = "not padded base64" if octets is None else f"more than {MAX_ARTIFACTS} attachments"
            self._note(name, why)
            return None
        return await self._keep(name, octets)

    async def _keep(self, name: str, octets: bytes) -> str | None:
        try:
            made = await self.job.core.put_artifact(self.job.work_id, name, octets)
        except RefusedByDaemon as error:
            self._note(name, error.message)
            return None
        digest = made.digest.removeprefix("sha256:")
        self._artifacts[name] = {"type": "file", "name": name, "uri": made.uri, "size": made.size, "sha256": digest}
        self._bridge.metrics.count("attachments_total")
        return made.uri

    def _note(self, name: str, why: str) -> None:
        """Say in the answer that a file is not kept; of many files the first."""
        if len(self._notes) < MAX_ARTIFACTS:
            self._notes.append(f"\n[{name}: not kept: {why}]")

    # questions

    async def _on_query(self, query: Query) -> None:
        """Pass a question on while the response goes on. The agent asks one at a time: a further one replaces it. Raises Failed
        when the answer would go elsewhere than to an inbox: it goes with the rights of the bridge."""
        if not names.is_inbox(query.reply_subject):
            raise Failed("the agent: `query` chunk `reply_subject` must be an inbox: _INBOX. and words")
        if self._asking is not None:
            self._asking.cancel()
        files = {prompt.clean(each.filename): await self._store(each) or "not kept" for each in query.attachments or []}
        text = prompt.clean(query.prompt)
        question = with_files(text if not is_blank(text) else "(no text)", files)
        self._asking = asyncio.create_task(self._ask(query, question))

    async def _ask(self, query: Query, question: str) -> None:
        self._bridge.metrics.count("questions_total")
        self.emit("asked", message=question)
        try:
            try:
                answer = await self.job.ask(question, timeout=self._options.answer_within)
            except SecretLike:
                answer = await self.job.ask(without_refused(question), timeout=self._options.answer_within)
            self.emit("answered")
        except TimeoutError:
            answer = "(no answer came in time)"
        except JobCanceled:
            return  # the feed says so, too
        except RefusedByDaemon as error:
            answer = f"(the question could not be passed on: {error.message})"
        self._heard = time.monotonic()
        self._asking = None
        try:
            await query.reply(Envelope(prompt=answer if not is_blank(answer) else "(no text)"))
        except (NatsAgentError, NatsError) as error:  # too large, or the connection is lost: the agent is silent then
            self._bridge.note(f"the answer was not sent: {error}", work_id=self.job.work_id)

    # while it runs

    async def _report(self) -> None:
        """Report the newest line, at most once in `REPORT_PAUSE`; none while a question waits, which that would answer."""
        last = ""
        while True:
            await self._changed.wait()
            self._changed.clear()
            line = prompt.report("".join(self._text[-50:]))
            if line and line != last and self._asking is None:
                last = line
                await self._update(line)
            await asyncio.sleep(REPORT_PAUSE)

    async def _update(self, line: str | None) -> None:
        self._reported = time.monotonic()
        with suppress(JobCanceled, RefusedByDaemon):  # the feed says that it is canceled
            await act(self.job, "update", WorkActionRequest(message=line))

    async def _watch(self) -> None:
        """Raise Failed when the agent is silent for too long, is gone, or takes too long; time of questions does not count."""
        left, before = self._options.time_limit, time.monotonic()
        while True:
            await asyncio.sleep(min(1.0, self._options.idle_timeout / 2))
            now = time.monotonic()
            if self._asking is not None:
                before = self._heard = now
                continue
            left, before, silent = left - (now - before), now, now - self._heard
            if left < 0:
                raise Failed(f"the agent has not ended after {self._options.time_limit:g} s")
            if silent > min(PROBE_PAUSE, self._options.idle_timeout / 4) and not await present(
                self._agents, self._agent
            ):
                raise Failed(GONE)
            if self._begun and silent > self._options.idle_timeout:  # before, the prompt waits in the agent's queue
                raise Failed(f"the agent was silent for {self._options.idle_timeout:g} s; it may still work")
            if self._heard > self._reported and now - self._reported > ALIVE_PAUSE:
                await self._update(None)


async def present(agents: Agents, agent: Agent) -> bool:
    """Whether anybody answers at the agent's address, or is too busy to."""
    try:
        await agent.status()
    except NoRespondersError:
        return False
    except TimeoutError:
        return True
    except NatsAgentError:  # it has no such endpoint, or answers something else
        return await agents.ping(agent.instance_id)
    return True


def address_of(agent: Agent) -> names.Address | None:
    """None for an agent whose names cannot be part of a capability, or that wants to be asked elsewhere than agents are: it is
    asked with the rights of the bridge."""
    if not names.is_token(agent.instance_id):
        return None
    if any(not names.is_endpoint(each.name, each.subject) for each in agent.endpoints if each.name in names.VERBS):
        return None
    return names.address(agent.agent, agent.owner, agent.session_name)


async def report(bridge: Bridge, job: JobCore, entry: JournalEntry) -> None:
    """End the work as its journal says, and acknowledge it. Again after a restart: the message has a fixed id."""
    finished = entry.last("finished") or {}
    action = WorkActionRequest(message=finished["message"], artifacts=finished["artifacts"] or None)
    sent = await _sent(bridge, job, finished["verb"], action, entry.token)
    job.state.reporting = True
    await job.settle()
    entry.remove()
    bridge.emit(
        "reported" if sent else "dropped", work_id=job.work_id, verb=finished["verb"], message=finished["message"]
    )
    bridge.metrics.count(
        "works_total", {"complete": "completed", "fail": "failed"}[finished["verb"]] if sent else "canceled"
    )


async def _sent(bridge: Bridge, job: JobCore, verb: WorkVerb, action: WorkActionRequest, token: str) -> bool:
    """False when the work had ended before."""
    job.state.reporting = True  # the event of our own report cancels nothing
    action.id = f"msg_{token}_end"
    try:
        await act(job, verb, action)
    except (JobCanceled, Conflict):
        return False
    except RefusedByDaemon as error:
        bridge.note(f"the end was refused: {error.message}", work_id=job.work_id)
        bare = WorkActionRequest(message="the answer of the agent could not be sent", id=action.id)
        with suppress(JobCanceled):
            await job.act("fail", bare)
    return True
