"""The health listener: a port of its own for kubelets and Prometheus, which reach neither a Unix socket nor loopback.

Every program that reaches the address can read it: there is no token, and nothing but probes and metrics is served. What
clients can make it spend is bounded (docs/limits.md).
"""

import asyncio
import logging
from typing import Final

from aghbus.daemon.api.http.connection import ListenerState
from aghbus.daemon.api.http.listeners import listen_address
from aghbus.daemon.api.http.timeouts import HttpTimeouts
from aghbus.daemon.base.logs import EventLimiter, event
from aghbus.daemon.health.app import HealthApp
from aghbus.daemon.health.exporter import Exporter
from aghbus.daemon.health.lag import measure
from aghbus.daemon.services.status import StatusService
from aghbus.protocol.base.histogram import Histogram

_log = logging.getLogger("aghbus.health")

MAX_CONNECTIONS: Final = 32
"""Each serves one request. Beyond them the oldest connection without a request in progress is cut."""

HEAD_SECONDS: Final = 5.0
"""Seconds: from the connection to the end of the request's head."""

ANSWER_SECONDS: Final = 10.0
"""Seconds: how long a client may take to read its answer."""


class HealthServer:
    """The listener of one daemon. `start` it once, `stop` it once."""

    def __init__(
        self, status: StatusService, delivery: Histogram, address: tuple[str, int], limiter: EventLimiter
    ) -> None:
        """`delivery` is how long deliveries take. `address` is an IP address and a port (0: any)."""
        self._lag = Histogram()
        self._app = HealthApp(status, Exporter(status, delivery, self._lag))
        self._address = address
        self._endpoint = ListenerState(
            self._app,
            limiter,
            timeouts=HttpTimeouts(head=HEAD_SECONDS, idle=ANSWER_SECONDS),
            max_connections=MAX_CONNECTIONS,
        )
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen, and log the address. Raises ListenError."""
        sock = listen_address("health.listen", *self._address)
        host, port = sock.getsockname()[:2]
        self._server = await asyncio.get_running_loop().create_server(self._endpoint.connection, sock=sock)
        event(_log, logging.INFO, "health listener", host=host, port=port)

    async def measure(self) -> None:
        """Measure the event loop's lag until cancelled."""
        await measure(self._lag)

    def started(self) -> None:
        """The daemon has started: `/startupz` says so from now on."""
        self._app.started = True

    async def stop(self) -> None:
        """Close the listener and its connections."""
        if self._server is None:
            return
        self._server.close()
        for connection in list(self._endpoint.connections):
            connection.abort()
        requests = list(self._endpoint.requests)
        for task in requests:
            task.cancel()
        await asyncio.gather(*requests, return_exceptions=True)
