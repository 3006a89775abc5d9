"""What the store has of one message id, for an explanation of what we thought of it: stored envelopes and refused ones."""

from typing import Final

import aiosqlite
import msgspec

from aghbus.protocol.api.messages import Message
from aghbus.store.tables.envelopes import SELECT_MESSAGE, fetch, message_of

_CASES: Final = 10  # of each kind; senders may reuse the ids of others
_ID_DIGITS: Final = 18  # of a number that SQLite still holds


class Refused(msgspec.Struct, frozen=True):
    """A quarantined envelope. `raw` is cut where `size` is more than its length."""

    received_ms: int
    message_id: str
    sender: str
    reason: str
    detail: str
    size: int
    raw: bytes


async def refused(reader: aiosqlite.Connection, message_id: str) -> list[Refused]:
    """Quarantined envelopes of this message id, or the one of this number in the quarantine, latest first."""
    number = int(message_id) if message_id.isdecimal() and len(message_id) <= _ID_DIGITS else 0
    rows = await fetch(
        reader,
        "SELECT received_ms, message_id, sender, reason, detail, size, raw FROM quarantine"
        " WHERE message_id = ? OR id = ? ORDER BY id DESC LIMIT ?",
        [message_id, number, _CASES],
    )
    return [Refused(*row) for row in rows]


async def stored(reader: aiosqlite.Connection, message_id: str) -> list[tuple[Message, bytes]]:
    """Stored envelopes of this message id, latest first, each with its bytes as on the wire."""
    rows = await fetch(reader, SELECT_MESSAGE + " WHERE e.msg_id = ? ORDER BY e.seq DESC LIMIT ?", [message_id, _CASES])
    return [(message_of(row), row[17]) for row in rows]
