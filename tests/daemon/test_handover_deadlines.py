"""The task of deadlines: what wakes it for works that may be handed over."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from aghbus.daemon.wiring import DaemonParts
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.handover import Handover
from aghbus.protocol.agh.send import apply_own
from aghbus.store.apply_effects import Application, load_own
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import outbox
from aghbus.store.tables.works import handovers, lifecycle
from tests.support.makers import BOB, rows, say
from tests.support.natsutil import wait_until
from tests.support.wiring import parts_of

WORKSPACE, CHANNEL = "local", "default"


@asynccontextmanager
async def deadlines(folder: Path, *, presence: bool) -> AsyncIterator[DaemonParts]:
    """The parts of `ops`, with the task of deadlines, that of `presence`, and two peers with the capability."""
    store = await Store.open(folder / "store.db", synchronous="normal")
    parts = parts_of(store)
    for peer in (BOB, "carol"):
        card = PeerCard(peer_id=peer, capabilities=("test.run",))
        parts.presence.observe(WORKSPACE, CHANNEL, card, "unverified", parts.clock.millis())
    mains = [parts.deadlines.run, *([parts.deadlines.follow_presence] if presence else [])]
    tasks = [asyncio.create_task(main()) for main in mains]
    try:
        await wait_until(lambda: store.stats.jobs == 1, 10, "the first look")
        yield parts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


async def test_peers_that_come_and_go_start_no_job_without_a_work_for_a_capability(tmp_path: Path) -> None:
    async with deadlines(tmp_path, presence=True) as parts:
        before = parts.store.stats.jobs
        for _ in range(20):
            parts.presence.changed.notify()
            await rows(parts.store, "SELECT 1")  # after the task's own query: one reader has both
        assert parts.store.stats.jobs == before


async def test_a_work_that_is_handed_over_after_a_failure_ends_at_its_own_limit(tmp_path: Path) -> None:
    async with deadlines(tmp_path, presence=False) as parts:
        now = parts.clock.seconds()
        opening = say(sender="ops", to=BOB, ts=now, work_id="work_1", workspace_id=WORKSPACE, channel=CHANNEL)

        def job(tx: Transaction) -> None:
            effects = apply_own(opening, *load_own(tx, opening))
            Application(tx, "ops", 1000 * now).send(opening, effects)
            work = lifecycle.load(tx, WORKSPACE, CHANNEL, "work_1")
            assert work is not None
            handovers.put(tx, work, Handover(capability="test.run", accept_within=0.2))
            (row,) = outbox.load_queued(tx, 0, 1)
            parts.publisher.give_up(tx, row.seq, "dead", "no answer after 3 tries")

        await parts.store.write(job)

        await wait_until(lambda: parts.counters["deadlines.passed"] == 1, 10, "the end at the second peer")
        states = await rows(parts.store, "SELECT target, state FROM works ORDER BY id")
        assert states == [(BOB, "canceled"), ("carol", "canceled")]
