"""Purging the inbox: unread messages of some senders become dead, so that the agent never gets them."""

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

import msgspec

from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.sql import INBOX_STATE, Reader
from aghbus.store.tables import inbox
from aghbus.store.tables.envelopes import fetch

REASON: Final = "purged by the operator"
"""`last_error` of a purged message."""

_PURGED: Final = f"""
SELECT e.seq, e.msg_id, e.workspace_id, e.channel, e.work_id FROM envelopes AS e
WHERE e.seq IN (SELECT value FROM json_each(?)) AND e.sender IN (SELECT value FROM json_each(?)) AND e.direction = 'in'
    AND {INBOX_STATE} IN ('ready', 'leased')
ORDER BY e.seq
"""  # noqa: S608 - constants


_OPENED: Final = f"""
SELECT w.workspace_id, w.channel, w.work_id FROM envelopes AS e LEFT JOIN works AS w
    ON w.workspace_id = e.workspace_id AND w.channel = e.channel AND w.work_id = e.work_id AND w.opening_id = e.msg_id
    AND w.state IN ('submitted', 'working', 'needs_input')
WHERE e.seq IN (SELECT value FROM json_each(?)) AND e.sender IN (SELECT value FROM json_each(?)) AND e.direction = 'in'
    AND {INBOX_STATE} IN ('ready', 'leased')
"""  # noqa: S608 - constants


class Purged(NamedTuple):
    """A message that was purged, and its work."""

    seq: int
    msg_id: str
    workspace_id: str
    channel: str
    work_id: str | None


async def waiting(reader: Reader, untouched: list[int]) -> list[int]:
    """The sequences of all messages that are ready or leased. `untouched` are those that no consumer has taken
    (`InboxMemory.untouched`)."""
    rows = await fetch(reader, "SELECT seq FROM inbox WHERE state IN ('ready', 'leased')", [])
    return sorted({*untouched, *(seq for (seq,) in rows)})


async def preview(
    reader: Reader, seqs: Sequence[int], senders: Collection[str]
) -> tuple[int, set[tuple[str, str, str]]]:
    """How many messages `purge` would make dead, and the open works that they opened: workspace, channel and id."""
    params = [msgspec.json.encode(values).decode() for values in (list(seqs), list(senders))]
    rows = await fetch(reader, _OPENED, params)
    return len(rows), {(workspace, channel, work) for workspace, channel, work in rows if work is not None}


def purge(tx: Transaction, seqs: Sequence[int], senders: Collection[str], why: str = REASON) -> list[Purged]:
    """Makes those of the messages `seqs` dead that were received from `senders` and are ready or leased. Call it with some
    dozens of messages at a time."""
    params = [msgspec.json.encode(values).decode() for values in (list(seqs), list(senders))]
    tx.flush()
    purged = [Purged(*row) for row in tx.db.execute(_PURGED, params)]
    for message in purged:
        inbox.give_up(tx, message.seq, why)
    return purged
