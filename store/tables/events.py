"""The event stream: stored envelopes with the changes of their works, by the local sequence, resumable."""

import msgspec

from aghbus.protocol.api.inbox import InboxState
from aghbus.protocol.api.messages import Event, Message, OutboxState
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.protocol.api.works import Role, WorkChange
from aghbus.protocol.effects import StoreEnvelope
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.lifecycle import State, event_of
from aghbus.store.engine.event_buffer import BufferedEvent, EventPage
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


def new_event(
    envelope: Envelope,
    store: StoreEnvelope,
    before: State | None,
    *,
    seq: int,
    received_ms: int,
    delivery: OutboxState | InboxState | None,
    role: Role | None,
) -> BufferedEvent:
    """The event of an envelope that is stored under `seq` in this transaction, as `events` reads it afterwards."""
    verdict = store.verdict
    thread = envelope.surface == "thread"
    # Not all by name: see `protocol.envelope.parse`.
    message = Message(
        seq,
        envelope.id,
        store.direction,
        envelope.kind,
        envelope.workspace_id,
        envelope.channel,
        sender=envelope.sender,
        to=envelope.to,
        thread_id=envelope.container if thread else None,
        direct_id=None if thread else envelope.container,
        work_id=envelope.work_id,
        trust=store.trust,
        received_ms=received_ms,
        outcome=verdict.outcome if verdict is not None else None,
        reason=verdict.reason if verdict is not None else None,
        delivery=delivery,
        delivery_detail=None,
        envelope=msgspec.Raw(envelope.raw),
    )
    if verdict is None:
        event = _event(message, None, None, None, None)
    else:
        event = _event(message, event_of(envelope), before, verdict.state, role)
    return BufferedEvent(event, message, store.pair, len(envelope.raw))


def _event_of(row: MessageRow) -> Event:
    return _event(message_of(row), row.event, row.state_before, row.state_after, row.role)


def _event(message: Message, event: str | None, before: State | None, after: State | None, role: Role | None) -> Event:
    """`event` is the lifecycle event that the envelope was; None where no work is concerned."""
    change = None
    if message.work_id is not None and event is not None and message.outcome is not None:
        change = WorkChange(
            work_id=message.work_id,
            event=event,
            outcome=message.outcome,
            before=before,
            after=after,
            reason=message.reason,
            role=role,
        )
    return Event(seq=message.seq, type="envelope", message=message, work=change)
