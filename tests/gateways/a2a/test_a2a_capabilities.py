"""A capability as an agent: the task stays the same when its work is handed over to another peer."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError

from tests.support.a2a_gateway import Gateway, at_once, message, sdk_client, shown, task_of
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.serving import WAIT, Bus, two_peers


def holder(task_id: str, daemons: dict[str, Daemon], ops: Daemon) -> tuple[Daemon, str]:
    """The peer that has the work of a task now, and the id of the work there."""
    work = ops.get(f"/v1/works/{task_id}")["work"]
    peer = daemons[work["target"]]
    wait_for(lambda: peer.state_of(work["work_id"]), WAIT, "the work")
    return peer, work["work_id"]


async def test_a_task_goes_on_at_another_peer(tmp_path: Path) -> None:
    with two_peers(tmp_path) as bus, Daemon(bus.home, "second", "--capability", "test.run") as second:
        await asyncio.to_thread(wait_for, lambda: bus.ops.knows("worker", "second"), WAIT, "presence")
        gateway = Gateway(bus.home, "--listen", "127.0.0.1:0", "--capability", "test.run")
        await asyncio.to_thread(gateway.start)
        try:
            await _handed_over(bus, gateway, {"worker": bus.worker, "second": second})
        finally:
            await asyncio.to_thread(gateway.stop)


async def _handed_over(bus: Bus, gateway: Gateway, peers: dict[str, Daemon]) -> None:
    events: list[dict[str, Any]] = []

    async def watch() -> None:
        async with sdk_client(gateway.url, "JSONRPC", streaming=True) as client:
            async for event in client.send_message(request):
                events.append(shown(event))

    request = message("Run it")
    watching = asyncio.create_task(watch())
    await asyncio.to_thread(wait_for, lambda: events, WAIT, "the task")
    task_id = events[0]["task"]["id"]
    first, work = await asyncio.to_thread(holder, task_id, peers, bus.ops)
    first.post(f"/v1/works/{work}/reject", message="Not me.", reason="busy")

    def moved() -> bool:
        return bool(bus.ops.get(f"/v1/works/{task_id}")["work"]["work_id"] != work)

    await asyncio.to_thread(wait_for, moved, WAIT, "the hand-over")
    other, work = await asyncio.to_thread(holder, task_id, peers, bus.ops)
    assert other is not first
    other.post(f"/v1/works/{work}/update", message="on it")
    other.post(f"/v1/works/{work}/complete", message="Done.", result={"ok": True})
    await asyncio.wait_for(watching, WAIT)
    updates = [event["statusUpdate"]["status"] for event in events[1:] if "statusUpdate" in event]
    states = [status["state"].removeprefix("TASK_STATE_") for status in updates]
    assert "REJECTED" not in states
    assert states[-2:] == ["WORKING", "COMPLETED"]
    assert {event["statusUpdate"]["taskId"] for event in events if "statusUpdate" in event} == {task_id}
    async with sdk_client(gateway.url, "JSONRPC") as client:
        task = shown(await client.get_task(pb.GetTaskRequest(id=task_id)))
        listed = await client.list_tasks(pb.ListTasksRequest())
        again = await task_of(client, at_once(request))
    assert again["id"] == task_id
    assert [one.id for one in listed.tasks] == [task_id]
    assert [said["parts"][0]["text"] for said in task["history"]] == ["Run it", "on it"]
    assert (task["status"]["state"], task["artifacts"][0]["parts"]) == (
        "TASK_STATE_COMPLETED",
        [{"data": {"ok": True}}],
    )


async def test_without_a_peer_the_client_is_told_to_try_again(bus: Bus) -> None:
    gateway = Gateway(bus.home, "--listen", "127.0.0.1:0", "--capability", "nobody.has-this")
    await asyncio.to_thread(gateway.start)
    try:
        async with sdk_client(gateway.url, "HTTP+JSON") as client:
            with pytest.raises(A2AError, match="again"):
                await task_of(client, message())
    finally:
        await asyncio.to_thread(gateway.stop)


async def test_a_peer_with_a_key_may_be_named_by_its_nickname(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.ctl("--name", "worker", "key", "generate").returncode == 0
    with Daemon(home, "worker", "--capability", "test.run") as worker, Daemon(home, "ops") as ops:
        handle = worker.get("/v1/status")["peer_id"]
        assert "@" in handle
        await asyncio.to_thread(wait_for, lambda: ops.knows(handle), WAIT, "presence")
        gateway = Gateway(home, "--listen", "127.0.0.1:0", "--peer", "worker")
        await asyncio.to_thread(gateway.start)
        try:
            async with sdk_client(gateway.url, "JSONRPC") as client:
                task = await task_of(client, at_once(message()))
                found = await client.get_task(pb.GetTaskRequest(id=task["id"]))
        finally:
            await asyncio.to_thread(gateway.stop)
        assert found.id == task["id"]
        assert ops.get(f"/v1/works/{task['id']}")["work"]["target"] == handle
        opening = ops.get(f"/v1/messages?work={task['id']}")["messages"][0]["envelope"]
        assert opening["body"]["intent"] == "test.run"
