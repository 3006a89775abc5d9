"""The event buffer: the latest committed envelopes, in memory, so that a subscriber that is up to date needs no query.

It is filled only while there is a subscriber, and keeps what one of them has not read yet. An envelope joins it with its
commit; its event shows that moment: a received message is `ready` in the inbox, a sent one `queued` in the outbox. The
event is built when a subscriber reads it. The sequences in the buffer have no gaps, so that a reader whose position is in
it misses nothing.
"""

import contextlib
from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.agh.effects import StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import State, event_of
from aghbus.protocol.api.inbox import InboxState
from aghbus.protocol.api.messages import Event, Message, OutboxState
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.protocol.api.works import Role, WorkChange
from aghbus.store.engine.unit_of_work import UnitOfWork

MAX_EVENTS: Final = 2_048  # half a receive queue; a consumer that lags further reads from the file
MAX_BYTES: Final = 4 * 1024 * 1024  # of raw envelopes: with their parsed members about three times that


class Appended(msgspec.Struct, frozen=True):
    """An envelope that was stored under `seq`, and what its event shows: the state of its work `before`, its `delivery`,
    and the daemon's `role` in the work."""

    seq: int
    envelope: Envelope
    store: StoreEnvelope
    before: State | None
    received_ms: int
    delivery: OutboxState | InboxState | None
    role: Role | None


class EventPage(NamedTuple):
    """Events in order, and the sequence after which the next page begins: also past events that did not match."""

    events: list[Event]
    next_since: int


class Subscriber:
    """A subscriber: it has read the events up to `position`, and moves it on."""

    __slots__ = ("position",)

    def __init__(self, position: int) -> None:
        self.position = position


class EventBuffer:
    """The latest committed envelopes, and those `pending` in the open transaction. Filled by the writer, read on the same
    event loop. Without `subscribers` nothing is kept."""

    __slots__ = ("_bytes", "_rows", "pending", "subscribers")

    def __init__(self) -> None:
        self.pending: list[Appended] = []
        self.subscribers: set[Subscriber] = set()
        self._rows: list[Appended] = []
        self._bytes = 0

    @contextlib.contextmanager
    def subscribed(self, position: int = 0) -> Iterator[Subscriber]:
        """Registers a subscriber for the block, which has read the events up to `position`."""
        subscriber = Subscriber(position)
        self.subscribers.add(subscriber)
        try:
            yield subscriber
        finally:
            self.subscribers.discard(subscriber)
            if not self.subscribers:
                self._clear()

    def add(self, tx: UnitOfWork, row: Appended) -> None:
        """An envelope joins the buffer with the commit of `tx`."""
        self.pending.append(row)
        tx.undo.append(self.pending.pop)

    def publish(self) -> None:
        """The pending envelopes have become durable."""
        added = self.pending.copy()
        self.pending.clear()
        if not self.subscribers:
            return
        if added[-1].seq - added[0].seq >= len(added):
            added = _unbroken(added)
        if self._rows and added[0].seq != self._rows[-1].seq + 1:
            self._clear()  # there was no subscriber for a while
        self._rows += added
        self._trim(added)

    def read(self, wanted: EnvelopeFilter, since: int, upto: int, limit: int) -> EventPage | None:
        """The events that match among the `limit` envelopes after `since`; None when the file has to be queried.

        That is when the buffer does not reach from `since` to `upto`, or when an event may match and only the file
        can tell.
        """
        rows = self._rows
        if not rows or rows[0].seq > since + 1 or rows[-1].seq < upto:
            return None
        first = max(0, since + 1 - rows[0].seq)
        page = rows[first : first + limit]
        found = _matching(page, wanted)
        if found and wanted.needs_store:
            return None
        return EventPage([_event(row) for row in found], page[-1].seq if page else since)

    def _trim(self, added: list[Appended]) -> None:
        """Drops what every subscriber has read before these rows were added, then the oldest rows beyond the bounds."""
        rows = self._rows
        read = min([subscriber.position for subscriber in self.subscribers]) + 1 - rows[0].seq
        gone = min(len(rows), max(0, read, len(rows) - MAX_EVENTS))
        before = len(rows) - len(added)
        self._bytes = _size(added) + (0 if gone == before else self._bytes - _size(rows[:gone]))
        while self._bytes > MAX_BYTES:
            self._bytes -= len(rows[gone].envelope.raw)
            gone += 1
        del rows[:gone]

    def _clear(self) -> None:
        self._rows.clear()
        self._bytes = 0


def event_of_message(
    message: Message, event: str | None, before: State | None, after: State | None, role: Role | None
) -> Event:
    """The event of a stored envelope. `event` is the lifecycle event that it was; None where no work is concerned."""
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
    return Event(message.seq, "envelope", message, change)


def _event(row: Appended) -> Event:
    """The event as `events` of the tables reads it right after the commit."""
    envelope, store = row.envelope, row.store
    verdict, thread = store.verdict, envelope.surface == "thread"
    message = Message(  # positional: see `protocol.envelope.parse`
        row.seq,
        envelope.id,
        store.direction,
        envelope.kind,
        envelope.workspace_id,
        envelope.channel,
        envelope.sender,
        envelope.to,
        envelope.container if thread else None,
        None if thread else envelope.container,
        envelope.work_id,
        store.trust,
        row.received_ms,
        None if verdict is None else verdict.outcome,
        None if verdict is None else verdict.reason,
        row.delivery,
        None,
        msgspec.Raw(envelope.raw),
    )
    if verdict is None:
        return Event(row.seq, "envelope", message)
    return event_of_message(message, event_of(envelope), row.before, verdict.state, row.role)


def _matching(rows: list[Appended], wanted: EnvelopeFilter) -> list[Appended]:
    """The rows that match the filter, by the same rules as in SQL (envelopes.py), as far as they can tell themselves."""
    if wanted.kinds:
        rows = [row for row in rows if row.envelope.kind in wanted.kinds]
    if wanted.directions:
        rows = [row for row in rows if row.store.direction in wanted.directions]
    if wanted.work_id is not None:
        rows = [row for row in rows if row.envelope.work_id == wanted.work_id]
    if wanted.thread_id is not None:
        rows = [row for row in rows if (row.envelope.surface, row.envelope.container) == ("thread", wanted.thread_id)]
    if wanted.direct_id is not None:
        rows = [row for row in rows if (row.envelope.surface, row.envelope.container) == ("direct", wanted.direct_id)]
    if wanted.channel is not None:
        rows = [row for row in rows if row.envelope.channel == wanted.channel]
    if wanted.peer is not None and wanted.direct_id is not None:
        rows = [row for row in rows if row.store.pair is not None and wanted.peer in row.store.pair]
    elif wanted.peer is not None:
        rows = [row for row in rows if wanted.peer in (row.envelope.sender, row.envelope.to)]
    if wanted.inbox:  # a sent message is put into the inbox when it is given up
        rows = [row for row in rows if row.store.direction == "out" or row.delivery is not None]
    if wanted.for_agent:  # a sent envelope counts when the daemon ended a work with it
        rows = [row for row in rows if row.store.direction != "observed"]
    return rows


def _unbroken(rows: list[Appended]) -> list[Appended]:
    """The last rows whose sequences have no gap between them."""
    start = len(rows) - 1
    while start and rows[start - 1].seq == rows[start].seq - 1:
        start -= 1
    return rows[start:]


def _size(rows: list[Appended]) -> int:
    return sum([len(row.envelope.raw) for row in rows])
