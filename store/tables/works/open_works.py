"""Open works: how many there are, which of them wait for our agent, and whether a peer takes part in one."""

from typing import NamedTuple

from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import Reader
from aghbus.store.tables.envelopes import fetch


async def counts(reader: Reader) -> dict[str, int]:
    """How many works are open, by state."""
    sql = "SELECT state, count(*) FROM works WHERE state IN ('submitted', 'working', 'needs_input') GROUP BY state"
    found: dict[str, int] = dict(await fetch(reader, sql, []))
    return {state: found.get(state, 0) for state in ("submitted", "working", "needs_input")}


async def counts_by_role(reader: Reader) -> dict[tuple[str, str], int]:
    """How many works are open, by state and our role; only pairs that occur."""
    sql = """
        SELECT state, role, count(*) FROM works WHERE state IN ('submitted', 'working', 'needs_input') GROUP BY state, role
    """
    return {(state, role): count for state, role, count in await fetch(reader, sql, [])}


class Waiting(NamedTuple):
    """An open work with us, and who opened it."""

    initiator: str
    workspace_id: str
    channel: str
    work_id: str


async def unaccepted(reader: Reader) -> list[Waiting]:
    """Works that our agent could do and has not accepted, oldest change first: also those that their initiator moved on."""
    sql = """
        SELECT initiator, workspace_id, channel, work_id FROM works
        WHERE role = 'target' AND (state = 'submitted' OR (state IN ('working', 'needs_input') AND accept_ms IS NOT NULL))
        ORDER BY last_seq
    """
    return [Waiting(*row) for row in await fetch(reader, sql, [])]


def is_unaccepted(tx: Transaction, work: WorkView) -> bool:
    """Whether `unaccepted` would name the open work, as it is in `tx`."""
    if work.state == "submitted":
        return True
    sql = "SELECT accept_ms IS NOT NULL FROM works WHERE workspace_id = ? AND channel = ? AND work_id = ?"
    return bool(tx.db.execute(sql, (work.workspace_id, work.channel, work.work_id)).fetchone()[0])


def has_open(tx: Transaction, peer_id: str) -> bool:
    """Whether `peer_id` takes part in an open work. Reads all open works."""
    sql = """
        SELECT EXISTS (SELECT 1 FROM works
            WHERE state IN ('submitted', 'working', 'needs_input') AND (initiator = ?1 OR target = ?1))
    """
    return bool(tx.db.execute(sql, (peer_id,)).fetchone()[0])
