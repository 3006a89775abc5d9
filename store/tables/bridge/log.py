"""The logs of the foreign formats, bounded: the oldest rows are dropped first."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import Reader, insert_into
from aghbus.store.tables.envelopes import fetch

MAX_ROWS: Final = 100_000  # of one format
MAX_BYTES: Final = 256 * 1024 * 1024  # of the records of one format: a raw text may have a megabyte
PAGE_BYTES: Final = 8 * 1024 * 1024  # of the records in one answer

_ADD: Final = insert_into(
    "bridge_log",
    ("format", "seq", "direction", "message_id", "at_ms", "waits", "due_ms", "unwritten", "size", "record"),
)
_PAGE: Final = """
SELECT record FROM (
    SELECT id, record, sum(size) OVER (ORDER BY id DESC) AS bytes FROM bridge_log WHERE format = ? ORDER BY id DESC LIMIT ?
) WHERE bytes <= ? ORDER BY id
"""


_NAMING: Final = (
    "EXISTS (SELECT 1 FROM json_tree(CAST(l.record AS TEXT)) AS t JOIN json_each(?) AS n ON n.value = t.atom)"
)
_DETACHED: Final = "NOT EXISTS (SELECT 1 FROM log AS e WHERE e.seq = l.seq)"


class BridgeLogEntry(NamedTuple):
    """One row: its number, the sequence of the envelope (0: none was sent), `in` or `out`, when its message crossed (Unix
    milliseconds), in how many seconds it has to be answered (None: it awaits no answer), and the format's record of it."""

    id: int
    seq: int
    direction: str
    at_ms: int
    waits: int | None
    record: dict[str, Any]


_SELECT: Final = "SELECT id, seq, direction, at_ms, waits, record FROM bridge_log"


def add(
    tx: Transaction,
    name: str,
    direction: str,
    record: Mapping[str, Any],
    *,
    at_ms: int,
    seq: int = 0,
    message_id: str | None = None,
    waits: int | None = None,
    due_ms: int | None = None,
    unwritten: bool = False,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Keeps a row of the log of format `name` and drops the oldest beyond the bounds.

    `seq`, `at_ms` and `waits` are those of BridgeLogEntry; `due_ms` is when the message expires unanswered, `unwritten` that
    it is still to be written to a log file.
    """
    encoded = msgspec.json.encode(record)
    tx.memory.bridged = True
    values = (name, seq, direction, message_id, at_ms, waits, due_ms, int(unwritten), len(encoded), encoded)
    tx.db.execute(_ADD, values)
    rows, size = _grow(tx, name, 1, len(encoded))
    while rows > 1 and (rows > max_rows or size > max_bytes):
        (gone,) = tx.db.execute(
            "DELETE FROM bridge_log WHERE id = (SELECT id FROM bridge_log WHERE format = ? ORDER BY id LIMIT 1) RETURNING size",
            (name,),
        ).fetchone()
        rows, size = _grow(tx, name, -1, -gone)


def has(tx: Transaction, name: str, seq: int) -> bool:
    """Whether the envelope `seq` has its row."""
    row = tx.db.execute("SELECT 1 FROM bridge_log WHERE seq = ? AND seq > 0 AND format = ?", (seq, name)).fetchone()
    return row is not None


def of_message(tx: Transaction, name: str, message_id: str, direction: str) -> BridgeLogEntry | None:
    """The latest row of the message with this id of its own."""
    row = tx.db.execute(
        f"{_SELECT} WHERE message_id = ? AND format = ? AND direction = ? ORDER BY id DESC LIMIT 1",
        (message_id, name, direction),
    ).fetchone()
    return None if row is None else _entry(row)


def set_due(tx: Transaction, row: int, due_ms: int | None) -> None:
    """The message of this row expires at `due_ms`; None: it was answered, and does not expire any more."""
    tx.db.execute("UPDATE bridge_log SET due_ms = ? WHERE id = ?", (due_ms, row))


def replace(tx: Transaction, row: int, record: Mapping[str, Any]) -> None:
    """Replaces the record of this row, which does not expire any more."""
    tx.db.execute("UPDATE bridge_log SET record = ?, due_ms = NULL WHERE id = ?", (msgspec.json.encode(record), row))


def due(tx: Transaction, now_ms: int, limit: int) -> list[BridgeLogEntry]:
    """Rows that expired unanswered by `now_ms`, oldest first."""
    found = tx.db.execute(f"{_SELECT} WHERE due_ms <= ? ORDER BY due_ms LIMIT ?", (now_ms, limit))
    return [_entry(row) for row in found]


def next_due_ms(tx: Transaction) -> int | None:
    """When the next row expires, in Unix milliseconds; None when none will."""
    value: int | None = tx.db.execute("SELECT min(due_ms) FROM bridge_log WHERE due_ms IS NOT NULL").fetchone()[0]
    return value


async def nothing_due(reader: Reader) -> bool:
    """Whether no row is going to expire."""
    return not await fetch(reader, "SELECT 1 FROM bridge_log WHERE due_ms IS NOT NULL LIMIT 1", [])


async def page(reader: Reader, name: str, limit: int) -> list[dict[str, Any]]:
    """The newest `limit` records of a format as far as they fit PAGE_BYTES, oldest first."""
    rows = await fetch(reader, _PAGE, [name, limit, PAGE_BYTES])
    return [msgspec.json.decode(record) for (record,) in rows]


async def unwritten(reader: Reader, limit: int) -> list[BridgeLogEntry]:
    """Rows that are still to be written to a log file, in order."""
    return [_entry(row) for row in await fetch(reader, f"{_SELECT} WHERE unwritten = 1 ORDER BY id LIMIT ?", [limit])]


def written(tx: Transaction, rows: list[int]) -> None:
    """These rows are written to their files."""
    tx.db.executemany("UPDATE bridge_log SET unwritten = 0 WHERE id = ?", [(row,) for row in rows])


class Doomed(NamedTuple):
    """A row that is to be removed, and what it has of a log file."""

    id: int
    format: str
    record: dict[str, Any]


async def of_envelopes(reader: Reader, seqs: Sequence[int]) -> list[Doomed]:
    """The rows of these envelopes."""
    return await _doomed(reader, "seq > 0 AND seq IN (SELECT value FROM json_each(?))", list(seqs))


async def before(reader: Reader, at_ms: int) -> list[Doomed]:
    """Rows whose message crossed the bridge before `at_ms` and whose envelope is not stored, if one was sent."""
    return await _doomed(reader, f"at_ms < json_extract(?, '$[0]') AND {_DETACHED}", [at_ms])


async def naming(reader: Reader, texts: Sequence[str]) -> list[Doomed]:
    """Rows whose record has one of these texts as a value, and whose envelope is not stored. Reads the whole log."""
    return await _doomed(reader, f"{_DETACHED} AND {_NAMING}", list(texts))


def remove(tx: Transaction, rows: Sequence[Doomed]) -> int:
    """Removes these rows. Returns how many were left."""
    removed = 0
    for row in rows:
        found = tx.db.execute("DELETE FROM bridge_log WHERE id = ? RETURNING size", (row.id,)).fetchone()
        if found is not None:
            removed += 1
            _grow(tx, row.format, -1, -found[0])
    return removed


async def _doomed(reader: Reader, where: str, values: Sequence[int | str]) -> list[Doomed]:
    sql = f"SELECT id, format, record FROM bridge_log AS l WHERE {where}"  # noqa: S608 - constants
    rows = await fetch(reader, sql, [msgspec.json.encode(values).decode()])
    return [Doomed(number, name, msgspec.json.decode(record)) for number, name, record in rows]


def _grow(tx: Transaction, name: str, rows: int, size: int) -> tuple[int, int]:
    found = tx.db.execute(
        "INSERT INTO bridge_log_sizes (format, row_count, bytes) VALUES (?1, ?2, ?3)"
        " ON CONFLICT DO UPDATE SET row_count = row_count + ?2, bytes = bytes + ?3 RETURNING row_count, bytes",
        (name, rows, size),
    ).fetchone()
    return int(found[0]), int(found[1])


def _entry(row: tuple[Any, ...]) -> BridgeLogEntry:
    return BridgeLogEntry._make((*row[:-1], msgspec.json.decode(row[-1])))
