"""Ways to make messages durable in SQLite, side by side in one run: `python -m bench.micro.store_write [--messages N]`.

They arrive as from a subscription: in bursts, parsed while earlier ones are being committed, with at most IN_FLIGHT not yet
durable, so the event loop is as busy as the daemon's is. WAL, synchronous=FULL. Only the ratios carry over to another machine.

The row of a message in the log, known beforehand:
- each:    an aiosqlite commit for each message
- group:   aiosqlite, whatever waits in one executemany and one commit, in its thread
- loop:    INSERT on the event loop, whatever waits shares a commit, only COMMIT in a thread (store/engine/commit/writer.py)

With decisions (state, decision, effects), where each message depends on earlier ones and opens a work:
- thread*: whatever waits is decided, written and committed in a writer thread
- loop*:   decided and written on the event loop, only COMMIT in a thread (store/engine/commit/writer.py)
- thread!, loop!: the same while a flood of refused traffic keeps the event loop busy
"""

import argparse
import asyncio
import collections
import contextlib
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import aiosqlite

from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.receive import Receiver, decide
from aghbus.protocol.agh.send import Draft, build
from aghbus.store.apply_effects import Application, Applied, load_state
from aghbus.store.engine.commit.state import InMemoryState
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.commit.writer import BATCH_JOBS, Job
from aghbus.store.engine.database import Store
from bench.harness.ceiling import Insert, log_row

NOW = 1_776_366_000
IN_FLIGHT = 4096
PRAGMAS = ("synchronous = FULL", "foreign_keys = ON", "cache_size = -16384", "wal_autocheckpoint = 4096")
US = "patch-worker"
CHANNELS = frozenset([("ws_bench", "default")])
RECEIVER = Receiver(self_id=US, now=NOW, mint=lambda: "msg_never", channels=CHANNELS)
BURST = 64  # messages that one read of a socket brings
Parameters = tuple[object, ...]
Submit = Callable[[int, Envelope], asyncio.Future[Any]]


def make(count: int) -> list[bytes]:
    """Envelopes of about 600 bytes."""
    drafts = (
        Draft(
            id=f"msg_{number:032x}",
            workspace_id="ws_bench",
            channel="default",
            kind="say",
            sender="ops",
            to="patch-worker",
            ts=NOW,
            expires_at=NOW + 3600,
            surface="thread",
            container=f"thread_{number % 50:03d}",
            work_id=f"work_{number:08d}",
            body={"text": "x" * 250},
        )
        for number in range(count)
    )
    return [build(draft, NOW).raw for draft in drafts]


def log_insert(path: Path) -> Insert:
    """The statement that appends to the log of the store at `path`."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        return Insert(db, "log")


async def flood(raw: bytes) -> None:
    """Traffic that is looked at and dropped, for ever."""
    while True:
        for _ in range(BURST):
            parse(raw, NOW)
        await asyncio.sleep(0)


async def drive(messages: list[bytes], submit: Submit, *, flooded: bool = False) -> float:
    """Seconds until every message is durable."""
    noise = asyncio.create_task(flood(messages[0])) if flooded else None
    try:
        return await deliver(messages, submit)
    finally:
        if noise is not None:
            noise.cancel()


async def deliver(messages: list[bytes], submit: Submit) -> float:
    """Seconds until every message is durable."""
    room = asyncio.Semaphore(IN_FLIGHT)
    started = time.perf_counter()
    for seq, raw in enumerate(messages, 1):
        await room.acquire()
        submit(seq, parse(raw, NOW)).add_done_callback(lambda _: room.release())
        if seq % BURST == 0:
            await asyncio.sleep(0)
    for _ in range(IN_FLIGHT):
        await room.acquire()
    return time.perf_counter() - started


async def prepared(path: Path) -> aiosqlite.Connection:
    """The same schema and pragmas, through aiosqlite."""
    await (await Store.open(path)).close()
    db = await aiosqlite.connect(path, isolation_level=None)
    for pragma in PRAGMAS:
        await db.execute(f"PRAGMA {pragma}")
    return db


async def aiosqlite_way(path: Path, messages: list[bytes], most: int) -> float:
    """Up to `most` of those that wait in one commit, all of it in aiosqlite's thread."""
    db = await prepared(path)
    log = log_insert(path)
    waiting: collections.deque[tuple[Parameters, asyncio.Future[None]]] = collections.deque()
    bell = asyncio.Event()

    async def committer() -> None:
        while True:
            await bell.wait()
            bell.clear()
            while waiting:
                batch = [waiting.popleft() for _ in range(min(most, len(waiting)))]
                await db.execute("BEGIN IMMEDIATE")
                await db.executemany(log.sql, [parameters for parameters, _ in batch])
                await db.commit()
                for _, future in batch:
                    future.set_result(None)

    def submit(seq: int, envelope: Envelope) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append((log.values(log_row(seq, envelope.id, envelope.raw)), future))
        bell.set()
        return future

    task = asyncio.create_task(committer())
    try:
        return await drive(messages, submit)
    finally:
        task.cancel()
        await db.close()


async def each(path: Path, messages: list[bytes]) -> float:
    """One aiosqlite commit per message."""
    return await aiosqlite_way(path, messages, 1)


async def group(path: Path, messages: list[bytes]) -> float:
    """aiosqlite group commit, in batches as large as the store's."""
    return await aiosqlite_way(path, messages, BATCH_JOBS)


async def loop(path: Path, messages: list[bytes]) -> float:
    """The store."""
    store = await Store.open(path)
    log = log_insert(path)

    def submit(seq: int, envelope: Envelope) -> asyncio.Future[None]:
        parameters = log.values(log_row(seq, envelope.id, envelope.raw))

        def job(tx: Transaction) -> None:
            tx.db.execute(log.sql, parameters)

        return store.submit(job)

    try:
        return await drive(messages, submit)
    finally:
        await store.close()


def job_of(envelope: Envelope) -> Job[object]:
    """The daemon's work for a received message."""

    def job(tx: Transaction) -> Applied:
        effects = decide(envelope, load_state(tx, envelope, US), RECEIVER)
        return Application(tx, US, NOW * 1000).receive(envelope, effects, inbox_capacity=1 << 40)

    return job


async def thread_decides(path: Path, messages: list[bytes], *, flooded: bool = False) -> float:
    """The jobs of a batch and their commit in one thread."""
    await (await Store.open(path)).close()
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, cached_statements=256)
    for pragma in PRAGMAS:
        db.execute(f"PRAGMA {pragma}")
    tx = Transaction(db, InMemoryState())
    waiting: collections.deque[tuple[Job[object], asyncio.Future[None]]] = collections.deque()
    bell = asyncio.Event()

    def commit(jobs: list[Job[object]]) -> None:
        db.execute("BEGIN IMMEDIATE")
        for job in jobs:
            job(tx)
        db.execute("COMMIT")
        tx.committed()

    async def committer() -> None:
        while True:
            await bell.wait()
            bell.clear()
            while waiting:
                batch = [waiting.popleft() for _ in range(min(BATCH_JOBS, len(waiting)))]
                await asyncio.to_thread(commit, [job for job, _ in batch])
                for _, future in batch:
                    future.set_result(None)

    def submit(_seq: int, envelope: Envelope) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append((job_of(envelope), future))
        bell.set()
        return future

    task = asyncio.create_task(committer())
    try:
        return await drive(messages, submit, flooded=flooded)
    finally:
        task.cancel()
        db.close()


async def loop_decides(path: Path, messages: list[bytes], *, flooded: bool = False) -> float:
    """The store as the daemon uses it."""
    store = await Store.open(path)

    def submit(_seq: int, envelope: Envelope) -> asyncio.Future[Any]:
        return store.submit(job_of(envelope))

    try:
        return await drive(messages, submit, flooded=flooded)
    finally:
        await store.close()


WAYS: dict[str, Callable[[Path, list[bytes]], Coroutine[Any, Any, float]]] = {
    "each": each,
    "group": group,
    "loop": loop,
    "thread*": thread_decides,
    "loop*": loop_decides,
    "thread!": partial(thread_decides, flooded=True),
    "loop!": partial(loop_decides, flooded=True),
}


def main() -> None:
    """Medians of alternating rounds, and their ratios."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=20_000)
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    messages = make(options.messages)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(options.rounds):
        for name, way in WAYS.items():
            # Some ways are slow: a tenth of the messages gives the same rate.
            part = messages[: max(1, len(messages) // 10)] if name in ("each", "thread!", "loop!") else messages
            with tempfile.TemporaryDirectory(prefix="store-write-") as folder:
                seconds = asyncio.run(way(Path(folder) / "store.db", part))
            rates[name].append(len(part) / seconds)
    middle = {name: statistics.median(found) for name, found in rates.items()}
    print(f"{'way':8}{'messages/s':>12}{'of each':>10}{'of thread*':>12}{'of thread!':>12}")
    for name, rate in middle.items():
        print(
            f"{name:8}{rate:12.0f}{rate / middle['each']:9.1f}x{rate / middle['thread*']:11.2f}x{rate / middle['thread!']:11.2f}x"
        )


if __name__ == "__main__":
    main()
