"""An A2A client, the gateway, the bus, a join and an A2A agent: the whole way, also over kill -9 of all of ours at once."""

import asyncio
from pathlib import Path
from typing import Any

from a2a.types import a2a_pb2 as pb

from tests.support.a2a_gateway import Gateway, at_once, message, sdk_client, serving_a2a, shown, task_of
from tests.support.cluster import free_ports
from tests.support.daemons import wait_for
from tests.support.joining import AgentProcess, Join, agent
from tests.support.serving import WAIT, Bus, two_peers


def states(gateway: Gateway, tasks: dict[str, Any]) -> dict[str, str]:
    """The state of each task, without its prefix."""

    async def look() -> dict[str, str]:
        async with sdk_client(gateway.url, "JSONRPC") as client:
            found = {name: await client.get_task(pb.GetTaskRequest(id=task_id)) for name, task_id in tasks.items()}
            return {name: shown(task)["status"]["state"].removeprefix("TASK_STATE_") for name, task in found.items()}

    return asyncio.run(look())


def sent(gateway: Gateway, requests: dict[str, pb.SendMessageRequest]) -> dict[str, str]:
    """Send each message; the ids of their tasks."""

    async def send() -> dict[str, str]:
        async with sdk_client(gateway.url, "JSONRPC") as client:
            return {name: str((await task_of(client, request))["id"]) for name, request in requests.items()}

    return asyncio.run(send())


def ended(gateway: Gateway, task_id: str) -> dict[str, Any]:
    """The task once it has ended."""
    wait_for(lambda: states(gateway, {"it": task_id})["it"] in ("COMPLETED", "FAILED"), WAIT, "the end")

    async def look() -> dict[str, Any]:
        async with sdk_client(gateway.url, "JSONRPC") as client:
            return shown(await client.get_task(pb.GetTaskRequest(id=task_id)))

    return asyncio.run(look())


def test_content_comes_back_as_the_agent_sent_it(bus: Bus, reviewer: AgentProcess) -> None:
    with serving_a2a(bus.home, "--listen", "127.0.0.1:0", "--peer", "worker") as gateway, Join(bus, reviewer.url):
        requests = {text: message(text) for text in ("done way", "file way", "say hello you", "reject way")}

        async def answers() -> dict[str, Any]:
            found = dict[str, Any]()
            async with sdk_client(gateway.url, "HTTP+JSON") as client:
                for text, request in requests.items():
                    found[text] = [shown(event) async for event in client.send_message(request)][-1]
            return found

        found = asyncio.run(answers())
    assert found["say hello you"]["message"]["parts"] == [{"text": "hello you"}]
    assert found["done way"]["task"]["status"]["message"]["parts"] == [{"text": "it is good"}]
    assert found["reject way"]["task"]["status"]["state"] == "TASK_STATE_REJECTED"
    artifacts = {one["name"]: one["parts"] for one in found["file way"]["task"]["artifacts"]}
    assert artifacts["result"] == [{"data": {"findings": 2.0}}]
    assert artifacts["dump"][0]["filename"] == "a_b.bin"


def test_all_of_ours_are_killed_in_every_state_of_a_task(tmp_path: Path) -> None:
    """Tasks that are submitted, worked on, waiting for their client and completed: none is lost, none is done twice."""
    port = free_ports(1)[0]
    with two_peers(tmp_path / "bus") as bus, agent(tmp_path / "agent") as other:
        gateway = Gateway(bus.home, "--listen", f"127.0.0.1:{port}", "--peer", "worker")
        gateway.start()
        requests = {text: at_once(message(text)) for text in ("slow one", "wait two", "ask three", "done four")}
        expected = {
            "slow one": "SUBMITTED",
            "wait two": "WORKING",
            "ask three": "INPUT_REQUIRED",
            "done four": "COMPLETED",
        }
        try:
            with Join(bus, other.url, "--concurrency", "8") as join:
                tasks = sent(gateway, requests)
                wait_for(lambda: states(gateway, tasks) == expected and other.runs("slow one"), WAIT, "each state")
                for process in (gateway.process, join.process):
                    process.kill()
                    process.wait(WAIT)
                bus.ops.kill()
                bus.worker.kill()
            gateway.stop()
            bus.ops.start()
            bus.worker.start()
            gateway.start()
            with Join(bus, other.url, "--concurrency", "8"):
                assert sent(gateway, requests) == tasks
                assert states(gateway, tasks) == expected
                other.go("one")
                other.go("two")
                answer = at_once(message("main", taskId=tasks["ask three"]))
                for _ in range(2):
                    sent(gateway, {"answer": answer})
                texts = {
                    name: ended(gateway, task_id)["status"]["message"]["parts"][0]["text"]
                    for name, task_id in tasks.items()
                }
        finally:
            gateway.stop()
    assert texts == {"slow one": "went", "wait two": "went", "ask three": "on main", "done four": "it is good"}
    for text in (*requests, "main"):
        assert len(other.runs(text)) == 1, text
