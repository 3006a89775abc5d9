"""The crash matrix, short: both daemons die once at every named point of the pipeline while works flow, and nothing is lost.

tests/long/test_crash_matrix_long.py has each point alone, with thousands of messages and many seeds.
"""

import asyncio
import random
from pathlib import Path

import pytest

from aghbus.daemon.base.failpoints import POINTS
from tests.support.crashes import Keeper, run_until_done
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.ledger import balance
from tests.support.natsutil import NatsServer
from tests.support.traffic import Traffic

QUICK = ("--retry-first", "100ms", "--retry-ceiling", "500ms")


@pytest.mark.timeout(180)
async def test_both_daemons_die_at_every_point_and_nothing_is_lost(tmp_path: Path) -> None:
    seed = random.randrange(1_000_000)
    print("seed", seed)
    async with NatsServer() as server:
        figures = await asyncio.to_thread(every_point_once, Home(tmp_path), server.url, seed)
    print(figures)


def every_point_once(home: Home, url: str, seed: int) -> dict[str, int]:
    rng = random.Random(seed)
    nats = ("--nats", url, *QUICK)
    pair = Daemon(home, "ops", *nats), Daemon(home, "worker", *nats)
    traffic = Traffic(*pair, seed)
    keepers = []
    for daemon in pair:
        deaths = [f"{point}:{rng.randint(1, 6)}" for point in POINTS]
        rng.shuffle(deaths)
        keepers.append(Keeper(daemon, deaths))
    try:
        run_until_done(traffic, keepers, at_least=30, timeout=120)
        assert [len(keeper.fired) for keeper in keepers] == [len(POINTS)] * 2
        return balance(traffic.ledger, *pair)
    finally:
        for daemon in pair:
            daemon.stop()


def test_an_end_waits_for_its_opening_that_a_full_inbox_holds_off(home: Home) -> None:
    with Daemon(home, "worker", *QUICK, "--inbox-capacity", "1") as worker, Daemon(home, "ops", *QUICK) as ops:
        wait_for(lambda: ops.knows("worker"), 30, "presence")
        ops.post("/v1/works", to="worker", text="fills the inbox")
        wait_for(lambda: worker.get("/v1/works")["works"], 30, "the first work")
        late = ops.post("/v1/works", to="worker", text="has to wait")["work_id"]
        ops.post(f"/v1/works/{late}/say", message="one thing more")
        ops.post(f"/v1/works/{late}/cancel")
        wait_for(lambda: worker.get("/v1/status")["counters"].get("overload", 0) >= 3, 20, "some tries in vain")
        while len(worker.get("/v1/works")["works"]) < 2 or worker.state_of(late) != "canceled":
            assert worker.post("/v1/inbox/next", wait=10, ack=True)["item"] is not None
        detail = worker.get(f"/v1/works/{late}")
        steps = [row["event"] for row in detail["history"] if row["event"] != "receipt:duplicate"]  # a try too many
        assert steps == ["message", "message", "receipt:canceled"]
        assert detail["work"]["text"] == "has to wait"
