"""The daemon's own state: health, readiness, and the numbers of `aghctl status`."""

import os
import time
from dataclasses import dataclass, field
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.receive.held_back import HeldBack
from aghbus.daemon.receive.inbox_admission import inbox_bytes
from aghbus.daemon.receive.intake import ReceiveQueue
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.inbox_waiters import expire_leases
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.trust_policy import first_use_problems
from aghbus.daemon.tasks.retirement import former_identities
from aghbus.daemon.tasks.retirement import problems as former_problems
from aghbus.host.version import VERSION
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.limits import PROTOCOL
from aghbus.protocol.api.base import API_VERSION
from aghbus.protocol.api.status import (
    BrokerStatus,
    HealthResponse,
    InboxSender,
    InboxUse,
    ReadinessResponse,
    RestoredStatus,
    StatusResponse,
    VersionResponse,
)
from aghbus.store.engine.backup.epoch import spell
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox_list, outbox
from aghbus.store.tables.works import open_works

if TYPE_CHECKING:
    from aghbus.daemon.jetstream.profile import JetStreamProfile

_SENDERS: Final = 5  # in the inbox, shown by the status
_SHOWN: Final = 3  # names in one problem


@dataclass(frozen=True, slots=True, eq=False)
class BrokerView:
    """The connection to the broker. `jetstream` is None in core durability; `embedded`: the broker is the embedded one."""

    link: Link
    denied: DeniedSubjects
    jetstream: "JetStreamProfile | None"
    embedded: bool

    @property
    def up(self) -> bool:
        """Whether the link is up."""
        return self.link.state == "up"

    @property
    def subscribed(self) -> bool:
        """Whether messages for us arrive. Core NATS subscribes before the link counts as up."""
        attached = self.jetstream.attached if self.jetstream is not None else self.up
        return attached and not self.denied.has_denied_subscriptions

    def status(self) -> BrokerStatus:
        """The connection as `aghctl status` shows it."""
        link = self.link
        server = link.server
        rtt = link.rtt_ms()
        return BrokerStatus(
            state=link.state,
            url=server.url if server else None,
            server=f"{server.name} {server.version}" if server else None,
            embedded=self.embedded,
            rtt_ms=round(rtt, 3) if rtt is not None else None,
            max_payload=link.max_payload if server else None,
            reconnects=link.reconnects,
            last_error=str(link.last_error) if link.last_error else None,
            jetstream=self.jetstream.status() if self.jetstream is not None else None,
            slow_consumer_events=link.slow_consumer_events,
        )

    def problems(self, now: float) -> list[str]:
        """The current problems at monotonic second `now`."""
        cause = f": {self.link.last_error}" if self.link.last_error else ""
        down = [] if self.up else [f"the broker link is {self.link.state}{cause}"]
        return [*down, *self.denied.problems(now)]


@dataclass(frozen=True, slots=True, eq=False)
class StatusService:
    """The state of one daemon."""

    context: DaemonContext
    presence: PresenceTable
    store: Store
    broker: BrokerView
    clock_changes: ClockChanges
    limited: LimitedPeers
    held_back: HeldBack
    sender: Sender
    queue: ReceiveQueue
    restored: Restored | None
    started: float = field(default_factory=time.monotonic)

    async def health(self) -> HealthResponse:
        """The event loop runs, whatever the state of broker and store."""
        return HealthResponse(alive=True)

    async def readiness(self) -> ReadinessResponse:
        """Whether the broker link is up, the subscriptions are live and the store takes writes."""
        return self._readiness()

    def summary(self) -> str:
        """Readiness in one line, for a service manager."""
        found = self._readiness()
        if found.ready:
            return f"ready: {self.context.identity.self_id} in {self.context.identity.workspace}"
        if not found.store:
            return "not ready: the store cannot write"
        return f"not ready: {'no subscriptions' if found.broker else f'the broker link is {self.broker.link.state}'}"

    async def versions(self) -> VersionResponse:
        """Versions of the program, the protocol and this API."""
        return VersionResponse(name="aghbus", version=VERSION, protocol=PROTOCOL, api=API_VERSION)

    async def status(self) -> StatusResponse:
        """The state of every part, and the problems for a person."""
        context, settings = self.context, self.context.settings.current
        reader = await expire_leases(self.store, self.clock_changes)
        former = await former_identities(self.store, context.identity)
        restored = await self._restored()
        roles = await open_works.counts_by_role(reader)
        return StatusResponse(
            name=settings.name,
            peer_id=context.identity.self_id,
            workspace_id=context.identity.workspace,
            channels=list(settings.channels),
            version=VERSION,
            pid=os.getpid(),
            uptime_s=round(context.clock.monotonic() - self.started, 3),
            now_ms=context.clock.millis(),
            ready=self._readiness().ready,
            observe=settings.observe,
            broker=self.broker.status(),
            store=await self.store.status(),
            queues={"receive": self.queue.depth},
            inbox=await inbox_list.counts(reader, self.store.memory.inbox),
            inbox_use=self._inbox_use(),
            outbox=await outbox.counts(reader),
            works=await open_works.counts(reader),
            peers=self.presence.counts(context.clock.millis()),
            quarantined=self.store.memory.quarantine_rows,
            counters=context.counters.snapshot() | {"store.deferred_lost": self.store.deferred_lost},
            requests=self.requests(),
            questions=roles.get(("needs_input", "initiator"), 0),
            limits=self.limited.names(context.clock.monotonic()),
            problems=[
                *self.problems(),
                *former_problems(former),
                *_restored_problems(restored),
                *_given_up_problems(await inbox_list.given_up(reader)),
            ],
            former=former,
            restored=restored,
        )

    async def _restored(self) -> RestoredStatus | None:
        """The epoch of the store while openings may be held, or are."""
        restored = self.restored
        if restored is None:
            return None
        held = await inbox_list.held(self.store.reader)
        if not held and not restored.matters(self.context.clock.millis()):
            return None
        return RestoredStatus(
            epoch=restored.epoch,
            backup_ms=restored.backup_ms,
            restored_ms=restored.restored_ms,
            until_ms=restored.until_ms,
            held=held,
        )

    def requests(self) -> int:
        """How many peers wait for admission, as `Admission.list_requests` lists them."""
        own, is_contact = self.context.identity.signers, self.presence.is_contact
        return sum(one not in own and not is_contact(one) for one in self.store.memory.inbox.messages.senders)

    def _inbox_use(self) -> InboxUse:
        settings, held = self.context.settings.current, self.store.memory.inbox.messages
        found = [InboxSender(sender=name, messages=count, bytes=size) for name, (count, size) in held.senders.items()]
        plain = [one for one in found if "@" not in one.sender]
        return InboxUse(
            messages=held.count,
            capacity=settings.inbox.capacity,
            bytes=held.size,
            max_bytes=inbox_bytes(settings),
            unverified_messages=sum([one.messages for one in plain]),
            unverified_bytes=sum([one.bytes for one in plain]),
            senders=nlargest(_SENDERS, found, key=lambda one: (one.messages, one.bytes)),
        )

    def _readiness(self) -> ReadinessResponse:
        writable = self.store.writable
        up, subscribed = self.broker.up, self.broker.subscribed
        ready = up and subscribed and writable and not self.sender.closed
        return ReadinessResponse(ready=ready, broker=up, subscriptions=subscribed, store=writable)

    def problems(self) -> list[str]:
        """The current problems but those of former identities, as sentences for a person."""
        now = self.context.clock.monotonic()
        problems = [*self.broker.problems(now), *self.store.problems, *self.context.counters.problems(now)]
        problems += self.limited.problems(now)
        problems += self.held_back.problems()
        problems += _kept_problems(sum(self.store.memory.kept))
        problems += first_use_problems(self.context.settings, self.store, self.presence)
        problems += _older_peers(self.presence.older_contacts(self.context.clock.millis()))
        if not self.store.writable:
            problems.insert(0, f"the store cannot write: {self.store.last_error}")
        if self.sender.closed:
            problems.insert(0, "the daemon is shutting down")
        return problems


def _older_peers(names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return [
        f"peers with an aghbus older than 0.1.0: {', '.join(names[:_SHOWN])}{more}: they do not check the order of messages, and "
        "their acknowledgements do not name the content; upgrade them"
    ]


def _kept_problems(size: int) -> list[str]:
    if not size:
        return []
    what = "messages of open works, unread and unanswered ones"
    return [
        f"the store stays larger than store.retention_size: {size / (1 << 20):.1f} MiB of {what} may not be removed"
    ]


def _given_up_problems(count: int) -> list[str]:
    if not count:
        return []
    hint = "`aghctl inbox list --state dead` has the reasons, `inbox ack SEQ` removes one from the list"
    return [f"works that were given up after too many attempts, as their initiators were told: {count}; {hint}"]


def _restored_problems(restored: RestoredStatus | None) -> list[str]:
    if restored is None:
        return []
    how = f"the store was restored at {spell(restored.restored_ms)} from a backup of {spell(restored.backup_ms)}"
    if not restored.held:
        return [f"{how}: openings that it may have processed before are held"]
    hint = "`aghctl inbox list --state dead` lists them, `inbox requeue SEQ` runs one, `work reject` refuses it"
    return [f"{how}: openings that it may have processed before are held, {restored.held} now: {hint}"]
