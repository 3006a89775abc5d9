"""The clocks of the last run: one row of `meta`, from which a start finds changes in between."""

from typing import Final

import msgspec

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import Reader
from aghbus.store.tables.envelopes import fetch

_PUT: Final = "INSERT INTO meta (key, value) VALUES ('clock', ?) ON CONFLICT DO UPDATE SET value = excluded.value"


class ClockChange(msgspec.Struct, frozen=True, array_like=True):
    """A change of the wall clock by `millis`, noticed at `steady_ms`. `certain`: measured against a clock that ran on."""

    steady_ms: int
    millis: int
    certain: bool


class ClockRecord(msgspec.Struct, frozen=True, array_like=True):
    """The wall clock and the steady clock at one moment, the boot of the steady clock ("" unknown), and recent changes."""

    wall_ms: int
    steady_ms: int
    boot: str
    changes: list[ClockChange]


def put(tx: Transaction, record: ClockRecord) -> None:
    """Replaces the record."""
    tx.db.execute(_PUT, (msgspec.json.encode(record).decode(),))


async def get(reader: Reader) -> ClockRecord | None:
    """The record; None in a store that has none, or one that cannot be read."""
    rows = await fetch(reader, "SELECT value FROM meta WHERE key = 'clock'", [])
    try:
        return msgspec.json.decode(rows[0][0], type=ClockRecord) if rows else None
    except (msgspec.MsgspecError, TypeError):
        return None
