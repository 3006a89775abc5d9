"""A NATS cluster of three, its nodes killed in turn under load: nothing lost, in core mode and over a replicated stream."""

import asyncio
from pathlib import Path

import pytest

from aghbus.daemon.jetstream.stream import STREAM
from tests.support.cluster import Cluster, running
from tests.support.crashes import pair_of, run_until_done, seed_of, stop
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.ledger import balance
from tests.support.traffic import Traffic

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

ROUNDS = 2  # times that each node is killed


class Rolling:
    """Kills the nodes in turn, each as soon as the one before has caught up and some works went by."""

    def __init__(self, traffic: Traffic, cluster: Cluster, stream: str | None) -> None:
        self.kills = 0
        self.failure: BaseException | None = None
        self._traffic = traffic
        self._cluster = cluster
        self._stream = stream
        self._task: asyncio.Task[None] | None = None

    @property
    def done(self) -> bool:
        return self._task is not None and self._task.done()

    def begin(self) -> None:
        """On the loop of the test."""
        self._task = asyncio.create_task(self._run())

    def start(self) -> None:
        """For run_until_done; it runs already."""

    async def _run(self) -> None:
        try:
            for _ in range(ROUNDS):
                for at in range(len(self._cluster.nodes)):
                    await asyncio.to_thread(self._some_works)
                    await self._cluster.kill_and_raise(at, self._stream)
                    self.kills += 1
        except BaseException as error:
            self.failure = error

    def _some_works(self) -> None:
        goal = self._traffic.handled + 10

        def reached() -> bool:
            self._traffic.check()
            return self._traffic.handled >= goal

        wait_for(reached, 90, "some works to pass")


@pytest.mark.parametrize("profile", ["core", "jetstream"])
async def test_nodes_die_one_after_the_other_and_nothing_is_lost(tmp_path: Path, profile: str) -> None:
    seed = seed_of("cluster", profile)
    cluster = Cluster()
    async with running(cluster.nodes):
        await cluster.wait_whole()
        nats = [part for url in cluster.urls for part in ("--nats", url)]
        replicated = ("--durability", "jetstream", "--jetstream-replicas", "3") if profile == "jetstream" else ()
        pair = pair_of(Home(tmp_path), *nats, *replicated)
        for daemon in pair:
            await asyncio.to_thread(daemon.start)
        stream = STREAM if replicated else None
        await cluster.wait_whole(stream)
        traffic = Traffic(*pair, seed)
        killer = Rolling(traffic, cluster, stream)
        killer.begin()
        try:
            await asyncio.to_thread(run_until_done, traffic, [killer], at_least=200, timeout=600)
            print({**await asyncio.to_thread(balance, traffic.ledger, *pair), "kills": killer.kills})
            assert killer.kills == 3 * ROUNDS
            assert all(reconnected(daemon) for daemon in pair)
        finally:
            stop(pair)


def reconnected(daemon: Daemon) -> bool:
    """Every node was killed, so every link has had to go to another one."""
    return bool(daemon.get("/v1/status")["broker"]["reconnects"] >= 1)
