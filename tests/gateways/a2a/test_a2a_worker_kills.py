"""Tasks that real commands carry out, over a kill of each process: none is lost, no command runs twice."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb

from tests.support.a2a_gateway import ENDED, Gateway, at_once, message, sdk_client, shown, task_of
from tests.support.cluster import free_ports
from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Serve, script, two_peers

COMMAND = """
import os, pathlib, time
with open("runs", "a") as runs:
    print(os.environ["AGH_TEXT"], file=runs, flush=True)
while os.environ["AGH_TEXT"] == "working" and not pathlib.Path("go").exists():
    time.sleep(0.01)
pathlib.Path(os.environ["AGH_TEXT"]).touch()
"""
TASKS = ("completed", "working", "submitted")  # as they are at the kill, which is the text of each


async def ends(url: str, ids: list[str]) -> list[str]:
    """The states in which tasks have ended."""
    async with sdk_client(url, "JSONRPC") as client:
        while True:
            found = [shown(await client.get_task(pb.GetTaskRequest(id=one)))["status"]["state"] for one in ids]
            if all(state in ENDED for state in found):
                return found
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("victim", ["serve", "worker", "ops", "gateway"])
async def test_tasks_in_each_state_outlive_a_kill(tmp_path: Path, victim: str) -> None:
    requests = [at_once(message(text)) for text in TASKS]
    with two_peers(tmp_path) as bus, contextlib.ExitStack() as stack:
        gateway = Gateway(bus.home, "--listen", f"127.0.0.1:{free_ports(1)[0]}", "--peer", "worker")
        await asyncio.to_thread(gateway.start)
        stack.callback(gateway.stop)
        command, runs = script(tmp_path, COMMAND), tmp_path / "runs"
        serve = stack.enter_context(contextlib.closing(Serve(bus, tmp_path, command=command)))
        async with sdk_client(gateway.url, "JSONRPC") as client:
            tasks: list[dict[str, Any]] = []
            for text, request in zip(TASKS, requests, strict=True):
                tasks.append(await task_of(client, request))
                if text != "submitted":
                    await asyncio.to_thread(serve.until, "started", work_id=tasks[-1]["id"])
                if text == "working":
                    await asyncio.to_thread(wait_for, lambda: "working" in runs.read_text(), WAIT, "its command")
                if text == "completed":
                    assert await ends(gateway.url, [tasks[0]["id"]]) == ["TASK_STATE_COMPLETED"]
        match victim:
            case "serve":
                serve.process.kill()
                await asyncio.to_thread(serve.ended)
                stack.enter_context(contextlib.closing(Serve(bus, tmp_path, command=command)))
                await asyncio.to_thread(
                    wait_for, lambda: bus.worker.state_of(tasks[1]["id"]) == "failed", WAIT, "the end"
                )
            case "gateway":
                gateway.process.kill()
                await asyncio.to_thread(gateway.stop)
                await asyncio.to_thread(gateway.start)
            case _:
                daemon = getattr(bus, victim)
                daemon.kill()
                await asyncio.to_thread(daemon.start)
        (tmp_path / "go").touch()
        ids = [task["id"] for task in tasks]
        found = await asyncio.wait_for(ends(gateway.url, ids), WAIT)
        # `serve` does not know how far a command came that died with it, and says so (docs/serve.md)
        running = "TASK_STATE_FAILED" if victim == "serve" else "TASK_STATE_COMPLETED"
        assert found == ["TASK_STATE_COMPLETED", running, "TASK_STATE_COMPLETED"]
        async with sdk_client(gateway.url, "JSONRPC") as client:
            assert [(await task_of(client, request))["id"] for request in requests] == ids
    assert runs.read_text().split() == list(TASKS)
