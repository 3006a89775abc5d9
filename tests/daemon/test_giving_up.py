"""Expired messages are given up and reported to the agent; messages that failed temporarily are retried soon."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from aghbus.daemon.nats.ack_inboxes import AckInboxes
from aghbus.daemon.nats.carrier import Carried, CoreCarrier
from aghbus.daemon.nats.events import LinkTimeout
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.wiring import DaemonParts
from aghbus.protocol.agh.delivery.acks import MAX_ANSWER_BYTES, Ack, encode_ack
from aghbus.protocol.agh.delivery.order import AFTER, Predecessor, may_take
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import inbox, inbox_list, outbox
from aghbus.store.tables.outbox import Outgoing
from tests.support.links import no_broker, to, up
from tests.support.makers import BOB, US, rows, say, sending
from tests.support.natsutil import NatsServer, wait_until
from tests.support.publishing import Hand, Wire, committed, publishing, send

FOREVER = RetentionPolicy(max_age=None, max_bytes=None)


async def queue(publisher: Publisher, parts: DaemonParts, count: int, life: int = 1) -> None:
    """So many works whose openings are of use for `life` seconds more."""
    now = parts.clock.seconds()

    def job(tx: Transaction) -> list[Outgoing]:
        for number in range(count):
            sending(say(sender=US, to=BOB, ts=now, expires_at=now + life, work_id=f"work_{number}"))(tx)
        return outbox.load_queued(tx, 0, count)

    publisher.enqueue(await parts.store.write(job))


@pytest.mark.parametrize("count", [1, 2_500])
async def test_an_expired_message_is_reported_soon_and_its_work_is_canceled(tmp_path: Path, count: int) -> None:
    """Not by a look every half minute, nor by so many a look, and retention does not take it away before."""
    wire = Wire()
    async with publishing(tmp_path, wire, link=Link(no_broker, name="down")) as (publisher, parts):
        await queue(publisher, parts, count)
        await sweep(parts.store, FOREVER, parts.clock.millis() + 3_600_000)
        await wait_until(lambda: parts.counters["outbox.expired"] == count, 20, "all to be given up")
        await parts.store.write(lambda _tx: None)  # counted in a transaction that is durable now
        items = (await inbox_list.items(parts.store.reader, limit=count)).items
        assert [item.last_error for item in items] == ["expired: no answer before it expired"] * count
        assert await rows(parts.store, "SELECT DISTINCT state FROM works") == [("canceled",)]
    assert wire.batches == []


class Stalled(Wire):
    """A broker that says nothing for a while, with the link up."""

    def __init__(self, tries: int) -> None:
        super().__init__()
        self.tries = tries

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        if self.batches and self.tries:
            self.tries -= 1
            raise LinkTimeout("no PONG within 10 s")
        return await super().carry(rows)


async def test_a_try_that_a_slow_broker_did_not_confirm_is_repeated_soon(tmp_path: Path) -> None:
    wire = Stalled(tries=2)
    async with publishing(tmp_path, wire) as (publisher, parts):
        parts.presence.note_acknowledging(BOB, False)
        await queue(publisher, parts, 1, life=60)
        await wait_until(lambda: len(wire.batches) > 1, 10, "a further try")
        assert wire.tries == 0


@pytest.mark.parametrize("tag", ["", "T" * 22])
async def test_a_message_at_the_payload_limit_is_sent_without_headers(tag: str) -> None:
    """It has no room for its tag, nor for the header that a further try brings."""
    async with NatsServer() as server, up(Link(to(server), name="a")) as link:
        carrier = CoreCarrier(link, AckInboxes(link, "_INBOX.test"))
        row = Outgoing(7, "a.b.c", "ws_test", US, BOB, "msg_1", 2**40, 0, True, b"x" * link.max_payload, "", tag)
        for attempts in (0, 1):
            assert await carrier.carry([replace(row, attempts=attempts)]) == Carried([7], [])


class Silent(Wire):
    """A broker that has everything, and a peer that says nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Outgoing] = []

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        self.rows += rows
        return Carried([row.seq for row in rows], [])


async def test_refusal_in_a_rerun_transaction_releases_next_messages(tmp_path: Path) -> None:
    def late(tx: Transaction) -> None:
        tx.db.execute("INSERT INTO meta (key, value) VALUES ('late', 1)")
        raise NotFound("changed my mind")

    wire = Silent()
    async with publishing(tmp_path, wire, retry_after=300) as (publisher, parts):
        first = say(US, BOB, ts=parts.clock.seconds())
        after = Predecessor(first.id, first.fresh_until)
        second = say(US, BOB, ts=parts.clock.seconds(), ext={AFTER: after})
        for envelope in (first, second):
            publisher.enqueue((await parts.store.write(sending(envelope))).outgoing)
        await seen(parts, "SELECT seq FROM outbox WHERE next_ms IS NOT NULL AND state = ? AND seq = 2", "published")
        reruns = parts.store.stats.reruns
        refused = Ack(first.id, "refused", "not_target", first.digest)
        parts.ack_receiver.receive(InboundMessage("_INBOX.test.1", encode_ack(refused), "", None))
        with pytest.raises(NotFound):
            await parts.store.write(late)
        assert parts.store.stats.reruns == reruns + 1
        await wait_until(lambda: wire.rows[-1].settled, 20, "the second message again, long before its retry")
        assert wire.rows[-1].seq == 2
        assert may_take(after, second, processed=False, now=first.ts, settled=wire.rows[-1].settled)
        assert [state for (state,) in await rows(parts.store, "SELECT state FROM outbox ORDER BY seq")] == [
            "refused",
            "published",
        ]


async def test_what_follows_an_expired_message_goes_out_at_once_with_the_header(tmp_path: Path) -> None:
    wire = Silent()
    async with publishing(tmp_path, wire, retry_after=300) as (publisher, parts):
        now = parts.clock.seconds()
        first = say(US, BOB, ts=now, expires_at=now + 2)
        second = say(US, BOB, ts=now, ext={AFTER: Predecessor(first.id, first.fresh_until)})
        for envelope in (first, second):
            publisher.enqueue((await parts.store.write(sending(envelope))).outgoing)
        await seen(parts, "SELECT seq FROM outbox WHERE next_ms IS NOT NULL AND state = ? AND seq = 2", "published")
        await wait_until(lambda: wire.rows[-1].settled, 20, "the second message again, long before its retry")
        assert wire.rows[-1].seq == 2
        assert parts.counters["outbox.expired"] == 1


async def test_damaged_message_is_dead_and_does_not_block_the_next(tmp_path: Path) -> None:
    wire = Wire(from_copy=0)
    async with publishing(tmp_path, wire) as (publisher, parts):
        now, store = parts.clock.seconds(), parts.store
        for text in ("pay 100 euro", "pay 200 euro"):
            await store.write(sending(say(US, BOB, ts=now, text=text, container=f"thread_{text[4:7]}")))
        damage = "UPDATE log SET raw = CAST(replace(CAST(raw AS TEXT), '100 euro', '900 euro') AS BLOB)"
        await store.write(lambda tx: tx.db.execute(damage).rowcount)
        publisher.link_up()
        await seen(parts, "SELECT seq FROM outbox WHERE state = ? AND seq = 1", "dead")
        await seen(parts, "SELECT seq FROM outbox WHERE state = ? AND seq = 2", "receipted")
        assert wire.got == [2]
        assert "1 stored envelopes are damaged (sequence 1)" in "; ".join(store.problems)
        notice = await store.write(lambda tx: inbox.lease_next(tx, parts.clock.millis(), 60_000, "lease_1"))
        assert notice is not None
        assert (notice.seq, notice.message.damaged, bytes(notice.message.envelope)) == (1, True, b"{}")
        assert notice.last_error == "dead: the stored envelope is damaged"
        assert await store.write(lambda tx: tx.memory.flows.is_last(1)) is False


@pytest.mark.parametrize(("digest", "version"), [("", None), ("", "0.1.0"), ("0" * 64, "0.1.0"), ("0" * 64, "")])
async def test_only_an_acknowledgement_of_the_same_bytes_confirms_a_message(
    tmp_path: Path, digest: str, version: str | None
) -> None:
    async with publishing(tmp_path, Silent(), retry_after=300) as (publisher, parts):
        parts.presence.note_acknowledging(BOB, True, version)
        await queue(publisher, parts, 1, life=600)
        await seen(parts, "SELECT seq FROM outbox WHERE next_ms IS NOT NULL AND state = ?", "published")
        opening = await parts.store.write(lambda tx: tx.db.execute("SELECT msg_id FROM envelopes").fetchone()[0])
        parts.ack_receiver.receive(
            InboundMessage("_INBOX.test.1", encode_ack(Ack(opening, "committed", None, digest)), "", None)
        )
        await parts.store.probe()
        found = await rows(parts.store, "SELECT state, detail FROM outbox ORDER BY seq")
        if digest:  # the receiver has other content under this id: the work that this should open is closed
            assert found[0] == ("refused", "by the receiver: it knows other content under this id")
            assert await rows(parts.store, "SELECT state FROM works") == [("canceled",)]
        else:
            assert found == [("published", None)]


async def test_an_acknowledgement_of_a_version_without_digests_confirms_a_message(tmp_path: Path) -> None:
    async with publishing(tmp_path, Silent(), retry_after=300) as (publisher, parts):
        parts.presence.note_acknowledging(BOB, True, "")
        await queue(publisher, parts, 1, life=600)
        await seen(parts, "SELECT seq FROM outbox WHERE next_ms IS NOT NULL AND state = ?", "published")
        ((opening,),) = await rows(parts.store, "SELECT msg_id FROM envelopes")
        parts.ack_receiver.receive(InboundMessage("_INBOX.test.1", encode_ack(Ack(opening, "committed")), "", None))
        await parts.store.probe()
        assert await rows(parts.store, "SELECT state FROM outbox") == [("receipted",)]


async def test_an_oversized_acknowledgement_is_not_parsed(tmp_path: Path) -> None:
    async with publishing(tmp_path, Silent(), retry_after=300) as (publisher, parts):
        await queue(publisher, parts, 1, life=600)
        await seen(parts, "SELECT seq FROM outbox WHERE next_ms IS NOT NULL AND state = ?", "published")
        ((opening, raw),) = await rows(parts.store, "SELECT msg_id, raw FROM envelopes")
        answer = encode_ack(committed(opening, raw))
        for length, counter in ((MAX_ANSWER_BYTES + 1, "acks.unknown"), (MAX_ANSWER_BYTES, "acks.committed")):
            assert parts.counters[counter] == 0
            parts.ack_receiver.receive(InboundMessage("_INBOX.test.1", answer.ljust(length), "", None))
            await parts.store.probe()
            assert parts.counters[counter] == 1


class Regular(Hand):
    """Without jitter. Only the test moves it, and nobody sets it."""

    def steady_millis(self) -> int:
        return self.millis()

    def fraction(self) -> float:
        return 0.5


async def test_retry_backoff_doubles_up_to_the_ceiling(tmp_path: Path) -> None:
    clock, pauses = Regular(), list[float]()
    async with publishing(tmp_path, Silent(), clock, retry_after=0.1, ceiling=0.5) as (publisher, parts):
        await send(publisher, parts, 1)
        for attempts in range(1, 6):
            await seen(parts, "SELECT seq FROM outbox WHERE attempts = ?", attempts)
            ((next_ms,),) = await rows(parts.store, "SELECT next_ms FROM outbox")
            pauses.append((next_ms - clock.millis()) / 1000)
            clock.now = next_ms / 1000
    assert pauses == [0.1, 0.2, 0.4, 0.5, 0.5]


async def seen(parts: DaemonParts, sql: str, state: str | int) -> None:
    """Until the store has such a row."""
    async with asyncio.timeout(20):
        while not await rows(parts.store, sql, state):
            await parts.store.write(lambda _tx: None)


async def test_a_store_that_cannot_write_is_not_tried_all_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something is stale all the while, which nothing can give up."""
    looks: list[float] = []
    async with publishing(tmp_path, Wire(), link=Link(no_broker, name="down")) as (publisher, parts):

        async def refuses(_job: object) -> None:
            looks.append(parts.clock.monotonic())
            raise StoreUnavailable("the disk is full", hint="")

        monkeypatch.setattr(parts.store, "write", refuses)
        publisher.link_up()  # looks at once
        await wait_until(lambda: len(looks) >= 4, 20, "further looks")
    assert looks[3] - looks[1] >= 0.9  # half a second each
