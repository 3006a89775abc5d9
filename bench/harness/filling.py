"""Stores that have already seen a lot, written with SQL between two lives of the daemon: the daemon then reads them as its own."""

import asyncio
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from zlib import crc32

from aghbus.store.engine.database import Store
from bench.harness.envelopes import CHANNEL, WORKSPACE, EnvelopeMaker

_CHUNK: Final = 100_000  # rows of one transaction
_NUMBERS: Final = "WITH RECURSIVE numbers (n) AS (SELECT :first UNION ALL SELECT n + 1 FROM numbers WHERE n < :last) "
_SEEN: Final = _NUMBERS + "INSERT INTO seen (slot, key) SELECT (:minute << 36) + n, randomblob(16) FROM numbers"
_STREAMS: Final = 5000
_STREAM: Final = """
INSERT OR IGNORE INTO streams (id, workspace_id, channel, sender, recipient, surface, container)
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < :streams)
SELECT n, :workspace, :channel, 'flooder', :us, 'thread', printf('thread_%06d', n) FROM numbers"""
_VERDICT: Final = """
INSERT OR IGNORE INTO verdicts (id, direction, kind, trust, inbox) VALUES (1, 'in', 'say', 'unverified', 1)"""
_LOG: Final = (
    _NUMBERS
    + """
INSERT INTO log (stream, verdict, received_ms, id_key, remember_until, msg_id, checksum, raw)
SELECT n % :streams + 1, 1, :now, random(), 0, printf('msg_%016x%012x', :now, n), :checksum, :raw FROM numbers"""
)
_ENVELOPES: Final = (_STREAM, _VERDICT, _LOG)
_WORKS: Final = (
    _NUMBERS
    + """
INSERT INTO works (workspace_id, channel, work_id, surface, container, initiator, target, role, state, trust, opening_id,
    advanced, opened_seq, opened_ms, last_seq, updated_ms, text)
SELECT :workspace, :channel, printf('work_%08d', n), 'thread', printf('thread_%06d', n), 'flooder', :us, 'target', 'working',
    'unverified', printf('msg_%016x%012x', :now, n), 1, n, :now, n, :now, 'do this' FROM numbers"""
)
_INBOX: Final = _NUMBERS + "INSERT INTO inbox (seq, state, attempts, available_ms) SELECT n, 'ready', 0, 0 FROM numbers"
_STATEMENTS: Final = {
    "dedup": (_SEEN,),
    "stored": _ENVELOPES,
    "works": (*_ENVELOPES, _WORKS),
    "inbox": (*_ENVELOPES, _INBOX),
}
_FAST: Final = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -262144")
"""Nobody reads the store meanwhile, and when this fails it is thrown away: a third of the time. The cache is in KiB."""
_ROW_BYTES: Final = 1_200  # of an envelope with its indexes, rounded up
_SPARE: Final = 2 << 30  # bytes that are left to others


def room_for(what: str, count: int) -> str:
    """Why so many rows have no room in the temporary folder; empty when they do."""
    need, free = count * _ROW_BYTES + _SPARE, shutil.disk_usage(tempfile.gettempdir()).free
    if what in _STATEMENTS and count > _CHUNK and need > free:
        return f"{need >> 30} GiB are needed in {tempfile.gettempdir()}, {free >> 30} are free"
    return ""


def fill(path: Path, what: str, count: int, us: str, step: Callable[[str], bool]) -> bool:
    """A new store at `path` of the peer `us` with `count` remembered ids (`dedup`), envelopes (`stored`), open works with their
    openings (`works`) or messages that wait (`inbox`). `step` is called with the progress, and says whether there
    is still time: when there is none the store is removed. Whether it was filled."""
    path.parent.mkdir(parents=True, mode=0o700)
    asyncio.run(_create(path))
    now = time.time()
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in _FAST:
        db.execute(f"PRAGMA {pragma}")
    raw = EnvelopeMaker("flooder", us).say()
    values = {
        "workspace": WORKSPACE,
        "channel": CHANNEL,
        "us": us,
        "now": int(now * 1000),
        "minute": int(now) // 60 + 24 * 60,
        "streams": _STREAMS,
        "raw": raw,
        "checksum": crc32(raw),
    }
    for first in range(1, count + 1, _CHUNK):
        if not step(f"{what}: {first - 1:,} of {count:,} rows"):
            db.close()
            path.unlink()
            return False
        db.execute("BEGIN")
        for statement in _STATEMENTS[what]:
            db.execute(statement, {**values, "first": first, "last": min(first + _CHUNK - 1, count)})
        db.execute("COMMIT")
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    return True


async def _create(path: Path) -> None:
    await (await Store.open(path)).close()
