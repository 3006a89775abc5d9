"""Steps of works, written behind. A work changes its state several times, often within milliseconds; its row is written once.

The log has each step with its commit, so the table may lag: a step changes this memory only. The table gets it within
WRITE_SECONDS (writer.py), and before any query of the store reads the state of works. `works_seq` in table `meta` is the
sequence up to which the table has all steps. Those after it are read from the log when a store is opened.
"""

import sqlite3
from typing import Any, Final

from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.base.text import shorten
from aghbus.store.engine import meta
from aghbus.store.engine.sql import checksum_of
from aghbus.store.engine.unit_of_work import UnitOfWork

WRITE_SECONDS: Final = 1.0
MAX_WORKS: Final = 512  # that have steps to be written: writing them takes some milliseconds
MESSAGE_CHARS: Final = 2_000  # of the last message; the history has it whole

_POSITION: Final = "works_seq"
_WRITE: Final = """
UPDATE works SET state = ?, advanced = max(advanced, ?), terminal_id = ?, terminal_sender = ?, last_seq = ?, updated_ms = ?,
    message = coalesce(?, message), result_seq = coalesce(?, result_seq)
WHERE id = ?
"""
_LOGGED: Final = """
SELECT w.id, l.seq, l.msg_id, s.sender, l.received_ms, v.kind, v.outcome, v.state_after, l.checksum, l.raw
FROM (
    SELECT i.seq FROM segments AS g CROSS JOIN log_works AS i ON i.segment = g.n WHERE g.last_seq > ?1 AND i.seq > ?1
    UNION ALL SELECT seq FROM log
        WHERE seq > max(?1, (SELECT coalesce(max(last_seq), 0) FROM segments)) AND work_id IS NOT NULL
) AS t CROSS JOIN log AS l ON l.seq = t.seq
CROSS JOIN verdicts AS v ON v.id = l.verdict CROSS JOIN streams AS s ON s.id = l.stream
CROSS JOIN works AS w ON w.work_id = l.work_id AND w.channel = s.channel AND w.workspace_id = s.workspace_id
WHERE l.seq > w.last_seq AND v.outcome IN ('advanced', 'unchanged') AND v.state_after IS NOT NULL ORDER BY l.seq
"""

Step = tuple[str, int, str | None, str | None, int, int, str | None, int | None, int]
"""State; 1 when an envelope after the opening moved the work; id and sender of the envelope that ended it; sequence and time of
the step; message and sequence of a result, None where the earlier ones stay; the number of the row."""


class WorkSteps:
    """The steps that the table does not have, those of the open transaction included: one for each work, by its row. `pending`
    says whether the open transaction has written some: they are in the file with its commit."""

    __slots__ = ("pending", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, Step] = {}
        self.pending: list[int] = []

    def put(self, tx: UnitOfWork, step: Step) -> None:
        """Adds a step of a work, in order."""
        row = step[-1]
        before = self.rows.get(row)
        if before is not None:
            message = before[6] if step[6] is None else step[6]
            step = (*step[:6], message, before[7] if step[7] is None else step[7], row)
        tx.replaced.append((self.rows, row, before))
        self.rows[row] = step

    def write(self, db: sqlite3.Connection, last_seq: int) -> None:
        """Writes the steps, all up to sequence `last_seq` among them, into the open transaction of `db`."""
        db.executemany(_WRITE, self.rows.values())
        meta.put(db, _POSITION, last_seq)
        self.rows.clear()
        self.pending.append(last_seq)

    def load(self, db: sqlite3.Connection, last_seq: int) -> None:
        """Writes the steps that only the log has into the table of a store that is being opened, whose indexes are complete."""
        db.execute("BEGIN IMMEDIATE")
        try:
            logged = db.execute(_LOGGED, (meta.get(db, _POSITION) or 0,)).fetchall()
            db.executemany(_WRITE, (_step_of(*row) for row in logged))
            meta.put(db, _POSITION, last_seq)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise


def shortened(message: str | None) -> str | None:
    """A message as the row of a work keeps it; None for an empty one."""
    return shorten(message, MESSAGE_CHARS) if message else None


def _step_of(
    row: int,
    seq: int,
    message_id: str,
    sender: str,
    received_ms: int,
    kind: str,
    outcome: str,
    state: str,
    checksum: int,
    raw: bytes,
) -> Step:
    body: dict[str, Any] = decode_json(raw)["body"] if checksum_of(raw) == checksum else {}
    end = (message_id, sender) if state in TERMINAL_STATES else (None, None)
    message = body.get("message") if kind == "trace" else body.get("detail") if kind == "receipt" else None
    result_seq = seq if kind == "trace" and body.get("result") is not None else None
    return (state, int(outcome == "advanced"), *end, seq, received_ms, shortened(message), result_seq, row)
