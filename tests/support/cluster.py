"""A NATS cluster on loopback: three servers with JetStream that know one another, each of which a test can kill and raise."""

import json
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from tests.support.natsutil import NatsServer, wait_until

_READY = 60.0  # seconds: an election takes a few, a loaded machine doubles them


@asynccontextmanager
async def running(servers: Iterable[NatsServer]) -> AsyncIterator[None]:
    """The servers started one after the other; all are killed at the end."""
    async with AsyncExitStack() as stack:
        for server in servers:
            await stack.enter_async_context(server)
        yield


class Cluster:
    """Three nats-servers, `nodes`, with routes among them."""

    def __init__(self, size: int = 3) -> None:
        ports = free_ports(3 * size)
        self._routes, self._clients, self._monitors = ports[:size], ports[size : 2 * size], ports[2 * size :]
        self.nodes = [NatsServer(config=self._config(at), jetstream=True, port=self._clients[at]) for at in range(size)]

    @property
    def urls(self) -> tuple[str, ...]:
        """nats:// URLs of all nodes."""
        return tuple(node.url for node in self.nodes)

    def replicas(self, stream: str) -> int:
        """How many nodes keep a current copy of `stream`, as its leader says; 0 without a leader."""
        for at in range(len(self.nodes)):
            for account in self._ask(at, "jsz?streams=true&config=true").get("account_details", []):
                for detail in account.get("stream_detail", []):
                    cluster = detail.get("cluster", {})
                    if detail["name"] == stream and cluster.get("leader") == f"node{at}":
                        return 1 + sum(bool(one["current"]) for one in cluster.get("replicas", []))
        return 0

    async def wait_whole(self, stream: str | None = None) -> None:
        """Until all nodes are there with a leader among them, and have a current copy of `stream` each."""
        await wait_until(lambda: self._is_whole(stream), _READY, "the cluster to be whole")

    def _is_whole(self, stream: str | None) -> bool:
        size = len(self.nodes)
        metas = [self._ask(at, "jsz").get("meta_cluster", {}) for at in range(size)]
        whole = all(meta.get("leader") and meta.get("cluster_size") == size for meta in metas)
        healthy = all(self._ask(at, "healthz").get("status") == "ok" for at in range(size))
        return whole and healthy and (stream is None or self.replicas(stream) == size)

    async def kill_and_raise(self, at: int, stream: str | None = None) -> None:
        """kill -9 of one node, a start on the same ports, and a wait until it has caught up: only one is away at a time."""
        await self.nodes[at].restart()
        await self.wait_whole(stream)

    def _ask(self, at: int, path: str) -> dict[str, Any]:
        """A page of a node's monitoring; nothing when the node is away."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._monitors[at]}/{path}", timeout=5) as answer:
                page: dict[str, Any] = json.load(answer)
        except (OSError, ValueError):  # refused, cut off, or 503 from /healthz
            return {}
        return page

    def _config(self, at: int) -> str:
        routes = ", ".join(f'"nats://127.0.0.1:{port}"' for port in self._routes)
        return (
            f"server_name: node{at}\n"
            f"http: 127.0.0.1:{self._monitors[at]}\n"
            f"cluster {{ name: aghtest, listen: 127.0.0.1:{self._routes[at]}, routes: [{routes}] }}\n"
        )


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free now: all are held at once, so that none is given twice."""
    held = []
    try:
        for _ in range(count):
            one = socket.socket()
            held.append(one)
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()
