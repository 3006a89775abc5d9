"""The bridge's tables: look-ups, removal with envelopes and works, and the bounds of the logs."""

import itertools
from typing import Any

import pytest

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.formats.model import BridgedMessage
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import inbox
from aghbus.store.tables.bridge import follow_ups
from aghbus.store.tables.bridge import log as bridge_log
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.bridge.follow_ups import EndedWork
from aghbus.store.tables.bridge.messages import StoredMessageHistory
from aghbus.store.tables.works import lifecycle
from tests.support.makers import (
    BOB,
    CHANNEL,
    NOW_MS,
    US,
    WORKSPACE,
    inbox_states,
    receipt,
    receive,
    rows,
    say,
    sending,
    trace,
)

NAME = "sacp"
_works = itertools.count(1)


def memory(tx: Transaction) -> StoredMessageHistory:
    return StoredMessageHistory(tx, NAME, WORKSPACE, CHANNEL, US)


async def crossed(store: Store, envelope: Envelope, message: Any, **more: Any) -> int:
    """`envelope` stored as its sender says, and noted as the carrier of `message`."""
    ours = envelope.sender == US
    seq = (await store.write(sending(envelope))).seq if ours else (await receive(store, envelope)).seq
    assert seq is not None

    def note(tx: Transaction) -> bool:
        kept = bridge.load_envelope(tx, seq)
        assert kept is not None
        return bridge.remember(
            tx, kept, NAME, "out" if ours else "in", message=message, **{"foreign_id": None, "scope": "", **more}
        )

    assert await store.write(note)
    assert not await store.write(note)  # noted once
    return seq


def work_id() -> str:
    return f"work_{next(_works)}"


async def find(store: Store, *args: Any) -> BridgedMessage | None:
    return await store.write(lambda tx: memory(tx).find(*args))


async def test_a_message_is_found_by_its_id_scope_and_direction(store: Store) -> None:
    first = say(ext={f"{NAME}.message": {"n": 1}})
    await crossed(store, first, {"n": 1}, foreign_id="m", scope="one")
    await crossed(store, say(US, BOB), {"n": 2}, foreign_id="m", scope="two")
    found = await find(store, "m", "one")
    assert found is not None
    assert (found.message, found.direction, found.envelope_id, found.sender) == ({"n": 1}, "in", first.id, BOB)
    assert found.at == NOW_MS // 1000
    two = await find(store, "m")
    assert two is not None and two.message == {"n": 2}  # any scope: the latest
    incoming = await find(store, "m", "", "in")
    assert incoming is not None and incoming.message == {"n": 1}
    assert await find(store, "m", "one", "out") is None
    assert await find(store, "n") is None
    last = await store.write(lambda tx: memory(tx).last("two"))
    assert last is not None and last.message == {"n": 2}


async def test_a_store_knows_whether_anything_ever_crossed_a_bridge(store: Store) -> None:
    await receive(store, say(work_id=work_id(), ext={"trace": "sacp"}))
    await receive(store, say(text="sacp.message"))
    assert not store.memory.bridged
    await receive(store, say(ext={f"{NAME}.message_ref": {"uri": "agh://artifacts/a/b"}}))
    assert store.memory.bridged


async def test_a_bridged_message_is_known_after_a_restart(store: Store) -> None:
    await crossed(store, say(), {"n": "native"}, native=True)  # its envelope does not show it
    await store.close()
    again = await Store.open(store.path)
    try:
        assert again.memory.bridged
    finally:
        await again.close()


async def test_a_message_fetched_later_replaces_the_native_one(store: Store) -> None:
    first = say()
    seq = await crossed(store, first, {"n": "native"}, foreign_id="made-up", native=True)

    def note(tx: Transaction, message: str, *, native: bool) -> bool:
        kept = bridge.load_envelope(tx, seq)
        assert kept is not None
        return bridge.remember(tx, kept, NAME, "in", message=message, foreign_id="m", scope="s", native=native)

    assert await store.write(lambda tx: note(tx, "real", native=False))
    assert not await store.write(lambda tx: note(tx, "native again", native=True))
    assert await find(store, "made-up") is None
    found = await find(store, "m", "s")
    assert found is not None
    assert found.message == "real"


async def test_another_format_or_channel_finds_nothing(store: Store) -> None:
    await crossed(store, say(), "words", foreign_id="m")
    assert await store.write(lambda tx: StoredMessageHistory(tx, "agentos", WORKSPACE, CHANNEL, US).find("m")) is None
    assert await store.write(lambda tx: StoredMessageHistory(tx, NAME, WORKSPACE, "elsewhere", US).find("m")) is None
    assert await store.write(lambda tx: StoredMessageHistory(tx, NAME, WORKSPACE, CHANNEL, US).find("m")) is not None


async def test_a_message_that_its_envelope_carries_is_not_kept_twice(store: Store) -> None:
    await crossed(store, say(ext={f"{NAME}.message": {"a": 1}}), {"a": 1}, foreign_id="same")
    await crossed(store, say(ext={f"{NAME}.message": {"a": 1}}), {"a": 1.0}, foreign_id="other")
    assert await rows(store, "SELECT message FROM bridge_messages ORDER BY seq") == [(None,), (b'{"a":1.0}',)]
    found = await find(store, "other")
    assert found is not None and isinstance(found.message["a"], float)


async def test_the_opening_message_of_a_work_unless_it_was_native(store: Store) -> None:
    ours, native = work_id(), work_id()
    await crossed(store, say(work_id=ours), "please", foreign_id="m")
    await crossed(store, say(work_id=native), "made up", foreign_id="n", native=True)

    def opened(tx: Transaction, name: str) -> BridgedMessage | None:
        work = memory(tx).work(name)
        assert work is not None
        return memory(tx).opening(work)

    found = await store.write(lambda tx: opened(tx, ours))
    assert found is not None and found.message == "please"
    assert found.work is not None and found.work.work_id == ours
    assert await store.write(lambda tx: opened(tx, native)) is None


async def test_assigned_works_are_open_and_have_us_as_target(store: Store) -> None:
    mine, done, theirs = work_id(), work_id(), work_id()
    await receive(store, say(work_id=mine))
    await receive(store, say(work_id=done))
    await store.write(sending(trace("completed", US, BOB, work_id=done)))
    await store.write(sending(say(US, BOB, work_id=theirs)))
    held = await store.write(lambda tx: memory(tx).assigned_works())
    assert [work.work_id for work in held] == [mine]


async def test_a_work_is_delivered_by_its_opening_message_in_this_format_only(store: Store) -> None:
    seen, unseen = work_id(), work_id()
    await crossed(store, say(work_id=seen), "made up", foreign_id="n", native=True)
    await receive(store, say(work_id=unseen))

    def handed(tx: Transaction, name: str, format: str = NAME) -> bool:
        work = memory(tx).work(name)
        assert work is not None
        return StoredMessageHistory(tx, format, WORKSPACE, CHANNEL, US).was_delivered(work)

    assert await store.write(lambda tx: handed(tx, seen))
    assert not await store.write(lambda tx: handed(tx, unseen))
    assert not await store.write(lambda tx: handed(tx, seen, "agentos"))


async def test_an_agent_received_works_once_a_delivered_one_has_ended(store: Store) -> None:
    mine = work_id()
    await crossed(store, say(work_id=mine), "made up", foreign_id="n", native=True)
    assert not await store.write(lambda tx: memory(tx).received_works())
    await store.write(sending(trace("completed", US, BOB, work_id=mine)))
    assert await store.write(lambda tx: memory(tx).received_works())
    assert not await store.write(
        lambda tx: StoredMessageHistory(tx, "agentos", WORKSPACE, CHANNEL, US).received_works()
    )


async def test_an_envelope_is_rejected_on_its_channel_only(store: Store) -> None:
    said = say(work_id=work_id())
    await receive(store, said)
    assert await store.write(lambda tx: memory(tx).holds(said.id))
    assert not await store.write(lambda tx: memory(tx).holds("msg_other"))
    assert not await store.write(lambda tx: StoredMessageHistory(tx, NAME, WORKSPACE, "elsewhere", US).holds(said.id))


async def test_the_message_of_a_work_that_the_next_one_answers(store: Store) -> None:
    name = work_id()
    opening = say(work_id=name)
    await receive(store, opening)

    def answered(tx: Transaction) -> str:
        work = memory(tx).work(name)
        assert work is not None
        return memory(tx).answered(work)

    assert await store.write(answered) == opening.id
    await store.write(sending(trace("needs_input", US, BOB, work_id=name)))
    assert await store.write(answered) == opening.id  # our own does not count
    more = say(work_id=name, text="this one")
    await receive(store, more)
    assert await store.write(answered) == more.id
    elsewhere = say(work_id=name, container="thread_two")  # refused: changes nothing
    await receive(store, elsewhere)
    assert await store.write(answered) == more.id

    given = work_id()
    first = say(US, BOB, work_id=given)
    await store.write(sending(first))

    def received(tx: Transaction) -> str:
        work = memory(tx).work(given)
        assert work is not None
        return memory(tx).answered(work)

    assert await store.write(received) == first.id
    asked = trace("needs_input", work_id=given)
    await receive(store, asked)
    assert await store.write(received) == asked.id


async def test_a_message_sent_before_is_recognized(store: Store) -> None:
    name = work_id()
    plain, opening = say(US, BOB), say(US, BOB, work_id=name)
    for envelope in (plain, opening):
        await store.write(sending(envelope))
    received = say()
    await receive(store, received)
    assert await store.write(lambda tx: memory(tx).sent(plain.id)) is True
    work = await store.write(lambda tx: memory(tx).sent(opening.id))
    assert isinstance(work, WorkView) and work.work_id == name
    assert await store.write(lambda tx: memory(tx).sent(received.id)) is None


async def test_a_position_only_moves_forward(store: Store) -> None:
    assert await bridge.position(store.reader, "out:x") == 0
    assert await store.write(lambda tx: bridge.advance_position(tx, "out:x", 5)) == 5
    assert await store.write(lambda tx: bridge.advance_position(tx, "out:x", 3)) == 5
    assert await bridge.position(store.reader, "out:x") == 5


async def load(store: Store, name: str) -> WorkView:
    work = await store.write(lambda tx: lifecycle.load(tx, WORKSPACE, CHANNEL, name))
    assert work is not None
    return work


async def linked(store: Store, hand: str | None = None) -> tuple[str, str]:
    """An assigned work, new unless it is named, and a work that was opened for a next agent."""
    if hand is None:
        hand = work_id()
        await receive(store, say(work_id=hand))
    following = work_id()
    await store.write(sending(say(US, "carol", work_id=following)))
    held, other = await load(store, hand), await load(store, following)
    await store.write(lambda tx: follow_ups.add(tx, held, other, "chain"))
    return hand, following


async def ended_links(store: Store) -> list[EndedWork]:
    return await store.write(lambda tx: follow_ups.terminated_works(tx, 10))


async def test_a_linked_work_that_ended_is_listed_until_it_is_settled(store: Store) -> None:
    hand, following = await linked(store)
    assert await ended_links(store) == []
    await receive(store, trace("completed", "carol", US, work_id=following))
    assert await follow_ups.has_moved(store.reader, 0, 1000)
    (found,) = await ended_links(store)
    assert (found.work_id, found.assigned_work) == (following, hand)
    await store.write(lambda tx: follow_ups.settle(tx, found.row))
    assert await ended_links(store) == []


async def test_a_settled_work_without_an_assigned_work_leaves_no_row(store: Store) -> None:
    following = work_id()
    await store.write(sending(say(US, "carol", work_id=following)))
    other = await load(store, following)
    await store.write(lambda tx: follow_ups.add(tx, None, other, "chain"))
    await receive(store, trace("completed", "carol", US, work_id=following))
    (found,) = await ended_links(store)
    await store.write(lambda tx: follow_ups.settle(tx, found.row))
    assert await rows(store, "SELECT * FROM follow_ups") == []


async def test_branch_outcomes_keep_opening_order_until_the_last_ends(
    store: Store,
) -> None:
    hand, first = await linked(store)
    _, second = await linked(store, hand)
    await receive(store, trace("completed", "carol", US, work_id=second))
    (found,) = await ended_links(store)
    assert found.work_id == second
    await store.write(lambda tx: follow_ups.end_branch(tx, found.row, b"two"))
    assert await ended_links(store) == []
    assert await store.write(lambda tx: follow_ups.outcomes(tx, found.row)) == [None, b"two"]
    assert hand not in [work.work_id for work in await store.write(lambda tx: memory(tx).assigned_works())]
    await store.write(lambda tx: tx.db.execute("DELETE FROM works WHERE work_id = ?", (second,)))  # as retention does
    await receive(store, trace("failed", "carol", US, work_id=first))
    (last,) = await ended_links(store)
    await store.write(lambda tx: follow_ups.end_branch(tx, last.row, b"one"))
    assert await store.write(lambda tx: follow_ups.outcomes(tx, last.row)) == [b"one", b"two"]
    await store.write(lambda tx: follow_ups.settle(tx, last.row))
    assert await store.write(lambda tx: follow_ups.outcomes(tx, last.row)) == []
    assert hand in [work.work_id for work in await store.write(lambda tx: memory(tx).assigned_works())]


async def test_reports_of_a_session_name_the_assigned_work(store: Store) -> None:
    hand, following = await linked(store)
    await crossed(store, say(US, "carol", work_id=following), {"n": 1}, scope="one")
    await crossed(store, trace("working", US, BOB, work_id=hand), {"n": 2}, scope="one")
    await crossed(store, trace("working", US, BOB, work_id=hand), {"n": 3}, scope="two")
    reports = await store.write(lambda tx: memory(tx).reports("one"))
    assert [(known.message["n"], known.work and known.work.work_id) for known in reports] == [(2, hand), (1, hand)]
    held = await load(store, hand)
    latest = await store.write(lambda tx: memory(tx).reported(held))
    assert latest is not None and latest.message == {"n": 3}
    other = await load(store, following)
    assert await store.write(lambda tx: memory(tx).reported(other)) is None


async def test_inbox_items_and_works_of_a_format(store: Store) -> None:
    accepted, waiting = work_id(), work_id()
    first = await crossed(store, say(work_id=accepted), "a")
    opening = (await load(store, accepted)).opening_id
    await store.write(sending(receipt("accepted", opening, US, BOB, work_id=accepted)))
    second = await crossed(store, say(work_id=waiting), "b")
    await receive(store, say(work_id=work_id()))  # of no format
    assert await store.write(lambda tx: bridge.inbox_of(tx, NAME, second, 10)) == [first, second]
    assert await store.write(lambda tx: bridge.inbox_of(tx, NAME, first, 10)) == [first]
    opened = await store.write(lambda tx: bridge.opened_by_messages(tx, NAME, second, 10))
    assert [work.work_id for work in opened] == [waiting]


async def test_follower_logs_format_messages_and_answers_to_own_ones(store: Store) -> None:
    given, other = work_id(), work_id()
    await crossed(store, say(US, BOB, work_id=given), "ask")
    await store.write(sending(say(US, BOB, work_id=other)))
    carried = (await receive(store, say(ext={f"{NAME}.message": "x"}))).seq
    await receive(store, say(text=f"{NAME} message"))
    await receive(store, trace("completed", work_id=other))
    answer = (await receive(store, trace("completed", work_id=given))).seq
    assert await bridge.to_log(store.reader, NAME, 0, 1000, 10) == [carried, answer]
    assert await bridge.to_log(store.reader, NAME, 0, 1000, 1) == [carried]


async def test_retention_removes_bridge_rows_with_their_envelopes_and_works(store: Store) -> None:
    await crossed(store, say(), "old", foreign_id="m")
    hand, following = await linked(store)
    await store.write(sending(trace("completed", US, BOB, work_id=hand)))
    await receive(store, trace("completed", "carol", US, work_id=following))
    for seq in await inbox_states(store):
        await store.write(lambda tx, seq=seq: inbox.ack(tx, seq))  # type: ignore[misc]
    await store.write(lambda tx: tx.db.execute("UPDATE outbox SET state = 'published'"))
    await sweep(store, RetentionPolicy(max_age=1, max_bytes=None), NOW_MS + 10_000)
    assert await rows(store, "SELECT * FROM bridge_messages") == []
    assert await rows(store, "SELECT * FROM follow_ups") == []


async def test_a_log_is_bounded_by_rows_and_by_bytes_for_each_format(store: Store) -> None:
    def add(tx: Transaction) -> None:
        for name, number in (("agentos", 0), *((NAME, number) for number in range(5))):
            bridge_log.add(tx, name, "out", {"n": number, "pad": "x" * 80}, at_ms=1, max_rows=3, max_bytes=10_000)

    await store.write(add)
    assert [row["n"] for row in await bridge_log.page(store.reader, NAME, 10)] == [2, 3, 4]
    assert [row["n"] for row in await bridge_log.page(store.reader, NAME, 2)] == [3, 4]
    assert [row["n"] for row in await bridge_log.page(store.reader, "agentos", 10)] == [0]
    await store.write(lambda tx: bridge_log.add(tx, NAME, "out", {"n": 9}, at_ms=1, max_bytes=120))
    assert [row["n"] for row in await bridge_log.page(store.reader, NAME, 10)] == [4, 9]
    counted = await rows(store, "SELECT count(*), sum(size) FROM bridge_log WHERE format = ?", NAME)
    assert await rows(store, "SELECT row_count, bytes FROM bridge_log_sizes WHERE format = ?", NAME) == counted


async def test_a_single_row_over_the_bound_is_kept(store: Store) -> None:
    await store.write(lambda tx: bridge_log.add(tx, NAME, "out", {"pad": "x" * 500}, at_ms=1, max_bytes=100))
    assert len(await bridge_log.page(store.reader, NAME, 10)) == 1


async def test_log_rows_expire_unless_they_are_settled(store: Store) -> None:
    def add(tx: Transaction) -> None:
        for number, due_ms in enumerate((300, 100, None)):
            bridge_log.add(tx, NAME, "out", {"n": number}, at_ms=7, message_id=f"m{number}", due_ms=due_ms)

    await store.write(add)
    assert await store.write(bridge_log.next_due_ms) == 100
    assert await store.write(lambda tx: bridge_log.due(tx, 99, 10)) == []
    (entry,) = await store.write(lambda tx: bridge_log.due(tx, 100, 10))
    assert (entry.record, entry.at_ms) == ({"n": 1}, 7)
    await store.write(lambda tx: bridge_log.replace(tx, entry.id, {"n": 1, "late": True}))
    waiting = await store.write(lambda tx: bridge_log.of_message(tx, NAME, "m0", "out"))
    assert waiting is not None
    assert await store.write(lambda tx: bridge_log.of_message(tx, NAME, "m0", "in")) is None
    await store.write(lambda tx: bridge_log.set_due(tx, waiting.id, None))
    assert await store.write(bridge_log.next_due_ms) is None
    assert await bridge_log.nothing_due(store.reader)
    assert {"n": 1, "late": True} in await bridge_log.page(store.reader, NAME, 10)


async def test_a_job_that_fails_leaves_the_log_and_its_size_alone(store: Store) -> None:
    def fail(tx: Transaction) -> None:
        bridge_log.add(tx, NAME, "out", {"n": 1}, at_ms=1)
        raise KeyError("after writing")

    with pytest.raises(KeyError):
        await store.write(fail)
    assert await bridge_log.page(store.reader, NAME, 10) == []
    assert await rows(store, "SELECT * FROM bridge_log_sizes") == []
