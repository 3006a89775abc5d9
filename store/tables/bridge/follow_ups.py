"""The works that follow an assigned one: an assigned work ends when the works that were opened for the next agents have ended.

A question of a chain that our agent began is a work for the user: it follows the work that asks, which we opened."""

from typing import Final, NamedTuple

from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import Reader
from aghbus.store.tables.envelopes import fetch

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
_LINKS: Final = """
SELECT l.id, n.workspace_id, n.channel, n.work_id, h.channel, h.work_id, l.question
FROM follow_ups AS l INDEXED BY follow_ups_open
    JOIN works AS n ON n.id = l.next LEFT JOIN works AS h ON h.id = l.assigned
WHERE l.outcome IS NULL
"""
_UNNEEDED: Final = f"""
{_LINKS} AND n.state IN ('submitted', 'working', 'needs_input') AND (
    h.state IN ('completed', 'failed', 'canceled') OR h.role = 'initiator' AND h.state <> 'needs_input'
) ORDER BY l.id LIMIT ?
"""
# One question at a time: the answer to an assigned work does not say which of several it answers.
_ASKING: Final = f"""
{_LINKS} AND (h.id IS NULL OR h.role = 'target' AND h.state IN ('submitted', 'working', 'needs_input')) AND (
    l.question IS NULL AND n.state = 'needs_input' AND NOT EXISTS (
        SELECT 1 FROM follow_ups AS o WHERE o.assigned = l.assigned AND o.question IS NOT NULL AND o.outcome IS NULL)
    OR l.question IS NOT NULL AND (n.state <> 'needs_input' OR h.state = 'working')
) ORDER BY l.id LIMIT ?
"""  # noqa: S608 - constants
_PROGRESSED: Final = """
SELECT max(e.seq), l.id, n.workspace_id, n.channel, n.work_id, h.channel, h.work_id, l.question
FROM envelopes AS e
    JOIN works AS n ON n.work_id = e.work_id AND n.channel = e.channel AND n.workspace_id = e.workspace_id
    JOIN follow_ups AS l ON l.next = n.id JOIN works AS h ON h.id = l.assigned
WHERE e.seq > ? AND e.seq <= ? AND e.direction = 'in' AND e.outcome = 'advanced' AND e.state_after = 'working'
    AND l.outcome IS NULL AND h.role = 'target' AND h.state IN ('submitted', 'working')
GROUP BY l.id
"""
_ANSWERED: Final = """
SELECT e.seq, l.id, n.workspace_id, n.channel, n.work_id, h.channel, h.work_id, l.question
FROM envelopes AS e
    JOIN works AS n ON n.work_id = e.work_id AND n.channel = e.channel AND n.workspace_id = e.workspace_id
    JOIN follow_ups AS l ON l.next = n.id JOIN works AS h ON h.id = l.assigned
WHERE e.seq > ? AND e.seq <= ? AND e.direction = 'in' AND e.outcome IN ('advanced', 'unchanged')
    AND e.kind IN ('say', 'capability')
    AND l.outcome IS NULL AND h.role = 'initiator' AND h.state = 'needs_input'
"""
_MOVED: Final = """
SELECT EXISTS (
    SELECT 1 FROM envelopes AS e
        JOIN works AS w ON w.work_id = e.work_id AND w.channel = e.channel AND w.workspace_id = e.workspace_id
    WHERE e.seq > ? AND e.seq <= ? AND e.outcome IN ('advanced', 'unchanged') AND (
        EXISTS (SELECT 1 FROM follow_ups AS l WHERE l.next = w.id AND l.outcome IS NULL)
        OR EXISTS (SELECT 1 FROM follow_ups AS l WHERE l.assigned = w.id AND l.outcome IS NULL)))
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


class OpenLink(NamedTuple):
    """An open work of a next agent, and the assigned work that waits for it, if there is one. `question` is the id of the
    envelope by which it asks what was passed on."""

    row: int
    workspace_id: str
    channel: str
    work_id: str
    assigned_channel: str | None
    assigned_work: str | None
    question: str | None


def add(tx: Transaction, assigned: WorkView | None, following: WorkView, chain: str) -> None:
    """`assigned` closes with the end of `following` and of the other works that follow it. None: our agent began a chain with
    `following`, and with the other works of the same `chain`."""
    tx.memory.bridged = True
    held = (None, None, None, chain) if assigned is None else (*_key(assigned), None)
    tx.db.execute(_ADD, (*held, *_key(following)))


def terminated_works(tx: Transaction, limit: int) -> list[EndedWork]:
    """Works that ended and whose outcome is not stored yet, in the order in which they were added."""
    return [EndedWork(*row) for row in tx.db.execute(_ENDED, (limit,))]


def unneeded(tx: Transaction, limit: int) -> list[OpenLink]:
    """Open works whose assigned work has ended, and works for the user whose question was answered in another way."""
    return [OpenLink(*row) for row in tx.db.execute(_UNNEEDED, (limit,))]


def asking(tx: Transaction, limit: int) -> list[OpenLink]:
    """Works whose question is to be passed on, and those whose question was, and that or whose assigned work moved since."""
    return [OpenLink(*row) for row in tx.db.execute(_ASKING, (limit,))]


def progressed(tx: Transaction, after: int, upto: int) -> list[tuple[int, OpenLink]]:
    """Works whose targets reported progress after sequence `after`, up to `upto`, with the last sequence; only those whose
    assigned work asks nothing."""
    tx.flush()
    return [(seq, OpenLink(*row)) for seq, *row in tx.db.execute(_PROGRESSED, (after, upto))]


def answered(tx: Transaction, after: int, upto: int) -> list[tuple[int, OpenLink]]:
    """What users said after sequence `after`, up to `upto`, in works that ask them a question: the sequences, oldest first."""
    return [(seq, OpenLink(*row)) for seq, *row in tx.db.execute(_ANSWERED, (after, upto))]


def set_question(tx: Transaction, row: int, question: str | None) -> None:
    """The envelope `question` of the work of `row` asks, and that was passed on; None: it is answered."""
    tx.db.execute("UPDATE follow_ups SET question = ? WHERE id = ?", (question, row))


def asks(tx: Transaction, assigned: WorkView) -> bool:
    """Whether a question below was passed on to the initiator of an assigned work."""
    sql = f"""SELECT 1 FROM follow_ups WHERE assigned = (SELECT id FROM works WHERE {_WORK})
        AND question IS NOT NULL AND outcome IS NULL"""  # noqa: S608 - constants
    return tx.db.execute(sql, _key(assigned)).fetchone() is not None


def asks_user(tx: Transaction, work: WorkView) -> bool:
    """Whether a work asks the user a question of a chain that our agent began."""
    sql = f"""SELECT 1 FROM follow_ups AS l JOIN works AS h ON h.id = l.assigned
        WHERE l.next = (SELECT id FROM works WHERE {_WORK}) AND h.role = 'initiator'"""  # noqa: S608 - constants
    return tx.db.execute(sql, _key(work)).fetchone() is not None


def is_only(tx: Transaction, row: int) -> bool:
    """Whether the work of `row` is the only one that its assigned work waits for."""
    return len(outcomes(tx, row)) == 1


async def has_moved(reader: Reader, after: int, upto: int) -> bool:
    """Whether an envelope after sequence `after`, up to `upto`, concerns a work of a next agent or its assigned work."""
    return bool((await fetch(reader, _MOVED, [after, upto]))[0][0])


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
