"""Compares the indexes of the log with the log, for `aghd check-store`. Only reads."""

import sqlite3
from typing import Final

from aghbus.store.engine import meta
from aghbus.store.engine.log.dedup import MessageIds
from aghbus.store.engine.log.segments import INDEXES, last_indexed

_SAME: Final = {
    "log_ids": "id_key(l.msg_id) = i.id_key AND l.flow = i.flow AND l.remember_until = i.remember_until",
    "log_flows": "l.flow = i.flow AND i.block = l.seq >> 8",
    "log_works": "l.work_id = i.work_id",
}
_ROWS: Final = {
    "log_flows": """(
        SELECT b.segment, b.flow, b.block, l.seq
        FROM log_flows AS b CROSS JOIN json_each(b.seqs) AS s CROSS JOIN log AS l ON l.seq = s.value
    )"""
}
"""In place of a table: its rows with one sequence each, without those that retention has removed from the log only."""
_WRONG: Final = """
SELECT count(*) FROM {table} AS i
LEFT JOIN segments AS g ON g.n = i.segment AND i.seq BETWEEN g.first_seq AND g.last_seq
LEFT JOIN log AS l ON l.seq = i.seq AND {same}
WHERE g.n IS NULL OR l.seq IS NULL
"""
_MISSING: Final = "SELECT (SELECT count(*) FROM log WHERE seq <= ?{where}) - (SELECT count(*) FROM {table})"
_MISCOUNTED: Final = """
SELECT count(*) FROM flows AS s
LEFT JOIN (SELECT flow, count(*) AS messages FROM log WHERE seq <= ? GROUP BY flow) AS c ON c.flow = s.id
WHERE s.messages <> coalesce(c.messages, 0)
"""
_MALFORMED: Final = "SELECT count(*) FROM log_flows WHERE typeof(seqs) <> 'integer' AND NOT json_valid(seqs)"
_PRESENT: Final = "SELECT count(*) FROM sqlite_schema WHERE name IN ('segments', 'log_ids', 'log_flows', 'log_works')"


def index_problems(db: sqlite3.Connection) -> list[str]:
    """Sentences about what the indexes and counts of the log have that the log has not, or lack. Inside a transaction, so
    that a running daemon changes nothing meanwhile."""
    if db.execute(_PRESENT).fetchone() != (1 + len(INDEXES),):
        return ["tables of the indexes are missing"]
    if malformed := db.execute(_MALFORMED).fetchone()[0]:
        return [f"log_flows has {malformed} values that are not JSON"]
    ids = MessageIds()
    ids.open(meta.get(db, "identity") or 0)
    db.create_function("id_key", 1, ids.id_key)
    last = last_indexed(db)
    problems = []
    for table in INDEXES:
        wrong = db.execute(_WRONG.format(table=_ROWS.get(table, table), same=_SAME[table])).fetchone()[0]
        where = " AND work_id IS NOT NULL" if table == "log_works" else ""
        missing = db.execute(_MISSING.format(table=_ROWS.get(table, table), where=where), (last,)).fetchone()[0] + wrong
        if wrong or missing:
            problems.append(f"{table} has {wrong} wrong rows and lacks {missing}")
    if miscounted := db.execute(_MISCOUNTED, (last,)).fetchone()[0]:
        problems.append(f"{miscounted} flows have a wrong count")
    return problems
