"""How the daemon is: the numbers of `aghctl status`, and readiness."""

from typing import TYPE_CHECKING

from aghbus.daemon.services.inbox import settled
from aghbus.daemon.tasks.retirement import former_identities
from aghbus.daemon.tasks.retirement import problems as former_problems
from aghbus.protocol.api.status import BrokerStatus, ReadinessResponse, StatusResponse
from aghbus.store.tables import inbox, outbox, works

if TYPE_CHECKING:
    from aghbus.daemon.node import Node


def readiness(node: "Node") -> ReadinessResponse:
    """Ready when the broker link is up (subscriptions are made before it counts as up) and the store takes writes."""
    up = node.link.state == "up"
    hears = (node.jetstream.attached if node.jetstream is not None else up) and not node.core.denied.deaf
    writable = node.core.store.writable
    return ReadinessResponse(
        ready=up and hears and writable and not node.core.draining, broker=up, subscriptions=hears, store=writable
    )


async def status(node: "Node", *, uptime: float, pid: int) -> StatusResponse:
    """Everything a person asks first."""
    core = node.core
    reader = await settled(core)
    former = await former_identities(core)
    return StatusResponse(
        name=node.settings.name,
        peer_id=core.us,
        workspace_id=core.workspace,
        channels=list(core.settings.channels),
        version=node.version,
        pid=pid,
        uptime_s=round(uptime, 3),
        ready=readiness(node).ready,
        observe=core.settings.observe,
        broker=_broker(node),
        store=await core.store.status(),
        queues={"receive": node.intake.depth},
        inbox=await inbox.counts(reader),
        outbox=await outbox.counts(reader),
        works=await works.counts(reader),
        peers=core.roster.counts(core.clock.millis()),
        quarantined=core.store.memory.quarantine_rows.value,
        counters=core.counters.snapshot(),
        problems=[*_problems(node), *former_problems(former)],
        former=former,
    )


def _broker(node: "Node") -> BrokerStatus:
    link = node.link
    server = link.server
    rtt = link.rtt_ms()
    return BrokerStatus(
        state=link.state,
        url=server.url if server else None,
        server=f"{server.name} {server.version}" if server else None,
        embedded=node.broker is not None,
        rtt_ms=round(rtt, 3) if rtt is not None else None,
        max_payload=link.max_payload if server else None,
        reconnects=link.reconnects,
        last_error=str(link.last_error) if link.last_error else None,
        jetstream=node.jetstream.status() if node.jetstream is not None else None,
        slow_consumer_events=link.slow_consumer_events,
    )


def _problems(node: "Node") -> list[str]:
    problems = node.core.counters.problems(node.core.clock.monotonic())
    problems[:0] = [*node.core.store.problems, *node.core.denied.problems(node.core.clock.monotonic())]
    if node.link.state != "up":
        why = f": {node.link.last_error}" if node.link.last_error else ""
        problems.insert(0, f"the broker link is {node.link.state}{why}")
    if not node.core.store.writable:
        problems.insert(0, f"the store cannot write: {node.core.store.last_error}")
    if node.core.draining:
        problems.insert(0, "the daemon is shutting down")
    return problems
