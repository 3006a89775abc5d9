"""New messages are published without waiting, and confirmed together: by a PONG, or by the receivers' acknowledgements."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aghbus.daemon.nats.events import LinkDown
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.wiring import DaemonParts
from aghbus.protocol.agh.delivery.acks import Ack, encode_ack
from aghbus.store.engine.commit import writer
from aghbus.store.tables.outbox import Outgoing
from tests.support.makers import rows
from tests.support.natsutil import wait_until
from tests.support.publishing import Wire, committed, publishing, send


class Direct(Wire):
    """A broker that takes messages without waiting. It confirms them while `confirms` is set; `lost`: the link is lost first."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Outgoing] = []
        self.confirmations = 0
        self.confirms = asyncio.Event()
        self.confirms.set()
        self.lost = False

    def hand_over(self, row: Outgoing) -> bool:
        self.taken.append(row)
        return True

    async def confirm(self) -> None:
        await self.confirms.wait()
        if self.lost:
            raise LinkDown("lost")
        self.confirmations += 1


@pytest.fixture
async def wire() -> Direct:
    return Direct()


@pytest.fixture
async def sender(tmp_path: Path, wire: Direct) -> AsyncIterator[tuple[Publisher, DaemonParts]]:
    async with publishing(tmp_path, wire, retry_after=60) as (publisher, parts):
        publisher.link_up()
        assert await publisher.drained(20)
        yield publisher, parts


async def states(parts: DaemonParts) -> list[str]:
    await parts.store.write(lambda _tx: None)  # deferred jobs before it are committed now
    return [state for (state,) in await rows(parts.store, "SELECT state FROM outbox ORDER BY seq")]


async def until(parts: DaemonParts, wanted: list[str]) -> None:
    """A confirmation is recorded a moment after it was given."""
    async with asyncio.timeout(20):
        while await states(parts) != wanted:
            pass


def acknowledge(parts: DaemonParts, row: Outgoing, ack: Ack | None = None) -> None:
    raw = encode_ack(ack or committed(row.message_id, row.raw))
    parts.ack_receiver.receive(InboundMessage(f"_INBOX.test.{row.seq}", raw, "", None))


async def test_new_messages_share_one_confirmation(sender: tuple[Publisher, DaemonParts], wire: Direct) -> None:
    publisher, parts = sender
    wire.confirms.clear()
    seqs = await send(publisher, parts, 5)
    assert [row.seq for row in wire.taken] == seqs
    assert await states(parts) == ["queued"] * 5
    wire.confirms.set()
    assert await publisher.drained(20)
    assert await states(parts) == ["published"] * 5
    assert parts.counters["outbox.published"] == 5
    assert wire.batches == []


async def test_an_acknowledgement_replaces_the_confirmation(
    sender: tuple[Publisher, DaemonParts], wire: Direct
) -> None:
    publisher, parts = sender
    wire.confirms.clear()
    await send(publisher, parts, 2)
    for row in wire.taken:
        acknowledge(parts, row)
    assert await states(parts) == ["receipted"] * 2
    assert await publisher.drained(0)
    assert parts.counters["outbox.published"] == 2
    assert wire.confirmations == 0


async def test_a_message_whose_answer_waits_for_a_commit_needs_no_confirmation(
    sender: tuple[Publisher, DaemonParts], wire: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, parts = sender
    monkeypatch.setattr(writer, "DEFER_SECONDS", 3_600.0)
    await send(publisher, parts, 2)
    acknowledge(parts, wire.taken[0])
    await wait_until(lambda: wire.confirmations)  # of the second one
    await until(parts, ["receipted", "published"])
    wire.confirms.clear()
    await send(publisher, parts, 1)
    acknowledge(parts, wire.taken[2], Ack("msg_other", "committed", None, "0" * 64))
    assert await states(parts) == ["receipted", "published", "queued"]
    wire.confirms.set()
    await wait_until(lambda: wire.confirmations == 2)  # of the third one: it was no answer to it
    await until(parts, ["receipted", "published", "published"])


async def test_a_false_acknowledgement_confirms_nothing(sender: tuple[Publisher, DaemonParts], wire: Direct) -> None:
    publisher, parts = sender
    wire.confirms.clear()
    await send(publisher, parts, 1)
    acknowledge(parts, wire.taken[0], Ack("msg_other", "committed", None, "0" * 64))
    assert await states(parts) == ["queued"]
    assert not await publisher.drained(0.1)
    wire.confirms.set()
    assert await publisher.drained(20)
    assert await states(parts) == ["published"]


async def test_what_a_lost_link_did_not_confirm_goes_out_again(
    sender: tuple[Publisher, DaemonParts], wire: Direct
) -> None:
    publisher, parts = sender
    wire.confirms.clear()
    wire.lost = True
    seqs = await send(publisher, parts, 3)
    wire.confirms.set()
    await wait_until(lambda: wire.batches, 20, "the messages again")
    assert wire.batches == [seqs]
    assert parts.counters["outbox.interrupted"] == 1
    assert await states(parts) == ["queued"] * 3  # the broker says of each that nobody subscribes
    assert await rows(parts.store, "SELECT attempts, detail FROM outbox") == [(1, "nobody subscribes")] * 3


async def test_a_new_message_waits_for_earlier_ones(sender: tuple[Publisher, DaemonParts], wire: Direct) -> None:
    publisher, parts = sender
    first = await send(publisher, parts, 1)
    wire.confirms.clear()
    publisher.link_up()  # the first one may be lost: the store has it as queued
    second = await send(publisher, parts, 1)
    assert [row.seq for row in wire.taken] == first
    wire.confirms.set()
    assert await publisher.drained(20)
    assert list(dict.fromkeys(seq for batch in wire.batches for seq in batch)) == first + second
