"""Files, data and links in messages and artifacts: they reach the worker, and come back as they were."""

import asyncio
import base64
from typing import Any

import httpx
from a2a.types import a2a_pb2 as pb

from tests.support.a2a_gateway import HEADERS, Gateway, at_once, message, received, sdk_client, shown, step, task_of
from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Bus

LARGE = bytes(range(256)) * 1024
PARTS: list[dict[str, Any]] = [
    {"text": "Compare these"},
    {"data": {"limit": 3}, "mediaType": "application/json"},
    {"text": "with care", "metadata": {"tone": "calm"}},
    {"raw": base64.b64encode(b"a,b\n1,2\n").decode(), "filename": "small.csv", "mediaType": "text/csv"},
    {"url": "https://example.com/page"},
]


async def test_parts_of_a_message_reach_the_worker_and_come_back(bus: Bus, gateway: Gateway) -> None:
    async with sdk_client(gateway.url, "JSONRPC") as client:
        task = await task_of(client, at_once(message(parts=PARTS, metadata={"from": "a test"})))
    assert task["history"][0]["parts"] == PARTS
    assert task["history"][0]["metadata"] == {"from": "a test"}
    body = (await asyncio.to_thread(received, bus, task["id"]))["body"]
    assert body["text"] == "Compare these\n\nwith care"
    assert [(one["type"], one.get("name")) for one in body["artifacts"]] == [
        ("data", None),
        ("file", "small.csv"),
        ("file", None),
    ]


async def test_a_large_file_goes_through_the_object_store(bus: Bus, gateway: Gateway) -> None:
    large = {"raw": base64.b64encode(LARGE).decode(), "filename": "all bytes.bin"}
    async with sdk_client(gateway.url, "JSONRPC") as client:
        task = await task_of(client, at_once(message(parts=[large])))
        body = (await asyncio.to_thread(received, bus, task["id"]))["body"]
        assert body["text"] == "all bytes.bin"
        uri = body["artifacts"][0]["uri"]
        copy = bus.home.root / "copy.bin"
        command = ("--name", "worker", "artifact", "get", *uri.split("/")[3:], "-O", str(copy))
        kept = await asyncio.to_thread(bus.home.ctl, *command)
        link = task["history"][0]["parts"][0]["url"]
        async with httpx.AsyncClient(headers=HEADERS, timeout=WAIT) as http:
            fetched = await http.get(link)
            elsewhere = await http.get(link.replace(task["id"], "work_a2a_00000000000000000000_0"))
    assert fetched.content == LARGE
    assert fetched.headers["content-disposition"].startswith("attachment")
    assert elsewhere.status_code == 404
    assert kept.returncode == 0, kept.stderr
    assert copy.read_bytes() == LARGE


async def test_files_of_the_worker_are_parts_of_artifacts(bus: Bus, gateway: Gateway) -> None:
    async with sdk_client(gateway.url, "JSONRPC") as client:
        task = await task_of(client, at_once(message()))
        work, report = task["id"], bus.home.root / "report.txt"
        report.write_text("All is well.\n")
        await asyncio.to_thread(received, bus, work)
        put = await asyncio.to_thread(
            bus.home.ctl, "--name", "worker", "work", "complete", work, "--artifact", str(report)
        )
        assert put.returncode == 0, put.stderr
        theirs = {"type": "file", "name": "secret", "uri": "agh://artifacts/work_of_another/secret.txt"}
        waiting = await task_of(client, at_once(message()))
        await asyncio.to_thread(step, bus, waiting["id"], "complete", artifacts=[theirs])
        await asyncio.to_thread(wait_for, lambda: bus.ops.state_of(work) == "completed", WAIT, "the end")
        task = shown(await client.get_task(pb.GetTaskRequest(id=work)))
        other = shown(await client.get_task(pb.GetTaskRequest(id=waiting["id"])))
    raw = base64.b64encode(b"All is well.\n").decode()
    part = {"raw": raw, "filename": "report.txt", "mediaType": "text/plain"}
    assert task["artifacts"] == [{"artifactId": "report.txt", "name": "report.txt", "parts": [part]}]
    assert other["artifacts"][0]["parts"][0]["url"] == theirs["uri"]
