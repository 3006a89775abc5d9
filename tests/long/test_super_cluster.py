"""Peers of two NATS clusters and of a leaf node find each other and work together, while a server of each cluster is killed."""

import asyncio
import random
from pathlib import Path
from typing import Final

import pytest

from tests.support.cluster import free_ports, running
from tests.support.crashes import QUICK, Hitman, run_until_done, seed_of, stop
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.ledger import balance
from tests.support.natsutil import NatsServer
from tests.support.traffic import Traffic

NAMES: Final = ("east", "west")
_SIZE: Final = 2  # servers of each cluster
_ACCOUNTS: Final = """
accounts { AGH { users: [ { user: peer, password: secret } ] }, SYS { users: [ { user: system, password: secret } ] } }
system_account: SYS
no_auth_user: peer
"""


class SuperCluster:
    """`servers["east"]` and `servers["west"]`, and the `leaf` node behind east."""

    def __init__(self) -> None:
        ports = free_ports(4 * 2 * _SIZE + 1)
        self._routes, self._gateways, self._clients, self._leaves = (
            {name: [ports.pop() for _ in range(_SIZE)] for name in NAMES} for _ in range(4)
        )
        self.servers = {
            name: [NatsServer(config=self._config(name, at), port=self._clients[name][at]) for at in range(_SIZE)]
            for name in NAMES
        }
        remotes = ", ".join(f'"nats-leaf://peer:secret@127.0.0.1:{port}"' for port in self._leaves["east"])
        self.leaf = NatsServer(
            config=f'server_name: leaf\nleafnodes {{ remotes: [ {{ urls: [{remotes}] }} ], reconnect: "1s" }}\n',
            port=ports.pop(),
        )

    @property
    def all(self) -> list[NatsServer]:
        """Every server."""
        return [*self.servers["east"], *self.servers["west"], self.leaf]

    def urls(self, name: str) -> list[str]:
        """nats:// URLs of a cluster."""
        return [server.url for server in self.servers[name]]

    def _config(self, name: str, at: int) -> str:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes[name])
        gateways = "\n".join(f"{{ name: {other}, urls: [{self._gateway_urls(other)}] }}" for other in NAMES)
        return (
            f"server_name: {name}-{at}\n"
            f"cluster {{ name: {name}, listen: 127.0.0.1:{self._routes[name][at]}, routes: [{routes}] }}\n"
            f"gateway {{ name: {name}, listen: 127.0.0.1:{self._gateways[name][at]}, gateways: [\n{gateways}\n] }}\n"
            f"leafnodes {{ listen: 127.0.0.1:{self._leaves[name][at]} }}\n{_ACCOUNTS}"
        )

    def _gateway_urls(self, name: str) -> str:
        return ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._gateways[name])


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
