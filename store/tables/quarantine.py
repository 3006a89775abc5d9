"""Quarantine: refused envelopes, kept for the operator within bounds; the oldest are dropped first (spec section 5)."""

from collections.abc import Sequence
from typing import Final

import msgspec

from aghbus.protocol.api.messages import Message, Quarantined
from aghbus.protocol.base.text import escape
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.segments import SEQS_OF_ID
from aghbus.store.engine.sql import Reader, as_struct, encodable, insert_into
from aghbus.store.tables.envelopes import SELECT_MESSAGE, fetch, message_of, message_row_of

MAX_ROWS: Final = 1_000  # refused envelopes
MAX_BYTES: Final = 16 * 1024 * 1024  # of their raw bytes as kept
RAW_BYTES: Final = 65_536  # kept of one; its real size is noted
SHOWN_BYTES: Final = 4_096  # of one in an answer, as `Quarantined.raw` promises
_TEXT_CHARS: Final = 512  # of each text that an unknown sender chose; an id has at most 256 bytes
_SAME_ID: Final = 10  # envelopes in an explanation; senders may reuse the ids of others
_ID_DIGITS: Final = 18  # of a number that SQLite can hold
_INSERT: Final = insert_into(
    "quarantine", ("received_ms", "subject", "message_id", "sender", "reason", "detail", "size", "raw")
)

_CHOSEN: Final = "sender IN (SELECT value FROM json_each(?1)) OR instr(raw, CAST(?2 AS BLOB)) > 0 OR received_ms < ?3"
_REMOVE: Final = f"DELETE FROM quarantine WHERE {_CHOSEN} RETURNING length(raw)"  # noqa: S608 - constants


class QuarantinedEnvelope(msgspec.Struct, frozen=True):
    """A refused envelope. `raw` is cut where `size` is more than its length."""

    received_ms: int
    message_id: str
    sender: str
    reason: str
    detail: str
    size: int
    raw: bytes


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

    `message_id` and `sender` are empty where they could not be read; `reason` is the wire's reason code.
    """
    cut = raw[:RAW_BYTES]
    texts = (encodable(text, _TEXT_CHARS) for text in (subject, message_id, sender, reason, detail))
    tx.db.execute(_INSERT, (received_ms, *texts, len(raw), cut))
    memory = tx.memory
    memory.quarantine_rows += 1
    memory.quarantine_bytes += len(cut)
    while memory.quarantine_rows > max_rows or memory.quarantine_bytes > max_bytes:
        _drop_oldest(tx)


async def quarantined(reader: Reader, *, limit: int = 100) -> list[Quarantined]:
    """Refused envelopes, latest first; their bytes as text, escaped and cut."""
    rows = await fetch(
        reader,
        "SELECT id, received_ms, subject, message_id, sender, reason, detail, size, coalesce(substr(raw, 1, ?), x'')"
        " FROM quarantine ORDER BY id DESC LIMIT ?",
        [SHOWN_BYTES, limit],
    )
    return [as_struct(Quarantined, row[:-1], raw=escape(row[-1].decode(errors="backslashreplace"))) for row in rows]


async def quarantined_with_id(reader: Reader, message_id: str) -> list[QuarantinedEnvelope]:
    """Refused envelopes of this message id, or the one of this number in the quarantine, latest first."""
    number = int(message_id) if message_id.isdecimal() and len(message_id) <= _ID_DIGITS else 0
    columns = ", ".join(QuarantinedEnvelope.__struct_fields__)
    rows = await fetch(
        reader,
        f"SELECT {columns} FROM quarantine WHERE message_id = ? OR id = ? ORDER BY id DESC LIMIT ?",  # noqa: S608 - constants
        [message_id, number, _SAME_ID],
    )
    return [QuarantinedEnvelope(*row) for row in rows]


async def stored_with_id(reader: Reader, message_id: str) -> list[tuple[Message, bytes]]:
    """Stored envelopes of this message id, latest first, each with its bytes as on the wire."""
    sql = f"{SELECT_MESSAGE} WHERE e.seq IN ({SEQS_OF_ID}) AND e.msg_id = ? ORDER BY e.seq DESC LIMIT ?"
    rows = await fetch(reader, sql, [*reader.log.of_id(message_id), message_id, _SAME_ID])
    messages = [message_of(message_row_of(row)) for row in rows]
    return [(message, bytes(message.envelope)) for message in messages]


def remove(tx: Transaction, names: Sequence[str], work_id: str | None, before_ms: int) -> int:
    """Removes the refused envelopes of these senders, those with this work's id in their bytes, and those received before
    `before_ms`. Returns how many."""
    removed = tx.db.execute(_REMOVE, (msgspec.json.encode(names).decode(), work_id, before_ms)).fetchall()
    tx.memory.quarantine_rows -= len(removed)
    tx.memory.quarantine_bytes -= sum(size for (size,) in removed)
    return len(removed)


async def count(reader: Reader, names: Sequence[str], work_id: str | None, before_ms: int) -> int:
    """How many `remove` would remove."""
    sql = f"SELECT count(*) FROM quarantine WHERE {_CHOSEN}"  # noqa: S608 - constants
    return int((await fetch(reader, sql, [msgspec.json.encode(names).decode(), work_id, before_ms]))[0][0])


def _drop_oldest(tx: Transaction) -> None:
    row = tx.db.execute(
        "DELETE FROM quarantine WHERE id = (SELECT min(id) FROM quarantine) RETURNING length(raw)"
    ).fetchone()
    if row is None:
        raise LookupError("the quarantine is empty, and its counts in memory say otherwise")
    tx.memory.quarantine_rows -= 1
    tx.memory.quarantine_bytes -= row[0]
