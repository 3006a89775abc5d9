"""The daemon's own state: health, readiness, and the numbers of `aghctl status`."""

import os

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.jetstream.profile import JetStreamProfile
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.receive.intake import Intake
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.services.inbox import settled
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.tasks.retirement import former_identities
from aghbus.daemon.tasks.retirement import problems as former_problems
from aghbus.protocol.api.base import API_VERSION
from aghbus.protocol.api.status import (
    BrokerStatus,
    HealthResponse,
    ReadinessResponse,
    StatusResponse,
    VersionResponse,
)
from aghbus.protocol.limits import PROTOCOL
from aghbus.store.engine.database import Store
from aghbus.store.host.version import VERSION
from aghbus.store.tables import inbox, outbox, works


class StatusService:
    """The state of one daemon. `jetstream` is None in core durability; `embedded`: the broker is the embedded one."""

    def __init__(
        self,
        *,
        settings: LiveSettings,
        identity: Identity,
        presence: PresenceTable,
        clock: Clock,
        store: Store,
        link: Link,
        steps: ClockSteps,
        denied: DeniedSubjects,
        counters: Counters,
        sender: Sender,
        intake: Intake,
        jetstream: JetStreamProfile | None,
        embedded: bool,
    ) -> None:
        self._settings = settings
        self._identity = identity
        self._presence = presence
        self._clock = clock
        self._store = store
        self._link = link
        self._steps = steps
        self._denied = denied
        self._counters = counters
        self._sender = sender
        self._intake = intake
        self._jetstream = jetstream
        self._embedded = embedded
        self._started = clock.monotonic()

    async def health(self) -> HealthResponse:
        """The event loop runs, whatever the state of broker and store."""
        return HealthResponse(alive=True)

    async def readiness(self) -> ReadinessResponse:
        """Whether the broker link is up, the subscriptions are live and the store takes writes."""
        return self._readiness()

    async def versions(self) -> VersionResponse:
        """Versions of the program, the protocol and this API."""
        return VersionResponse(name="aghbus", version=VERSION, protocol=PROTOCOL, api=API_VERSION)

    async def status(self) -> StatusResponse:
        """The state of every part, and the problems for a person."""
        reader = await settled(self._store, self._steps)
        former = await former_identities(self._store, self._identity)
        return StatusResponse(
            name=self._settings.current.name,
            peer_id=self._identity.self_id,
            workspace_id=self._identity.workspace,
            channels=list(self._settings.current.channels),
            version=VERSION,
            pid=os.getpid(),
            uptime_s=round(self._clock.monotonic() - self._started, 3),
            ready=self._readiness().ready,
            observe=self._settings.current.observe,
            broker=self._broker(),
            store=await self._store.status(),
            queues={"receive": self._intake.depth},
            inbox=await inbox.counts(reader),
            outbox=await outbox.counts(reader),
            works=await works.counts(reader),
            peers=self._presence.counts(self._clock.millis()),
            quarantined=self._store.memory.quarantine_rows,
            counters=self._counters.snapshot() | {"store.deferred_lost": self._store.deferred_lost},
            problems=[*self._problems(), *former_problems(former)],
            former=former,
        )

    def _readiness(self) -> ReadinessResponse:
        up = self._link.state == "up"  # subscriptions are made before it counts as up
        subscribed = (
            self._jetstream.attached if self._jetstream is not None else up
        ) and not self._denied.has_denied_subscriptions
        writable = self._store.writable
        ready = up and subscribed and writable and not self._sender.closed
        return ReadinessResponse(ready=ready, broker=up, subscriptions=subscribed, store=writable)

    def _broker(self) -> BrokerStatus:
        link = self._link
        server = link.server
        rtt = link.rtt_ms()
        return BrokerStatus(
            state=link.state,
            url=server.url if server else None,
            server=f"{server.name} {server.version}" if server else None,
            embedded=self._embedded,
            rtt_ms=round(rtt, 3) if rtt is not None else None,
            max_payload=link.max_payload if server else None,
            reconnects=link.reconnects,
            last_error=str(link.last_error) if link.last_error else None,
            jetstream=self._jetstream.status() if self._jetstream is not None else None,
            slow_consumer_events=link.slow_consumer_events,
        )

    def _problems(self) -> list[str]:
        now = self._clock.monotonic()
        problems = [*self._store.problems, *self._denied.problems(now), *self._counters.problems(now)]
        if self._link.state != "up":
            cause = f": {self._link.last_error}" if self._link.last_error else ""
            problems.insert(0, f"the broker link is {self._link.state}{cause}")
        if not self._store.writable:
            problems.insert(0, f"the store cannot write: {self._store.last_error}")
        if self._sender.closed:
            problems.insert(0, "the daemon is shutting down")
        return problems
