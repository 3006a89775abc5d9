"""Event streams: every stored envelope in the order of the local sequence, from wherever a client left off."""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from aghbus.daemon.base.notifier import Notifier
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.store.engine.database import Store
from aghbus.store.tables.events import events, gap_after

_PAGE: Final = 200  # events read at once: what a slow reader can make us hold


async def follow(
    store: Store, announcer: Notifier, since: int | None, wanted: EnvelopeFilter
) -> AsyncGenerator[Sequence[Event], None]:
    """Events after `since` (None: from now on) until the daemon drains.

    The position is the store's sequence, so nothing is missed and nothing repeated, over restarts of either side; where
    retention removed part of what was asked for, a `gap` event says up to where. Who has caught up is served from memory, the
    others from the store.
    """
    position = announcer.seq if since is None else since
    tail = store.memory.tail
    with tail.following():
        removed = await gap_after(store.reader, wanted, position)
        if removed is not None:
            yield [Event(seq=removed, type="gap", pruned_from=position + 1)]
            # What retention kept of that stretch (open works, unread messages) still follows.
        while True:
            upto = announcer.seq
            if position < upto:
                page = tail.read(wanted, position, upto, _PAGE)
                if page is None:
                    page = await events(store.reader, wanted, since=position, limit=_PAGE)
                if page.events:
                    yield page.events
                position = page.next_since
            elif announcer.closed:
                return
            else:
                await announcer.wait()
