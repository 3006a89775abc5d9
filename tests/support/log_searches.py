"""Every way to find a stored envelope, compared with a scan of all of them."""

from contextlib import closing
from pathlib import Path

import pytest

from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.protocol.base.errors import Refused
from aghbus.store.engine.database import Store, open_to_inspect
from aghbus.store.engine.log.check import index_problems
from aghbus.store.tables import envelopes, rooms, search
from tests.support.makers import US, rows

_COLUMNS = "seq, msg_id, work_id, surface, container, pair_a, pair_b, direction, workspace_id, sender"


async def seqs(store: Store, wanted: EnvelopeFilter, *, last: bool = False) -> list[int]:
    """All sequences that match, page by page; with `last` those of one page of the newest."""
    if last:
        return (await search.find(store.reader, wanted, since=0, limit=1000, last=True)).seqs
    found: list[int] = []
    since = 0
    while True:
        page = await search.find(store.reader, wanted, since=since, limit=3)
        found += page.seqs
        if page.next_since == since:
            return found
        since = page.next_since


async def assert_found(store: Store) -> None:
    """Searches by id, work, thread and room find what a scan finds, and nothing else; so do the counts."""
    stored = await rows(store, f"SELECT {_COLUMNS} FROM envelopes ORDER BY seq")
    for work in {row[2] for row in stored} - {None}:
        expected = [row[0] for row in stored if row[2] == work]
        assert await seqs(store, EnvelopeFilter(work_id=work)) == expected
        assert await seqs(store, EnvelopeFilter(work_id=work), last=True) == expected
    for thread in {row[4] for row in stored if row[3] == "thread"}:
        expected = [row[0] for row in stored if row[4] == thread]
        assert await seqs(store, EnvelopeFilter(thread_id=thread)) == expected
        assert await seqs(store, EnvelopeFilter(thread_id=thread), last=True) == expected
    for room, *pair in {row[4:7] for row in stored if row[5] is not None}:
        expected = [row[0] for row in stored if row[4:7] == (room, *pair)]
        for peer in pair:
            assert await seqs(store, EnvelopeFilter(direct_id=room, peer=peer)) == expected
    for message_id in {row[1] for row in stored}:
        of_id = [row for row in stored if row[1] == message_id]
        if len({row[9] for row in of_id}) > 1 and all(row[7] != "out" for row in of_id):  # of several other senders
            with pytest.raises(Refused):
                await envelopes.message(store.reader, message_id)
        else:
            message = await envelopes.message(store.reader, message_id)
            assert message is not None
            assert message.seq == max((row[7] == "out", row[0]) for row in of_id)[1]
        sent = await store.write(lambda tx, one=message_id: envelopes.find_sent(tx, stored[0][8], one))  # type: ignore[misc]
        assert (sent is not None) == any(row[1] == message_id and row[7] == "out" for row in stored)
    assert await envelopes.message(store.reader, "msg_of_nobody") is None
    names = "workspace_id, channel, sender, recipient, surface, container, pair_a, pair_b"
    assert await rows(store, f"SELECT {names} FROM flows GROUP BY {names} HAVING count(*) > 1") == []
    threads = {thread.thread_id: thread.messages for thread in await rooms.threads(store.reader, limit=1000)}
    assert threads == _counted([row[4] for row in stored if row[3] == "thread"])
    directs = {room.direct_id: room.messages for room in await rooms.directs(store.reader, self_id=US, limit=1000)}
    assert directs == _counted([row[4] for row in stored if row[5] is not None])


def index_problems_of(path: Path) -> list[str]:
    """What `aghd check-store` says of the indexes."""
    with closing(open_to_inspect(path)) as db:
        return index_problems(db)


def _counted(names: list[str]) -> dict[str, int]:
    return {name: names.count(name) for name in names}
