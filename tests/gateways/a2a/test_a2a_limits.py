"""What one caller may take of a gateway: the others have theirs."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.types import a2a_pb2_grpc

from tests.support.a2a_gateway import HEADERS, Gateway, at_once, get, message, serving_a2a, step
from tests.support.cluster import free_ports
from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Bus

TOKENS = {name: f"{name}-0123456789abcdef" for name in ("ann", "bob", "carl")}
SPACE = 8
TASKS = 6
"""A minute: another one every ten seconds, so that few come back while a test runs."""


@pytest.fixture(scope="module")
def limited(bus: Bus, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    path = tmp_path_factory.mktemp("limits") / "callers"
    path.touch(0o600)
    path.write_text("".join(f"{name} {token}\n" for name, token in TOKENS.items()))
    listening = ("--listen", "127.0.0.1:0", "--grpc", f"127.0.0.1:{free_ports(1)[0]}", "--callers", str(path))
    limits = ("--caller-requests", str(SPACE), "--caller-tasks", str(TASKS))
    with serving_a2a(bus.home, *listening, "--peer", "worker", *limits) as gateway:
        yield gateway


def body(name: str, **more: Any) -> dict[str, Any]:
    return {"message": {"messageId": name, "role": "ROLE_USER", "parts": [{"text": "hello"}], **more}}


def caller(gateway: Gateway, name: str) -> httpx.AsyncClient:
    headers = {**HEADERS, "Authorization": f"Bearer {TOKENS[name]}"}
    return httpx.AsyncClient(base_url=f"{gateway.url}/a2a/worker", headers=headers, timeout=WAIT)


async def opened(client: httpx.AsyncClient, name: str) -> str:
    answer = await client.post("/message:send", json={**body(name), "configuration": {"returnImmediately": True}})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["task"]["id"])


async def refused_requests(client: httpx.AsyncClient, gateway: Gateway) -> float:
    lines = (await client.get(f"{gateway.url}/metrics")).text.splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith('aghbus_a2a_limited_total{limit="requests"} ')]
    return float(counts[0]) if counts else 0.0


async def test_a_noisy_caller_does_not_keep_another_one_from_its_task(bus: Bus, limited: Gateway) -> None:
    async with caller(limited, "ann") as ann, caller(limited, "bob") as bob, contextlib.AsyncExitStack() as streams:
        task, before = await opened(ann, "noisy"), await refused_requests(bob, limited)
        for _ in range(SPACE):
            stream = await streams.enter_async_context(ann.stream("POST", f"/tasks/{task}:subscribe", json={}))
            assert stream.status_code == 200
        refused = await ann.get(f"/tasks/{task}")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert refused.json()["error"]["status"] == "RESOURCE_EXHAUSTED"
        over = await ann.post("", json={"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": body("noisy 2")})
        assert over.status_code == 429
        flood = [asyncio.create_task(ann.get("/tasks")) for _ in range(100)]
        mine = await opened(bob, "quiet")
        await asyncio.to_thread(step, bus, mine, "complete", message="done")
        assert (await bob.get(f"/tasks/{mine}")).json()["status"]["state"] == "TASK_STATE_COMPLETED"
        assert {answer.status_code for answer in await asyncio.gather(*flood)} == {429}
        assert await refused_requests(bob, limited) == before + 102
        limited.until("limited", caller="ann", limit="requests")

    def free() -> bool:
        headers = {**HEADERS, "Authorization": f"Bearer {TOKENS['ann']}"}
        return get(f"{limited.url}/a2a/worker/tasks/{task}", headers=headers).status_code == 200

    await asyncio.to_thread(wait_for, free, WAIT, "the streams that have ended to count no more")


async def test_grpc_has_the_same_limits(bus: Bus, limited: Gateway) -> None:
    metadata = (("a2a-version", "1.0"), ("authorization", f"Bearer {TOKENS['bob']}"))
    where = limited.command[limited.command.index("--grpc") + 1]
    async with grpc.aio.insecure_channel(where) as channel:
        stub_of: Any = a2a_pb2_grpc.A2AServiceStub
        stub = stub_of(channel)
        answer = await stub.SendMessage(at_once(message()), metadata=metadata)
        streams = [
            stub.SubscribeToTask(pb.SubscribeToTaskRequest(id=answer.task.id), metadata=metadata) for _ in range(SPACE)
        ]
        for stream in streams:
            assert (await stream.read()).task.id == answer.task.id
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.GetTask(pb.GetTaskRequest(id=answer.task.id), metadata=metadata)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert dict(refused.value.trailing_metadata() or ())["retry-after"] == "1"
        for stream in streams:
            stream.cancel()


async def test_new_tasks_have_a_rate(bus: Bus, limited: Gateway) -> None:
    async with caller(limited, "carl") as carl, caller(limited, "bob") as bob:
        tasks, refused = list[str](), None
        for number in range(TASKS + 2):  # the last ones that come back meanwhile are few
            answer = await carl.post(
                "/message:send", json={**body(f"many {number}"), "configuration": {"returnImmediately": True}}
            )
            if answer.status_code == 429:
                refused = answer
                break
            tasks.append(answer.json()["task"]["id"])
        assert refused is not None
        assert 1 <= int(refused.headers["retry-after"]) <= 60 / TASKS + 1
        assert 0 < len(tasks) <= TASKS + 1
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": body("one more")}
        assert (await carl.post("", json=rpc)).status_code == 429
        said = await carl.post(
            "/message:send", json={**body("said", taskId=tasks[0]), "configuration": {"returnImmediately": True}}
        )
        assert said.status_code == 200
        assert await opened(bob, "another one's")
