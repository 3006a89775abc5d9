"""Purging messages: what is chosen, what is kept, and that no bytes are left in any file."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from aghbus.daemon.check_store import check_store
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.api.queries import EventsQuery
from aghbus.store import purge
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.purge import Found, Selection
from aghbus.store.tables import inbox, quarantine, retry
from aghbus.store.tables.bridge import log as bridge_log
from aghbus.store.tables.events import gap_after
from aghbus.store.tables.works import handovers, lifecycle, reads
from tests.support.auditing import checked
from tests.support.makers import BOB, EVE, NOW, NOW_MS, US, receive, rows, say, sending, trace

SECRET = b"the text of bob"
LATER = NOW_MS + 86_400_000


def of(*peers: str) -> Selection:
    return Selection(is_peer=lambda name: name in peers)


async def take(store: Store, envelope: Envelope, *, at: int = NOW) -> int:
    """A message that the agent is done with."""
    seq = (await receive(store, envelope, at=at)).seq
    assert seq is not None
    await store.write(lambda tx: inbox.ack(tx, seq))
    return seq


async def sent(store: Store, envelope: Envelope) -> int:
    """A message of ours that is delivered."""
    seq = (await store.write(sending(envelope))).seq
    assert seq is not None
    await store.write(lambda tx: retry.published(tx, [retry.RetrySchedule(seq, None)], NOW_MS))
    return seq


async def run(store: Store, wanted: Selection) -> Found:
    """The whole purge, which does what its preview says."""
    chosen = await purge.plan(store.reader, wanted)
    expected = await purge.look(store.reader, chosen, chosen.seqs)
    found = await store.write(lambda tx: purge.remove(tx, chosen, chosen.seqs, LATER))
    assert found == expected
    return found


async def left(store: Store) -> list[int]:
    return [seq for (seq,) in await rows(store, "SELECT seq FROM log ORDER BY seq")]


def files_with(path: Path, text: bytes) -> list[str]:
    """The names of all files beside the store that contain `text`."""
    return sorted(each.name for each in path.parent.iterdir() if text in each.read_bytes())


async def test_messages_from_and_to_a_peer_are_removed_and_no_others(store: Store) -> None:
    await take(store, say(text="from bob"))
    await sent(store, say(sender=US, to=BOB))
    await receive(store, say(sender=BOB, to=EVE), observe=True)
    others = [await take(store, say(sender=EVE)), await sent(store, say(sender=US, to=EVE))]
    found = await run(store, of(BOB))
    assert (dict(found.kinds), found.works, found.unread, found.undelivered) == ({"say": 3}, 0, 0, 0)
    assert await left(store) == others
    assert await gap_after(store.reader, EventsQuery(), 0) == 3


async def test_unread_and_undelivered_messages_are_kept_and_counted(store: Store) -> None:
    unread = (await receive(store, say())).seq
    waiting = (await store.write(sending(say(sender=US, to=BOB)))).seq
    await take(store, say())
    found = await run(store, of(BOB))
    assert (found.kinds.total(), found.unread, found.undelivered) == (1, 1, 1)
    assert await left(store) == [unread, waiting]


async def test_a_work_goes_with_its_messages_once_it_has_ended(store: Store) -> None:
    await take(store, say(work_id="work_a"))
    await sent(store, trace("working", sender=US, to=BOB, work_id="work_a"))
    chosen = await purge.plan(store.reader, of(BOB))
    assert chosen.kept_works == ["work_a"]
    assert (await run(store, of(BOB))).kinds.total() == 0
    await sent(store, trace("completed", sender=US, to=BOB, work_id="work_a"))
    assert (await run(store, Selection(work_id="work_a"))).works == 1
    assert await reads.work(store.reader, "work_a") is None
    assert await left(store) == []


async def test_works_that_were_handed_over_go_together_or_stay(store: Store) -> None:
    await take(store, say(work_id="work_first"))
    await take(store, say(sender=EVE, work_id="work_next"))
    await sent(store, trace("failed", sender=US, to=BOB, work_id="work_first"))

    def link(tx: Transaction) -> None:
        known = lifecycle.find(tx, "work_first", None)
        assert known is not None
        handovers.link(tx, known.work, "work_next")

    await store.write(link)
    for wanted in (of(BOB), Selection(work_id="work_first"), Selection(work_id="work_next")):
        chosen = await purge.plan(store.reader, wanted)
        assert chosen.kept_works == ["work_next"]
        assert (await run(store, wanted)).kinds.total() == 0
    await sent(store, trace("completed", sender=US, to=EVE, work_id="work_next"))
    assert (await run(store, Selection(work_id="work_first"))).works == 2
    assert await left(store) == []


async def test_by_time_works_that_changed_since_are_kept(store: Store) -> None:
    await take(store, say())
    await take(store, say(work_id="work_old"))
    await sent(store, trace("completed", sender=US, to=BOB, work_id="work_old"))
    opening = await take(store, say(work_id="work_young"))
    ending = trace("completed", sender=US, to=BOB, work_id="work_young", ts=NOW + 100)
    young = (await store.write(sending(ending, at=NOW + 100))).seq
    last = await take(store, say(ts=NOW + 100), at=NOW + 100)
    found = await run(store, Selection(before_ms=NOW_MS + 1))
    assert (found.kinds.total(), found.works) == (3, 1)
    assert await left(store) == [opening, young, last]


async def test_refused_envelopes_and_log_rows_are_found_by_peer_work_and_time(store: Store) -> None:
    def refuse(sender: str, raw: bytes, at_ms: int) -> Callable[[Transaction], None]:
        return lambda tx: quarantine.add(
            tx, raw=raw, subject="s", message_id="m", sender=sender, reason="malformed", detail="", received_ms=at_ms
        )

    for job in (refuse(BOB, b"1", 10), refuse("", b'{"work_id":"work_a"}', 10), refuse(EVE, b"2", 5)):
        await store.write(job)
    for names, work_id, before_ms in (([BOB], None, 0), ([], "work_a", 0), ([], None, 6)):
        assert await quarantine.count(store.reader, names, work_id, before_ms) == 1
        args = names, work_id, before_ms
        assert await store.write(lambda tx, args=args: quarantine.remove(tx, *args)) == 1  # type: ignore[misc]
    assert store.memory.quarantine_rows == store.memory.quarantine_bytes == 0
    for seq, record in enumerate(({"to": [BOB]}, {"text": f"of {BOB}"}, {"to": EVE})):
        await store.write(
            lambda tx, seq=seq, record=record: bridge_log.add(tx, "agentos", "in", record, at_ms=seq, seq=100 + seq)  # type: ignore[misc]
        )
    found = [
        await bridge_log.naming(store.reader, [BOB]),
        await bridge_log.before(store.reader, 2),
        await bridge_log.of_envelopes(store.reader, [102]),
    ]
    assert [[row.id for row in part] for part in found] == [[1], [1, 2], [3]]
    removed = [await store.write(lambda tx, part=part: bridge_log.remove(tx, part)) for part in found]  # type: ignore[misc]
    assert removed == [1, 1, 1]
    assert await rows(store, "SELECT row_count, bytes FROM bridge_log_sizes") == [(0, 0)]


async def test_no_bytes_are_left_in_any_file_and_the_ledger_verifies(store: Store, path: Path) -> None:
    """Long texts have pages of their own, short ones share pages with those of others."""
    first = say(text=f"{SECRET.decode()} first")
    await take(store, first)
    await take(store, say(text=f"{SECRET.decode()} opens", work_id="work_a"))
    for number in range(150):
        size = (1, 10, 100, 1000)[number % 4]
        await take(store, say(text=f"{SECRET.decode()} {number}" * size))
        await take(store, say(sender=EVE, text="the text of eve" * size))
    ended = trace("completed", sender=US, to=BOB, work_id="work_a", message=SECRET.decode(), result=SECRET.decode())
    await sent(store, ended)
    assert files_with(path, SECRET)
    found = await run(store, of(BOB))
    assert found.kinds.total() == 153
    assert await store.rewrite() is None
    assert files_with(path, SECRET) == []
    assert files_with(path, b"the text of eve") == ["store.db"]
    report = checked(path)
    assert (report.intact, report.envelopes) == (True, 150), report.findings
    assert (await receive(store, first)).seq is None  # its id is still known
    await store.close()
    assert files_with(path, SECRET) == []
    assert check_store(path, quick=False).ok
    again = await Store.open(path)
    try:
        assert len(await left(again)) == 150
        assert (await receive(again, first)).seq is None
        assert checked(path).intact
    finally:
        await again.close()


async def test_a_reader_of_an_old_state_is_reported(store: Store, path: Path) -> None:
    await take(store, say(text=SECRET.decode()))
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN")
        other.execute("SELECT count(*) FROM log").fetchone()
        await run(store, of(BOB))
        problem = await store.rewrite()
        assert problem is not None
        assert "reads an old state" in problem
        other.execute("COMMIT")
        assert await store.rewrite() is None
    assert files_with(path, SECRET) == []


async def test_writes_go_on_after_the_file_was_written_anew(store: Store) -> None:
    pending = store.submit(sending(say(sender=US, to=None)))
    assert await store.rewrite() is None
    assert (await pending).seq == 1
    await take(store, say())
    assert await store.probe()
