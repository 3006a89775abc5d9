"""The indexes of the log, written behind: for every SEGMENT envelopes one batch of sorted rows.

The number of the segment leads every key, so that each batch is an append, and its cost does not depend on the ids that
senders choose. A search asks every segment, and the tail in memory (tail.py). The indexes say nothing that the log does
not: a store without them is complete, and opening it makes them again.
"""

import logging
import sqlite3
from collections.abc import Callable
from typing import Final

import msgspec

SEGMENT: Final = 16_384  # envelopes

_TABLES: Final = """
-- Segments of the log by number, with the sequences that they cover: (first_seq - 1, last_seq].
CREATE TABLE IF NOT EXISTS segments (
    n INTEGER PRIMARY KEY,
    first_seq INTEGER NOT NULL,
    last_seq INTEGER NOT NULL,
    remember_until INTEGER NOT NULL -- the latest of its envelopes
) STRICT;

CREATE TABLE IF NOT EXISTS log_ids (
    segment INTEGER NOT NULL,
    id_key INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    remember_until INTEGER NOT NULL,
    PRIMARY KEY (segment, id_key, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS log_streams (
    segment INTEGER NOT NULL,
    stream INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (segment, stream, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS log_works (
    segment INTEGER NOT NULL,
    work_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (segment, work_id, seq)
) STRICT, WITHOUT ROWID;
"""
INDEXES: Final = ("log_ids", "log_streams", "log_works")
_ADD: Final = (
    """
    INSERT INTO log_ids (segment, id_key, seq, stream, remember_until)
    SELECT :n, k.value, l.seq, l.stream, l.remember_until
    FROM json_each(:keys) AS k CROSS JOIN log AS l ON l.seq = k.key ORDER BY k.value, l.seq
    """,
    """
    INSERT INTO log_streams (segment, stream, seq)
    SELECT :n, stream, seq FROM log_ids WHERE segment = :n ORDER BY stream, seq
    """,
    """
    UPDATE streams SET messages = streams.messages + new.messages,
        first_ms = coalesce(streams.first_ms, new.first_ms), last_ms = new.last_ms, last_seq = new.last_seq
    FROM (
        SELECT stream, count(*) AS messages, min(received_ms) AS first_ms, max(received_ms) AS last_ms,
            max(seq) AS last_seq
        FROM log WHERE seq BETWEEN :first AND :last GROUP BY stream
    ) AS new WHERE streams.id = new.stream
    """,
    """
    INSERT INTO segments (n, first_seq, last_seq, remember_until)
    SELECT :n, :first, :last, coalesce(max(remember_until), 0) FROM log_ids WHERE segment = :n
    """,
)
_ADD_WORKS: Final = """
    INSERT INTO log_works (segment, work_id, seq)
    SELECT :n, work_id, seq FROM log WHERE seq BETWEEN :first AND :last AND work_id IS NOT NULL ORDER BY work_id, seq
    """
_NEXT: Final = "SELECT coalesce(max(n), 0) + 1, coalesce(max(last_seq), 0) + 1 FROM segments"
_IDS: Final = "SELECT seq, msg_id FROM log WHERE seq > ? AND seq <= ?"
_END: Final = "SELECT seq FROM log WHERE seq >= ? ORDER BY seq LIMIT 1 OFFSET ?"
_COUNTS: Final = """
SELECT g.first_seq, g.last_seq,
    (SELECT count(*) FROM log_ids WHERE segment >= g.n), (SELECT count(*) FROM log_streams WHERE segment >= g.n),
    (SELECT count(*) FROM log_works WHERE segment >= g.n)
FROM segments AS g ORDER BY g.n DESC LIMIT 1
"""
_LOGGED: Final = "SELECT count(*), count(work_id) FROM log WHERE seq BETWEEN ? AND ?"

_log = logging.getLogger("aghbus.store")


def last_indexed(db: sqlite3.Connection) -> int:
    """The last sequence that the indexes have; 0 for none."""
    (_, first) = db.execute(_NEXT).fetchone()
    return int(first) - 1


def write(db: sqlite3.Connection, last_seq: int, keys: dict[int, int], *, with_works: bool = True) -> None:
    """Writes the next segment, up to sequence `last_seq`, in a transaction of its own. `keys` are those of the ids of its
    envelopes, by sequence: SQL that called Python for each would wait for the interpreter lock as often. `with_works`:
    whether any of them may belong to a work."""
    document = msgspec.json.encode(keys).decode()
    db.execute("BEGIN IMMEDIATE")
    try:
        n, first = db.execute(_NEXT).fetchone()
        for sql in (*_ADD, _ADD_WORKS) if with_works else _ADD:
            db.execute(sql, {"n": n, "first": first, "last": last_seq, "keys": document})
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def prepare(db: sqlite3.Connection, segment: int, key_of: Callable[[str], int]) -> None:
    """Makes the indexes of a store that is being opened complete, up to less than `segment` envelopes; all of them
    anew when rows or tables are missing."""
    db.executescript(_TABLES)
    if not _end_is_complete(db):
        _log.warning("the indexes of the log are not complete: they are made again")
        clear(db)
    while (last := _full_segment(db, segment)) is not None:
        ids = db.execute(_IDS, (last_indexed(db), last))
        write(db, last, {seq: key_of(message_id) for seq, message_id in ids})


def clear(db: sqlite3.Connection) -> None:
    """Empties the indexes: the next opening makes them again."""
    for table in ("segments", *INDEXES):
        db.execute(f"DELETE FROM {table}")  # noqa: S608 - constants
    db.execute("UPDATE streams SET messages = 0, first_ms = NULL, last_ms = NULL, last_seq = 0")


def _end_is_complete(db: sqlite3.Connection) -> bool:
    """Whether the last segment has all rows, as far as their numbers tell. No other transaction has written any."""
    row = db.execute(_COUNTS).fetchone()
    if row is None:
        derived = (*INDEXES, "streams WHERE messages <> 0")  # counts are left when a kill interrupts `clear`
        return not any(db.execute(f"SELECT 1 FROM {rows} LIMIT 1").fetchone() for rows in derived)  # noqa: S608 - constants
    first, last, ids, streams, works = row
    envelopes, with_work = db.execute(_LOGGED, (first, last)).fetchone()
    return bool((ids, streams, works) == (envelopes, envelopes, with_work))


def _full_segment(db: sqlite3.Connection, segment: int) -> int | None:
    """The last sequence of the next segment; None when its envelopes are not all there yet."""
    row = db.execute(_END, (last_indexed(db) + 1, segment - 1)).fetchone()
    return None if row is None else int(row[0])


SEQS_OF_ID: Final = """
SELECT i.seq FROM segments AS g CROSS JOIN log_ids AS i ON i.segment = g.n AND i.id_key = ?
UNION ALL SELECT value FROM json_each(?)
"""
"""The sequences of an id: a subquery with the parameters of `LogMemory.of_id`."""
SEQS_OF_WORK: Final = """
SELECT i.seq FROM segments AS g CROSS JOIN log_works AS i ON i.segment = g.n AND i.work_id = ?
UNION ALL SELECT value FROM json_each(?)
"""
"""The sequences of a work: a subquery with the parameters of `LogMemory.of_work`."""
