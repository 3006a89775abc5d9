"""An agent on the A2A SDK: `python -m bench.peers.a2a_server FOLDER sqlite|memory`, says its URL.

JSON-RPC over uvicorn with httptools and uvloop, no access log; tasks in SQLite (aiosqlite, the SDK's database store, with
write-ahead log) or in memory. The agent does what our worker does: it takes the task, reports working and completes it.
"""

import asyncio
import json
import socket
import sys
from pathlib import Path
from typing import Any

import uvicorn
from a2a.helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.server.routes import create_jsonrpc_routes
from a2a.server.tasks import DatabaseTaskStore, InMemoryTaskStore, TaskStore, TaskUpdater
from a2a.types import AgentCapabilities, AgentCard, AgentInterface, AgentSkill
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine
from starlette.applications import Starlette


class Worker(AgentExecutor):
    """Takes a task, works, completes."""

    async def execute(self, context: RequestContext, event_queue: Any) -> None:
        """The whole of one task."""
        assert context.message is not None
        task = context.current_task or new_task_from_user_message(context.message)
        if context.current_task is None:
            await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, task.id, task.context_id)
        await updater.start_work()
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: Any) -> None:
        """Never asked for here."""
        raise NotImplementedError


async def store_in(folder: str, kind: str) -> TaskStore:
    """The task store of the kind asked for."""
    if kind == "memory":
        return InMemoryTaskStore()
    engine = create_async_engine(f"sqlite+aiosqlite:///{Path(folder) / 'tasks.db'}")

    @event.listens_for(engine.sync_engine, "connect")
    def settle(connection: Any, _record: object) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "busy_timeout = 30000"):
            connection.execute(f"PRAGMA {pragma}")

    store = DatabaseTaskStore(engine)
    await store.initialize()
    return store


def card_of(url: str) -> AgentCard:
    """What clients need to know of the agent at this URL."""
    return AgentCard(
        name="bench",
        description="does nothing, durably",
        version="1.0.0",
        supported_interfaces=[AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=False),
        skills=[AgentSkill(id="work", name="work", description="completes tasks", tags=["bench"])],
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
    )


async def main(folder: str, kind: str) -> None:
    """Serve until standard input ends."""
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    handler = DefaultRequestHandler(Worker(), await store_in(folder, kind), card_of(url))
    app = Starlette(routes=create_jsonrpc_routes(handler, "/"))
    options = uvicorn.Config(app, loop="uvloop", http="httptools", access_log=False, log_level="error")
    server = uvicorn.Server(options)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        await asyncio.sleep(0.01)
    print(json.dumps(url), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    import uvloop

    uvloop.run(main(*sys.argv[1:]))
