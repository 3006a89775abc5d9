"""What ends works by itself: the limit for acceptance, the limit between two signs of progress, and a dead opening."""

from typing import Final, NamedTuple

from aghbus.protocol.agh.lifecycle import OPEN_STATES, TERMINAL_STATES, WorkView
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.memory.inbox import HELD
from aghbus.store.engine.sql import Reader
from aghbus.store.tables.envelopes import fetch
from aghbus.store.tables.inbox import MAX_ATTEMPTS
from aghbus.store.tables.works import lifecycle

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
# Not the openings that are held since a restore.
_DEAD: Final = f"SELECT seq, attempts, last_error FROM inbox WHERE state = 'dead' AND NOT ({HELD})"  # noqa: S608 - a constant
_DEAD_OPENINGS: Final = f"""
SELECT opened_seq FROM works WHERE state IN {OPEN_STATES} AND role = 'target' AND opened_seq IN (SELECT seq FROM ({_DEAD}))
"""  # noqa: S608 - constants
_DEAD_OPENING: Final = f"""
SELECT w.workspace_id, w.channel, w.work_id, i.attempts, coalesce(i.last_error, '')
FROM ({_DEAD} AND seq = ?) AS i CROSS JOIN log AS l ON l.seq = i.seq
CROSS JOIN works AS w ON w.work_id = l.work_id AND w.opened_seq = i.seq WHERE w.role = 'target'
"""  # noqa: S608 - constants
_SPARE: Final = """
UPDATE inbox SET lease_until_ms = max(lease_until_ms, ?) WHERE state = 'leased' AND attempts >= ?
"""


class Overdue(NamedTuple):
    """A work whose deadline has passed. `accept_ms` and `progress_ms` are its limits in milliseconds; `accept_ms` is None once it
    was accepted. Both begin with the work, so until then the shorter one has passed."""

    workspace_id: str
    channel: str
    work_id: str
    state: str
    accept_ms: int | None
    progress_ms: int | None

    @property
    def without_progress(self) -> bool:
        """Whether the limit for progress has passed, not the one for acceptance."""
        return self.accept_ms is None or (self.progress_ms is not None and self.progress_ms < self.accept_ms)

    @property
    def passed(self) -> str:
        """The limit that has passed, in words."""
        words, limit = "not accepted", self.accept_ms
        if self.without_progress:
            words, limit = "no progress", self.progress_ms
        return f"{words} within {(limit or 0) / 1000:g} s"


def begin(tx: Transaction, work: WorkView, accept_ms: int | None, progress_ms: int | None, now_ms: int) -> None:
    """A work was opened at `now_ms` with these limits."""
    due = [limit for limit in (accept_ms, progress_ms) if limit is not None]
    if due:
        tx.db.execute(
            _BEGIN, (accept_ms, progress_ms, now_ms + min(due), work.workspace_id, work.channel, work.work_id)
        )
        lifecycle.begin_deadline(tx, work)


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


class DeadOpening(NamedTuple):
    """The dead opening of a work for our agent, which was leased `attempts` times. `last_error` may be empty."""

    workspace_id: str
    channel: str
    work_id: str
    attempts: int
    last_error: str


def dead_opening(tx: Transaction, seq: int) -> DeadOpening | None:
    """The opening `seq`, if it is one of a work for our agent, and dead because the agent failed to handle it."""
    tx.flush()
    row = tx.db.execute(_DEAD_OPENING, (seq,)).fetchone()
    return None if row is None else DeadOpening(*row)


def spare(tx: Transaction, until_ms: int, max_attempts: int = MAX_ATTEMPTS) -> None:
    """Keeps the leases of last attempts until `until_ms`: their consumers could not renew them while the daemon was away."""
    tx.db.execute(_SPARE, (until_ms, max_attempts))


async def dead_openings(reader: Reader) -> list[int]:
    """The sequences of such openings whose works have not ended."""
    return [seq for (seq,) in await fetch(reader, _DEAD_OPENINGS, [])]
