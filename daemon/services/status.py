"""The daemon's own state: health, readiness, and the numbers of `aghctl status`."""

import os

from aghbus.daemon.jetstream.profile import JetStreamProfile
from aghbus.daemon.receive.intake import Intake
from aghbus.daemon.services.inbox import settled
from aghbus.daemon.state.context import Core
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
from aghbus.store.host.version import VERSION
from aghbus.store.tables import inbox, outbox, works


class StatusService:
    """The state of one daemon. `jetstream` is None in core durability; `embedded`: the broker is the embedded one."""

    def __init__(self, core: Core, intake: Intake, jetstream: JetStreamProfile | None, *, embedded: bool) -> None:
        self._core = core
        self._intake = intake
        self._jetstream = jetstream
        self._embedded = embedded
        self._started = core.clock.monotonic()

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
        core = self._core
        reader = await settled(core)
        former = await former_identities(core.store, core.identities)
        return StatusResponse(
            name=core.settings.name,
            peer_id=core.us,
            workspace_id=core.workspace,
            channels=list(core.settings.channels),
            version=VERSION,
            pid=os.getpid(),
            uptime_s=round(core.clock.monotonic() - self._started, 3),
            ready=self._readiness().ready,
            observe=core.settings.observe,
            broker=self._broker(),
            store=await core.store.status(),
            queues={"receive": self._intake.depth},
            inbox=await inbox.counts(reader),
            outbox=await outbox.counts(reader),
            works=await works.counts(reader),
            peers=core.roster.counts(core.clock.millis()),
            quarantined=core.store.memory.quarantine_rows.value,
            counters=core.counters.snapshot(),
            problems=[*self._problems(), *former_problems(former)],
            former=former,
        )

    def _readiness(self) -> ReadinessResponse:
        core = self._core
        up = core.link.state == "up"  # subscriptions are made before it counts as up
        subscribed = (
            self._jetstream.attached if self._jetstream is not None else up
        ) and not core.denied.has_denied_subscriptions
        writable = core.store.writable
        ready = up and subscribed and writable and not core.draining
        return ReadinessResponse(ready=ready, broker=up, subscriptions=subscribed, store=writable)

    def _broker(self) -> BrokerStatus:
        link = self._core.link
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
        core, now = self._core, self._core.clock.monotonic()
        problems = [*core.store.problems, *core.denied.problems(now), *core.counters.problems(now)]
        if core.link.state != "up":
            cause = f": {core.link.last_error}" if core.link.last_error else ""
            problems.insert(0, f"the broker link is {core.link.state}{cause}")
        if not core.store.writable:
            problems.insert(0, f"the store cannot write: {core.store.last_error}")
        if core.draining:
            problems.insert(0, "the daemon is shutting down")
        return problems
