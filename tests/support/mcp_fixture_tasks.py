"""The tools of the conformance kit that are carried out as tasks, by the extension io.modelcontextprotocol/tasks.

As in the daemon, a call of one gives a task if its client declared the extension. What they share with it are the methods
`tasks/…`, their gate, envelopes and errors (McpServer); the daemon's own tasks are works (tests/daemon/mcp/test_mcp_tools.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from aghbus.daemon.mcp.call import ToolCall
from aghbus.daemon.mcp.client import TASKS
from aghbus.daemon.mcp.offer import Perform
from aghbus.daemon.mcp.rpc import INTERNAL_ERROR, MISSING_CAPABILITY, Object, RpcError
from aghbus.daemon.mcp.server import error_result, text_content
from aghbus.protocol.base.errors import InvalidRequest, NotFound

TIME: Final = "2026-07-28T00:00:00.000Z"
Body = Callable[["Task", Object], Awaitable[str]]


def form(message: str) -> Object:
    schema = {"type": "object", "properties": {"confirm": {"type": "boolean"}}, "required": ["confirm"]}
    return {"method": "elicitation/create", "params": {"mode": "form", "message": message, "requestedSchema": schema}}


class Task:
    """One task: it runs `body`, and waits while `asked` has open requests."""

    def __init__(self, task_id: str, body: Body, arguments: Object) -> None:
        self.task_id = task_id
        self.asked: Object = {}
        self._answered = asyncio.Event()
        self.run = asyncio.ensure_future(body(self, arguments))

    async def ask(self, keys: Sequence[str]) -> None:
        """Return when all of these are answered."""
        self.asked = {key: form(f"{key}?") for key in keys}
        await self._answered.wait()

    def answer(self, responses: Object) -> None:
        self.asked = {key: request for key, request in self.asked.items() if key not in responses}
        if not self.asked:
            self._answered.set()

    @property
    def outcome(self) -> Object:
        """The result of a tool."""
        error = self.run.exception()
        return (
            error_result(error) if isinstance(error, InvalidRequest) else {"content": text_content(self.run.result())}
        )

    def shown(self) -> Object:
        times = {"createdAt": TIME, "lastUpdatedAt": TIME, "ttlMs": None, "pollIntervalMs": 100}
        return {"taskId": self.task_id, **self._state(), **times}

    def _state(self) -> Object:
        if self.run.cancelled():
            return {"status": "cancelled"}
        if not self.run.done():
            asks = {"status": "input_required", "inputRequests": self.asked}
            return asks if self.asked else {"status": "working"}
        if isinstance(error := self.run.exception(), RpcError):
            return {"status": "failed", "error": error.as_object()}
        return {"status": "completed", "result": {"resultType": "complete", **self.outcome}}


class FixtureTasks:
    """All tasks of the process."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def performs(self, body: Body, *, required: bool = False) -> Perform:
        """The tool: a task for a client with tasks; another one waits for the end, or is refused if a task is `required`."""

        async def perform(call: ToolCall, arguments: Object) -> Object:
            if required and not call.client.tasks:
                data: Object = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
                raise RpcError(MISSING_CAPABILITY, "Missing required client capability", data)
            task = Task(f"task-{len(self._tasks)}", body, arguments)
            if not call.client.tasks:
                await asyncio.wait([task.run])
                return task.outcome
            self._tasks[task.task_id] = task
            await asyncio.sleep(0)
            shown = {
                key: value for key, value in task.shown().items() if key not in ("inputRequests", "result", "error")
            }
            return {"resultType": "task", **shown}

        return perform

    def _find(self, task_id: str) -> Task:
        if task_id not in self._tasks:
            raise NotFound("no such task")
        return self._tasks[task_id]

    async def get(self, task_id: str) -> Object:
        return self._find(task_id).shown()

    async def update(self, task_id: str, responses: Object) -> None:
        self._find(task_id).answer(responses)
        await asyncio.sleep(0)

    async def cancel(self, task_id: str) -> None:
        self._find(task_id).run.cancel()
        await asyncio.sleep(0)


async def slow_compute(_task: Task, arguments: Object) -> str:
    await asyncio.sleep(float(arguments["seconds"]))
    return "computed"


async def failing_job(_task: Task, _arguments: Object) -> str:
    raise InvalidRequest("This tool intentionally returns an error for testing")


async def protocol_error_job(_task: Task, _arguments: Object) -> str:
    raise RpcError(INTERNAL_ERROR, "This tool intentionally fails for testing")


async def confirm_delete(task: Task, arguments: Object) -> str:
    await task.ask(["confirm"])
    return f"deleted {arguments['filename']}"


async def multi_input(task: Task, _arguments: Object) -> str:
    await task.ask(["first", "second"])
    return "both are answered"


async def greet_user(_task: Task, arguments: Object) -> str:
    return f"Hello, {arguments['user']}!"


async def greet(_call: ToolCall, arguments: Object) -> Object:
    return {"content": text_content(f"Hello, {arguments['name']}!")}


def performed(tasks: FixtureTasks) -> Mapping[str, Perform]:
    """The tools by name."""
    greeting = tasks.performs(greet_user)

    async def asks_first(call: ToolCall, _arguments: Object) -> Object:
        reply = await call.ask("user_name", "elicitation/create", form("name")["params"])
        return await greeting(call, {"user": reply["content"]["name"]})

    return {
        "greet": greet,
        "slow_compute": tasks.performs(slow_compute),
        "failing_job": tasks.performs(failing_job, required=True),
        "protocol_error_job": tasks.performs(protocol_error_job),
        "confirm_delete": tasks.performs(confirm_delete),
        "multi_input": tasks.performs(multi_input),
        "test_tool_with_task": asks_first,
    }
