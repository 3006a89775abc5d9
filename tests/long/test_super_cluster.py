"""Peers of two NATS clusters and of a leaf node find each other and work together, while a server of each cluster is killed."""

import asyncio
import random
from pathlib import Path

import pytest

from tests.support.cluster import running
from tests.support.crashes import QUICK, Hitman, run_until_done, seed_of, stop
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.ledger import balance
from tests.support.natsutil import NatsServer
from tests.support.supercluster import SuperCluster
from tests.support.traffic import Traffic

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def peer(home: Home, name: str, *urls: str) -> Daemon:
    return Daemon(home, name, *QUICK, "--discovery-interval", "1s", *(word for url in urls for word in ("--nats", url)))


def found(daemon: Daemon, query: str) -> set[str]:
    """The peers that answer a whois."""
    return {str(peer["peer_id"]) for peer in daemon.post("/v1/whois", query=query)["peers"]}


async def test_works_pass_gateways_and_a_leaf_node_while_servers_die(tmp_path: Path) -> None:
    seed = seed_of("super-cluster")
    nats = SuperCluster()
    async with running(nats.all):
        home = Home(tmp_path)
        ops = peer(home, "ops", nats.leaf.url)
        worker = peer(home, "worker", *nats.urls("west"))
        third = peer(home, "third", *nats.urls("east"))
        daemons = (ops, worker, third)
        for daemon in daemons:
            await asyncio.to_thread(daemon.start)
        try:
            await asyncio.to_thread(
                wait_for, lambda: all(d.knows("ops", "worker", "third") for d in daemons), 60, "presence"
            )
            await asyncio.to_thread(wait_for, lambda: found(ops, "") >= {"worker", "third"}, 30, "answers at the leaf")
            await asyncio.to_thread(wait_for, lambda: found(worker, "") >= {"ops", "third"}, 30, "answers in the west")
            loop = asyncio.get_running_loop()
            traffic = Traffic(ops, worker, seed)
            victims: list[NatsServer] = [nats.servers["west"][0], nats.servers["east"][0], nats.servers["west"][1]]
            kills = iter(victims)

            def kill() -> None:
                asyncio.run_coroutine_threadsafe(next(kills).restart(), loop).result(60)

            killer = Hitman(traffic, kill, len(victims), random.Random(seed))
            await asyncio.to_thread(run_until_done, traffic, [killer], at_least=100, timeout=400)
            print({**await asyncio.to_thread(balance, traffic.ledger, ops, worker), "kills": killer.kills})
            assert killer.kills == len(victims)
            assert worker.get("/v1/status")["broker"]["reconnects"] >= 1
        finally:
            stop(daemons)
