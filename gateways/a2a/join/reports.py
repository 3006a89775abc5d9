"""What is told to the daemon about a work that an A2A agent does, each message with an id that a restart uses again."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from aghbus.client.core.ids import derived_id
from aghbus.client.core.refusals import Conflict, SecretLike
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.work.clients import AsyncClient
from aghbus.client.work.job import JobCanceled, JobCore
from aghbus.client.work.journal import JournalEntry
from aghbus.gateways.a2a.join.agent import Agent, AgentError
from aghbus.gateways.base.actions import act, without_secrets
from aghbus.protocol.api.artifact_uri import is_part
from aghbus.protocol.api.works import WorkActionRequest, WorkVerb
from aghbus.protocol.base.text import shorten
from aghbus.protocol.formats.a2a.outward import File, Outcome
from aghbus.protocol.formats.a2a.parts import Json

TELL_AFTER: Final = 10.0
"""Seconds for which an agent may be away before the initiator is told."""
REASON_CHARACTERS: Final = 2_000
"""Of the reason for which the agent does not do a work."""


class Settings(NamedTuple):
    """What all works have in common. `emit` writes a line of the log; `capability` finds what an opening asks for."""

    agent: Agent
    client: AsyncClient
    emit: Callable[..., None]
    capability: Callable[[dict[str, Any]], str | None]
    resend: bool


class Question(NamedTuple):
    """The open question: the key of the task's status, and the sequence of our message that asks it."""

    key: str
    seq: float


class WorkReports:
    """One work: its journal entry, and the reports to its initiator."""

    def __init__(self, core: JobCore, entry: JournalEntry, settings: Settings) -> None:
        self.core, self.entry, self._settings = core, entry, settings
        self.away_since: float | None = None
        """Since when (monotonic) the agent is away; None when it is not."""
        self._opening_id = core.state.item.message.id
        self._accepted = core.state.item.work_state != "submitted"
        self._said_away = False
        self._question: Question | None = None

    def emit(self, event: str, **more: Any) -> None:
        """A line of the log about this work."""
        message = self.core.state.item.message
        self._settings.emit(event, work_id=self.core.work_id, **{"from": message.sender}, **more)

    def _id(self, *what: str) -> str:
        """The same id for the same message of this work, also after a restart."""
        return derived_id("msg_", "a2a", self.core.channel, self.core.work_id, self._opening_id, *what)

    async def _accept(self) -> None:
        if not self._accepted:
            self._accepted = True
            await self.core.act("accept", WorkActionRequest(id=self._id("accept")))
            self.emit("accepted")

    def _back(self) -> None:
        if self.away_since is not None:
            self.away_since = None
            self.emit("back")

    async def _tell_away(self, error: AgentError) -> None:
        """Log that the agent is away, and tell the initiator, once."""
        now = time.monotonic()
        if self.away_since is None:
            self.away_since = now
            self._said_away = False
            self.emit("away", message=str(error))
        elif now - self.away_since > TELL_AFTER and not self._said_away:
            self._said_away = True
            message = f"the agent does not answer, and is tried again: {error}"
            await self._notify(message)

    async def _notify(self, text: str) -> None:
        """Tell the initiator something about the work; what is asked stays asked."""
        verb: WorkVerb = "update" if self._accepted and self._question is None else "say"
        await act(self.core, verb, WorkActionRequest(message=text))

    # the end

    async def _end(self, outcome: Outcome, notice: str = "") -> None:
        """Store the files, then report how the work ends, after a notice if there is one."""
        references = [*outcome.links]
        for file in outcome.files:
            references.append(await self._stored(file))
        about = {"message": outcome.message, "result": outcome.result, "ext": outcome.ext}
        self.entry.write("ended", verb=outcome.verb, **about, artifacts=references or None, notice=notice)
        await self._report()

    async def _refuse(self, why: str) -> None:
        """End a work that the agent does not do: rejected, or failed if it was accepted."""
        verb, reason = ("fail", None) if self._accepted else ("reject", "unsupported_profile")
        self.entry.write("ended", verb=verb, message=shorten(why, REASON_CHARACTERS), reason=reason)
        await self._report()

    async def _stored(self, file: File) -> Json:
        digest = hashlib.sha256(file.content).hexdigest()
        reference = {**file.about, "name": file.name, "size": len(file.content), "sha256": digest}
        try:
            if is_part(self.core.work_id):
                stored = await self._settings.client.put_artifact(self.core.work_id, file.name, file.content)
                return {**reference, "uri": stored.uri}
        except ClientError as error:
            self.emit("problem", message=f"the artifact {file.name} could not be stored: {error.message}")
        return reference

    async def _report(self) -> None:
        """Report the end that the journal has."""
        record = self.entry.last("ended") or {}
        verb: WorkVerb = record["verb"]
        self._question = None
        if notice := record.get("notice"):
            with suppress(JobCanceled, RefusedByDaemon):  # the end tells whether the work has ended
                await self._notify(notice)
        names = ("message", "result", "artifacts", "ext", "reason")
        about: Json = {name: record.get(name) for name in names}
        action = WorkActionRequest(**about)
        try:
            sent = await self._report_once(verb, action)
        except RefusedByDaemon as error:
            self.emit("problem", message=f"the result was refused: {error.message}")
            bare = WorkActionRequest(message="the result of the agent could not be sent", reason=action.reason)
            sent = await self._report_once(verb, bare)
        if sent and verb == "reject":
            self.emit("rejected", reason=action.reason, message=action.message)
        else:
            self.emit("reported" if sent else "dropped", verb=verb)

    async def _report_once(self, verb: WorkVerb, action: WorkActionRequest) -> bool:
        action.id, action.replace_secrets = self._id("end"), True
        try:
            try:
                return await self.core.end(verb, action)
            except SecretLike as error:
                self.emit("problem", message=f"what looks like a credential was replaced: {error.message}")
                return await self.core.end(verb, without_secrets(action))
        except Conflict:  # another end was sent before, and only its acknowledgement is missing
            await self.core.settle()
            return True
