"""The crash matrix: every named point of the pipeline, in either daemon, and the broker under both, with many messages and seeds.

The invariants are those of tests/support/ledger.py: `balance`. Each run prints its seed and its figures.
"""

import asyncio
import json
import os
import random
import signal
from functools import partial
from pathlib import Path

import pytest

from aghbus.daemon.base.failpoints import POINTS
from tests.support.crashes import Hitman, Keeper, die_at_every_point, pair_of, run_until_done, seed_of, stop
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.ledger import balance
from tests.support.natsutil import NatsServer
from tests.support.traffic import Traffic

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

DEATHS = 4  # at each point, of each daemon, in one run
WORKS = 60  # at least, in one run of one point: about 250 messages
SEEDS = (1, 2, 3)  # of the runs that kill at random moments

JETSTREAM = ("--durability", "jetstream")


@pytest.mark.parametrize("victim", [0, 1], ids=["sender", "receiver"])
@pytest.mark.parametrize("point", POINTS)
async def test_one_daemon_dies_at_one_point_again_and_again(tmp_path: Path, point: str, victim: int) -> None:
    seed = seed_of(point, victim)
    rng = random.Random(seed)

    def run(url: str) -> dict[str, int]:
        pair = pair_of(Home(tmp_path), "--nats", url)
        traffic = Traffic(*pair, seed)
        deaths = [f"{point}:{rng.randint(1, 40)}" for _ in range(DEATHS)]
        keepers = [Keeper(pair[victim], deaths, rest=True), Keeper(pair[1 - victim], ())]
        try:
            run_until_done(traffic, keepers, at_least=WORKS, timeout=400)
            assert keepers[0].fired == deaths
            return balance(traffic.ledger, *pair)
        finally:
            stop(pair)

    async with NatsServer() as server:
        print(await asyncio.to_thread(run, server.url))


@pytest.mark.parametrize("profile", [(), JETSTREAM], ids=["core", "jetstream"])
@pytest.mark.parametrize("round_", SEEDS)
async def test_everything_dies_at_random_moments(tmp_path: Path, round_: int, profile: tuple[str, ...]) -> None:
    seed = seed_of(round_, *profile)
    rng = random.Random(seed)
    async with NatsServer(jetstream=bool(profile)) as server:

        def run() -> dict[str, int]:
            pair = pair_of(Home(tmp_path), "--nats", server.url, *profile)
            for daemon in pair:
                daemon.start()
            traffic = Traffic(*pair, seed)
            killers = [Hitman(traffic, partial(again, one), 12, rng) for one in pair]
            killers.append(Hitman(traffic, lambda: asyncio.run(server.restart()), 8, rng))
            try:
                run_until_done(traffic, killers, at_least=250, timeout=600)
                return {**balance(traffic.ledger, *pair), "kills": sum(killer.kills for killer in killers)}
            finally:
                stop(pair)

        print(await asyncio.to_thread(run))


@pytest.mark.parametrize("round_", SEEDS[:2])
async def test_both_daemons_die_at_every_point_over_a_stream(home: Home, round_: int, server: NatsServer) -> None:
    seed = seed_of(round_, "jetstream")
    pair = pair_of(home, "--nats", server.url, *JETSTREAM)
    print(await asyncio.to_thread(die_at_every_point, pair, POINTS, seed, latest=12, at_least=100, timeout=600))


def test_the_embedded_broker_dies_with_traffic_on_it(home: Home) -> None:
    seed = seed_of("embedded broker")
    pair = pair_of(home)
    for daemon in pair:
        daemon.start()
    traffic = Traffic(*pair, seed)
    killer = Hitman(traffic, lambda: kill_broker(home), 12, random.Random(seed))
    try:
        run_until_done(traffic, [killer], at_least=150, timeout=400)
        print({**balance(traffic.ledger, *pair), "kills": killer.kills})
    finally:
        stop(pair)


def kill_broker(home: Home) -> None:
    """kill -9 of the running embedded broker: waits for the one that replaces the last one killed."""
    record = home.root / "state" / "aghbus" / "broker" / "broker.json"
    alive: list[int] = []

    def runs() -> bool:
        try:
            pid = int(json.loads(record.read_text())["pid"])
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:  # nobody has replaced the last one yet
            return False
        if state not in ("Z", "X"):
            alive.append(pid)
        return bool(alive)

    wait_for(runs, 30, "a running broker")
    os.kill(alive[0], signal.SIGKILL)


def again(daemon: Daemon) -> None:
    """kill -9, and a start."""
    daemon.kill()
    daemon.start()
