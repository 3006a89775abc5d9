"""The event buffer: events of the latest envelopes, in memory, so that a subscriber that is up to date needs no query.

It is filled only while there is a subscriber. An event joins it with the commit of its envelope and shows that
moment: a received message is `ready` in the inbox, a sent one `queued` in the outbox. The sequences in it have no
gaps, so that a reader whose position is in it misses nothing.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from aghbus.protocol.api.messages import Event, Message
from aghbus.protocol.api.queries import EnvelopeFilter

MAX_EVENTS: Final = 2_048  # half a receive queue; a consumer that lags further reads from the file
MAX_BYTES: Final = 4 * 1024 * 1024  # of their raw envelopes: with the rest of the events about twice that


class BufferedEvent(msgspec.Struct, frozen=True):
    """The event of an envelope that was just stored, its message, the pair of its direct room, and the bytes of the
    envelope."""

    event: Event
    message: Message
    pair: tuple[str, str] | None
    size: int


class EventPage(NamedTuple):
    """Events in order, and the sequence after which the next page begins: also past events that did not match."""

    events: list[Event]
    next_since: int


class EventBuffer:
    """The latest committed events, and those `pending` in the open transaction. Filled by the writer, read on the same
    event loop. Without `subscribers`, which are counted, no events are built."""

    __slots__ = ("_bytes", "_events", "pending", "subscribers")

    def __init__(self) -> None:
        self.pending: list[BufferedEvent] = []
        self.subscribers = 0
        self._events: list[BufferedEvent] = []
        self._bytes = 0

    @contextlib.contextmanager
    def subscribed(self) -> Iterator[None]:
        """Registers a subscriber for the block."""
        self.subscribers += 1
        try:
            yield
        finally:
            self.subscribers -= 1
            if not self.subscribers:
                self._clear()

    def publish(self) -> None:
        """The envelopes of the pending events have become durable."""
        if not self.subscribers:
            return
        for one in self.pending:
            if self._events and one.event.seq != self._events[-1].event.seq + 1:
                self._clear()  # there was no subscriber for a while
            self._events.append(one)
            self._bytes += one.size
        self._trim()

    def read(self, wanted: EnvelopeFilter, since: int, upto: int, limit: int) -> EventPage | None:
        """Up to `limit` events after `since` that match; None when the file has to be queried.

        That is when the buffer does not reach from `since` to `upto`, or when an event may match and only the file
        can tell.
        """
        rows = self._events
        if not rows or rows[0].event.seq > since + 1 or rows[-1].event.seq < upto:
            return None
        first = max(0, since + 1 - rows[0].event.seq)
        found: list[Event] = []
        matches, needs_store = _matcher(wanted), wanted.needs_store
        for index in range(first, len(rows)):
            if not matches(rows[index]):
                continue
            if needs_store:
                return None
            found.append(rows[index].event)
            if len(found) == limit:
                return EventPage(found, rows[index].event.seq)
        return EventPage(found, max(since, rows[-1].event.seq))

    def _trim(self) -> None:
        gone = max(0, len(self._events) - MAX_EVENTS)
        self._bytes -= sum(one.size for one in self._events[:gone])
        while self._bytes > MAX_BYTES:
            self._bytes -= self._events[gone].size
            gone += 1
        del self._events[:gone]

    def _clear(self) -> None:
        self._events.clear()
        self._bytes = 0


def _matcher(wanted: EnvelopeFilter) -> Callable[[BufferedEvent], bool]:
    """Whether an event matches the filter, by the same rules as in SQL (envelopes.py), as far as the event itself can
    tell."""
    tests: list[Callable[[BufferedEvent], bool]] = []
    if wanted.kinds:
        tests.append(lambda one: one.message.kind in wanted.kinds)
    if wanted.directions:
        tests.append(lambda one: one.message.direction in wanted.directions)
    if wanted.work_id is not None:
        tests.append(lambda one: one.message.work_id == wanted.work_id)
    if wanted.thread_id is not None:
        tests.append(lambda one: one.message.thread_id == wanted.thread_id)
    if wanted.direct_id is not None:
        tests.append(lambda one: one.message.direct_id == wanted.direct_id)
    if wanted.channel is not None:
        tests.append(lambda one: one.message.channel == wanted.channel)
    if wanted.peer is not None and wanted.direct_id is not None:
        tests.append(lambda one: one.pair is not None and wanted.peer in one.pair)
    elif wanted.peer is not None:
        tests.append(lambda one: wanted.peer in (one.message.sender, one.message.to))
    if wanted.inbox:  # a sent message is put into the inbox when it is given up
        tests.append(lambda one: one.message.direction == "out" or one.message.delivery is not None)
    if wanted.for_agent:  # a sent envelope counts when the daemon ended a work with it
        tests.append(lambda one: one.message.direction != "observed")
    return tests[0] if len(tests) == 1 else _all_of(tests)


def _all_of(tests: Sequence[Callable[[BufferedEvent], bool]]) -> Callable[[BufferedEvent], bool]:
    """Whether all `tests` hold."""

    def hold(one: BufferedEvent) -> bool:
        for test in tests:  # noqa: SIM110 - a generator for each event takes longer than the tests
            if not test(one):
                return False
        return True

    return hold
