"""Shifts all stored times that the daemon waits for, after a step of the system clock."""

from typing import Final

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import Reader
from aghbus.store.tables.envelopes import fetch

_SHIFTS: Final = (
    "UPDATE outbox SET next_ms = max(1, next_ms + ?) WHERE next_ms IS NOT NULL",
    "UPDATE works SET due_ms = max(1, due_ms + ?) WHERE due_ms IS NOT NULL",
    "UPDATE inbox SET lease_until_ms = max(1, lease_until_ms + ?) WHERE state = 'leased'",
    "UPDATE inbox SET available_ms = max(1, available_ms + ?) WHERE state IN ('ready', 'leased') AND available_ms > 0",
    "UPDATE chain_steps SET due_ms = max(1, due_ms + ?) WHERE ended_ms IS NULL AND due_ms IS NOT NULL",
    "UPDATE chain_steps SET open_ms = max(1, open_ms + ?) WHERE ended_ms IS NULL AND open_ms IS NOT NULL",
    "UPDATE bridge_log SET due_ms = max(1, due_ms + ?) WHERE due_ms IS NOT NULL",
)


def shift(tx: Transaction, step_ms: int) -> None:
    """Moves retries, deadlines, leases, delays and times to live by `step_ms`, the size of the clock step."""
    tx.flush()
    for sql in _SHIFTS:
        tx.db.execute(sql, (step_ms,))
    tx.memory.inbox_due_ms = 0  # so that the next lease queries the file


async def last_ms(reader: Reader) -> int:
    """When the latest envelope was stored, in Unix milliseconds by the clock at that time; 0 in an empty store."""
    rows = await fetch(reader, "SELECT received_ms FROM log ORDER BY seq DESC LIMIT 1", [])
    return int(rows[0][0]) if rows else 0
