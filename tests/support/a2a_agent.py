"""An A2A agent on the SDK's own server, as a process: `python -m tests.support.a2a_agent FOLDER PORT GRPC_PORT [OPTION…]`.

The first word of a message says what it does. Each run of the executor is a line in FOLDER/runs, each cancelation one in
FOLDER/canceled. `wait NAME`, `login NAME` and `slow NAME` go on when FOLDER/go.NAME is there.

Options: `kept` (tasks survive the process, and one
that was working is completed at the next start), `nostream`, `nolist`, `jsonrpc`, `http`, `grpc` (only that interface).
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import grpc
import uvicorn
from a2a.helpers import new_data_part, new_raw_part, new_text_message, new_text_part
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.request_handlers.grpc_handler import GrpcHandler
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.server.tasks import InMemoryTaskStore, TaskUpdater
from a2a.types import a2a_pb2 as pb
from a2a.types.a2a_pb2_grpc import add_A2AServiceServicer_to_server
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf.json_format import ParseDict
from starlette.applications import Starlette

CARD = {
    "name": "Reviewer",
    "description": "Reviews texts",
    "version": "1.2",
    "defaultInputModes": ["text/plain"],
    "defaultOutputModes": ["text/plain"],
    "skills": [
        {
            "id": "text.review",
            "name": "Review",
            "description": "Reviews a text",
            "tags": ["text"],
            "examples": ["done it"],
        },
        {"id": "Summarise things!", "name": "Summary", "description": "Says it in short", "tags": ["text", "short"]},
    ],
}


class Executor(AgentExecutor):
    """Does what the first word of the message says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        message = context.message
        assert message is not None and context.task_id is not None and context.context_id is not None
        words = context.get_user_input().split()
        self._note("runs", f"{message.message_id} {context.task_id} {' '.join(words)}")
        if words[0] == "slow":
            await self._go(words[-1])
        if words[0] == "say":
            await event_queue.enqueue_event(new_text_message(" ".join(words[1:]), role=pb.ROLE_AGENT))
            return
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if context.current_task is None:
            started = pb.Task(id=context.task_id, context_id=context.context_id, history=[message])
            started.status.state = pb.TASK_STATE_SUBMITTED
            await event_queue.enqueue_event(started)
        else:
            await updater.complete(self._text(updater, f"on {' '.join(words)}"))
            return
        await getattr(self, f"_{words[0]}")(updater, words[-1])

    async def _done(self, updater: TaskUpdater, name: str) -> None:
        await updater.start_work(self._text(updater, "reading"))
        await updater.add_artifact([new_text_part("it is ")], artifact_id="a", name="review")
        await updater.add_artifact(
            [new_text_part("good")], artifact_id="a", name="review", append=True, last_chunk=True
        )
        await updater.complete()

    async def _slow(self, updater: TaskUpdater, name: str) -> None:
        await updater.complete(self._text(updater, "went"))

    async def _wait(self, updater: TaskUpdater, name: str) -> None:
        await updater.start_work(self._text(updater, "waiting"))
        await self._go(name)
        await updater.complete(self._text(updater, "went"))

    async def _ask(self, updater: TaskUpdater, name: str) -> None:
        await updater.start_work()
        await updater.requires_input(self._text(updater, "Which branch?"))

    async def _login(self, updater: TaskUpdater, name: str) -> None:
        await updater.requires_auth(self._text(updater, "Log in at https://login.example.com"))
        await self._go(name)
        await updater.start_work(self._text(updater, "logged in"))
        await updater.complete(self._text(updater, "went"))

    async def _file(self, updater: TaskUpdater, name: str) -> None:
        await updater.add_artifact([new_raw_part(b"\0\1" * 500_000, filename="../a b.bin")], name="dump")
        await updater.add_artifact([new_data_part({"findings": 2})], name="table")
        await updater.complete(self._text(updater, "two files"))

    async def _reject(self, updater: TaskUpdater, name: str) -> None:
        await updater.reject(self._text(updater, "not \x1b[31mtoday"))

    async def _fail(self, updater: TaskUpdater, name: str) -> None:
        await updater.failed(self._text(updater, "no disk"))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.task_id is not None and context.context_id is not None
        self._note("canceled", context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()

    async def _go(self, name: str) -> None:
        while not (self._folder / f"go.{name}").exists():  # noqa: ASYNC110 - another process makes it
            await asyncio.sleep(0.02)

    def _note(self, name: str, line: str) -> None:
        with (self._folder / name).open("a") as file:
            print(line, file=file, flush=True)

    @staticmethod
    def _text(updater: TaskUpdater, text: str) -> pb.Message:
        return updater.new_agent_message([new_text_part(text)])


class KeptTasks(InMemoryTaskStore):
    """Tasks that survive the process."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder / "tasks"
        self._folder.mkdir(exist_ok=True)

    async def restore(self) -> None:
        for path in self._folder.iterdir():
            task = pb.Task.FromString(path.read_bytes())
            if task.status.state == pb.TASK_STATE_WORKING:
                task.status.state = pb.TASK_STATE_COMPLETED
                task.status.message.CopyFrom(new_text_message("completed after a restart", role=pb.ROLE_AGENT))
            await self.save(task, ServerCallContext())

    async def save(self, task: pb.Task, context: ServerCallContext) -> None:
        (self._folder / task.id).write_bytes(task.SerializeToString())
        await super().save(task, context)


class Handler(DefaultRequestHandlerV2):
    """Without ListTasks where that is wanted."""

    lists = True

    async def on_list_tasks(self, params: pb.ListTasksRequest, context: ServerCallContext) -> pb.ListTasksResponse:
        if not self.lists:
            raise UnsupportedOperationError
        found: pb.ListTasksResponse = await super().on_list_tasks(params, context)
        return found


async def main(folder: Path, port: int, grpc_port: int, options: set[str]) -> None:
    card = ParseDict(CARD, pb.AgentCard())
    card.capabilities.streaming = "nostream" not in options
    if (folder / "changed").exists():
        card.description = "Does something else"
    only = options & {"jsonrpc", "http", "grpc"}
    for name, binding, url in (
        ("jsonrpc", "JSONRPC", f"http://127.0.0.1:{port}/rpc"),
        ("http", "HTTP+JSON", f"http://127.0.0.1:{port}/rest"),
        ("grpc", "GRPC", f"127.0.0.1:{grpc_port}"),
    ):
        if not only or name in only:
            card.supported_interfaces.add(url=url, protocol_binding=binding, protocol_version="1.0")
    store = KeptTasks(folder) if "kept" in options else InMemoryTaskStore()
    if isinstance(store, KeptTasks):
        await store.restore()
    handler = Handler(Executor(folder), store, card)
    handler.lists = "nolist" not in options
    server = grpc.aio.server()
    register: Any = add_A2AServiceServicer_to_server
    register(GrpcHandler(handler), server)
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/rpc"),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
    config = uvicorn.Config(Starlette(routes=routes), port=port, log_level="warning", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), set(sys.argv[4:])))
