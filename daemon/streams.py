"""Event streams: every stored envelope in the order of the local sequence, from wherever a client left off."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from aghbus.daemon.core import Core
from aghbus.daemon.service import EventFilter, MessageQuery
from aghbus.protocol.control import Event
from aghbus.store.envelopes import EnvelopeFilter
from aghbus.store.events import events, gap_after

_PAGE: Final = 200  # events read at once: what a slow reader can make us hold


async def follow(core: Core, since: int | None, wanted: EventFilter) -> AsyncIterator[Sequence[Event]]:
    """Events after `since` (None: from now on) until the daemon drains.

    The position is the store's sequence, so nothing is missed and nothing repeated, over restarts of either side; where
    retention removed part of what was asked for, a `gap` event says up to where.
    """
    position = core.announcer.seq if since is None else since
    chosen = envelope_filter(wanted)
    removed = await gap_after(core.store.reader, chosen, position)
    if removed is not None:
        yield [Event(seq=removed, type="gap", pruned_from=position + 1)]
        # What retention kept of that stretch (open works, unread messages) still follows.
    while True:
        upto = core.announcer.seq
        page = await events(core.store.reader, chosen, since=position, limit=_PAGE)
        if page.events:
            yield page.events
        position = max(position, page.next_since)
        if position < upto:
            continue
        if core.announcer.closed:
            return
        if core.announcer.seq <= position:
            await core.announcer.wait()


def envelope_filter(wanted: EventFilter | MessageQuery) -> EnvelopeFilter:
    """The store's form of a filter."""
    return EnvelopeFilter(
        kinds=wanted.kinds,
        work_id=wanted.work_id,
        thread_id=wanted.thread_id,
        direct_id=wanted.direct_id,
        peer=wanted.peer,
        channel=wanted.channel,
        directions=wanted.directions,
        inbox=isinstance(wanted, EventFilter) and wanted.inbox,
    )
