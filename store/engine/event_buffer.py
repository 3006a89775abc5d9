"""The tail of the event stream: events of the latest envelopes, in memory, so that whoever has caught up asks no database.

It is kept only while somebody follows. An event joins it with the commit of its envelope and shows that moment: what came is
`ready` in the inbox, what goes out is `queued`. The sequences in it have no gaps, so that whoever is at its beginning or
further misses nothing.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from aghbus.protocol.api.messages import Event, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from aghbus.protocol.api.queries import EnvelopeFilter

TAIL_ROWS: Final = 2_048  # ours: half a receive queue; a consumer that lags further reads from the file
TAIL_BYTES: Final = 4 * 1024 * 1024  # ours, of their raw envelopes: with the rest of the events about twice that


class Fresh(msgspec.Struct, frozen=True):
    """An envelope that was just stored: its event, the message in that, the pair of its direct room, and how many bytes it has."""

    event: Event
    message: Message
    pair: tuple[str, str] | None
    size: int


class Stretch(NamedTuple):
    """Events in order, and the sequence after which the next stretch begins: also past what did not match."""

    events: list[Event]
    next_since: int


class Tail:
    """The latest events. Filled by the writer, read on the same event loop; what is not committed shows nowhere."""

    __slots__ = ("_bytes", "_followers", "_rows")

    def __init__(self) -> None:
        self._followers = 0
        self._rows: list[Fresh] = []
        self._bytes = 0

    @property
    def followed(self) -> bool:
        """Whether anybody wants to be told: else nothing need be made, and nothing is kept."""
        return self._followers > 0

    @contextlib.contextmanager
    def following(self) -> Iterator[None]:
        """Somebody follows meanwhile."""
        self._followers += 1
        try:
            yield
        finally:
            self._followers -= 1
            if not self._followers:
                self._clear()

    def publish(self, committed: Iterable[Fresh]) -> None:
        """These envelopes have become durable, in order of the sequence."""
        if not self._followers:
            return
        for fresh in committed:
            if self._rows and fresh.event.seq != self._rows[-1].event.seq + 1:
                self._clear()  # nobody followed for a while
            self._rows.append(fresh)
            self._bytes += fresh.size
        self._trim()

    def read(self, wanted: EnvelopeFilter, since: int, upto: int, limit: int) -> Stretch | None:
        """Up to `limit` events after `since` that match; None where the file has to be asked.

        That is when the tail does not reach from `since` to `upto`, or when the filter asks for what only the file knows and
        something may match it.
        """
        rows = self._rows
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
                return Stretch(found, rows[index].event.seq)
        return Stretch(found, max(since, rows[-1].event.seq))

    def _trim(self) -> None:
        gone = max(0, len(self._rows) - TAIL_ROWS)
        self._bytes -= sum(fresh.size for fresh in self._rows[:gone])
        while self._bytes > TAIL_BYTES:
            self._bytes -= self._rows[gone].size
            gone += 1
        del self._rows[:gone]

    def _clear(self) -> None:
        self._rows.clear()
        self._bytes = 0


def _matcher(wanted: EnvelopeFilter) -> Callable[[Fresh], bool]:
    """What an event itself says of the filter; the same rules as in SQL (envelopes.py), but for what only the file knows."""
    tests: list[Callable[[Fresh], bool]] = []
    if wanted.kinds:
        tests.append(lambda fresh: fresh.message.kind in wanted.kinds)
    if wanted.directions:
        tests.append(lambda fresh: fresh.message.direction in wanted.directions)
    if wanted.work_id is not None:
        tests.append(lambda fresh: fresh.message.work_id == wanted.work_id)
    if wanted.thread_id is not None:
        tests.append(lambda fresh: fresh.message.thread_id == wanted.thread_id)
    if wanted.direct_id is not None:
        tests.append(lambda fresh: fresh.message.direct_id == wanted.direct_id)
    if wanted.channel is not None:
        tests.append(lambda fresh: fresh.message.channel == wanted.channel)
    if wanted.peer is not None and wanted.direct_id is not None:
        tests.append(lambda fresh: fresh.pair is not None and wanted.peer in fresh.pair)
    elif wanted.peer is not None:
        tests.append(lambda fresh: wanted.peer in (fresh.message.sender, fresh.message.to))
    if wanted.inbox:  # ours may be put into the inbox when it is given up
        tests.append(lambda fresh: fresh.message.direction == "out" or fresh.message.delivery is not None)
    if wanted.for_agent:  # ours tells our agent something when it is an end that we made
        tests.append(lambda fresh: fresh.message.direction != "observed")
    if len(tests) == 1:
        return tests[0]
    return lambda fresh: all(test(fresh) for test in tests)
