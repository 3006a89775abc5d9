"""What bounds us on this machine, in processes of their own: `python -m bench.harness.floors NAME ARGUMENTS…`.

- `subscriber URL SUBJECT`: a nats-py callback that does nothing; for each count on standard input, when the last message came
- `each URL SUBJECT FOLDER`: the same, but parsed and committed one by one through aiosqlite, three rows a message
- `publish URL COUNT SIZE`: nats-py, messages a second until the server has read all
- `request URL SUBJECT COUNT`: nats-py request-reply, one at a time, in milliseconds
- `echo URL SUBJECT`: answers every request with its bytes, until its standard input ends
- `bare`: imports what the daemon uses, and says its memory and the milliseconds that the imports took
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

_TIMEOUT: Final = 300.0  # seconds; only a hang takes that long


def say(value: Any) -> None:
    """One JSON value on a line."""
    print(json.dumps(value), flush=True)


async def _heard() -> str:
    return await asyncio.to_thread(sys.stdin.readline)


async def _counted(url: str, subject: str, handle: Callable[[bytes], Awaitable[None]] | None) -> None:
    import nats
    from nats.aio.msg import Msg

    client = await nats.connect(url)
    seen, wanted, ended = 0, 0, asyncio.Event()

    async def ignore(_message: Msg) -> None:
        nonlocal seen
        seen += 1
        if seen == wanted:
            ended.set()

    async def use(message: Msg) -> None:
        assert handle is not None
        await handle(message.data)
        await ignore(message)

    # Without limits: with them the client library drops, and calls nobody but an error callback.
    await client.subscribe(subject, cb=use if handle else ignore, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    say("ready")
    while line := await _heard():
        seen, wanted = 0, json.loads(line)
        ended.clear()
        say("set")
        await asyncio.wait_for(ended.wait(), _TIMEOUT)
        say(time.monotonic())
    await client.close()


async def subscriber(url: str, subject: str) -> None:
    """Messages into a callback that does nothing."""
    await _counted(url, subject, None)


async def each(url: str, subject: str, folder: str) -> None:
    """Messages parsed, and committed one by one."""
    import aiosqlite

    from aghbus.protocol.envelope import parse

    db = await aiosqlite.connect(Path(folder) / "each.db", isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        await db.execute(f"PRAGMA {pragma}")
    await db.execute("CREATE TABLE seen (id TEXT PRIMARY KEY) WITHOUT ROWID")
    await db.execute("CREATE TABLE envelopes (seq INTEGER PRIMARY KEY, id TEXT, raw BLOB)")
    await db.execute("CREATE TABLE inbox (seq INTEGER PRIMARY KEY, state TEXT)")

    async def handle(raw: bytes) -> None:
        envelope = parse(raw, int(time.time()))
        await db.execute("BEGIN IMMEDIATE")
        await db.execute("INSERT INTO seen VALUES (?)", (envelope.id,))
        await db.execute("INSERT INTO envelopes (id, raw) VALUES (?, ?)", (envelope.id, raw))
        await db.execute("INSERT INTO inbox (state) VALUES ('ready')")
        await db.commit()

    await _counted(url, subject, handle)
    await db.close()


async def publish(url: str, count: str, size: str) -> None:
    """Messages a second, published without waiting and flushed at the end."""
    import nats

    client = await nats.connect(url, pending_size=1 << 28)
    payload = b"x" * int(size)
    started = time.perf_counter()
    for _ in range(int(count)):
        await client.publish("bench.nobody", payload)
    await client.flush(int(_TIMEOUT))
    say(int(count) / (time.perf_counter() - started))
    await client.close()


async def request(url: str, subject: str, count: str) -> None:
    """Milliseconds of requests one after the other, the first tenth as a warm-up."""
    import nats

    client = await nats.connect(url)
    taken = []
    for _ in range(int(count) + int(count) // 10):
        started = time.perf_counter()
        await client.request(subject, b"x" * 300, timeout=_TIMEOUT)
        taken.append((time.perf_counter() - started) * 1000)
    say(taken[int(count) // 10 :])
    await client.close()


async def echo(url: str, subject: str) -> None:
    """Answers until standard input ends."""
    import nats
    from nats.aio.msg import Msg

    client = await nats.connect(url)

    async def answer(message: Msg) -> None:
        await message.respond(message.data)

    await client.subscribe(subject, cb=answer)
    await client.flush()
    say("ready")
    await _heard()
    await client.close()


async def bare() -> None:
    """Memory in KiB and import time of what `aghd` imports from elsewhere; then waits for the end of standard input."""
    started = time.perf_counter()
    import aiosqlite
    import httptools
    import msgspec
    import nats
    import rfc8785
    import uvicorn
    import uvloop
    from cryptography.hazmat.primitives.asymmetric import ed25519

    took = (time.perf_counter() - started) * 1000
    assert aiosqlite and httptools and msgspec and nats and rfc8785 and uvicorn and uvloop and ed25519
    say(took)
    await _heard()


def main() -> None:
    """Run the floor that the command line names."""
    ways: dict[str, Callable[..., Any]] = {
        one.__name__: one for one in (subscriber, each, publish, request, echo, bare)
    }
    asyncio.run(ways[sys.argv[1]](*sys.argv[2:]))


if __name__ == "__main__":
    main()
