"""An A2A agent on the SDK's own server, as a process: `python -m tests.support.a2a_agent FOLDER PORT GRPC_PORT [OPTION…]`.

The first word of a message says what it does. Each run of the executor is a line in FOLDER/runs, each cancelation one in
FOLDER/canceled. `wait NAME`, `login NAME`, `slow NAME`, `listen NAME` and `pieces NAME` go on when FOLDER/go.NAME is there.
After `listen` the messages that came meanwhile are executed: `more …` is reported, any other one completes the task.

Options: `kept` (tasks survive the process, and one that was working is completed at the next start), `nostream`, `nolist`,
`deaf` (no messages to a task that runs), `ignores` (they are taken, and nothing comes of them), `cuts`
(each stream breaks after a piece of an artifact), `jsonrpc`, `http`, `grpc` (only that interface), `tls` (with server.crt and
server.key of FOLDER), `mtls` (also requires a certificate by authority.crt). If there is FOLDER/token, each request over HTTP
needs it as bearer token.
"""

import asyncio
import ssl
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
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
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

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

LEAK = "the key is AKIA" + "QWERTYUIOPASDFGH"
"""What the daemon refuses as a credential."""


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
        elif words[0] == "more":
            await updater.start_work(self._text(updater, f"heard {' '.join(words[1:])}"))
            return
        elif words[0] not in ("pieces", "leak"):
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
        await updater.add_artifact([new_text_part("all of it")], artifact_id="a", name="review")
        await updater.complete(self._text(updater, "went"))

    async def _wait(self, updater: TaskUpdater, name: str) -> None:
        await updater.start_work(self._text(updater, "waiting"))
        await self._go(name)
        await updater.complete(self._text(updater, "went"))

    async def _listen(self, updater: TaskUpdater, name: str) -> None:
        await updater.start_work(self._text(updater, "listening"))
        await self._go(name)

    async def _pieces(self, updater: TaskUpdater, name: str) -> None:
        """An artifact in three pieces, the last two after a while."""
        await updater.add_artifact([new_text_part("one ")], artifact_id="a", name="review")
        await updater.start_work(self._text(updater, "wrote one"))
        await self._go(name)
        await updater.add_artifact([new_text_part("two ")], artifact_id="a", append=True)
        await updater.add_artifact([new_text_part("three")], artifact_id="a", append=True, last_chunk=True)
        await updater.complete()

    async def _flood(self, updater: TaskUpdater, name: str) -> None:
        await updater.start_work()
        for number in range(9):
            piece = new_raw_part(bytes(8 << 20), filename="zeros")
            await updater.add_artifact([piece], artifact_id="a", append=number > 0)
        await self._go(name)

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

    async def _leak(self, updater: TaskUpdater, name: str) -> None:
        if name == "it":
            await updater.start_work(self._text(updater, LEAK))
            await updater.requires_input(self._text(updater, f"{LEAK}, is it?"))
        else:
            await updater.reject(self._text(updater, f"{LEAK} {'x' * 70_000}"))

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
    """Without what the options say."""

    lists = listens = True
    ignores = cuts = False

    async def on_message_send(self, params: pb.SendMessageRequest, context: ServerCallContext) -> pb.Message | pb.Task:
        if params.message.task_id and not self.listens:
            raise UnsupportedOperationError(message="this task takes no messages")
        if params.message.task_id and self.ignores:
            known: pb.Task | None = await self.on_get_task(pb.GetTaskRequest(id=params.message.task_id), context)
            assert known is not None
            return known
        answer: pb.Message | pb.Task = await super().on_message_send(params, context)
        return answer

    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        async for event in self._cut(super().on_message_send_stream(params, context)):
            yield event

    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Any, None]:
        async for event in self._cut(super().on_subscribe_to_task(params, context)):
            yield event

    async def _cut(self, events: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        async with aclosing(events):
            async for event in events:
                yield event
                if self.cuts and isinstance(event, pb.TaskArtifactUpdateEvent):
                    raise RuntimeError("cut")

    async def on_list_tasks(self, params: pb.ListTasksRequest, context: ServerCallContext) -> pb.ListTasksResponse:
        if not self.lists:
            raise UnsupportedOperationError
        found: pb.ListTasksResponse = await super().on_list_tasks(params, context)
        return found


class Guard:
    """Refuses requests without the token."""

    def __init__(self, app: Any, folder: Path) -> None:
        self._app, self._token = app, folder / "token"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        wanted = f"Bearer {self._token.read_text()}" if self._token.exists() else None
        if scope["type"] == "http" and wanted is not None and Headers(scope=scope).get("authorization") != wanted:
            await PlainTextResponse("who are you?", 401)(scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def main(folder: Path, port: int, grpc_port: int, options: set[str]) -> None:
    card = ParseDict(CARD, pb.AgentCard())
    card.capabilities.streaming = "nostream" not in options
    if (folder / "changed").exists():
        card.description = "Does something else"
    only, tls = options & {"jsonrpc", "http", "grpc"}, options & {"tls", "mtls"}
    scheme = "https" if tls else "http"
    for name, binding, url in (
        ("jsonrpc", "JSONRPC", f"{scheme}://127.0.0.1:{port}/rpc"),
        ("http", "HTTP+JSON", f"{scheme}://127.0.0.1:{port}/rest"),
        ("grpc", "GRPC", f"{scheme}://127.0.0.1:{grpc_port}" if tls else f"127.0.0.1:{grpc_port}"),
    ):
        if not only or name in only:
            card.supported_interfaces.add(url=url, protocol_binding=binding, protocol_version="1.0")
    store = KeptTasks(folder) if "kept" in options else InMemoryTaskStore()
    if isinstance(store, KeptTasks):
        await store.restore()
    handler = Handler(Executor(folder), store, card)
    handler.lists, handler.listens = "nolist" not in options, "deaf" not in options
    handler.ignores, handler.cuts = "ignores" in options, "cuts" in options
    server = grpc.aio.server()
    register: Any = add_A2AServiceServicer_to_server
    register(GrpcHandler(handler), server)
    certificate, key, authority = (folder / name for name in ("server.crt", "server.key", "authority.crt"))
    https: dict[str, Any] = {}
    if tls:
        client_ca = authority if "mtls" in tls else None
        https = {"ssl_certfile": certificate, "ssl_keyfile": key, "ssl_ca_certs": client_ca}
        https["ssl_cert_reqs"] = ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE
        pairs = [(key.read_bytes(), certificate.read_bytes())]
        trusted = client_ca.read_bytes() if client_ca else None
        secure = grpc.ssl_server_credentials(pairs, trusted, client_ca is not None)
        server.add_secure_port(f"127.0.0.1:{grpc_port}", secure)
    else:
        server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    await server.start()
    routes = [
        *create_agent_card_routes(card),
        *create_jsonrpc_routes(handler, "/rpc"),
        *create_rest_routes(handler, path_prefix="/rest"),
    ]
    app = Guard(Starlette(routes=routes), folder)
    config = uvicorn.Config(app, port=port, log_level="warning", timeout_graceful_shutdown=1, **https)
    await uvicorn.Server(config).serve()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), set(sys.argv[4:])))
