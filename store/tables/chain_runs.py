"""Runs of chains: one row for each run, and one for each visit of a node.

A visit follows its work by the work's own `last_seq`: the sequence that the visit has seen is kept in its row, and
changes in the transaction that acts on it.
"""

import json
from collections.abc import Collection, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.api.base import RunState
from aghbus.protocol.api.chains import ChainRun, ChainRunSummary, ChainStep
from aghbus.protocol.base.text import shorten
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.segments import SEQS_OF_WORK
from aghbus.store.engine.sql import INTACT_RAW, Reader, as_struct, ends_in, insert_into, placeholders
from aghbus.store.tables.envelopes import Row, fetch
from aghbus.store.tables.works import lifecycle

MAX_OPEN: Final = 1_000  # runs in progress at a time
KEEP: Final = 1_000  # ended runs that are kept, within the age that retention keeps works
RESPONSES_BYTES: Final = 8 * 1024 * 1024  # of the newest responses in one answer: eight of the largest
TEXT_CHARS: Final = 2_000  # of an error, a question or a message; the envelopes have them whole

_HEAD: Final = "run_id, name, state, version, channel, node, step, max_steps, error, question, created_ms, updated_ms"
_HISTORY: Final = """
SELECT step, node, branch, peer, work_id, work_state, message,
    iif(sum(coalesce(length(response), 0)) OVER (ORDER BY step DESC) <= ?, response, NULL), started_ms, ended_ms
FROM chain_steps WHERE run_id = ? ORDER BY step
"""
_PENDING: Final = """
SELECT r.run_id FROM chain_steps AS s
JOIN chain_runs AS r ON r.run_id = s.run_id
LEFT JOIN works AS w ON w.workspace_id = ?1 AND w.channel = r.channel AND w.work_id = s.work_id
WHERE s.ended_ms IS NULL
    AND (s.work_id IS NULL OR w.id IS NULL OR w.last_seq > s.seen_seq OR s.due_ms <= ?2 OR s.open_ms <= ?2)
    AND r.run_id NOT IN (SELECT value FROM json_each(?3))
GROUP BY r.run_id ORDER BY min(s.work_id IS NULL), r.rowid LIMIT ?4
"""
_IN_PROGRESS: Final = """
SELECT (SELECT count(*) FROM chain_runs WHERE state IN ('running', 'waiting')), (
    SELECT min(min(coalesce(due_ms, open_ms), coalesce(open_ms, due_ms))) FROM chain_steps
    WHERE ended_ms IS NULL AND run_id NOT IN (SELECT value FROM json_each(?)))
"""
_FORGET: Final = """
DELETE FROM chain_runs WHERE run_id IN (
    SELECT run_id FROM (SELECT run_id, updated_ms, row_number() OVER (ORDER BY updated_ms DESC) AS place
        FROM chain_runs WHERE state NOT IN ('running', 'waiting'))
    WHERE updated_ms < ? OR place > ? LIMIT ?
)
"""

_ENDED: Final = "(state NOT IN ('running', 'waiting'))"
_CHOSEN: Final = """
(updated_ms < ?3 OR run_id IN (SELECT run_id FROM chain_steps
    WHERE work_id IN (SELECT value FROM json_each(?1)) OR peer IN (SELECT value FROM json_each(?2))))
"""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a run. `chain` and `input` are JSON."""

    run_id: str
    name: str
    state: RunState
    version: int
    channel: str
    step: int
    node: str
    max_steps: int
    error: str | None
    question: str | None
    created_ms: int
    updated_ms: int
    chain: bytes
    input: bytes


class Visit(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a visit. `work` and `response` are JSON, None while there is none."""

    run_id: str
    step: int
    node: str
    branch: str
    previous: int | None = None
    peer: str | None = None
    work_id: str | None = None
    seen_seq: int = 0
    due_ms: int | None = None
    retries: int = 0
    open_ms: int | None = None
    question_seq: int | None = None
    work_state: str = "waiting"
    message: str | None = None
    started_ms: int
    ended_ms: int | None = None
    work: bytes | None = None
    response: bytes | None = None


_RUN_COLUMNS: Final = ", ".join(Run.__struct_fields__)
_VISIT_COLUMNS: Final = ", ".join(Visit.__struct_fields__)


class Followed(NamedTuple):
    """Our copy of a visit's work, the sequence of its last applied envelope, and sequence and bytes of the envelope
    that ended it, else of its last trace, or of what its target said before it accepted; None without one, or when its bytes
    are damaged."""

    work: WorkView
    last_seq: int
    seq: int | None
    raw: bytes | None


def add(tx: Transaction, run: Run) -> None:
    """A new run."""
    tx.db.execute(insert_into("chain_runs", Run.__struct_fields__), msgspec.structs.astuple(run))


def add_visit(tx: Transaction, visit: Visit) -> None:
    """A new visit; the response of an earlier one of the same node is no longer needed."""
    tx.db.execute(insert_into("chain_steps", Visit.__struct_fields__), msgspec.structs.astuple(visit))


def change(tx: Transaction, run: Run, **values: Any) -> Run:
    """The run with these columns changed, and its version."""
    values["version"] = run.version + 1
    for name in ("error", "question"):
        if isinstance(values.get(name), str):
            values[name] = shorten(values[name], TEXT_CHARS)
    sets = ", ".join(f"{name} = ?" for name in values)
    tx.db.execute(f"UPDATE chain_runs SET {sets} WHERE run_id = ?", (*values.values(), run.run_id))  # noqa: S608 - names of columns
    return msgspec.structs.replace(run, **values)


def change_visit(tx: Transaction, visit: Visit, **values: Any) -> Visit:
    """The visit with these columns changed. A response replaces that of earlier visits of the node."""
    if isinstance(values.get("message"), str):
        values["message"] = shorten(values["message"], TEXT_CHARS)
    sets = ", ".join(f"{name} = ?" for name in values)
    key = (visit.run_id, visit.step)
    tx.db.execute(f"UPDATE chain_steps SET {sets} WHERE run_id = ? AND step = ?", (*values.values(), *key))  # noqa: S608 - names of columns
    if values.get("response") is not None:
        tx.db.execute(
            "UPDATE chain_steps SET response = NULL WHERE run_id = ? AND step < ? AND node = ?", (*key, visit.node)
        )
    return msgspec.structs.replace(visit, **values)


def load(tx: Transaction, run_id: str) -> Run | None:
    """One run; None when it is not known."""
    row = tx.db.execute(f"SELECT {_RUN_COLUMNS} FROM chain_runs WHERE run_id = ?", (run_id,)).fetchone()  # noqa: S608 - constants
    return None if row is None else as_struct(Run, row)


def visit(tx: Transaction, run_id: str, step: int) -> Visit | None:
    """One visit; None when there is none of that number."""
    sql = f"SELECT {_VISIT_COLUMNS} FROM chain_steps WHERE run_id = ? AND step = ?"  # noqa: S608 - constants
    row = tx.db.execute(sql, (run_id, step)).fetchone()
    return None if row is None else as_struct(Visit, row)


def open_visits(tx: Transaction, run_id: str) -> list[Visit]:
    """The visits in progress, in order."""
    sql = f"SELECT {_VISIT_COLUMNS} FROM chain_steps WHERE run_id = ? AND ended_ms IS NULL ORDER BY step"  # noqa: S608 - constants
    return [as_struct(Visit, row) for row in tx.db.execute(sql, (run_id,))]


def branches(tx: Transaction, run_id: str) -> dict[str, bool]:
    """The branches that have begun, and whether they have ended."""
    rows = tx.db.execute(
        "SELECT branch, min(ended_ms IS NOT NULL) FROM chain_steps WHERE run_id = ? GROUP BY branch", (run_id,)
    )
    return {branch: bool(ended) for branch, ended in rows}


def visits_of(tx: Transaction, visit: Visit) -> int:
    """The number of this visit among those of its node, from 1."""
    key = (visit.run_id, visit.node, visit.step)
    sql = "SELECT count(*) FROM chain_steps WHERE run_id = ? AND node = ? AND step <= ?"
    (count,) = tx.db.execute(sql, key).fetchone()
    return int(count)


def responses(tx: Transaction, run_id: str, nodes: Collection[str]) -> dict[str, Any]:
    """The latest response of each of these nodes that has one."""
    rows = tx.db.execute(
        "SELECT node, response FROM chain_steps WHERE run_id = ? AND response IS NOT NULL"
        " AND node IN (SELECT value FROM json_each(?)) ORDER BY step",
        (run_id, json.dumps(sorted(nodes))),
    )
    return {node: json.loads(response) for node, response in rows}


def followed(tx: Transaction, workspace_id: str, channel: str, work_id: str) -> Followed | None:
    """The work of a visit; None when it is not known (any more)."""
    key = (workspace_id, channel, work_id)
    work = lifecycle.load(tx, *key)
    if work is None:
        return None
    row = tx.db.execute(
        "SELECT last_seq FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?", key
    ).fetchone()
    kind = "e.kind = 'say' AND e.direction = 'in'" if work.state == "submitted" else "e.kind = 'trace'"
    telling = "e.seq = ?" if work.is_terminal else f"{kind} AND e.seq <= ?"
    tx.flush()
    found = tx.db.execute(
        f"SELECT e.seq, {INTACT_RAW} FROM envelopes AS e WHERE e.seq IN ({SEQS_OF_WORK}) AND e.workspace_id = ? AND e.channel = ?"  # noqa: S608 - constants
        f" AND e.work_id = ? AND e.outcome IN ('advanced', 'unchanged') AND {telling} ORDER BY e.seq DESC LIMIT 1",
        (*tx.memory.log.of_work(work_id), *key, row[0]),
    ).fetchone()
    return Followed(work, row[0], *(found or (None, None)))


def count_open(tx: Transaction) -> int:
    """How many runs are in progress."""
    (count,) = tx.db.execute("SELECT count(*) FROM chain_runs WHERE state IN ('running', 'waiting')").fetchone()
    return int(count)


def forget(tx: Transaction, before_ms: int, *, keep: int = KEEP, limit: int = 16) -> int:
    """Drops up to `limit` ended runs that ended before `before_ms` or are not among the `keep` newest. Returns how
    many."""
    return tx.db.execute(_FORGET, (before_ms, keep, limit)).rowcount


def remove(tx: Transaction, work_ids: Sequence[str], names: Sequence[str], before_ms: int) -> int:
    """Drops the ended runs of which a step was one of these works, or of one of these peers, and those that changed last before
    `before_ms`. Returns how many."""
    sql = f"DELETE FROM chain_runs WHERE {_ENDED} AND {_CHOSEN}"  # noqa: S608 - constants
    return tx.db.execute(sql, (json.dumps(list(work_ids)), json.dumps(list(names)), before_ms)).rowcount


async def count(reader: Reader, work_ids: Sequence[str], names: Sequence[str], before_ms: int) -> tuple[int, int]:
    """How many runs `remove` would drop, and how many like them are in progress."""
    sql = f"SELECT total({_ENDED}), count(*) FROM chain_runs WHERE {_CHOSEN}"  # noqa: S608 - constants
    ended, found = (await fetch(reader, sql, [json.dumps(list(work_ids)), json.dumps(list(names)), before_ms]))[0]
    return int(ended), found - int(ended)


async def pending(
    reader: Reader, workspace_id: str, now_ms: int, limit: int, *, excluded: Collection[str] = ()
) -> list[str]:
    """Up to `limit` runs with a work that has moved or a time that is up, and then those that wait only for a peer,
    the oldest first; none of `excluded`."""
    rows = await fetch(reader, _PENDING, [workspace_id, now_ms, json.dumps(list(excluded)), limit])
    return [str(run_id) for (run_id,) in rows]


async def in_progress(reader: Reader, *, excluded: Collection[str] = ()) -> tuple[int, int | None]:
    """How many runs are in progress, and when the first node's time is up, those of `excluded` not counted."""
    row = (await fetch(reader, _IN_PROGRESS, [json.dumps(list(excluded))]))[0]
    return int(row[0]), row[1]


async def run(reader: Reader, run_id: str) -> ChainRun | None:
    """A run with its steps; None when it is not known."""
    rows = await fetch(reader, f"SELECT {_HEAD}, chain, input FROM chain_runs WHERE run_id = ?", [run_id])  # noqa: S608 - constants
    if not rows:
        return None
    visits = await fetch(reader, _HISTORY, [RESPONSES_BYTES, run_id])
    history = [_step_of(row) for row in visits]
    *head, chain, run_input = rows[0]
    found = as_struct(
        ChainRun, head, chain=json.loads(chain), input=json.loads(run_input), response=None, history=history
    )
    shown = [step for step in history if found.state != "waiting" or step.node == found.node]
    given = [step.response for step in shown if step.response is not None]
    return msgspec.structs.replace(found, response=given[-1]) if given else found


async def runs(
    reader: Reader, *, states: frozenset[str] = frozenset(), id_end: str | None = None, limit: int = 100
) -> list[ChainRunSummary]:
    """Runs, latest change first; those in `states`, if it is not empty, whose id ends in `id_end`."""
    clauses, params = ["1"], list[Any]()
    if states:
        clauses.append(f"state IN ({placeholders(states)})")
        params += sorted(states)
    if id_end is not None:
        clauses.append(ends_in("run_id", id_end))
        params.append(id_end)
    where = " AND ".join(clauses)
    sql = f"SELECT {_HEAD} FROM chain_runs WHERE {where} ORDER BY updated_ms DESC, rowid DESC LIMIT ?"  # noqa: S608 - constants
    return [as_struct(ChainRunSummary, row) for row in await fetch(reader, sql, [*params, limit])]


def _step_of(row: Row) -> ChainStep:
    response = None if row[7] is None else json.loads(row[7])
    return as_struct(ChainStep, (*row[:7], response, *row[8:]))
