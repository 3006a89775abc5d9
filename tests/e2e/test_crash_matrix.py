"""The crash matrix, short: both daemons die once at every named point of the pipeline while works flow, and nothing is lost.

tests/long/test_crash_matrix_long.py has each point alone, with thousands of messages and many seeds.
"""

import asyncio

import pytest

from aghbus.daemon.base.failpoints import POINTS
from tests.support.crashes import QUICK, die_at_every_point, pair_of, seed_of
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer


@pytest.mark.timeout(180)
async def test_both_daemons_die_at_every_point_and_nothing_is_lost(home: Home, server: NatsServer) -> None:
    pair = pair_of(home, "--nats", server.url)
    print(await asyncio.to_thread(die_at_every_point, pair, POINTS, seed_of(), latest=6, at_least=30, timeout=120))


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
