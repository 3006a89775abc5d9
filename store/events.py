"""The stream of what happened: stored envelopes with what they did to a work, by the local sequence, resumable."""

from typing import NamedTuple

import aiosqlite

from aghbus.protocol import control
from aghbus.store.envelopes import (
    EnvelopeFilter,
    Row,
    fetch,
    fetch_messages,
    find,
    lost_through,
    message_of,
    pruned_through,
)


class EventPage(NamedTuple):
    """Events in order, and the sequence after which the next page begins: also past what did not match."""

    events: list[control.Event]
    next_since: int


async def events(reader: aiosqlite.Connection, wanted: EnvelopeFilter, *, since: int, limit: int = 100) -> EventPage:
    """Up to `limit` events after sequence `since`; fewer when PAGE_BYTES are reached.

    What retention removed is simply missing: ask `gap_after` first.
    """
    page = await find(reader, wanted, since=since, limit=limit)
    rows = await fetch_messages(reader, page.seqs)
    return EventPage([_event_of(row) for row in rows], page.next_since)


async def gap_after(reader: aiosqlite.Connection, wanted: EnvelopeFilter, since: int) -> int | None:
    """The highest sequence removed, when something that `wanted` may have matched after `since` was; else None.

    Retention never removes what waits in the inbox, nor an envelope of a work that is still known; damage asks nobody.
    """
    lost = await lost_through(reader)
    removed = await pruned_through(reader)
    if lost > since:
        return lost
    if removed <= since or wanted.inbox:
        return None
    if wanted.work_id is not None:
        known = await fetch(reader, "SELECT 1 FROM works WHERE work_id = ? LIMIT 1", [wanted.work_id])
        if known:
            return None
    return removed


def _event_of(row: Row) -> control.Event:
    message = message_of(row)
    event, before, after, role = row[18:22]
    change = None
    if message.work_id is not None and event is not None and message.outcome is not None:
        change = control.WorkChange(
            work_id=message.work_id,
            event=event,
            outcome=message.outcome,
            before=before,
            after=after,
            reason=message.reason,
            role=role,
        )
    return control.Event(seq=message.seq, type="envelope", message=message, work=change)
