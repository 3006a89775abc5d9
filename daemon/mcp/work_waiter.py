"""Waiting for works: until one ends or asks, with its question put to the client's user; and works as tasks."""

import asyncio
import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.mcp import rendering
from aghbus.daemon.mcp.call import ToolCall
from aghbus.daemon.mcp.rpc import Object
from aghbus.daemon.services.works import WorkService
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.api.queries import WorkQuery
from aghbus.protocol.api.works import Work, WorkActionRequest, WorkResponse
from aghbus.protocol.base.errors import NotFound, Refused

_POLL_MS: Final = 2_000  # how often a client should ask for a task
_STATUS: Final = {
    "needs_input": "input_required",
    "completed": "completed",
    "failed": "completed",
    "canceled": "cancelled",
}
_PACE: Final = 0.05  # seconds between two looks at a work while much is committed
_ANSWER: Final = "answer"  # the member of the form that holds the answer
_KEY: Final = "question:"  # of a request, before a digest of what asks
_ASKED: Final = "trace:needs_input"
_NO_HISTORY: Final = 1  # `before` of an empty history


@dataclass(frozen=True, slots=True, eq=False)
class WorkWaiter:
    """Waits for the works of one daemon, and offers them as tasks, each under the id of its work."""

    works: WorkService
    notifier: Notifier
    clock: Clock

    async def wait(self, call: ToolCall, work_id: str, seconds: float) -> str | None:
        """Wait until the work ends, or it is the turn of this side. Returns a note for the model.

        It is the initiator's turn when the work needs input that the client's user does not give, and else the target's.
        """
        end = asyncio.get_running_loop().time() + seconds
        while True:
            seen = self.notifier.count
            work = await self._current(work_id)
            if work.state in TERMINAL_STATES:
                return None
            if work.role == "target" and work.state != "needs_input":
                return "This work waits for you: `step`."
            if work.state == "needs_input" and work.role == "initiator":
                if not call.client.elicits:
                    return "The work waits for an answer: `say` with its work_id."
                if not await self._ask(call, work):
                    return "The work waits for an answer, and the user gave none."
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                return "Not ended yet: call `work` again, or go on; the end comes to the inbox."
            if seen == self.notifier.count:
                await self.notifier.wait(left)
                await asyncio.sleep(_PACE)
            if self.notifier.closed:
                return "The daemon is shutting down."

    async def _current(self, work_id: str) -> Work:
        """The work without its history, which may be long."""
        return (await self.works.find(work_id, WorkQuery(before=_NO_HISTORY))).work

    async def _ask(self, call: ToolCall, work: Work) -> bool:
        """Put the work's question to the user, and send the answer. False without one."""
        key, form = await self._question(work)
        reply = await call.ask(key, "elicitation/create", form, state=work.work_id)
        return await self._answer(work.work_id, key, reply)

    async def _question(self, work: Work) -> tuple[str, Object]:
        """The key and the form of the question that a work waits with.

        The key follows from the id of the message that asks, which may have any characters.
        """
        asked, before = None, None
        while asked is None:
            page = await self.works.find(work.work_id, WorkQuery(before=before))
            asked = next((step for step in reversed(page.history) if step.event == _ASKED), None)
            before = page.next_before
            if asked is None and before is None:
                raise NotFound(f"the question of work {work.work_id} is gone", hint="`say` with its work_id")
        digest = sha256(f"{work.work_id}\n{asked.id}".encode()).hexdigest()[:32]
        return f"{_KEY}{digest}", _form(rendering.question(asked, work))

    async def _answer(self, work_id: str, key: str, reply: Any) -> bool:
        """Send an answer to the question `key` once: the id of the message follows from it."""
        content = reply.get("content") if isinstance(reply, dict) and reply.get("action") == "accept" else None
        text = content.get(_ANSWER) if isinstance(content, dict) else None
        if not isinstance(text, str) or not text.strip():
            return False
        await self.works.act_on_work(
            work_id, "say", WorkActionRequest(message=text, id=f"mcp_{key.removeprefix(_KEY)}")
        )
        return True

    # works as tasks

    async def task(self, work_id: str) -> Object:
        """The state of the task, without result or requests."""
        return _task(await self.works.get_work(work_id, WorkQuery(before=_NO_HISTORY)))

    async def _ours(self, task_id: str) -> WorkResponse:
        """A work that we opened, without its history: the other ones are no tasks."""
        found = await self.works.get_work(task_id, WorkQuery(before=_NO_HISTORY))
        if found.work.role != "initiator":
            raise NotFound(f"no task {task_id} is known here")
        return found

    async def get(self, task_id: str) -> Object:
        """The task with its result or its open requests."""
        ours = await self._ours(task_id)
        task = _task(ours)
        if task["status"] == "input_required":
            key, form = await self._question(ours.work)
            return {**task, "inputRequests": {key: {"method": "elicitation/create", "params": form}}}
        if task["status"] != "completed":
            return task
        found = await self.works.get_work(task_id, WorkQuery())
        result = {
            **rendering.result_of(rendering.work(found, self.clock.millis())),
            "isError": found.work.state == "failed",
        }
        return {**task, "result": {"resultType": "complete", **result}}

    async def update(self, task_id: str, responses: Object) -> None:
        """Answer the open question of the work; answers to others are ignored."""
        work = (await self._ours(task_id)).work
        if work.state == "needs_input":
            key, _ = await self._question(work)
            await self._answer(task_id, key, responses.get(key))

    async def cancel(self, task_id: str) -> None:
        """Cancel the work, unless it has ended."""
        await self._ours(task_id)
        with contextlib.suppress(Refused):
            await self.works.act_on_work(task_id, "cancel", WorkActionRequest())


def _task(found: WorkResponse) -> Object:
    work = found.work
    return {
        "taskId": work.work_id,
        "status": _STATUS.get(work.state, "working"),
        "statusMessage": rendering.status(found),
        "createdAt": _iso(work.opened_ms),
        "lastUpdatedAt": _iso(work.updated_ms),
        "ttlMs": None,
        "pollIntervalMs": _POLL_MS,
    }


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _form(question: str) -> Object:
    schema = {"type": "object", "properties": {_ANSWER: {"type": "string", "title": "Answer"}}, "required": [_ANSWER]}
    message = f"An agent that works for you asks:\n{question}"
    return {"mode": "form", "message": message, "requestedSchema": schema}
