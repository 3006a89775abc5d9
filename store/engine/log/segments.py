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

from aghbus.store.engine.log.tail import TailRow

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
    flow INTEGER NOT NULL,
    remember_until INTEGER NOT NULL,
    PRIMARY KEY (segment, id_key, seq)
) STRICT, WITHOUT ROWID;

-- The sequences of a flow, those of 256 successive ones in a row. Those that retention has removed stay until their
-- whole segment is removed: what is found here is looked up in the log.
CREATE TABLE IF NOT EXISTS log_flows (
    segment INTEGER NOT NULL,
    flow INTEGER NOT NULL,
    block INTEGER NOT NULL, -- seq >> 8
    seqs ANY NOT NULL, -- one sequence, or a JSON array of several, ascending
    PRIMARY KEY (segment, flow, block)
) STRICT, WITHOUT ROWID;

CREATE TABLE IF NOT EXISTS log_works (
    segment INTEGER NOT NULL,
    work_id TEXT NOT NULL,
    seq INTEGER NOT NULL,
    PRIMARY KEY (segment, work_id, seq)
) STRICT, WITHOUT ROWID;
"""
INDEXES: Final = ("log_ids", "log_flows", "log_works")
_ADD_IDS: Final = """
    INSERT INTO log_ids (segment, id_key, seq, flow, remember_until)
    SELECT :n, k.value, l.seq, l.flow, l.remember_until
    FROM json_each(:keys) AS k CROSS JOIN log AS l ON l.seq = k.key ORDER BY k.value, l.seq
    """
_ADDED: Final = "SELECT seq FROM log_ids WHERE segment = ?"
_LENGTH: Final = "iif(typeof(seqs) = 'integer', 1, json_array_length(seqs))"
_ADD: Final = (
    """
    INSERT INTO log_flows (segment, flow, block, seqs)
    SELECT :n, key >> 32, key & 0xffffffff, value FROM json_each(:flows)
    """,
    f"""
    UPDATE flows SET messages = flows.messages + new.messages,
        first_ms = coalesce(flows.first_ms, oldest.received_ms), last_ms = latest.received_ms, last_seq = latest.seq
    FROM (
        SELECT flow, sum({_LENGTH}) AS messages,
            min(iif(typeof(seqs) = 'integer', seqs, json_extract(seqs, '$[0]'))) AS first_seq,
            max(iif(typeof(seqs) = 'integer', seqs, json_extract(seqs, '$[#-1]'))) AS last_seq
        FROM log_flows WHERE segment = :n GROUP BY flow
    ) AS new
    CROSS JOIN log AS oldest ON oldest.seq = new.first_seq CROSS JOIN log AS latest ON latest.seq = new.last_seq
    WHERE flows.id = new.flow
    """,  # noqa: S608 - constants
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
_ROWS: Final = "SELECT seq, msg_id, flow, work_id FROM log WHERE seq > ? AND seq <= ? ORDER BY seq"
_END: Final = "SELECT seq FROM log WHERE seq >= ? ORDER BY seq LIMIT 1 OFFSET ?"
_COUNTS: Final = f"""
SELECT g.first_seq, g.last_seq,
    (SELECT count(*) FROM log_ids WHERE segment >= g.n),
    (SELECT sum({_LENGTH}) FROM log_flows WHERE segment >= g.n),
    (SELECT count(*) FROM log_works WHERE segment >= g.n)
FROM segments AS g ORDER BY g.n DESC LIMIT 1
"""  # noqa: S608 - constants
_LOGGED: Final = "SELECT count(*), count(work_id) FROM log WHERE seq BETWEEN ? AND ?"

_log = logging.getLogger("aghbus.store")


def last_indexed(db: sqlite3.Connection) -> int:
    """The last sequence that the indexes have; 0 for none."""
    (_, first) = db.execute(_NEXT).fetchone()
    return int(first) - 1


def write(db: sqlite3.Connection, rows: list[TailRow]) -> None:
    """Writes the next segment, of these envelopes, in a transaction of its own. Retention may have removed some of them.

    What SQL needs of them comes in two documents: SQL that called Python for each would wait for the interpreter lock as
    often, and so would a statement for each row."""
    db.execute("BEGIN IMMEDIATE")
    try:
        n, first = db.execute(_NEXT).fetchone()
        params = {"n": n, "first": first, "last": rows[-1][0], "keys": _json({row[0]: row[1] for row in rows})}
        if db.execute(_ADD_IDS, params).rowcount < len(rows):
            stored = {seq for (seq,) in db.execute(_ADDED, (n,))}
            rows = [row for row in rows if row[0] in stored]
        params["flows"] = _json(_by_flow(rows))
        with_works = any(row[3] is not None for row in rows)
        for sql in (*_ADD, _ADD_WORKS) if with_works else _ADD:
            db.execute(sql, params)
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _by_flow(rows: list[TailRow]) -> dict[int, int | list[int]]:
    """The values of column `seqs`, by the numbers of the flow (above 32 bits) and of the block, ascending."""
    found: dict[int, int | list[int]] = {}
    for seq, _, flow, _ in rows:
        key = flow << 32 | seq >> 8
        before = found.setdefault(key, seq)
        if isinstance(before, list):
            before.append(seq)
        elif before != seq:
            found[key] = [before, seq]  # no list for one: thousands of them set off the collection of garbage
    return {key: found[key] for key in sorted(found)}


def _json(document: object) -> str:
    return msgspec.json.encode(document).decode()


def prepare(db: sqlite3.Connection, segment: int, key_of: Callable[[str], int]) -> None:
    """Makes the indexes of a store that is being opened complete, up to less than `segment` envelopes; all of them
    anew when rows or tables are missing."""
    db.executescript(_TABLES)
    try:
        is_complete = _end_is_complete(db)
    except sqlite3.OperationalError:  # a value or a table has another form
        is_complete = False
    if not is_complete:
        _log.warning("the indexes of the log are not complete: they are made again")
        clear(db)
        db.executescript(_TABLES)
    while (last := _full_segment(db, segment)) is not None:
        rows = db.execute(_ROWS, (last_indexed(db), last))
        write(db, [(seq, key_of(message_id), flow, work_id) for seq, message_id, flow, work_id in rows])


def clear(db: sqlite3.Connection) -> None:
    """Drops the indexes: the next opening makes them again."""
    for table in ("segments", *INDEXES):
        db.execute(f"DROP TABLE IF EXISTS {table}")
    db.execute("UPDATE flows SET messages = 0, first_ms = NULL, last_ms = NULL, last_seq = 0")


def _end_is_complete(db: sqlite3.Connection) -> bool:
    """Whether the last segment has all rows, as far as their numbers tell. No other transaction has written any."""
    row = db.execute(_COUNTS).fetchone()
    if row is None:
        derived = (*INDEXES, "flows WHERE messages <> 0")  # counts are left when a kill interrupts `clear`
        return not any(db.execute(f"SELECT 1 FROM {rows} LIMIT 1").fetchone() for rows in derived)  # noqa: S608 - constants
    first, last, ids, flows, works = row
    envelopes, with_work = db.execute(_LOGGED, (first, last)).fetchone()
    return bool((ids, works) == (envelopes, with_work) and (flows or 0) >= envelopes)


def _full_segment(db: sqlite3.Connection, segment: int) -> int | None:
    """The last sequence of the next segment; None when its envelopes are not all there yet."""
    row = db.execute(_END, (last_indexed(db) + 1, segment - 1)).fetchone()
    return None if row is None else int(row[0])


IS_INDEXED: Final = "SELECT 1 FROM segments AS g CROSS JOIN log_ids AS i ON i.segment = g.n AND i.id_key = ? LIMIT 1"
"""Whether a segment has an id with this key: most ids are new."""
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
