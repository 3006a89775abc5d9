"""The types of both SQLite libraries, which only this package imports, generated text of SQL statements, and their own function.

Each envelope is stored with the CRC-32 of its bytes, because SQLite keeps no checksum of its pages. Queries that read an
envelope compare the two by the SQL function `intact(seq, raw, checksum)`, which both connections of a store have. It detects
damage, not forgery: `aghd check-store` verifies the ledger.
"""

import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from sqlite3 import Connection, Cursor, OperationalError, connect
from sqlite3 import Error as DatabaseError
from typing import Any, Final, TypeVar
from zlib import crc32

import msgspec
from aiosqlite import Connection as AsyncConnection

from aghbus.protocol.base.text import escape, shorten
from aghbus.store.engine.gil_yield import yield_gil_while
from aghbus.store.engine.log.memory import LogMemory
from aghbus.store.errors import StoreUnavailable

__all__ = [
    "INBOX_POSITION",
    "INBOX_STATE",
    "INTACT",
    "INTACT_RAW",
    "READ_HINT",
    "Connection",
    "Cursor",
    "DamagedEnvelopes",
    "DatabaseError",
    "OperationalError",
    "Query",
    "Reader",
    "Reading",
    "as_struct",
    "encodable",
    "ends_in",
    "insert_into",
    "is_environment",
    "placeholders",
    "primary_code",
    "read",
    "read_all",
    "with_bools",
]

INTACT: Final = "intact(e.seq, e.raw, e.checksum)"
"""Whether the envelope of row `e` is as it was stored, in SQL."""
INTACT_RAW: Final = f"CASE WHEN {INTACT} THEN e.raw END"
"""The bytes of the envelope of row `e`, NULL when they are damaged, in SQL."""
INBOX_POSITION: Final = "(SELECT value FROM meta WHERE key = 'inbox_position')"
"""The sequence up to which delivered envelopes without a row in table `inbox` are acked, in SQL."""
INBOX_STATE: Final = f"""coalesce((SELECT state FROM inbox WHERE seq = e.seq),
    CASE WHEN e.inbox = 1 THEN iif(e.seq > {INBOX_POSITION}, 'ready', 'acked') END)"""  # noqa: S608 - constants
"""The state in the inbox of the envelope of row `e`, NULL when it is not in the inbox, in SQL."""
CHECKSUM_BASE: Final = 1 << 31
"""A checksum is the CRC-32 minus this number: SQLite stores it in four bytes."""
READ_HINT: Final = "the disk cannot be read: look for I/O errors in the kernel's log (dmesg)"
"""What else an error may mean that SQLite reports as damage."""
# Result codes that say something about the disk, the file or another process, not about the job: sqlite.org/rescode.html
_ENVIRONMENT: Final = frozenset(
    [
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_NOTADB,
    ]
)
_CHUNK: Final = 64  # rows that an iteration takes from the thread at a time
_MAX_SEQS: Final = 1_000  # damaged envelopes that are remembered
S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

Query = tuple[str, Sequence[Any]]
"""A statement and its parameters."""


class Reader(AsyncConnection):
    """A connection that can only read and never blocks the writer. `log` finds what the indexes do not have yet: ask it
    on the event loop, just before the query. It may name envelopes that are not committed, which no query finds.

    `here` is a connection for the event loop: for queries that read a few pages by key, which take less time than the
    way to the thread and back."""

    def __init__(self, path: Path, log: LogMemory) -> None:
        opened = partial(connect, f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
        super().__init__(opened, _CHUNK)
        self.log: Final = log
        self.here: Final[Connection] = opened()
        self.error: str | None = None
        """Why the last read failed, safe to print; None if it did not."""

    async def close(self) -> None:
        """Closes both connections."""
        await super().close()
        self.here.close()

    async def all_of(self, queries: Sequence[Query], rows_of: Callable[[Cursor], T]) -> list[T]:
        """The rows of each query, as `rows_of` takes them from its cursor, in one visit to the thread."""
        return await self._execute(self._all_of, queries, rows_of)  # type: ignore[no-untyped-call,no-any-return]

    def _all_of(self, queries: Sequence[Query], rows_of: Callable[[Cursor], T]) -> list[T]:
        return [rows_of(self._conn.execute(*query)) for query in queries]


async def read(reader: Reader, sql: str, params: Sequence[Any] = ()) -> list[Any]:
    """All rows of a query. Raises StoreUnavailable when the file cannot be read now."""
    return (await read_all(reader, [(sql, params)], Cursor.fetchall))[0]


async def read_all(reader: Reader, queries: Sequence[Query], rows_of: Callable[[Cursor], T]) -> list[T]:
    """The rows of each query, as `rows_of` takes them from its cursor, for one wait. Raises StoreUnavailable when the file
    cannot be read now."""
    with Reading(reader):
        return await yield_gil_while(reader.all_of(queries, rows_of))


class Reading:
    """A block that reads, by `Reader.here` or by the thread. Raises StoreUnavailable when the file cannot be read now."""

    __slots__ = ("_reader",)

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __enter__(self) -> Connection:
        """`Reader.here`."""
        return self._reader.here

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and is_environment(error):
            self._reader.error = escape(str(error))
            raise StoreUnavailable(f"the store cannot be read: {self._reader.error}", hint=READ_HINT) from error
        if error is None:
            self._reader.error = None


def primary_code(error: Exception) -> int:
    """The primary result code; 0 for errors that Python's module raises itself."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF


def is_environment(error: Exception) -> bool:
    """Whether an error is one of the disk, the file or another process, and not of the statement."""
    return isinstance(error, DatabaseError) and primary_code(error) in _ENVIRONMENT


def placeholders(columns: Collection[object]) -> str:
    """One `?` for each column: `?, ?, ?`."""
    return ", ".join("?" * len(columns))


def ends_in(column: str, end: str) -> str:
    """The condition that the text in `column` ends in `end`, which is its one parameter."""
    return f"substr({column}, -{len(end)}) = ?"


def insert_into(table: str, columns: Collection[str], conflict: str = "") -> str:
    """`INSERT INTO table (columns) VALUES (?, …)`, and its ON CONFLICT clause."""
    return f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({placeholders(columns)}) {conflict}"  # noqa: S608 - constants


def with_bools(row: Iterable[Any], *columns: int) -> list[Any]:
    """The values of `row`, those of these columns as booleans, which SQLite does not have."""
    values = list(row)
    for column in columns:
        values[column] = bool(values[column])
    return values


def as_struct(kind: type[S], row: Iterable[Any], **more: Any) -> S:
    """A struct whose first fields are the values of `row`, in order; `more` has the others."""
    return kind(**dict(zip(kind.__struct_fields__, row, strict=False)), **more)


def encodable(text: str, limit: int) -> str:
    """At most `limit` characters of `text`, as UTF-8 can encode them: a text read from an invalid envelope may hold
    lone surrogates."""
    return shorten(text, limit).encode(errors="backslashreplace").decode()


def checksum_of(raw: bytes) -> int:
    """The checksum that is stored with these bytes."""
    return crc32(raw) - CHECKSUM_BASE


class DamagedEnvelopes:
    """The sequences of the envelopes that reads found damaged. Its methods may be called in any thread."""

    def __init__(self) -> None:
        self._seqs: set[int] = set()

    def intact(self, seq: int, raw: bytes | None, checksum: int | None) -> bool:
        """The SQL function. True where there is no row to compare."""
        if raw is None or checksum_of(raw) == checksum:
            return True
        if len(self._seqs) < _MAX_SEQS:
            self._seqs.add(seq)
        return False

    def problems(self) -> tuple[str, ...]:
        """A sentence for the operator, if there are any."""
        if not self._seqs:
            return ()
        which = ", ".join(map(str, sorted(self._seqs)[:5]))
        return (f"{len(self._seqs)} stored envelopes are damaged (sequence {which}): run `aghd check-store`",)
