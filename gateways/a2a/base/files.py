"""Files of tasks: small ones are in the task, larger ones behind a URL of the gateway, for the caller of the task alone."""

from __future__ import annotations

import mimetypes
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from aghbus.client import ClientError
from aghbus.gateways.a2a.base.bus import Agent, Bus
from aghbus.protocol.api.artifact_uri import is_part, parse_uri
from aghbus.protocol.formats.a2a.ids import Principal
from aghbus.protocol.formats.a2a.parts import Json, is_stored, with_content
from aghbus.protocol.formats.a2a.tasks import TaskView

INLINE: Final = 1 << 20
"""Bytes: an artifact's longer file is a URL."""


class Files:
    """The files in the object store, as clients get them. `base` is the URL of the gateway."""

    def __init__(self, bus: Bus, base: str) -> None:
        self._bus = bus
        self._base = base

    async def in_task(self, agent: Agent, view: TaskView, task: Json) -> Json:
        """A task with the files of its artifacts."""
        for artifact in task.get("artifacts", ()):
            artifact["parts"] = [await self._artifact_part(agent, view, part) for part in artifact["parts"]]
        said = [*task.get("history", ()), *([task["status"]["message"]] if "message" in task["status"] else [])]
        for message in said:
            message["parts"] = [self._linked(agent, view, part) for part in message["parts"]]
        return task

    async def in_update(self, agent: Agent, view: TaskView, update: Json) -> Json:
        """An update with the files of its artifact."""
        if "artifactUpdate" in update:
            artifact = update["artifactUpdate"]["artifact"]
            artifact["parts"] = [await self._artifact_part(agent, view, part) for part in artifact["parts"]]
        elif "message" in (status := update["statusUpdate"]["status"]):
            status["message"]["parts"] = [self._linked(agent, view, part) for part in status["message"]["parts"]]
        return update

    async def respond(self, agent: Agent, caller: Principal, request: Request) -> Response:
        """The response to a GET of a file."""
        task_id, work_id, name = (request.path_params[key] for key in ("id", "work", "name"))
        try:
            work = await self._bus.find(agent, caller, task_id)
            view = await self._bus.snapshot(task_id, work)
            if work_id not in view.work_ids or not is_part(name):
                return _missing()
            pieces = self._bus.client.get_artifact(work_id, name)
            first = await anext(pieces, b"")
        except ClientError:
            return _missing()

        async def content() -> AsyncIterator[bytes]:
            yield first
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece

        headers = {
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}",
            "X-Content-Type-Options": "nosniff",
        }
        return StreamingResponse(content(), media_type="application/octet-stream", headers=headers)

    async def _artifact_part(self, agent: Agent, view: TaskView, part: Json) -> Json:
        linked = self._linked(agent, view, part)
        if linked is part:
            return part
        work_id, name = parse_uri(part["url"]) or ("", "")
        content = bytearray()
        try:
            async with aclosing(self._bus.client.get_artifact(work_id, name)) as pieces:
                async for piece in pieces:
                    content += piece
                    if len(content) > INLINE:
                        return linked
        except ClientError:
            return linked
        return with_content({**linked, "url": part["url"]}, bytes(content))

    def _linked(self, agent: Agent, view: TaskView, part: Json) -> Json:
        """A part of the task's own files with a URL of the gateway; any other as it is: peers cannot show files of other tasks."""
        place = parse_uri(part["url"]) if is_stored(part) else None
        if place is None or place[0] not in view.work_ids:
            return part
        work_id, name = place
        url = f"{self._base}/a2a/{agent.name}/tasks/{view.task_id}/files/{work_id}/{name}"
        named = {"filename": name, **part}
        guessed = part.get("mediaType") or mimetypes.guess_type(named["filename"])[0] or "application/octet-stream"
        return {**named, "mediaType": guessed, "url": url}


def _missing() -> Response:
    return JSONResponse({"error": {"code": 404, "status": "NOT_FOUND", "message": "no such file"}}, 404)
