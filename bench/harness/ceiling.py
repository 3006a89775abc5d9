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


def message(number: int, raw: bytes) -> dict[str, Row]:
    """The values of the rows of one message, by table and column. A column that is left out is NULL, and a table that the store
    does not have is left out."""
    now = int(time.time() * 1000)
    return {
        "log": {
            "seq": number,
            "stream": number % 50,
            "verdict": 1,
            "received_ms": now,
            "id_key": secrets.randbits(63),
            "remember_until": now // 1000 + LIFE,
            "msg_id": json.loads(raw)["id"],
            "checksum": crc32(raw),
            "raw": raw,
        },
        "seen": {"slot": number, "key": raw[40:56]},
        "inbox": {"seq": number, "state": "ready", "attempts": 0, "available_ms": 0},
        "audit": {"n": number, "line": raw[:200], "hash": raw[40:72]},
    }


def commit(number: int) -> dict[str, Row]:
    """The values of the rows of one commit."""
    return {"meta": {"key": f"commit {number}", "value": number}}


class Table:
    """The statement of one table, and the values of all its rows."""

    def __init__(self, db: sqlite3.Connection, name: str) -> None:
        self._columns = [column for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", (name,))]
        marks = ", ".join("?" * len(self._columns))
        self.insert = f"INSERT INTO {name} ({', '.join(self._columns)}) VALUES ({marks})"
        self.rows: list[tuple[Any, ...]] = []

    def add(self, row: Row) -> None:
        """ValueError for a column that the schema does not have."""
        if unknown := row.keys() - set(self._columns):
            raise ValueError(f"no column {', '.join(unknown)}: {self.insert}")
        self.rows.append(tuple(map(row.get, self._columns)))


def prepared(db: sqlite3.Connection, count: int) -> list[list[Table]]:
    """The tables of each group, with their rows."""
    maker = EnvelopeMaker("flooder", "least")
    groups: list[list[Table]] = []
    for first in range(1, count + 1, _GROUP):
        numbers = range(first, min(first + _GROUP, count + 1))
        rows = [message(number, maker.say()) for number in numbers]
        tables = {name: Table(db, name) for name in (*rows[0], *commit(first)) if _exists(db, name)}
        for row in (*rows, commit(first)):
            for name, table in tables.items():
                if name in row:
                    table.add(row[name])
        groups.append(list(tables.values()))
    return groups


def _exists(db: sqlite3.Connection, table: str) -> bool:
    return db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone() is not None


def rate(path: Path, count: int) -> float:
    """Messages a second."""
    asyncio.run(_create(path))
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in _PRAGMAS:
        db.execute(f"PRAGMA {pragma}")
    groups = prepared(db, count)
    started = time.perf_counter()
    for tables in groups:
        db.execute("BEGIN IMMEDIATE")
        for table in tables:
            db.executemany(table.insert, table.rows)
        db.execute("COMMIT")
    took = time.perf_counter() - started
    db.close()
    return count / took


async def _create(path: Path) -> None:
    await (await Store.open(path)).close()


if __name__ == "__main__":
    with home() as folder:
        print(json.dumps(rate(folder.root / "store.db", int(sys.argv[1]))), flush=True)
