"""Acknowledgements that come together are taken by one job, and one that is lost does not hold up those after it."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.nats.carrier import Carried
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.context import Core
from aghbus.protocol.acks import Ack, encode_ack
from aghbus.store.engine.writer import Job
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables.outbox import Outgoing
from tests.support.makers import rows
from tests.support.publishing import Wire, publishing, send


class Quiet(Wire):
    """A peer whose answers the test gives."""

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        return Carried([row.seq for row in rows], [])


@pytest.fixture
async def sender(tmp_path: Path) -> AsyncIterator[tuple[Publisher, Core]]:
    async with publishing(tmp_path, Quiet(), retry_after=60) as (publisher, core):
        yield publisher, core


async def published(publisher: Publisher, core: Core, count: int) -> list[tuple[int, str]]:
    """So many messages that wait for their answer: sequence and id."""
    await send(publisher, core, count)
    for _ in range(1_500):
        if not await rows(core.store, "SELECT 1 FROM outbox WHERE state = 'queued'"):
            break
        await asyncio.sleep(0.01)
    return [(seq, msg_id) for seq, msg_id in await rows(core.store, "SELECT seq, msg_id FROM envelopes ORDER BY seq")]


def acknowledge(publisher: Publisher, seq: int, msg_id: str, outcome: str = "committed") -> None:
    raw = encode_ack(Ack(msg_id, outcome))  # type: ignore[arg-type] # one of the two
    publisher.acknowledged(InboundMessage(f"_INBOX.test.{seq}", raw, "", None))


async def states(core: Core) -> list[str]:
    return [state for (state,) in await rows(core.store, "SELECT state FROM outbox ORDER BY seq")]


async def test_what_comes_together_is_one_job(sender: tuple[Publisher, Core], monkeypatch: pytest.MonkeyPatch) -> None:
    publisher, core = sender
    sent = await published(publisher, core, 5)
    jobs, submit = list[Job[Any]](), core.store.submit_behind

    def counted(job: Job[Any]) -> asyncio.Future[Any]:
        jobs.append(job)
        return submit(job)

    monkeypatch.setattr(core.store, "submit_behind", counted)
    for seq, msg_id in sent[:4]:
        acknowledge(publisher, seq, msg_id, "refused" if seq == sent[1][0] else "committed")
    acknowledge(publisher, sent[4][0], "msg_guessed")
    await core.store.probe()
    assert len(jobs) == 1
    assert await states(core) == ["receipted", "dead", "receipted", "receipted", "published"]
    assert core.counters["acks.unknown"] == 1


@pytest.mark.parametrize("refused", [True, False])
async def test_a_job_that_never_ran_loses_its_own_alone(
    sender: tuple[Publisher, Core], monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    publisher, core = sender
    (first, first_id), (second, second_id) = await published(publisher, core, 2)
    failed: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    with monkeypatch.context() as patch:
        if refused:  # too many wait for the store
            patch.setattr(core, "behind", lambda *_args, **_options: None)
        else:
            patch.setattr(core.store, "submit_behind", lambda _job: failed)
        acknowledge(publisher, first, first_id)
        failed.set_exception(StoreUnavailable("the store cannot write", hint=""))
        await asyncio.sleep(0)
    if refused:
        failed.exception()
    acknowledge(publisher, second, second_id)
    await core.store.probe()
    assert await states(core) == ["published", "receipted"]
    acknowledge(publisher, first, first_id)  # the next copy is answered
    await core.store.probe()
    assert await states(core) == ["receipted", "receipted"]
