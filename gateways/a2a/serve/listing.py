"""ListTasks: the tasks of one caller, latest change first, in pages."""

from __future__ import annotations

import asyncio
from typing import Final

from aghbus.client import Work
from aghbus.gateways.a2a.base.bus import Agent, Bus
from aghbus.gateways.a2a.base.errors import fault
from aghbus.gateways.a2a.base.files import Files
from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.formats.a2a.ids import Principal, thread_id
from aghbus.protocol.formats.a2a.parts import Json
from aghbus.protocol.formats.a2a.tasks import REJECTED, WORK_STATES, TaskView
from aghbus.protocol.formats.timestamps import read_timestamp

DEFAULT_PAGE: Final = 50
MAX_PAGE: Final = 100
AT_A_TIME: Final = 4
"""Tasks of one request that are read from the daemon, so that the requests of others come in between."""
AMBIGUOUS: Final = {"failed": REJECTED, "needs_input": "TASK_STATE_AUTH_REQUIRED"}
"""States of works that are two states of tasks: their messages tell which."""


async def page_of(bus: Bus, files: Files, agent: Agent, caller: Principal, ask: Json) -> Json:
    """The `ListTasksResponse` to a `ListTasksRequest`. Raises InvalidParamsError and ClientError."""
    size, before, status = _size(ask), _before(ask), ask.get("status")
    state = WORK_STATES.get(status or "")
    if status and state is None:
        raise fault("status", f"must be one of {', '.join(WORK_STATES)}")
    length = ask.get("historyLength")
    if length is not None and length < 0:
        raise fault("historyLength", "must be 0 or more")
    states: frozenset[State] = frozenset({state}) if state else frozenset()  # type: ignore[arg-type]
    works = await bus.works(agent, caller, states, _since_ms(ask))
    if context := ask.get("contextId"):
        thread = thread_id(caller, context)
        works = [work for work in works if work.thread_id == thread]
    views: dict[str, TaskView] = {}
    if state in AMBIGUOUS:
        views = await _views(bus, works)
        works = [work for work in works if views[work.work_id].state == status]
    rest = [work for work in works if before is None or work.last_seq < before]
    shown = rest[:size]
    views = views or await _views(bus, shown)
    with_artifacts = bool(ask.get("includeArtifacts"))
    tasks = []
    for view in (views[work.work_id] for work in shown):
        tasks.append(await files.in_task(agent, view, view.task(length, artifacts=with_artifacts)))
    token = str(shown[-1].last_seq) if len(rest) > len(shown) else ""
    return {"tasks": tasks, "nextPageToken": token, "pageSize": size, "totalSize": len(works)}


async def _views(bus: Bus, works: list[Work]) -> dict[str, TaskView]:
    """The tasks of works, by the ids of the works."""
    turn = asyncio.Semaphore(AT_A_TIME)

    async def view_of(work: Work) -> TaskView:
        async with turn:
            return await bus.snapshot(work.first_id or work.work_id, work)

    found = await asyncio.gather(*map(view_of, works))
    return {work.work_id: view for work, view in zip(works, found, strict=True)}


def _size(ask: Json) -> int:
    size = ask.get("pageSize", DEFAULT_PAGE)
    if not 1 <= size <= MAX_PAGE:
        raise fault("pageSize", f"must be 1 to {MAX_PAGE}")
    return int(size)


def _before(ask: Json) -> int | None:
    token = str(ask.get("pageToken") or "")
    if not token:
        return None
    if not (token.isascii() and token.isdigit() and len(token) <= 18):
        raise fault("pageToken", "must be the nextPageToken of an answer")
    return int(token)


def _since_ms(ask: Json) -> int | None:
    after = ask.get("statusTimestampAfter")
    if not after:
        return None
    stamp = read_timestamp(after)
    if stamp is None or stamp.seconds is None:
        raise fault("statusTimestampAfter", "must be a time such as 2026-11-28T16:00:00Z")
    fraction = after.partition(".")[2].rstrip("Zz")[:3]
    return max(0, stamp.seconds * 1000 + (int(fraction.ljust(3, "0")) if fraction.isdigit() else 0))
