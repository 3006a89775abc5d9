"""The works that follow an assigned one: an assigned work ends when the works that were opened for the next agents have ended."""

from typing import Final, NamedTuple

from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.store.engine.commit.transaction import Transaction

_WORK: Final = "workspace_id = ? AND channel = ? AND work_id = ?"
_ADD: Final = f"""
INSERT OR IGNORE INTO follow_ups (next, assigned)
SELECT id, (SELECT id FROM works WHERE {_WORK}) FROM works WHERE {_WORK}
"""  # noqa: S608 - constants
_ENDED: Final = """
SELECT l.id, n.workspace_id, n.channel, n.work_id, h.channel, h.work_id
FROM follow_ups AS l INDEXED BY follow_ups_open
    JOIN works AS n ON n.id = l.next LEFT JOIN works AS h ON h.id = l.assigned
WHERE l.outcome IS NULL AND n.state IN ('completed', 'failed', 'canceled') ORDER BY l.id LIMIT ?
"""
_OUTCOMES: Final = """
SELECT outcome FROM follow_ups
WHERE assigned = (SELECT assigned FROM follow_ups WHERE id = ?) ORDER BY id
"""


class EndedWork(NamedTuple):
    """A work that ended, and the assigned work that closes with it, if there is one; `row` is that of the follow-up."""

    row: int
    workspace_id: str
    channel: str
    work_id: str
    assigned_channel: str | None
    assigned_work: str | None


def add(tx: Transaction, assigned: WorkView | None, following: WorkView) -> None:
    """`assigned` closes with the end of `following` and of the other works that follow it. None: nobody assigned
    `following`."""
    tx.memory.bridged = True
    held = (None, None, None) if assigned is None else _key(assigned)
    tx.db.execute(_ADD, (*held, *_key(following)))


def terminated_works(tx: Transaction, limit: int) -> list[EndedWork]:
    """Works that ended and whose outcome is not stored yet, in the order in which they were added."""
    return [EndedWork(*row) for row in tx.db.execute(_ENDED, (limit,))]


def outcomes(tx: Transaction, row: int) -> list[bytes | None]:
    """The outcomes of all branches of the assigned work of `row`, in the order in which they were opened; None: not ended."""
    return [outcome for (outcome,) in tx.db.execute(_OUTCOMES, (row,))]


def end_branch(tx: Transaction, row: int, outcome: bytes) -> None:
    """Store how the work of `row` ended, while other branches of the same assigned work may be open."""
    tx.db.execute("UPDATE follow_ups SET outcome = ? WHERE id = ?", (outcome, row))


def settle(tx: Transaction, row: int) -> None:
    """The assigned work of `row` has ended: outcomes of its branches are no longer needed. Without one the row is removed."""
    tx.db.execute("DELETE FROM follow_ups WHERE id = ? AND assigned IS NULL", (row,))
    tx.db.execute(
        "UPDATE follow_ups SET outcome = x'' WHERE id = ?1 OR outcome IS NOT NULL"
        " AND assigned = (SELECT assigned FROM follow_ups WHERE id = ?1)",
        (row,),
    )


def _key(work: WorkView) -> tuple[str, str, str]:
    return work.workspace_id, work.channel, work.work_id
