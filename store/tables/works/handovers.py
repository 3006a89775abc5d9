"""Works that we opened for a capability: what is kept with each, and to which work it was handed over."""

from collections.abc import Sequence
from typing import Final

import msgspec

from aghbus.protocol.agh.handover import Handover
from aghbus.protocol.agh.lifecycle import OPEN_STATES, WorkView
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import INTACT_RAW, Reader
from aghbus.store.tables.envelopes import OURS, fetch, find_by_id
from aghbus.store.tables.works import lifecycle

_KEY: Final = "workspace_id = ? AND channel = ? AND work_id = ?"
_OPEN: Final = "SELECT workspace_id, channel, work_id FROM works WHERE handover IS NOT NULL AND terminal_id IS NULL"
_AT: Final = f"""
SELECT target, count(*) FROM works
WHERE state IN {OPEN_STATES} AND role = 'initiator' AND target IN (SELECT value FROM json_each(?)) GROUP BY target
"""  # noqa: S608 - constants
_UNACCEPTED: Final = f"""
SELECT w.workspace_id, w.channel, w.work_id, {INTACT_RAW} FROM works AS w JOIN log AS e ON e.seq = w.opened_seq
WHERE w.state = 'submitted' AND w.role = 'target' AND w.accept_ms IS NOT NULL
"""  # noqa: S608 - constants
_DELIVERED: Final = """
SELECT o.state = 'receipted' FROM works AS w JOIN outbox AS o ON o.seq = w.opened_seq
WHERE w.workspace_id = ? AND w.channel = ? AND w.work_id = ?
"""


def put(tx: Transaction, work: WorkView, handover: Handover) -> None:
    """Keep it with a work that was opened in `tx`."""
    tx.db.execute(f"UPDATE works SET handover = ? WHERE {_KEY}", (msgspec.json.encode(handover), *_key(work)))  # noqa: S608 - constant


def of(tx: Transaction, work: WorkView) -> Handover | None:
    """What is kept with a work of ours; None when it was opened for one peer, or was handed over."""
    row = tx.db.execute(f"SELECT handover FROM works WHERE {_KEY} AND next IS NULL", _key(work)).fetchone()  # noqa: S608 - constant
    return None if row is None or row[0] is None else msgspec.json.decode(row[0], type=Handover)


def opened_ms(tx: Transaction, work: WorkView) -> int:
    """When the work was opened, in Unix milliseconds."""
    row = tx.db.execute(f"SELECT opened_ms FROM works WHERE {_KEY}", _key(work)).fetchone()  # noqa: S608 - constant
    return int(row[0])


def link(tx: Transaction, work: WorkView, successor: str) -> None:
    """The work was handed over: `successor` is the work_id of the next one."""
    tx.db.execute(f"UPDATE works SET next = ? WHERE {_KEY}", (successor, *_key(work)))  # noqa: S608 - constant


def successor(tx: Transaction, work: WorkView) -> str | None:
    """The work_id of the work to which this one was handed over."""
    row = tx.db.execute(f"SELECT next FROM works WHERE {_KEY}", _key(work)).fetchone()  # noqa: S608 - constant
    return None if row is None else row[0]


def in_progress(tx: Transaction) -> list[WorkView]:
    """The works of ours that may be handed over, and have not ended."""
    found = [lifecycle.load(tx, *row) for row in tx.db.execute(_OPEN).fetchall()]
    return [work for work in found if work is not None]


async def any_in_progress(reader: Reader) -> bool:
    """Whether there are such works. Raises StoreUnavailable."""
    return bool(await fetch(reader, f"{_OPEN} LIMIT 1", []))


def open_at(tx: Transaction, peers: Sequence[str]) -> dict[str, int]:
    """How many works of ours are open at each of `peers`, where there are any."""
    return dict(tx.db.execute(_AT, (msgspec.json.encode(peers).decode(),)).fetchall())


def is_delivered(tx: Transaction, work: WorkView) -> bool:
    """Whether the target is known to have stored the opening."""
    tx.flush()
    row = tx.db.execute(_DELIVERED, _key(work)).fetchone()
    return row is not None and bool(row[0])


def unaccepted(tx: Transaction) -> list[tuple[WorkView, bytes]]:
    """The works that our agent has not accepted and that have a limit for it, with their openings."""
    tx.flush()
    rows = tx.db.execute(_UNACCEPTED).fetchall()
    found = [(lifecycle.load(tx, *row[:3]), row[3]) for row in rows]
    return [(work, raw) for work, raw in found if work is not None and raw is not None]


def opening(tx: Transaction, work: WorkView) -> bytes | None:
    """The envelope of ours that opened the work; None when it is not stored intact."""
    row = find_by_id(tx, INTACT_RAW, work.opening_id, OURS, work.workspace_id)
    return None if row is None else row[0]


def _key(work: WorkView) -> tuple[str, str, str]:
    return work.workspace_id, work.channel, work.work_id
