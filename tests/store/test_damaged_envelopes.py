"""A stored envelope whose bytes changed: named by the check, shown as damaged, never given to the agent as genuine."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aghbus.daemon.check_store import StoreCheck, check_store
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import checksum_of
from aghbus.store.tables import events, inbox, inbox_list, search
from aghbus.store.tables.works import lifecycle, reads
from tests.support.makers import BOB, NOW_MS, US, receive, rows, say, sending, trace

EVERYTHING = EnvelopeFilter()
LETTER = (b"100 euro", b"900 euro")
NOT_UTF8 = (b"100 euro", b"100 eur\xff")


@pytest.fixture
async def logged(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "store.db", synchronous="normal")
    yield store
    await store.close()


async def change(store: Store, seq: int, damage: tuple[bytes, bytes], *, forged: bool = False) -> None:
    """As a bit that flips on the disk: past everything that the store does for a change of its own. With `forged` the
    checksum is changed, too."""
    ((raw, checksum),) = await rows(store, f"SELECT raw, checksum FROM log WHERE seq = {seq}")
    raw = raw.replace(*damage)
    values = (raw, checksum_of(raw) if forged else checksum, seq)
    await store.write(lambda tx: tx.db.execute("UPDATE log SET raw = ?, checksum = ? WHERE seq = ?", values).rowcount)


def envelope_check(store: Store) -> StoreCheck:
    return next(one for one in check_store(store.path, quick=False).checks if one.check == "store envelopes")


def chain_check(store: Store) -> StoreCheck:
    return next(one for one in check_store(store.path, quick=False).checks if one.check == "store ledger")


@pytest.mark.parametrize("damage", [LETTER, NOT_UTF8], ids=["letter", "not UTF-8"])
async def test_only_the_damaged_envelope_is_shown_as_damaged(logged: Store, damage: tuple[bytes, bytes]) -> None:
    for _ in range(3):
        await receive(logged, say(text="pay 100 euro"))
    await change(logged, 2, damage)
    page = await search.messages(logged.reader, EVERYTHING)
    assert [message.damaged for message in page.messages] == [False, True, False]
    assert bytes(page.messages[1].envelope) == b"{}"
    assert json.loads(bytes(page.messages[0].envelope))["body"]["text"] == "pay 100 euro"
    flow = await events.events(logged.reader, EVERYTHING, since=0)
    assert [event.message.damaged for event in flow.events if event.message] == [False, True, False]
    problem = "; ".join(logged.problems)
    assert "1 stored envelopes are damaged (sequence 2)" in problem


async def test_the_agent_gets_no_damaged_message(logged: Store) -> None:
    await receive(logged, say(text="pay 100 euro"))
    await receive(logged, say(text="pay 200 euro"))
    await change(logged, 1, LETTER)
    item = await logged.write(lambda tx: inbox.lease_next(tx, NOW_MS, 60_000, "lease_1"))
    assert item is not None
    assert item.seq == 2
    assert await logged.write(lambda tx: inbox.lease_next(tx, NOW_MS, 60_000, "lease_2")) is None
    (dead,) = (await inbox_list.items(logged.reader, states=frozenset(["dead"]))).items
    assert (dead.seq, dead.message.damaged) == (1, True)
    assert dead.last_error is not None
    assert "damaged" in dead.last_error


async def test_a_work_with_a_damaged_envelope_can_be_read_and_continued(logged: Store) -> None:
    await receive(logged, say(text="pay 100 euro", work_id="work_a"))
    end = trace("completed", sender=US, to=BOB, work_id="work_a", result={"paid": "100 euro"})
    await logged.write(sending(end))
    await change(logged, 1, NOT_UTF8)
    await change(logged, 2, LETTER)
    detail = await reads.work(logged.reader, "work_a")
    assert detail is not None
    assert [step.damaged for step in detail.history] == [True, True]
    assert detail.work.result is None
    logged.memory.works.clear()
    known = await logged.write(lambda tx: lifecycle.find(tx, "work_a", None))
    assert known is not None
    assert known.trace_id is None


@pytest.mark.parametrize("damage", [LETTER, NOT_UTF8], ids=["letter", "not UTF-8"])
async def test_the_full_check_names_a_damaged_envelope(logged: Store, damage: tuple[bytes, bytes]) -> None:
    for _ in range(3):
        await receive(logged, say(text="pay 100 euro"))
    assert envelope_check(logged).state == "ok"
    await change(logged, 3, damage)
    check = envelope_check(logged)
    assert check.state == "fail"
    assert "sequence 3" in check.detail


async def test_the_full_check_compares_with_the_chain(logged: Store) -> None:
    """A change of an envelope and its checksum is not one of the ledger."""
    same_id = say(text="pay 100 euro")
    await receive(logged, same_id)
    await logged.write(sending(say(sender=US, to=BOB, text="100 euro paid")))
    for seq in (1, 2):
        await change(logged, seq, LETTER, forged=True)
        assert envelope_check(logged).state == "ok"
        check = chain_check(logged)
        assert check.state == "fail"
        assert f"envelope {seq} of entry {seq}: not as stored" in check.detail
