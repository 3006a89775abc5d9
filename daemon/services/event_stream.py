"""Event streams: every stored envelope in the order of the local sequence, from any position."""

from collections.abc import AsyncGenerator, Sequence
from typing import Final

from aghbus.daemon.base.notifier import Notifier
from aghbus.protocol.agh.lifecycle import STANDSTILL
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import Reader
from aghbus.store.tables.events import events, gap_after
from aghbus.store.tables.works.reads import standing

_PAGE: Final = 200  # events of one read; a slow reader holds one page


async def follow(
    store: Store, notifier: Notifier, since: int | None, wanted: EnvelopeFilter, *, works: bool = False
) -> AsyncGenerator[Sequence[Event], None]:
    """Events after `since` (None: from now on) until the daemon drains.

    The position is the store's sequence, so no event is lost or repeated across restarts of client or daemon. Where retention
    removed part of the range, a `gap` event comes first. A client that has caught up is served from memory, others from the store.
    With `works` the ends and questions of works that we opened have the work with them.
    """
    buffer = store.memory.events
    with buffer.subscribed(notifier.seq if since is None else since) as subscriber:
        removed = await gap_after(store.reader, wanted, subscriber.position)
        if removed is not None:
            yield [Event(seq=removed, type="gap", pruned_from=subscriber.position + 1)]
            # The envelopes that retention kept of that range (open works, unread messages) still follow.
        while True:
            position, upto = subscriber.position, notifier.seq
            if position < upto:
                page = buffer.read(wanted, position, upto, _PAGE)
                if page is None:
                    page = await events(store.reader, wanted, since=position, limit=_PAGE)
                if works:
                    _add_works(store.reader, page.events)
                if page.events:
                    yield page.events
                subscriber.position = page.next_since
            elif notifier.closed:
                return
            else:
                await notifier.wait()


def _add_works(reader: Reader, events: Sequence[Event]) -> None:
    for event in events:
        change = event.work
        if change is None or change.role != "initiator" or change.after not in STANDSTILL:
            continue
        if change.before != change.after and (work := standing(reader, event)) is not None:
            change.now = work
