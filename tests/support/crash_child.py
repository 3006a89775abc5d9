"""A process that receives a stream of envelopes, says which are committed, and is killed on the way.

`python -m tests.support.crash_child STORE FIRST COUNT TOGETHER DIE_AT SEGMENT`: envelopes FIRST.. in groups of TOGETHER, of which
SEGMENT are indexed together; kills itself, as
SIGKILL does, when SQLite begins its DIE_AT-th statement (0: never). Writes one line for each envelope once its future has resolved.
"""

import asyncio
import itertools
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path

from aghbus.protocol.agh.envelope import Envelope
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from tests.support.makers import receiving, say


def envelope(number: int) -> Envelope:
    """The `number`-th of the stream: opens its own work in one of three threads."""
    return say(id=f"msg_{number:032x}", work_id=f"work_{number}", container=f"thread_{number % 3:03d}")


def die_at(tx: Transaction, statement: int) -> None:
    """Kills this process when the `statement`-th statement from now on begins, BEGIN and COMMIT included."""
    numbers = itertools.count(1)

    def trace(_sql: str) -> None:
        if next(numbers) == statement:
            os.kill(os.getpid(), signal.SIGKILL)
            threading.Event().wait()  # the signal may take effect a moment later: the statement must not begin

    tx.db.set_trace_callback(trace)


def say_done(number: int, _future: object) -> None:
    """One line to the parent, at once."""
    os.write(1, b"%d\n" % number)


async def run(path: Path, first: int, count: int, together: int, statement: int, segment: int) -> None:
    """The stream, committed in groups."""
    store = await Store.open(path, segment=segment)
    os.write(1, b"open\n")
    if statement:
        await store.write(lambda tx: die_at(tx, statement))
    for start in range(first, first + count, together):
        futures = []
        for number in range(start, min(start + together, first + count)):
            future = store.submit(receiving(envelope(number), capacity=10**9))
            future.add_done_callback(partial(say_done, number))
            futures.append(future)
        await asyncio.gather(*futures)
    await store.close()
    os.write(1, b"closed\n")


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), *map(int, sys.argv[2:7])))
