"""What the schema allows: `python -m bench.harness.ceiling COUNT` stores so many messages with bare sqlite3; messages a second.

A new store of the product gets the rows that it would have for as many says, and no others, in groups of 512: one `executemany` a
table and a commit (WAL, synchronous = FULL). There is no broker, no parsing, no rule, no index written behind. The values are made
before the clock starts. Columns are read from the store, so that the statements follow the schema.
"""

import asyncio
import json
import secrets
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, Final
from zlib import crc32

from aghbus.store.engine.database import Store
from bench.harness.envelopes import LIFE, EnvelopeMaker
from bench.harness.processes import home

_GROUP: Final = 512
_PRAGMAS: Final = ("synchronous = FULL", "cache_size = -16384", "wal_autocheckpoint = 4096")
Row = dict[str, Any]
"""Values by column; a column that is left out is NULL."""


def message_rows(number: int, message_id: str, raw: bytes) -> dict[str, Row]:
    """The rows of message `number`, by table."""
    now = time.time_ns() // 1_000_000
    return {
        "log": {
            "seq": number,
            "stream": number % 50,
            "verdict": 1,
            "received_ms": now,
            "id_key": secrets.randbits(63),
            "remember_until": now // 1000 + LIFE,
            "msg_id": message_id,
            "checksum": crc32(raw),
            "raw": raw,
        },
    }


def commit_rows(number: int, last_seq: int) -> dict[str, Row]:
    """The rows of commit `number`, by table."""
    digest = secrets.token_bytes(32)
    return {
        "chain": {
            "n": number,
            "at_ms": time.time_ns() // 1_000_000,
            "last_seq": last_seq,
            "content": digest,
            "hash": digest,
        }
    }


class Insert:
    """The statement that adds a row to a table of the store, with all its columns."""

    def __init__(self, db: sqlite3.Connection, table: str) -> None:
        self._columns = [column for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,))]
        self.sql = f"INSERT INTO {table} ({', '.join(self._columns)}) VALUES ({', '.join('?' * len(self._columns))})"

    def values(self, row: Row) -> tuple[Any, ...]:
        """The parameters for `row`. ValueError for a column that the table does not have."""
        if unknown := row.keys() - set(self._columns):
            raise ValueError(f"no column {', '.join(unknown)}: {self.sql}")
        return tuple(map(row.get, self._columns))


def inserts(db: sqlite3.Connection, rows: dict[str, Row]) -> dict[str, Insert]:
    """The statements for `rows`, by table."""
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return {table: Insert(db, table) for table in rows if table in tables}


def prepared(db: sqlite3.Connection, count: int) -> list[list[tuple[str, list[tuple[Any, ...]]]]]:
    """For each commit the statements and the values of their rows."""
    maker = EnvelopeMaker("flooder", "least")
    ways = inserts(db, message_rows(0, "", bytes(100)) | commit_rows(0, 0))
    commits = []
    for number, first in enumerate(range(1, count + 1, _GROUP), 1):
        last = min(first + _GROUP - 1, count)
        rows: dict[str, list[tuple[Any, ...]]] = {table: [] for table in ways}
        messages = ((seq, maker.say()) for seq in range(first, last + 1))
        every = [message_rows(seq, json.loads(raw)["id"], raw) for seq, raw in messages]
        for one in (*every, commit_rows(number, last)):
            for table in one.keys() & ways.keys():
                rows[table].append(ways[table].values(one[table]))
        commits.append([(ways[table].sql, values) for table, values in rows.items()])
    return commits


def rate(path: Path, count: int) -> float:
    """Messages a second."""
    asyncio.run(_create(path))
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in _PRAGMAS:
        db.execute(f"PRAGMA {pragma}")
    commits = prepared(db, count)
    started = time.perf_counter()
    for statements in commits:
        db.execute("BEGIN IMMEDIATE")
        for sql, values in statements:
            db.executemany(sql, values)
        db.execute("COMMIT")
    took = time.perf_counter() - started
    db.close()
    return count / took


async def _create(path: Path) -> None:
    await (await Store.open(path)).close()


if __name__ == "__main__":
    with home() as folder:
        print(json.dumps(rate(folder.root / "store.db", int(sys.argv[1]))), flush=True)
