"""Messages of A2A callers, sent into works: the first one opens a work, others are said in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from a2a.utils.errors import ContentTypeNotSupportedError, InternalError

from aghbus.client import Conflict, NotFound, Work
from aghbus.gateways.a2a.base.bus import Agent, Bus
from aghbus.gateways.a2a.base.catalog import Catalog
from aghbus.gateways.a2a.base.errors import TRY_AGAIN, fault
from aghbus.gateways.base.metrics import Metrics
from aghbus.protocol.base.text import byte_length, has_control, is_blank
from aghbus.protocol.formats.a2a.ids import (
    MAX_ID_CHARACTERS,
    Principal,
    envelope_id,
    new_context_id,
    task_id,
    thread_id,
)
from aghbus.protocol.formats.a2a.parts import Content, Json, content_of, large_files, part_fault
from aghbus.protocol.formats.a2a.tasks import carried
from aghbus.protocol.formats.derived_ids import canonical, digest

MAX_PARTS: Final = 100
SKILL_KEYS: Final = ("skill", "skillId", "skill_id")
"""Keys of a message's or request's metadata that name the skill which is asked for."""


class Sending:
    """Sends messages to agents."""

    def __init__(
        self,
        bus: Bus,
        catalog: Catalog,
        input_modes: tuple[str, ...],
        metrics: Metrics,
        tell: Callable[[Json], None],
    ) -> None:
        """`tell` gets each task that is opened, for the log."""
        self._bus = bus
        self._catalog = catalog
        self._input_modes = frozenset(input_modes)
        self._metrics = metrics
        self._tell = tell

    def check(self, message: Json) -> None:
        """Raise InvalidParamsError or ContentTypeNotSupportedError for a message that cannot be sent."""
        for name in ("messageId", "contextId", "taskId"):
            value = message.get(name, "")
            if byte_length(value) > MAX_ID_CHARACTERS or has_control(value):
                raise fault(f"message.{name}", f"must be at most {MAX_ID_CHARACTERS} bytes without control characters")
        if message.get("role") != "ROLE_USER":
            raise fault("message.role", "must be ROLE_USER")
        parts = message.get("parts") or []
        if not 0 < len(parts) <= MAX_PARTS:
            raise fault("message.parts", f"must have 1 to {MAX_PARTS} parts")
        for position, part in enumerate(parts):
            if rule := part_fault(part):
                raise fault(f"message.parts[{position}]", rule)
            media_type = part.get("mediaType", "").partition(";")[0].strip().lower()
            if media_type and media_type not in self._input_modes:
                modes = ", ".join(sorted(self._input_modes))
                raise ContentTypeNotSupportedError(f"message.parts[{position}].mediaType: must be one of {modes}")

    async def open(self, agent: Agent, caller: Principal, message: Json, metadata: Json) -> str:
        """Open a work with a message that was checked, or find the one that it has opened: the id. Raises A2AError, ClientError."""
        work_id, mark = task_id(caller, agent.key, message["messageId"]), _digest(message, metadata)
        newest = self._bus.newest
        try:
            seq = await self._open(agent, caller, message, metadata, work_id)
        except Conflict:  # opened before: by the same message, when the agent had other skills?
            await self._check_same(work_id, mark)
            seq = 0
        except NotFound:
            raise InternalError(TRY_AGAIN) from None
        self._bus.newest = max(self._bus.newest, seq)
        outcome = "opened" if seq > newest else "repeated"
        self._metrics.count("tasks_total", outcome)
        self._tell({"event": "task", "task": work_id, "agent": agent.name, "caller": caller.name, "outcome": outcome})
        return work_id

    async def _open(self, agent: Agent, caller: Principal, message: Json, metadata: Json, work_id: str) -> int:
        """Open a work: the sequence of its opening, also when that was sent before."""
        context = message.get("contextId") or new_context_id(caller, work_id)
        thread = thread_id(caller, context)
        content = await self._content(work_id, message)
        kept = carried(message, context if context != thread else None, _digest(message, metadata), content.layout)
        named = {"to": agent.peer} if agent.peer else {"to_capability": agent.capability}
        opened = self._bus.client.open_work(
            **named,
            text=content.text,
            intent=await self._intent(agent, message, metadata),
            artifacts=content.references or None,
            thread_id=thread,
            work_id=work_id,
            ext={**kept, **caller.extension()},
            reactions="none",
            id=envelope_id(work_id, message["messageId"]),
        )
        return (await self._bus.call(opened)).seq

    async def say(self, caller: Principal, work: Work, task: str, message: Json, metadata: Json) -> None:
        """Say a message that was checked in a task. Raises A2AError and ClientError."""
        content = await self._content(task, message)
        ext = {**carried(message, None, _digest(message, metadata), content.layout), **caller.extension()}
        identity = envelope_id(task, message["messageId"])
        client = self._bus.client
        if not content.references:
            step: Any = client.act_on_work(task, "say", message=content.text, ext=ext, id=identity)
        else:
            body = {"text": content.text, "artifacts": content.references}
            step = client.send("say", body, channel=work.channel, work_id=work.work_id, ext=ext, id=identity)
        await self._bus.call(step)

    async def _content(self, work_id: str, message: Json) -> Content:
        parts, stored = message["parts"], dict[int, Json]()
        for position, file in large_files(parts).items():
            kept = await self._bus.call(self._bus.client.put_artifact(work_id, file.name, file.content))
            stored[position] = {"uri": kept.uri, "size": kept.size, "sha256": kept.digest.removeprefix("sha256:")}
        content = content_of(parts, stored)
        if is_blank(content.text):
            raise fault("message.parts", "must have a text, data or a file")
        return content

    async def _intent(self, agent: Agent, message: Json, metadata: Json) -> str:
        """The capability that is asked for: the skill that the metadata names, else the only one of the peer."""
        if agent.capability:
            return agent.capability
        skills = (await self._catalog.about(agent)).skills
        for given in (message.get("metadata") or {}, metadata):
            for name in SKILL_KEYS:
                if isinstance(skill := given.get(name), str):
                    if skill not in skills:
                        raise fault(f"metadata.{name}", "must be the id of a skill of the agent's card")
                    return skill
        return skills[0] if len(skills) == 1 else "request"

    async def _check_same(self, work_id: str, mark: str) -> None:
        """Raise Conflict unless a work was opened by the same message."""
        work = await self._bus.call(self._bus.client.core.work(work_id))
        view = await self._bus.snapshot(work_id, work)
        if view.opening_digest not in (mark, None):
            raise Conflict("the message id was used for another message")


def _digest(message: Json, metadata: Json) -> str:
    return digest("a2a-content", canonical(message), canonical(metadata))
