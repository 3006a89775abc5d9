"""The works that follow an assigned one: an assigned work ends when the works that were opened for the next agents have ended."""

from typing import Final, NamedTuple

from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.store.engine.commit.transaction import Transaction

_WORK: Final = "workspace_id = ? AND channel = ? AND work_id = ?"
_ADD: Final = f"""
INSERT OR IGNORE INTO follow_ups (next, assigned, chain)
SELECT id, (SELECT id FROM works WHERE {_WORK}), ? FROM works WHERE {_WORK}
"""  # noqa: S608 - constants
_ENDED: Final = """
SELECT l.id, n.workspace_id, n.channel, n.work_id, h.channel, h.work_id
FROM follow_ups AS l INDEXED BY follow_ups_open
    JOIN works AS n ON n.id = l.next LEFT JOIN works AS h ON h.id = l.assigned
WHERE l.outcome IS NULL AND n.state IN ('completed', 'failed', 'canceled') ORDER BY l.id LIMIT ?
"""
_BRANCHES: Final = """
(id = ?1 OR assigned = (SELECT assigned FROM follow_ups WHERE id = ?1)
    OR chain = (SELECT chain FROM follow_ups WHERE id = ?1))
"""
_OUTCOMES: Final = f"""
SELECT outcome FROM follow_ups WHERE {_BRANCHES} AND (outcome IS NULL OR outcome <> x'') ORDER BY id
"""  # noqa: S608 - constants


class EndedWork(NamedTuple):
    """A work that ended, and the assigned work that closes with it, if there is one; `row` is that of the follow-up."""

    row: int
    workspace_id: str
    channel: str
    work_id: str
    assigned_channel: str | None
    assigned_work: str | None


def add(tx: Transaction, assigned: WorkView | None, following: WorkView, chain: str) -> None:
    """`assigned` closes with the end of `following` and of the other works that follow it. None: our agent began a chain with
    `following`, and with the other works of the same `chain`."""
    tx.memory.bridged = True
    held = (None, None, None, chain) if assigned is None else (*_key(assigned), None)
    tx.db.execute(_ADD, (*held, *_key(following)))


def terminated_works(tx: Transaction, limit: int) -> list[EndedWork]:
    """Works that ended and whose outcome is not stored yet, in the order in which they were added."""
    return [EndedWork(*row) for row in tx.db.execute(_ENDED, (limit,))]


def outcomes(tx: Transaction, row: int) -> list[bytes | None]:
    """The outcomes of the branches beside `row` and its own, in the order in which they were opened; None: not ended."""
    return [outcome for (outcome,) in tx.db.execute(_OUTCOMES, (row,))]


def end_branch(tx: Transaction, row: int, outcome: bytes) -> None:
    """Store how the work of `row` ended, while other branches of the same assigned work may be open."""
    tx.db.execute("UPDATE follow_ups SET outcome = ? WHERE id = ?", (outcome, row))


def settle(tx: Transaction, row: int) -> None:
    """What waited for `row` has ended: outcomes of its branches are no longer needed. Without an assigned work the rows are
    removed."""
    ended = f"{_BRANCHES} AND (id = ?1 OR outcome IS NOT NULL)"
    tx.db.execute(f"UPDATE follow_ups SET outcome = x'' WHERE {ended}", (row,))  # noqa: S608 - constants
    tx.db.execute(f"DELETE FROM follow_ups WHERE {ended} AND assigned IS NULL", (row,))  # noqa: S608 - constants


def _key(work: WorkView) -> tuple[str, str, str]:
    return work.workspace_id, work.channel, work.work_id
