"""Two NATS clusters on loopback, joined by gateways, and a leaf node of the first: the shape of deploy/nats, on one machine."""

from typing import Final

from tests.support.cluster import free_ports
from tests.support.natsutil import NatsServer

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
