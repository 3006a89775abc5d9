"""The queue between the broker and the store: bounded in messages and in bytes, and shared."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.broker.embedded import BrokerError
from aghbus.daemon.config.settings import ReceiveSettings, Settings
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.nats.carrier import CoreCarrier
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.daemon.nats.options import NatsOptions
from aghbus.daemon.receive.intake import Intake
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.context import Core
from aghbus.daemon.state.presence import Roster
from aghbus.protocol.bodies import PeerCard
from aghbus.protocol.identifiers import subject_for
from aghbus.store.engine.database import Store

QUEUE = 100


async def _nowhere() -> NatsOptions:
    raise BrokerError("resolve", "this test has no broker", "")


@pytest.fixture
async def intake(tmp_path: Path) -> AsyncIterator[Intake]:
    """A real intake over a real store, whose task does not run: what arrives stays in the queue."""
    store = await Store.open(tmp_path / "store.db", synchronous="normal")
    settings = Settings(name="ops", peer_id="ops", receive=ReceiveSettings(queue=QUEUE))
    link = Link(_nowhere, name="test")
    core = Core(settings, Clock(), store, link, Roster(30.0), 0)
    publisher = Publisher(core, CoreCarrier(link, "_INBOX.test"))
    yield Intake(core, Discovery(core, "0", publisher.peer_is_back), publisher, Deadlines(core, publisher))
    await store.close()


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


async def test_one_sender_does_not_take_every_place(intake: Intake) -> None:
    for number in range(5 * QUEUE):
        intake.offer(message("flood", number))
    flooded = intake.depth
    assert flooded < QUEUE
    for number in range(10):
        intake.offer(message("quiet", number))
    assert intake.depth == flooded + 10
    for number in range(5 * QUEUE):
        intake.offer(message(f"crowd-{number}", number))
    assert intake.depth == QUEUE


async def test_large_messages_fill_the_queue_before_they_fill_the_memory(intake: Intake) -> None:
    large = message("flood", 0, "x" * 1_000_000)
    for _ in range(QUEUE):
        intake.offer(large)
    assert 10 <= intake.depth * len(large.data) / 1_000_000 <= 70


async def test_what_was_worked_off_makes_room_again(intake: Intake) -> None:
    for _ in range(3):
        for number in range(QUEUE):
            intake.offer(message("flood", number))
        full = intake.depth
        while intake.depth:
            await intake._work_queue_off()
        assert full == QUEUE * 3 // 4


def test_large_cards_of_many_names_do_not_fill_the_memory() -> None:
    roster = Roster(30.0)
    entries = tuple("x" * 1000 for _ in range(1000))
    for number in range(100):
        roster.heard("ws", "c", PeerCard(peer_id=f"p{number}", capabilities=entries), "unverified", number)
    kept = [peer.peer_id for peer in roster.all()]
    assert 60 <= len(kept) <= 70
    assert kept[-1] == "p99"  # the longest silent went
    for number in range(100):
        roster.heard("ws", "c", PeerCard(peer_id="p99", capabilities=entries), "unverified", 100 + number)
    assert len(list(roster.all())) == len(kept)  # the same one again takes no more room
