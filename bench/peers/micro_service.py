"""A micro service of nats-py that answers a request with a result: `python -m bench.peers.micro_service URL`, on uvloop."""

import asyncio
import json
import sys

import nats
import uvloop
from nats import micro
from nats.micro.request import Request


async def main(url: str) -> None:
    """Serve `bench.work` until standard input ends."""
    client = await nats.connect(url)
    service = await micro.add_service(client, name="bench", version="1.0.0")

    async def handle(request: Request) -> None:
        task = json.loads(request.data)
        await request.respond(json.dumps({"id": task["id"], "state": "completed", "result": {"passed": True}}).encode())

    await service.add_endpoint(name="work", subject="bench.work", handler=handle)
    await client.flush()
    print(json.dumps("ready"), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await service.stop()
    await client.close()


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
