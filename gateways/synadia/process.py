"""What both directions of the bridge share: the client, the connection to NATS, events, counters, and the signals."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from typing import Any, Protocol

from nats.aio.client import Client as NatsClient
from nats.errors import Error as NatsError

from aghbus.client.http import Endpoint
from aghbus.client.work.clients import AsyncClient
from aghbus.gateways.base.metrics import Metrics
from aghbus.gateways.synadia.broker import Broker, connect
from aghbus.protocol.base.text import escape, shorten

METRICS = {
    "prompts_total": ("prompts of their clients, by how they ended", "outcome"),
    "works_total": ("works given to their agents, by how they ended", "outcome"),
    "questions_total": ("questions passed on",),
    "attachments_total": ("attachments and artifacts passed on",),
    "callers_gone_total": ("callers that went away before the end",),
    "running": ("prompts and works that run now",),
    "agents": ("agents of ours that are served, or of theirs that are present",),
}
"""The metrics below `aghbus_synadia_`; docs/adapters/synadia.md has this table."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
LOGGERS = ("aghbus.client", "nats", "synadia_ai")
MOST_LINES = 1_000
"""Different lines of libraries that are passed on; each of them once."""
MAX_LINE = 500
OURS = ("prompt request refused on", "prompt handler raised on", "service error on")
"""Beginnings of lines about what has an event of its own."""


class Emit(Protocol):
    """Prints one event with its fields."""

    def __call__(self, event: str, **more: Any) -> object:
        """Print it."""


class Bridge:
    """One direction while it runs."""

    def __init__(self, client: AsyncClient, nats: NatsClient, broker: Broker, emit: Emit, metrics: Metrics) -> None:
        self.client = client
        self.nats = nats
        self.broker = broker
        self._print = emit
        self.metrics = metrics
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()
        """Set at the second signal."""

    def emit(self, event: str, *, message: str | None = None, **more: Any) -> None:
        """Print an event; of a long message the beginning."""
        said = {} if message is None else {"message": shorten(message, MAX_LINE)}
        self._print(event, **more, **said)

    def note(self, message: str, **more: Any) -> None:
        """Print a problem."""
        self.emit("problem", message=escape(message), **more)


class Process:
    """Runs `direction` until a signal, or until `stop`."""

    def __init__(
        self,
        endpoint: Endpoint,
        broker: Broker,
        metrics_at: tuple[str, int] | None,
        direction: Callable[[Bridge], Awaitable[None]],
    ) -> None:
        self._endpoint = endpoint
        self._broker = broker
        self._metrics_at = metrics_at
        self._direction = direction
        self._bridge: Bridge | None = None
        self.signal: signal.Signals | None = None
        """The first one."""

    def run(self, emit: Emit, timeout: float) -> None:
        """Raises ClientError. `timeout` bounds each step of a request to the daemon."""
        asyncio.run(self._run(emit, timeout))

    def stop(self) -> None:
        """End, as after a signal."""
        if self._bridge is not None:
            self._bridge.stopping.set()

    async def _run(self, emit: Emit, timeout: float) -> None:
        client, metrics = AsyncClient(self._endpoint, timeout=timeout), Metrics("aghbus_synadia", METRICS)
        async with AsyncExitStack() as stack:
            stack.callback(client.close)
            if self._metrics_at is not None:
                port = stack.enter_context(metrics.served(*self._metrics_at))
                emit("metrics", port=port)
            stack.enter_context(lines := _Lines(emit))
            nats = await connect(self._broker, lines.note)
            stack.push_async_callback(_close, nats)
            client.core.patience = math.inf  # works go on while the daemon is away
            self._bridge = bridge = Bridge(client, nats, self._broker, emit, metrics)
            loop = asyncio.get_running_loop()
            for number in SIGNALS:
                loop.add_signal_handler(number, self._on_signal, bridge, number)
            await self._direction(bridge)

    def _on_signal(self, bridge: Bridge, number: signal.Signals) -> None:
        if self.signal is not None:
            bridge.hurry.set()
        self.signal = self.signal or number
        bridge.stopping.set()


async def _close(nats: NatsClient) -> None:
    with suppress(NatsError, OSError):  # the broker is away
        await nats.close()


class _Lines(logging.Handler):
    """Prints the warnings of libraries as events, each once: they have text of others, which a log must not take as it is."""

    def __init__(self, emit: Emit) -> None:
        super().__init__(logging.WARNING)
        self._emit = emit
        self._seen: set[str] = set()

    def note(self, message: str) -> None:
        self._emit("problem", message=shorten(escape(message), MAX_LINE))

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage()
        if line.startswith(OURS) or line in self._seen or len(self._seen) >= MOST_LINES:
            return
        self._seen.add(line)
        self.note(line)

    def __enter__(self) -> None:
        for name in LOGGERS:
            logger = logging.getLogger(name)
            logger.addHandler(self)
            logger.propagate = False

    def __exit__(self, *_: object) -> None:
        for name in LOGGERS:
            logging.getLogger(name).removeHandler(self)
