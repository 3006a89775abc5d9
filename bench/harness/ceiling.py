"""What the schema allows: `python -m bench.harness.ceiling COUNT` stores so many messages with bare sqlite3; messages a second.

A new store of the product gets the rows that it would have for as many says, and no others: in groups of 512 their rows of the
log in one `executemany`, an entry of the ledger and a commit (WAL, synchronous = FULL). There is no broker, no parsing, no rule and
no index written behind. The values are made before the clock starts. The columns are read from the store, so that a changed
schema is an error here and not a wrong figure.
"""

import asyncio
import json
import secrets
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any, Final

from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import checksum_of
from bench.harness.envelopes import LIFE, EnvelopeMaker
from bench.harness.processes import home

_GROUP: Final = 512
_PRAGMAS: Final = ("synchronous = FULL", "cache_size = -16384", "wal_autocheckpoint = 4096")
Row = dict[str, Any]
"""Values by column; a column that is left out is NULL."""


def log_row(seq: int, message_id: str, raw: bytes) -> Row:
    """The row of a say."""
    now = time.time_ns() // 1_000_000
    return {
        "seq": seq,
        "flow": seq % 50,
        "verdict": 1,
        "received_ms": now,
        "remember_until": now // 1000 + LIFE,
        "msg_id": message_id,
        "checksum": checksum_of(raw),
        "raw": raw,
    }


def ledger_row(number: int, last_seq: int) -> Row:
    """The entry of a commit."""
    digest = secrets.token_bytes(32)
    return {
        "n": number,
        "at_ms": time.time_ns() // 1_000_000,
        "last_seq": last_seq,
        "content": digest,
        "hash": digest,
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


def rate(path: Path, count: int) -> float:
    """Messages a second."""
    asyncio.run(_create(path))
    db = sqlite3.connect(path, isolation_level=None)
    for pragma in _PRAGMAS:
        db.execute(f"PRAGMA {pragma}")
    log, ledger, maker = Insert(db, "log"), Insert(db, "ledger"), EnvelopeMaker("flooder", "least")
    raws = [maker.say() for _ in range(count)]
    rows = [log.values(log_row(seq, json.loads(raw)["id"], raw)) for seq, raw in enumerate(raws, 1)]
    groups = [rows[first : first + _GROUP] for first in range(0, count, _GROUP)]
    entries = [ledger.values(ledger_row(number, group[-1][0])) for number, group in enumerate(groups, 1)]
    started = time.perf_counter()
    for group, entry in zip(groups, entries, strict=True):
        db.execute("BEGIN IMMEDIATE")
        db.executemany(log.sql, group)
        db.execute(ledger.sql, entry)
        db.execute("COMMIT")
    took = time.perf_counter() - started
    db.close()
    return count / took


async def _create(path: Path) -> None:
    await (await Store.open(path)).close()


if __name__ == "__main__":
    with home() as folder:
        print(json.dumps(rate(folder.root / "store.db", int(sys.argv[1]))), flush=True)
