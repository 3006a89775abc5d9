"""The event stream: stored envelopes with the changes of their works, by the local sequence, resumable."""

from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.store.engine.memory.events import EventPage, event_of_message
from aghbus.store.engine.sql import Reader
from aghbus.store.tables.envelopes import (
    MessageRow,
    fetch,
    fetch_messages,
    lost_through,
    message_of,
    pruned_through,
)
from aghbus.store.tables.search import find


async def events(reader: Reader, wanted: EnvelopeFilter, *, since: int, limit: int = 100) -> EventPage:
    """Up to `limit` events after sequence `since`; fewer when PAGE_BYTES are reached.

    Events that retention removed are missing: ask `gap_after` first.
    """
    page = await find(reader, wanted, since=since, limit=limit)
    rows = await fetch_messages(reader, page.seqs)
    return EventPage([_event_of(row) for row in rows], page.next_since)


async def gap_after(reader: Reader, wanted: EnvelopeFilter, since: int) -> int | None:
    """The highest sequence removed, when something that `wanted` may have matched after `since` was; else None.

    Retention never removes a message that is ready or leased in the inbox, nor an envelope of a work that is kept;
    damage may.
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


def _event_of(row: MessageRow) -> Event:
    return event_of_message(message_of(row), row.event, row.state_before, row.state_after, row.role)
