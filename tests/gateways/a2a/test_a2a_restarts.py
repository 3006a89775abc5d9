"""Nothing of a task is lost, and no work is opened twice, when the gateway or the daemon is killed."""

import asyncio
from pathlib import Path
from typing import Any

from a2a.types import a2a_pb2 as pb

from tests.support.a2a_gateway import Gateway, at_once, message, sdk_client, shown, step, task_of
from tests.support.cluster import free_ports
from tests.support.serving import Bus, two_peers


async def reached(gateway: Gateway, task_id: str, steps: int) -> tuple[list[str], dict[str, Any]]:
    """The texts of a task's first `steps` steps, over as many subscriptions as that takes, and the task of the last one."""
    task: dict[str, Any] = {}
    while True:
        try:
            async with sdk_client(gateway.url, "JSONRPC", streaming=True) as client:
                async for event in client.subscribe(pb.SubscribeToTaskRequest(id=task_id)):
                    found = shown(event)
                    if "task" in found:
                        task = found["task"]
                        said = [*task.get("history", ())[1:], *_message(task["status"])]
                        texts = [each["parts"][0]["text"] for each in said]
                    else:
                        texts += [each["parts"][0]["text"] for each in _message(found["statusUpdate"]["status"])]
                    if len(texts) >= steps:
                        return texts, task
        except Exception:  # the gateway or the daemon is away
            await asyncio.sleep(0.05)


def _message(status: dict[str, Any]) -> list[dict[str, Any]]:
    return [status["message"]] if "message" in status else []


async def test_streams_go_on_over_kills_of_gateway_and_daemon(tmp_path: Path) -> None:
    port = free_ports(1)[0]
    with two_peers(tmp_path) as bus:
        gateway = Gateway(bus.home, "--listen", f"127.0.0.1:{port}", "--peer", "worker")
        await asyncio.to_thread(gateway.start)
        try:
            await _steps_over_kills(bus, gateway)
        finally:
            await asyncio.to_thread(gateway.stop)


async def _steps_over_kills(bus: Bus, gateway: Gateway) -> None:
    request = at_once(message("Count"))
    async with sdk_client(gateway.url, "JSONRPC") as client:
        task = await task_of(client, request)
    work = task["id"]
    watching = asyncio.create_task(reached(gateway, work, 6))
    await asyncio.to_thread(step, bus, work, "update", message="step 0")
    await asyncio.to_thread(step, bus, work, "update", message="step 1")
    gateway.process.kill()
    await asyncio.to_thread(step, bus, work, "update", message="step 2")
    await asyncio.to_thread(gateway.stop)
    await asyncio.to_thread(gateway.start)
    await asyncio.to_thread(step, bus, work, "update", message="step 3")
    bus.ops.kill()
    bus.worker.post(f"/v1/works/{work}/update", message="step 4")
    await asyncio.to_thread(bus.ops.start)
    await asyncio.to_thread(step, bus, work, "update", message="step 5")
    texts, _ = await asyncio.wait_for(watching, 60)
    assert texts == [f"step {number}" for number in range(6)]
    async with sdk_client(gateway.url, "JSONRPC") as client:
        again = await task_of(client, request)
        assert again["id"] == work
        assert (await client.list_tasks(pb.ListTasksRequest())).total_size == 1
        await asyncio.to_thread(step, bus, work, "complete", result={"ok": True})
        ended = shown(await client.get_task(pb.GetTaskRequest(id=work)))
    assert ended["status"]["state"] == "TASK_STATE_COMPLETED"
    assert ended["artifacts"][0]["parts"] == [{"data": {"ok": True}}]


async def test_a_blocking_message_outlives_a_restart_of_the_daemon(tmp_path: Path) -> None:
    with two_peers(tmp_path) as bus:
        gateway = Gateway(bus.home, "--listen", "127.0.0.1:0", "--peer", "worker")
        await asyncio.to_thread(gateway.start)
        try:
            async with sdk_client(gateway.url, "JSONRPC") as client:
                request = message("Wait for it")
                sending = asyncio.create_task(task_of(client, request))
                opened = await asyncio.to_thread(gateway.until, "task", outcome="opened")
                await asyncio.to_thread(step, bus, opened["task"], "accept")
                bus.ops.kill()
                await asyncio.to_thread(bus.ops.start)
                await asyncio.to_thread(step, bus, opened["task"], "complete", message="Done.")
                task = await sending
        finally:
            code = await asyncio.to_thread(gateway.stop)
    assert (task["id"], task["status"]["state"], code) == (opened["task"], "TASK_STATE_COMPLETED", 0)
