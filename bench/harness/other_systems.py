"""Clients of the other systems: `python -m bench.harness.other_systems JOB` (JSON); requests a second, `flight` at a time."""

import asyncio
import json
import selectors
import socket
import sys
import time
import uuid
from typing import Any, Final

from bench.harness.wire import take_answer

_READ: Final = 1 << 16


def a2a(job: dict[str, Any]) -> float:
    """`SendMessage` over JSON-RPC on kept-alive connections, each answered with a completed task."""
    picker = selectors.DefaultSelector()
    for _ in range(job["flight"]):
        connection = socket.create_connection(("127.0.0.1", job["port"]))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        picker.register(connection, selectors.EVENT_READ, bytearray())
    started = time.perf_counter()
    asked = answered = 0
    for key in list(picker.get_map().values())[: job["count"]]:
        key.fileobj.sendall(_a2a_request(asked))  # type: ignore[union-attr]
        asked += 1
    while answered < job["count"]:
        for key, _ in picker.select(30):
            key.data.extend(key.fileobj.recv(_READ))  # type: ignore[union-attr]
            if (answer := take_answer(key.data)) is None:
                continue
            body = answer[1]
            state = json.loads(body).get("result", {}).get("task", {}).get("status", {}).get("state")
            if state != "TASK_STATE_COMPLETED":
                raise RuntimeError(f"not completed: {body.decode()}")
            answered += 1
            if asked < job["count"]:
                key.fileobj.sendall(_a2a_request(asked))  # type: ignore[union-attr]
                asked += 1
    return float(answered / (time.perf_counter() - started))


def _a2a_request(number: int) -> bytes:
    message = {"messageId": str(uuid.uuid4()), "role": "ROLE_USER", "parts": [{"text": "x" * 200}]}
    ask = {"jsonrpc": "2.0", "id": number, "method": "SendMessage", "params": {"message": message}}
    body = json.dumps(ask).encode()
    head = f"POST / HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def micro(job: dict[str, Any]) -> float:
    """Requests to the micro service from nats-py."""
    return asyncio.run(_micro(job))


async def _micro(job: dict[str, Any]) -> float:
    import nats

    client = await nats.connect(job["nats"])

    async def asker() -> None:
        for number in range(job["count"] // job["flight"]):
            answer = await client.request(
                "bench.work", json.dumps({"id": number, "text": "x" * 200}).encode(), timeout=60
            )
            if json.loads(answer.data)["state"] != "completed":
                raise RuntimeError(f"not completed: {answer.data.decode()}")

    started = time.perf_counter()
    async with asyncio.TaskGroup() as askers:
        for _ in range(job["flight"]):
            askers.create_task(asker())
    took = time.perf_counter() - started
    await client.close()
    return float(job["count"] // job["flight"] * job["flight"] / took)


def main() -> None:
    """Do the one job that the command line has."""
    job = json.loads(sys.argv[1])
    print(json.dumps({"a2a": a2a, "micro": micro}[job["do"]](job)), flush=True)


if __name__ == "__main__":
    main()
