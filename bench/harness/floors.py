"""The floors: what bounds the daemon on this machine, in their own processes: `python -m bench.harness.floors NAME ARGUMENTS…`.

- `subscriber URL SUBJECT`: a nats-py callback that does nothing; for each count on standard input, when the last message came
- `each URL SUBJECT FOLDER`: the same, but parsed and committed one by one through aiosqlite, three rows a message
- `least URL SUBJECT FOLDER`: the same three rows in groups, as little as can be done about a durable message: no rule is checked
- `publish URL COUNT SIZE`: nats-py, messages a second until the server has read all
- `request URL SUBJECT COUNT`: nats-py request-reply, one at a time, in milliseconds
- `echo URL SUBJECT`: answers every request with its bytes, until its standard input ends
- `bare`: imports what the daemon uses, and says its memory and the milliseconds that the imports took

All run on uvloop, as the daemon does.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import uvloop

if TYPE_CHECKING:
    from nats.aio.msg import Msg

TIMEOUT: Final = 300.0
"""Seconds; only a hang takes that long."""
_GROUP: Final = 1_024
_TABLES: Final = (
    "CREATE TABLE seen (id TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE envelopes (seq INTEGER PRIMARY KEY, id TEXT, raw BLOB)",
    "CREATE TABLE inbox (seq INTEGER PRIMARY KEY, state TEXT)",
)


def say(value: Any) -> None:
    """One JSON value on a line."""
    print(json.dumps(value), flush=True)


async def next_line() -> str:
    """The next line of standard input; empty at its end."""
    return await asyncio.to_thread(sys.stdin.readline)


class _Count:
    """The number of messages that are still to come."""

    def __init__(self) -> None:
        self._left = 0
        self._ended = asyncio.Event()

    def expect(self, count: int) -> None:
        self._left = count
        self._ended.clear()

    def through(self, count: int = 1) -> None:
        self._left -= count
        if self._left == 0:
            self._ended.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self._ended.wait(), TIMEOUT)


async def _counted(url: str, subject: str, count: _Count, callback: Callable[["Msg"], Awaitable[None]]) -> None:
    import nats

    client = await nats.connect(url)
    # Without limits: with them the client library drops, and calls nobody but an error callback.
    await client.subscribe(subject, cb=callback, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    say("ready")
    while line := await next_line():
        count.expect(json.loads(line))
        say("set")
        await count.wait()
        say(time.monotonic())
    await client.close()


async def subscriber(url: str, subject: str) -> None:
    """Messages into a callback that does nothing."""
    count = _Count()

    async def ignore(_message: "Msg") -> None:
        count.through()

    await _counted(url, subject, count, ignore)


async def each(url: str, subject: str, folder: str) -> None:
    """Messages parsed, and committed one by one."""
    import aiosqlite

    from aghbus.protocol.agh.envelope import parse

    db = await aiosqlite.connect(Path(folder) / "each.db", isolation_level=None)
    for pragma in ("journal_mode = WAL", "synchronous = FULL"):
        await db.execute(f"PRAGMA {pragma}")
    for table in _TABLES:
        await db.execute(table)
    count = _Count()

    async def handle(message: "Msg") -> None:
        envelope = parse(message.data, int(time.time()))
        await db.execute("BEGIN IMMEDIATE")
        await db.execute("INSERT INTO seen VALUES (?)", (envelope.id,))
        await db.execute("INSERT INTO envelopes (id, raw) VALUES (?, ?)", (envelope.id, message.data))
        await db.execute("INSERT INTO inbox (state) VALUES ('ready')")
        await db.commit()
        count.through()

    await _counted(url, subject, count, handle)
    await db.close()


async def least(url: str, subject: str, folder: str) -> None:
    """Messages decoded, looked up in a set and written in groups: whatever has come while one is committed, in a thread."""
    import sqlite3

    import msgspec

    class Wire(msgspec.Struct):
        id: str
        workspace_id: str
        channel: str
        kind: str
        ts: int
        sender: str = msgspec.field(name="from")

    db = sqlite3.connect(Path(folder) / "least.db", isolation_level=None, check_same_thread=False)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", *_TABLES):
        db.execute(statement)
    decode, known = msgspec.json.Decoder(Wire).decode, set[str]()
    waiting: list[tuple[str, bytes]] = []
    bell, count = asyncio.Event(), _Count()

    async def handle(message: "Msg") -> None:
        wire = decode(message.data)
        if wire.id not in known:
            known.add(wire.id)
            waiting.append((wire.id, message.data))
        bell.set()

    def commit(group: list[tuple[str, bytes]]) -> None:
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO seen VALUES (?)", [(one,) for one, _ in group])
        db.executemany("INSERT INTO envelopes (id, raw) VALUES (?, ?)", group)
        db.executemany("INSERT INTO inbox (state) VALUES (?)", [("ready",)] * len(group))
        db.execute("COMMIT")

    async def commit_groups() -> None:
        while True:
            await bell.wait()
            bell.clear()
            while waiting:
                group = waiting[:_GROUP]
                del waiting[:_GROUP]
                await asyncio.to_thread(commit, group)
                count.through(len(group))

    groups = asyncio.create_task(commit_groups())
    await _counted(url, subject, count, handle)
    groups.cancel()
    db.close()


async def publish(url: str, count: str, size: str) -> None:
    """Messages a second, published without waiting and flushed at the end."""
    import nats

    client = await nats.connect(url, pending_size=1 << 28)
    payload = b"x" * int(size)
    started = time.perf_counter()
    for _ in range(int(count)):
        await client.publish("bench.nobody", payload)
    await client.flush(int(TIMEOUT))
    say(int(count) / (time.perf_counter() - started))
    await client.close()


async def request(url: str, subject: str, count: str) -> None:
    """Milliseconds of requests one after the other, the first tenth as a warm-up."""
    import nats

    client = await nats.connect(url)
    taken = []
    for _ in range(int(count) + int(count) // 10):
        started = time.perf_counter()
        await client.request(subject, b"x" * 300, timeout=TIMEOUT)
        taken.append((time.perf_counter() - started) * 1000)
    say(taken[int(count) // 10 :])
    await client.close()


async def echo(url: str, subject: str) -> None:
    """Answers until standard input ends."""
    import nats

    client = await nats.connect(url)

    async def answer(message: "Msg") -> None:
        await message.respond(message.data)

    await client.subscribe(subject, cb=answer)
    await client.flush()
    say("ready")
    await next_line()
    await client.close()


async def bare() -> None:
    """Memory in KiB and import time of what `aghd` imports from elsewhere; then waits for the end of standard input."""
    started = time.perf_counter()
    import aiosqlite
    import httptools
    import msgspec
    import nats
    import rfc8785
    from nacl import bindings

    took = (time.perf_counter() - started) * 1000
    assert aiosqlite and httptools and msgspec and nats and rfc8785 and uvloop and bindings
    say(took)
    await next_line()


def main() -> None:
    """Run the floor that the command line names."""
    ways: dict[str, Callable[..., Any]] = {
        one.__name__: one for one in (subscriber, each, least, publish, request, echo, bare)
    }
    uvloop.run(ways[sys.argv[1]](*sys.argv[2:]))


if __name__ == "__main__":
    main()
