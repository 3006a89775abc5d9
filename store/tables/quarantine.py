"""Refused envelopes, kept for the operator within bounds: the oldest make room for the newest (spec section 5)."""

from typing import Final

import aiosqlite

from aghbus.protocol.api.messages import Quarantined
from aghbus.protocol.text import escape, shorten
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables.envelopes import fetch

MAX_ROWS: Final = 1_000  # ours, refused envelopes
MAX_BYTES: Final = 16 * 1024 * 1024  # ours, of their raw bytes as kept
RAW_BYTES: Final = 65_536  # ours, kept of one; its real size is noted
SHOWN_BYTES: Final = 4_096  # of one in an answer, as `control.Quarantined.raw` promises
_TEXT_CHARS: Final = 512  # ours, of each text a stranger chose; an id has at most 256 bytes


def add(
    tx: Transaction,
    *,
    raw: bytes,
    subject: str,
    message_id: str,
    sender: str,
    reason: str,
    detail: str,
    received_ms: int,
    max_rows: int = MAX_ROWS,
    max_bytes: int = MAX_BYTES,
) -> None:
    """Keeps a refused envelope, cut at RAW_BYTES, and drops the oldest beyond the bounds.

    `message_id` and `sender` are what could be read, else empty; `reason` is the wire's reason code.
    """
    cut = raw[:RAW_BYTES]
    texts = (_storable(text) for text in (subject, message_id, sender, reason, detail))
    tx.db.execute(
        "INSERT INTO quarantine (received_ms, subject, message_id, sender, reason, detail, size, raw)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (received_ms, *texts, len(raw), cut),
    )
    memory = tx.memory
    memory.quarantine_rows.add(1)
    memory.quarantine_bytes.add(len(cut))
    while memory.quarantine_rows.value > max_rows or memory.quarantine_bytes.value > max_bytes:
        _drop_oldest(tx)


async def quarantined(reader: aiosqlite.Connection, *, limit: int = 100) -> list[Quarantined]:
    """Refused envelopes, latest first; their bytes as text, escaped and cut."""
    rows = await fetch(
        reader,
        "SELECT id, received_ms, subject, message_id, sender, reason, detail, size, coalesce(substr(raw, 1, ?), x'')"
        " FROM quarantine ORDER BY id DESC LIMIT ?",
        [SHOWN_BYTES, limit],
    )
    return [
        Quarantined(
            id=row[0],
            received_ms=row[1],
            subject=row[2],
            message_id=row[3],
            sender=row[4],
            reason=row[5],
            detail=row[6],
            size=row[7],
            raw=escape(row[8].decode(errors="backslashreplace")),
        )
        for row in rows
    ]


def _drop_oldest(tx: Transaction) -> None:
    row = tx.db.execute(
        "DELETE FROM quarantine WHERE id = (SELECT min(id) FROM quarantine) RETURNING length(raw)"
    ).fetchone()
    if row is None:
        raise LookupError("the quarantine is empty, and its gauges say otherwise")
    tx.memory.quarantine_rows.add(-1)
    tx.memory.quarantine_bytes.add(-row[0])


def _storable(text: str) -> str:
    """Short, and encodable: what could be read of a broken envelope may hold lone surrogates."""
    return shorten(text, _TEXT_CHARS).encode(errors="backslashreplace").decode()
