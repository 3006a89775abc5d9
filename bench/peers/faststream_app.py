"""A FastStream subscriber on NATS that decodes an envelope and keeps nothing: `python -m bench.peers.faststream_app URL SUBJECT`.

With a Pydantic model as its documentation shows it, logging off, unlimited pending messages.
"""

import asyncio
import json
import logging
import sys
import time
from typing import Any

from faststream.nats import NatsBroker
from pydantic import BaseModel, Field


class Envelope(BaseModel):
    """The fields of an envelope that a receiver needs."""

    id: str
    kind: str
    sender: str = Field(alias="from")
    body: dict[str, Any]


async def main(url: str, subject: str) -> None:
    """Count messages, as the floors do."""
    app = NatsBroker(url, logger=None, log_level=logging.CRITICAL)
    seen, wanted, ended = 0, 0, asyncio.Event()

    async def handle(_message: Envelope) -> None:
        nonlocal seen
        seen += 1
        if seen == wanted:
            ended.set()

    app.subscriber(subject, pending_msgs_limit=1 << 30, pending_bytes_limit=1 << 40)(handle)
    async with app:
        await app.start()
        print(json.dumps("ready"), flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            seen, wanted = 0, json.loads(line)
            ended.clear()
            print(json.dumps("set"), flush=True)
            await ended.wait()
            print(json.dumps(time.monotonic()), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
