"""Acknowledgements that arrive together are applied by one job, and a lost job does not block later ones."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aghbus.daemon.nats.carrier import Carried
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.wiring import DaemonParts
from aghbus.protocol.agh.delivery.acks import Ack, Acks, encode_ack, encode_signed_ack
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from aghbus.protocol.api.operations import Operations
from aghbus.store.engine.commit import writer
from aghbus.store.engine.commit.writer import Job
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables.outbox import Outgoing
from tests.support.makers import US, rows, say, sending
from tests.support.natsutil import wait_until
from tests.support.publishing import Wire, committed, publishing, send


class Quiet(Wire):
    """A peer whose answers the test gives."""

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        return Carried([row.seq for row in rows], [])


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[tuple[Publisher, DaemonParts]]:
    async with publishing(tmp_path, Quiet(), retry_after=60) as (publisher, parts):
        yield publisher, parts


async def published(publisher: Publisher, parts: DaemonParts, count: int) -> list[tuple[int, Ack]]:
    """So many messages that wait for their answer: sequence and answer."""
    await send(publisher, parts, count)
    for _ in range(1_500):
        if not await rows(parts.store, "SELECT 1 FROM outbox WHERE state = 'queued'"):
            break
        await asyncio.sleep(0.01)
    stored = await rows(parts.store, "SELECT seq, msg_id, raw FROM envelopes ORDER BY seq")
    return [(seq, committed(msg_id, raw)) for seq, msg_id, raw in stored]


def acknowledge(parts: DaemonParts, seq: int, ack: Ack) -> None:
    parts.ack_receiver.receive(InboundMessage(f"_INBOX.test.{seq}", encode_ack(ack), "", None))


async def states(parts: DaemonParts) -> list[str]:
    return [state for (state,) in await rows(parts.store, "SELECT state FROM outbox ORDER BY seq")]


async def test_acknowledgements_that_arrive_together_are_one_job(
    sender: tuple[Publisher, DaemonParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, parts = sender
    sent = await published(publisher, parts, 5)
    jobs, submit = list[Job[Any]](), parts.store.submit_deferred

    def counted(job: Job[Any]) -> asyncio.Future[Any]:
        jobs.append(job)
        return submit(job)

    monkeypatch.setattr(parts.store, "submit_deferred", counted)
    for seq, ack in sent[:4]:
        acknowledge(parts, seq, replace(ack, outcome="refused") if seq == sent[1][0] else ack)
    acknowledge(parts, sent[4][0], replace(sent[4][1], id="msg_guessed"))
    await parts.store.probe()
    assert len(jobs) == 1
    assert await states(parts) == ["receipted", "refused", "receipted", "receipted", "published"]
    assert [parts.counters[f"acks.{name}"] for name in ("committed", "refused", "unknown")] == [3, 1, 1]


async def test_an_acknowledgement_waits_for_a_commit_and_a_refusal_does_not(
    sender: tuple[Publisher, DaemonParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, parts = sender
    (first, committed_ack), (second, ack) = await published(publisher, parts, 2)
    monkeypatch.setattr(writer, "DEFER_SECONDS", 3_600.0)
    commits = parts.store.stats.commits
    acknowledge(parts, first, committed_ack)
    await asyncio.sleep(0.05)  # nothing to wait for: the commit must not come
    assert parts.store.stats.commits == commits
    acknowledge(parts, second, replace(ack, outcome="refused"))
    await wait_until(lambda: parts.counters["acks.refused"])
    assert await states(parts) == ["receipted", "refused"]


async def test_whoever_asks_for_a_message_sees_its_acknowledgement(
    sender: tuple[Publisher, DaemonParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    publisher, parts = sender
    ((seq, ack),) = await published(publisher, parts, 1)
    monkeypatch.setattr(writer, "DEFER_SECONDS", 3_600.0)
    acknowledge(parts, seq, ack)
    found = await parts.operations[Operations.get_message](ack.id)
    assert found.delivery == "receipted"


async def test_each_acknowledgement_of_a_list_counts_for_its_own_message(sender: tuple[Publisher, DaemonParts]) -> None:
    publisher, parts = sender
    sent = [(str(seq), ack) for seq, ack in await published(publisher, parts, 4)]
    foreign = [("x", sent[0][1]), ("", sent[1][1]), (sent[3][0], sent[2][1])]
    mixed = [sent[0], (sent[1][0], replace(sent[1][1], outcome="refused")), *foreign, sent[2]]
    raw = encode_ack(Acks(mixed))
    assert parts.ack_receiver.receive(InboundMessage(f"_INBOX.test.{sent[3][0]}", raw, "", None)) == len(mixed)
    await parts.store.probe()
    assert await states(parts) == ["receipted", "refused", "receipted", "published"]
    assert parts.counters["acks.unknown"] == 1


async def test_a_list_in_the_name_of_a_handle_counts_only_with_its_signature(tmp_path: Path) -> None:
    signer, thief = (EnvelopeSigner(SigningKey(bytes([number]) * 32), "bob") for number in (1, 2))
    async with publishing(tmp_path, Quiet(), retry_after=60) as (_, parts):
        for number in range(3):
            await parts.store.write(sending(say(sender=US, to=signer.handle, id=f"msg_{number}")))
        sent = [
            (str(seq), committed(msg_id, raw))
            for seq, msg_id, raw in await rows(parts.store, "SELECT seq, msg_id, raw FROM envelopes ORDER BY seq")
        ]
        for by, to in ((thief, US), (signer, "eve")):
            parts.ack_receiver.receive(listed(sent, by, to))
        parts.ack_receiver.receive(InboundMessage(f"_INBOX.test.{sent[0][0]}", encode_ack(Acks(sent)), "", None))
        await parts.store.probe()
        assert parts.counters["acks.unknown"] == 9
        parts.ack_receiver.receive(listed(sent, signer, US))
        await parts.store.probe()
        assert await states(parts) == ["receipted"] * 3


def listed(acks: list[tuple[str, Ack]], by: EnvelopeSigner, to: str) -> InboundMessage:
    raw = encode_signed_ack(Acks(acks), sender=by.handle, to=to, signer=by)
    return InboundMessage(f"_INBOX.test.{acks[0][0]}", raw, "", None)


@pytest.mark.parametrize("refused", [True, False])
async def test_a_lost_job_loses_only_its_own_acknowledgements(
    sender: tuple[Publisher, DaemonParts], monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    publisher, parts = sender
    (first, first_id), (second, second_id) = await published(publisher, parts, 2)
    failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with monkeypatch.context() as patch:
        if refused:  # too many wait for the store
            patch.setattr(parts.store, "write_deferred", lambda *_args, **_options: None)
        else:
            patch.setattr(parts.store, "submit_deferred", lambda _job: failed)
        acknowledge(parts, first, first_id)
        failed.set_exception(StoreUnavailable("the store cannot write", hint=""))
        await asyncio.sleep(0)
    if refused:
        failed.exception()
    acknowledge(parts, second, second_id)
    await parts.store.probe()
    assert await states(parts) == ["published", "receipted"]
    acknowledge(parts, first, first_id)  # the next copy is answered
    await parts.store.probe()
    assert await states(parts) == ["receipted", "receipted"]
