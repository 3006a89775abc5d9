"""A process that fills a store and is killed.

`python -m tests.support.fill_child STORE COUNT` receives COUNT messages with ids that do not ascend, writes a line when all
are committed, and waits.
"""

import asyncio
import os
import sys
import threading
from hashlib import blake2b
from pathlib import Path

import msgspec

from aghbus.protocol.agh.envelope import Envelope
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from tests.support.makers import receiving, say

TOGETHER = 4_096  # messages of one transaction


def message(number: int, template: Envelope) -> Envelope:
    """The `number`-th message: `template` under another id."""
    message_id = f"msg_{blake2b(number.to_bytes(8), digest_size=16).hexdigest()}"
    raw = template.raw.replace(template.id.encode(), message_id.encode(), 1)
    return msgspec.structs.replace(template, id=message_id, raw=raw)


def template() -> Envelope:
    """A message of the usual size."""
    return say(id=f"msg_{'0' * 32}", text="x" * 250)


async def fill(path: Path, count: int) -> None:
    """Receives the messages."""
    store, origin = await Store.open(path, synchronous="normal"), template()

    def job(tx: Transaction, first: int) -> None:
        for number in range(first, min(first + TOGETHER, count)):
            receiving(message(number, origin), capacity=1 << 40)(tx)

    for first in range(0, count, TOGETHER):
        await store.write(lambda tx, one=first: job(tx, one))  # type: ignore[misc]
    os.write(1, b"full\n")
    threading.Event().wait()


if __name__ == "__main__":
    asyncio.run(fill(Path(sys.argv[1]), int(sys.argv[2])))
