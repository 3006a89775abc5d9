"""Assembles the bridge, and has its operations of the local API.

Most daemons never see a message of a foreign format. What only such a message needs is loaded with the first one
(daemon/bridge/parts.py): 0.6 MB.
"""

from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.adapters import FORMAT_WITH_TIMEOUTS, AgentDirectory, FormatAdapters
from aghbus.daemon.bridge.follower import Follower
from aghbus.daemon.bridge.sentient_log import SentientLog
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.adapters.registry import Format
from aghbus.protocol.api.bridge import (
    BridgeAckRequest,
    BridgeAckResponse,
    BridgeLogResponse,
    BridgeMessage,
    BridgeSubmitRequest,
    BridgeSubmitResponse,
)
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import BridgeStreamQuery, LimitQuery
from aghbus.store.engine.database import Store
from aghbus.store.tables import bridge_log

if TYPE_CHECKING:
    from aghbus.daemon.bridge.parts import BridgeParts


class Bridge:
    """The bridge of one daemon. The daemon runs `follower` and `log` as tasks."""

    def __init__(
        self,
        settings: LiveSettings,
        identity: Identity,
        clock: Clock,
        store: Store,
        link: Link,
        presence: PresenceTable,
        steps: ClockSteps,
        denied: DeniedSubjects,
        closer: WorkCloser,
        sender: Sender,
        notifier: Notifier,
        counters: Counters,
        log_limiter: EventLimiter,
        artifacts: Artifacts | None = None,
    ) -> None:
        """`artifacts` is the artifact store (None: that of the link). Raises FormatFileError for an unusable file."""
        self._settings = settings
        self._identity = identity
        self._clock = clock
        self._store = store
        self._link = link
        self._denied = denied
        self._closer = closer
        self._sender = sender
        self._notifier = notifier
        self._counters = counters
        self.formats = FormatAdapters(settings.current)
        self.agents = agents = AgentDirectory(settings, identity, presence, clock)
        self.artifacts = artifacts or Artifacts(link, identity.self_id, lambda: settings.current.artifacts)
        self.log = SentientLog(settings, log_limiter, clock, store, counters)
        self.follower = Follower(notifier, clock, store, steps, agents, sender, lambda: self.parts)

    @cached_property
    def parts(self) -> "BridgeParts":
        """The parts that need a foreign message."""
        from aghbus.daemon.bridge.parts import BridgeParts

        return BridgeParts(
            self._settings,
            self._identity,
            self._clock,
            self._store,
            self._link,
            self._denied,
            self._closer,
            self._sender,
            self._notifier,
            self._counters,
            self.agents,
            self.formats,
            self.artifacts,
            self.log,
        )

    # operations of the local API

    async def submit(self, name: str, ask: BridgeSubmitRequest) -> BridgeSubmitResponse:
        """As `MessageSubmitter.submit`."""
        return await self.parts.submitter.submit(name, ask)

    def stream(self, name: Format, query: BridgeStreamQuery) -> AsyncIterator[Sequence[BridgeMessage | Event]]:
        """As `MessageDelivery.stream`."""
        return self.parts.delivery.stream(name, query)

    async def get(self, name: Format, seq: int) -> BridgeMessage:
        """As `MessageDelivery.get`."""
        return await self.parts.delivery.get(name, seq)

    async def ack(self, name: Format, request: BridgeAckRequest) -> BridgeAckResponse:
        """As `MessageDelivery.ack`."""
        return await self.parts.delivery.ack(name, request)

    async def list_log(self, name: Format, query: LimitQuery) -> BridgeLogResponse:
        """The newest rows of the format's own log, oldest first; for agentos only the ten fields of its schema."""
        self.formats.get(name)
        rows = await bridge_log.page(self._store.reader, name, query.limit)
        return BridgeLogResponse(
            format=name, rows=[row["row"] if name == FORMAT_WITH_TIMEOUTS else row for row in rows]
        )
