"""The bridge's parts put together, and the part of the daemon's service that is about them."""

from collections.abc import AsyncIterator, Sequence

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.bridge.adapters import Formats
from aghbus.daemon.bridge.deliver import HandOut
from aghbus.daemon.bridge.follower import Follower
from aghbus.daemon.bridge.format_log import shown
from aghbus.daemon.bridge.inbound import Arrivals
from aghbus.daemon.bridge.sentient_log import SentientLog
from aghbus.daemon.bridge.submit import HandOver
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.state.context import Core
from aghbus.protocol.api import bridge as bridge_api
from aghbus.protocol.api.messages import Event
from aghbus.store.tables import bridge_log


class Bridge:
    """Foreign formats on one daemon: run `follower` and `log` as tasks of it."""

    def __init__(self, core: Core, sender: Sender) -> None:
        """Raises FormatsError for a file that the settings name."""
        self.formats = Formats(core.settings)
        self.artifacts = Artifacts(core.link, core.us, lambda: core.settings.artifacts)
        arrivals = Arrivals(core, self.formats, self.artifacts)
        self.log = SentientLog(core)
        self.follower = Follower(core, sender, arrivals)
        self.hand_over = HandOver(core, sender, self.formats, self.artifacts, self.log)
        self.hand_out = HandOut(core, sender, self.formats, arrivals)


class BridgeService:
    """Foreign messages in and out; the node's service inherits it."""

    _core: Core

    @property
    def _bridge(self) -> Bridge:
        raise NotImplementedError

    async def bridge_hand_over(
        self, name: bridge_api.Format, ask: bridge_api.BridgeSubmitRequest
    ) -> bridge_api.BridgeSubmitResponse:
        """A message of our own agent onto the bus."""
        return await self._bridge.hand_over.take(name, ask)

    def bridge_stream(
        self, name: bridge_api.Format, since: int | None
    ) -> AsyncIterator[Sequence[bridge_api.BridgeMessage | Event]]:
        """Messages for our agent."""
        return self._bridge.hand_out.stream(name, since)

    async def bridge_message(self, name: bridge_api.Format, seq: int) -> bridge_api.BridgeMessage:
        """The message of one envelope."""
        return await self._bridge.hand_out.one(name, seq)

    async def bridge_ack(
        self, name: bridge_api.Format, ask: bridge_api.BridgeAckRequest
    ) -> bridge_api.BridgeAckResponse:
        """Up to where our agent has its messages."""
        return await self._bridge.hand_out.ack(name, ask.seq)

    async def bridge_log(self, name: bridge_api.Format, *, limit: int) -> bridge_api.BridgeLogResponse:
        """The newest rows of the format's own log, oldest first."""
        self._bridge.formats.of(name)
        rows = await bridge_log.page(self._core.store.reader, name, limit)
        return bridge_api.BridgeLogResponse(format=name, rows=[shown(name, row) for row in rows])
