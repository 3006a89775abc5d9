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
from aghbus.protocol.delivery.acks import Ack, encode_ack
from aghbus.store.engine.writer import Job
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables.outbox import Outgoing
from tests.support.makers import rows
from tests.support.parts import Parts
from tests.support.publishing import Wire, committed, publishing, send


class Quiet(Wire):
    """A peer whose answers the test gives."""

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        return Carried([row.seq for row in rows], [])


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[tuple[Publisher, Parts]]:
    async with publishing(tmp_path, Quiet(), retry_after=60) as (publisher, parts):
        yield publisher, parts


async def published(publisher: Publisher, parts: Parts, count: int) -> list[tuple[int, Ack]]:
    """So many messages that wait for their answer: sequence and answer."""
    await send(publisher, parts, count)
    for _ in range(1_500):
        if not await rows(parts.store, "SELECT 1 FROM outbox WHERE state = 'queued'"):
            break
        await asyncio.sleep(0.01)
    stored = await rows(parts.store, "SELECT seq, msg_id, raw FROM envelopes ORDER BY seq")
    return [(seq, committed(msg_id, raw)) for seq, msg_id, raw in stored]


def acknowledge(parts: Parts, seq: int, ack: Ack) -> None:
    parts.ack_receiver.receive(InboundMessage(f"_INBOX.test.{seq}", encode_ack(ack), "", None))


async def states(parts: Parts) -> list[str]:
    return [state for (state,) in await rows(parts.store, "SELECT state FROM outbox ORDER BY seq")]


async def test_acknowledgements_that_arrive_together_are_one_job(
    sender: tuple[Publisher, Parts], monkeypatch: pytest.MonkeyPatch
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
    assert parts.counters["acks.unknown"] == 1


@pytest.mark.parametrize("refused", [True, False])
async def test_a_lost_job_loses_only_its_own_acknowledgements(
    sender: tuple[Publisher, Parts], monkeypatch: pytest.MonkeyPatch, refused: bool
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
