"""The order in which an agent gets messages: one that is leased or returned goes before the later ones of its group."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from aghbus.daemon.config.settings import Settings
from aghbus.daemon.wiring import DaemonParts
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import apply_own
from aghbus.protocol.api.inbox import InboxAckRequest, InboxItem, InboxNackRequest, InboxNextRequest
from aghbus.store.apply_effects import Application
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox
from tests.support.makers import BOB, EVE, NOW_MS, US, receipt, receive, receiving, say, sending, trace
from tests.support.natsutil import wait_until
from tests.support.wiring import daemon_context, daemon_parts

VISIBLE = 5_000  # milliseconds
IN_WORK: dict[str, Any] = {"work_id": "work_w"}


def parts_of(store: Store) -> DaemonParts:
    return daemon_parts(daemon_context(Settings(name="us", peer_id="us")), store)


async def arrived(store: Store, *envelopes: Envelope) -> list[int]:
    return [(await receive(store, envelope)).last_seq for envelope in envelopes]


async def leased(parts: DaemonParts, **fields: Any) -> InboxItem | None:
    return (await parts.inbox.next(InboxNextRequest(**fields))).item


async def taken(parts: DaemonParts, **fields: Any) -> int | None:
    """The sequence of the next message, which is acknowledged."""
    item = await leased(parts, ack=True, **fields)
    return None if item is None else item.seq


async def waits(parts: DaemonParts) -> asyncio.Task[int | None]:
    """A consumer that found nothing it may have."""
    task = asyncio.create_task(taken(parts, wait=60))
    await wait_until(lambda: len(parts.waiters.waiting) == 1, 10, "a consumer to wait")
    return task


async def test_a_lost_lease_goes_before_later_messages_after_a_restart(store: Store) -> None:
    seqs = await arrived(store, say(), say(), say())

    def at(offset: int) -> Callable[[Transaction], int | None]:
        def job(tx: Transaction) -> int | None:
            item = inbox.lease_next(tx, NOW_MS + offset, VISIBLE, f"lease_{offset}", ack=offset > 0)
            return None if item is None else item.seq

        return job

    assert await store.write(at(0)) == seqs[0]  # its consumer is killed
    await store.close()
    again = await Store.open(store.path)
    try:
        found = [await again.write(at(offset)) for offset in (1, VISIBLE, VISIBLE + 1, VISIBLE + 2)]
    finally:
        await again.close()
    assert found == [None, *seqs]


@pytest.mark.parametrize("returned", [True, False])
async def test_a_message_holds_back_only_its_group(store: Store, returned: bool) -> None:
    parts = parts_of(store)
    first, later = await arrived(store, say(), say())
    others = await arrived(store, say(EVE), say(container="thread_two"), say(**IN_WORK), say(work_id="work_v"))
    held = await leased(parts)
    assert held is not None
    assert held.seq == first
    if returned:
        await parts.inbox.nack(first, InboxNackRequest(lease=held.lease, delay=600))
    assert [await taken(parts) for _ in others] == others
    assert await taken(parts) is None
    assert await taken(parts, concurrent=True) == later


@pytest.mark.parametrize("dead", [True, False])
async def test_a_waiting_consumer_gets_the_next_one_at_once(store: Store, dead: bool) -> None:
    parts = parts_of(store)
    first, second = await arrived(store, say(), say())
    held = await leased(parts)
    assert held is not None
    consumer = await waits(parts)

    def settled_as_another_arrives(tx: Transaction) -> int:
        if dead:
            inbox.give_up(tx, first, "purged")
        else:
            inbox.ack(tx, first, held.lease)
        seq = receiving(say())(tx)[1].last_seq
        parts.waiters.offer(tx, [(seq, None)])
        return seq

    third = await store.write(settled_as_another_arrives)
    assert await asyncio.wait_for(consumer, 15) == second
    assert await taken(parts) == third


@pytest.mark.parametrize(
    "accepts", [receipt("accepted", "m", US, BOB, **IN_WORK), trace("working", US, BOB, **IN_WORK)]
)
async def test_an_accepted_opening_holds_nothing_back(store: Store, accepts: Envelope) -> None:
    """Who holds the opening of a work gets what is said in it."""
    parts = parts_of(store)
    opening, said = await arrived(store, say(**IN_WORK), say(**IN_WORK))
    held = await leased(parts, visibility=600)
    assert held is not None
    assert held.seq == opening
    consumer = await waits(parts)
    await store.write(sending(accepts))
    assert await asyncio.wait_for(consumer, 15) == said
    await parts.inbox.nack(opening, InboxNackRequest(lease=held.lease, delay=0))  # its worker has died
    again = await leased(parts, visibility=600)
    assert again is not None
    assert (again.seq, again.work_state) == (opening, "working")
    (answer,) = await arrived(store, say(**IN_WORK))
    assert await taken(parts) == answer


async def test_a_question_holds_back_until_it_is_answered(store: Store) -> None:
    parts, opening = parts_of(store), say(US, BOB, **IN_WORK)
    effects = apply_own(opening, None, None, reactions="all")
    await store.write(lambda tx: Application(tx, US, NOW_MS).send(opening, effects))
    question, another = await arrived(store, *(trace("needs_input", message="Which?", **IN_WORK) for _ in range(2)))
    held = await leased(parts)
    assert held is not None
    assert held.seq == question
    consumer = await waits(parts)
    await store.write(sending(say(US, BOB, **IN_WORK)))
    assert await asyncio.wait_for(consumer, 15) == another


async def test_messages_under_one_lease_token_hold_each_other_back_no_more(store: Store) -> None:
    parts = parts_of(store)
    seqs = await arrived(store, say(), say(), say())
    lease = parts.inbox.new_lease()
    batch = [(await parts.inbox.next_under(lease, InboxNextRequest())).item for _ in range(2)]
    assert [item.seq for item in batch if item is not None] == seqs[:2]
    assert await taken(parts) is None
    for seq in seqs[:2]:
        assert await taken(parts) is None
        await parts.inbox.ack(seq, InboxAckRequest(lease=lease))
    assert await taken(parts) == seqs[2]
