"""Three ways to make messages durable in SQLite, side by side in one run: `python -m bench.store_write [--messages N]`.

Each message is parsed from its bytes and leaves three rows (seen, envelope, inbox) in a WAL database with synchronous=FULL. They
arrive as from a subscription: in bursts, parsed while earlier ones are being committed, with at most IN_FLIGHT not yet durable. So
the event loop is as busy as the daemon's is. Only the ratios carry over to another machine.

- each:   an aiosqlite commit for each message
- group:  aiosqlite, whatever waits in one executemany per table and one commit, in its thread
- loop:   INSERT on the event loop, whatever waits shares a commit, only COMMIT in a thread (store/writer.py)
"""

import argparse
import asyncio
import collections
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import aiosqlite

from aghbus.protocol.envelope import Envelope, parse
from aghbus.protocol.sending import Draft, build
from aghbus.store.database import Store
from aghbus.store.dedup import key_of
from aghbus.store.transaction import Transaction
from aghbus.store.writer import BATCH_JOBS

NOW = 1_776_366_000
IN_FLIGHT = 4096
BURST = 64  # messages that one read of a socket brings
SEEN = "INSERT INTO seen (slot, key) VALUES (?, ?)"
INBOX = "INSERT INTO inbox (seq, state, attempts, available_ms) VALUES (?, 'ready', 0, 0)"
ENVELOPE = """
INSERT INTO envelopes (seq, direction, workspace_id, channel, kind, msg_id, sender, recipient, surface, container, trust,
    received_ms, raw) VALUES (?, 'in', ?, ?, ?, ?, ?, ?, ?, ?, 'unverified', ?, ?)
"""
Rows = tuple[tuple[object, ...], tuple[object, ...], tuple[object, ...]]
Submit = Callable[[int, Envelope], asyncio.Future[None]]


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
            container="thread_bench",
            body={"text": "x" * 250},
        )
        for number in range(count)
    )
    return [build(draft, NOW).raw for draft in drafts]


def rows_of(seq: int, envelope: Envelope) -> Rows:
    """The parameters of the three statements."""
    stored = (
        seq,
        envelope.workspace_id,
        envelope.channel,
        envelope.kind,
        envelope.id,
        envelope.sender,
        envelope.to,
        envelope.surface,
        envelope.container,
        NOW * 1000,
        envelope.raw,
    )
    return (seq, key_of(envelope)), stored, (seq,)


async def drive(messages: list[bytes], submit: Submit) -> float:
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
    for pragma in ("synchronous = FULL", "foreign_keys = ON", "cache_size = -16384", "wal_autocheckpoint = 4096"):
        await db.execute(f"PRAGMA {pragma}")
    return db


async def aiosqlite_way(path: Path, messages: list[bytes], most: int) -> float:
    """Up to `most` of those that wait in one commit, all of it in aiosqlite's thread."""
    db = await prepared(path)
    waiting: collections.deque[tuple[Rows, asyncio.Future[None]]] = collections.deque()
    bell = asyncio.Event()

    async def committer() -> None:
        while True:
            await bell.wait()
            bell.clear()
            while waiting:
                batch = [waiting.popleft() for _ in range(min(most, len(waiting)))]
                await db.execute("BEGIN IMMEDIATE")
                for place, sql in enumerate((SEEN, ENVELOPE, INBOX)):
                    await db.executemany(sql, [rows[place] for rows, _ in batch])
                await db.commit()
                for _, future in batch:
                    future.set_result(None)

    def submit(seq: int, envelope: Envelope) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting.append((rows_of(seq, envelope), future))
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

    def submit(seq: int, envelope: Envelope) -> asyncio.Future[None]:
        seen, stored, inbox = rows_of(seq, envelope)

        def job(tx: Transaction) -> None:
            tx.db.execute(SEEN, seen)
            tx.db.execute(ENVELOPE, stored)
            tx.db.execute(INBOX, inbox)

        return store.submit(job)

    try:
        return await drive(messages, submit)
    finally:
        await store.close()


def main() -> None:
    """Medians of alternating rounds, and their ratios."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--messages", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=3)
    options = arguments.parse_args()
    messages = make(options.messages)
    rates: dict[str, list[float]] = {"each": [], "group": [], "loop": []}
    for _ in range(options.rounds):
        for way in (each, group, loop):
            # One commit per message is slow: a tenth of the messages gives the same rate.
            part = messages[: max(1, len(messages) // 10)] if way is each else messages
            with tempfile.TemporaryDirectory(prefix="store-write-") as folder:
                seconds = asyncio.run(way(Path(folder) / "store.db", part))
            rates[way.__name__].append(len(part) / seconds)
    base = statistics.median(rates["each"])
    print(f"{'way':8}{'messages/s':>12}{'of `each`':>12}")
    for name, found in rates.items():
        middle = statistics.median(found)
        print(f"{name:8}{middle:12.0f}{middle / base:11.1f}x")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
