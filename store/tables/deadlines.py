"""Deadlines of works: the limit for acceptance, and the limit between two signs of progress."""

from typing import Final, NamedTuple

from aghbus.protocol.agh.lifecycle import TERMINAL_STATES, WorkView
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import works

_BEGIN: Final = (
    "UPDATE works SET accept_ms = ?, progress_ms = ?, due_ms = ? WHERE workspace_id = ? AND channel = ? AND work_id = ?"
)
_LIFT: Final = (
    "UPDATE works SET due_ms = NULL WHERE due_ms IS NOT NULL AND workspace_id = ? AND channel = ? AND work_id = ?"
)
_AGAIN: Final = (
    "UPDATE works SET accept_ms = NULL, due_ms = ? + progress_ms"
    " WHERE due_ms IS NOT NULL AND workspace_id = ? AND channel = ? AND work_id = ?"
)


class Overdue(NamedTuple):
    """A work whose deadline has passed. `accept_ms` and `progress_ms` are its limits in milliseconds."""

    workspace_id: str
    channel: str
    work_id: str
    state: str
    accept_ms: int | None
    progress_ms: int | None


def begin(tx: Transaction, work: WorkView, accept_ms: int | None, progress_ms: int | None, now_ms: int) -> None:
    """A work was opened at `now_ms` with these limits."""
    due = [limit for limit in (accept_ms, progress_ms) if limit is not None]
    if due:
        tx.db.execute(
            _BEGIN, (accept_ms, progress_ms, now_ms + min(due), work.workspace_id, work.channel, work.work_id)
        )
        works.begin_deadline(tx, work)


def moved(tx: Transaction, work: WorkView, *, accepted: bool, traced: bool, now_ms: int) -> None:
    """The work advanced: its end lifts the deadline, acceptance lifts the limit for acceptance, a trace restarts the
    other."""
    key = (work.workspace_id, work.channel, work.work_id)
    if work.state in TERMINAL_STATES:
        tx.db.execute(_LIFT, key)
    elif accepted or traced:
        tx.db.execute(_AGAIN, (now_ms, *key))


def overdue(tx: Transaction, now_ms: int, limit: int = 100) -> list[Overdue]:
    """Works whose deadline has passed at `now_ms`, most overdue first."""
    return [
        Overdue(*row)
        for row in tx.db.execute(
            "SELECT workspace_id, channel, work_id, state, accept_ms, progress_ms FROM works"
            " WHERE due_ms <= ? ORDER BY due_ms LIMIT ?",
            (now_ms, limit),
        )
    ]


def next_due_ms(tx: Transaction) -> int | None:
    """When the next deadline passes; None when no work has one."""
    value: int | None = tx.db.execute("SELECT min(due_ms) FROM works WHERE due_ms IS NOT NULL").fetchone()[0]
    return value


def lift(tx: Transaction, late: Overdue) -> None:
    """The deadline was handled: it is removed."""
    tx.db.execute(_LIFT, (late.workspace_id, late.channel, late.work_id))
