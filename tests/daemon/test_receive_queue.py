"""The queue between the broker and the store: bounded in messages and in bytes, and shared."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aghbus.daemon.config.settings import ReceiveSettings
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.state.presence import MAX_PEERS, PresenceTable
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from tests.support.receiving import Bench, bench

QUEUE = 100


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Bench]:
    """The intake's task does not run: messages stay in the queue."""
    async with bench(tmp_path, receive=ReceiveSettings(queue=QUEUE)) as b:
        yield b


def message(sender: str, number: int, text: str = "hello") -> InboundMessage:
    document = {
        "protocol": "agh-network/v0",
        "id": f"msg_{number}",
        "workspace_id": "ws_local",
        "kind": "say",
        "channel": "default",
        "surface": "thread",
        "thread_id": "thread_one",
        "from": sender,
        "to": "ops",
        "ts": int(time.time()),
        "body": {"text": text},
    }
    return InboundMessage(subject_for("ws_local", "default", "ops"), json.dumps(document).encode(), "", None)


async def test_one_sender_does_not_fill_the_queue(desk: Bench) -> None:
    for number in range(5 * QUEUE):
        desk.intake.offer(message("flood", number))
    flooded = desk.parts.queue.depth
    assert flooded < QUEUE
    for number in range(10):
        desk.intake.offer(message("quiet", number))
    assert desk.parts.queue.depth == flooded + 10


async def test_others_fill_half_the_queue_and_plain_contacts_three_quarters(desk: Bench) -> None:
    signed = EnvelopeSigner(SigningKey(bytes(range(32))), "friend")
    await desk.admit(*(f"known-{number}" for number in range(QUEUE)), signed.handle)
    for number in range(5 * QUEUE):
        desk.intake.offer(message(f"unknown-{number}", number))
    assert desk.parts.queue.depth == QUEUE // 2
    for number in range(QUEUE):
        desk.intake.offer(message(f"known-{number}", number))
    assert desk.parts.queue.depth == QUEUE * 3 // 4
    for _ in range(QUEUE):
        desk.take(desk.signed(signed))
    assert desk.parts.queue.depth == QUEUE


async def test_messages_are_not_parsed_for_a_full_part_of_the_queue(desk: Bench) -> None:
    friend, others = EnvelopeSigner(SigningKey(bytes(range(32))), "friend"), QUEUE // 2
    await desk.admit(friend.handle)
    for number in range(5 * QUEUE):
        desk.intake.offer(message(f"unknown-{number}", number))
    assert desk.counters["received.say"] == others + 1  # the first that is rejected
    assert desk.counters["overload.queue"] == 5 * QUEUE - others
    assert "the queue is full" in next(desk.parts.limited.problems(desk.parts.clock.monotonic()))
    desk.take(desk.signed(friend), desk.discovery("unknown", "whois", {"type": "request", "query": ""}))
    assert desk.parts.queue.depth == others + 1
    assert desk.counters["received.whois"] == 1  # a question to everybody needs no room there
    await desk.commit()
    for number in range(5 * QUEUE, 5 * QUEUE + 10):
        desk.intake.offer(message("later", number))
    assert desk.parts.queue.depth == 10


async def test_copies_of_a_broadcast_take_no_place_in_the_queue(desk: Bench) -> None:
    document = desk.say("bob", to=None)
    raw, subject = json.dumps(document).encode(), subject_for("ws_local", "default", None)
    desk.intake.offer(InboundMessage(subject, raw, "", None))
    await desk.commit()
    for _ in range(3):
        desk.intake.offer(InboundMessage(subject, raw, "", None))
    assert desk.parts.queue.depth == 0
    assert desk.counters["ignored.duplicate"] == 3


async def test_the_queue_is_bounded_in_bytes(desk: Bench) -> None:
    large = message("flood", 0, "x" * 1_000_000)
    for _ in range(QUEUE):
        desk.intake.offer(large)
    assert 10 <= desk.parts.queue.depth * len(large.data) / 1_000_000 <= 70


async def test_committed_messages_free_the_queue(desk: Bench) -> None:
    for _ in range(3):
        for number in range(QUEUE):
            desk.intake.offer(message("flood", number))
        full = desk.parts.queue.depth
        await desk.commit()
        assert full == QUEUE // 2 * 3 // 4


def test_new_names_do_not_displace_contacts_from_the_presence_table() -> None:
    contacts = {"early"}
    presence = PresenceTable(30.0, {}, contacts.__contains__)
    for name in ("early", "late"):
        presence.observe("ws", "c", PeerCard(peer_id=name), "unverified", 0)
    contacts.add("late")  # our agent writes to it after its greet
    entries = tuple("x" * 1000 for _ in range(1000))
    for number in range(100):
        presence.observe("ws", "c", PeerCard(peer_id=f"large{number}", capabilities=entries), "unverified", 1)
    for number in range(2 * MAX_PEERS):
        presence.observe("ws", "c", PeerCard(peer_id=f"other{number}"), "unverified", 1)
    kept = [peer.peer_id for peer in presence.all()]
    assert kept[:2] == ["early", "late"]
    assert (len(kept), kept[-1]) == (MAX_PEERS, f"other{2 * MAX_PEERS - 1}")


def test_a_table_full_of_contacts_drops_the_oldest() -> None:
    presence = PresenceTable(30.0, {}, lambda name: name != "other")
    for number in range(MAX_PEERS):
        presence.observe("ws", "c", PeerCard(peer_id=f"p{number}"), "unverified", 0)
    presence.observe("ws", "c", PeerCard(peer_id="other"), "unverified", 1)
    assert not presence.knows("ws", "c", "other")
    presence.observe("ws", "c", PeerCard(peer_id="new"), "unverified", 2)
    assert (presence.knows("ws", "c", "p0"), presence.knows("ws", "c", "new")) == (False, True)


def test_the_presence_table_is_bounded_in_bytes() -> None:
    presence = PresenceTable(30.0, {}, set().__contains__)
    entries = tuple("x" * 1000 for _ in range(1000))
    for number in range(100):
        presence.observe("ws", "c", PeerCard(peer_id=f"p{number}", capabilities=entries), "unverified", number)
    kept = [peer.peer_id for peer in presence.all()]
    assert 60 <= len(kept) <= 70
    assert kept[-1] == "p99"  # the ones seen longest ago were dropped
    for number in range(100):
        presence.observe("ws", "c", PeerCard(peer_id="p99", capabilities=entries), "unverified", 100 + number)
    assert len(list(presence.all())) == len(kept)  # the same peer again needs no more room
