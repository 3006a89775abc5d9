"""Assembles the bridge, and implements its operations of the local API."""

from collections.abc import AsyncIterator, Sequence

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.bridge.adapters import FormatAdapters
from aghbus.daemon.bridge.deliver import MessageDelivery
from aghbus.daemon.bridge.follower import Follower
from aghbus.daemon.bridge.format_log import public_row
from aghbus.daemon.bridge.inbound import InboundTranslator
from aghbus.daemon.bridge.sentient_log import SentientLog
from aghbus.daemon.bridge.submit import MessageSubmitter
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.state.context import Core
from aghbus.protocol.api import bridge as bridge_api
from aghbus.protocol.api.messages import Event
from aghbus.store.tables import bridge_log


class Bridge:
    """The bridge of one daemon. The daemon runs `follower` and `log` as tasks."""

    def __init__(self, core: Core, sender: Sender) -> None:
        """Raises FormatFileError for an unusable file that the settings name."""
        self.formats = FormatAdapters(core.settings)
        self.artifacts = Artifacts(core.link, core.us, lambda: core.settings.artifacts)
        translator = InboundTranslator(core, self.formats, self.artifacts)
        self.log = SentientLog(core)
        self.follower = Follower(core, sender, translator)
        self.submitter = MessageSubmitter(core, sender, self.formats, self.artifacts, self.log)
        self.delivery = MessageDelivery(core, sender, self.formats, translator)


class BridgeService:
    """The bridge's operations; the node's service inherits them."""

    _core: Core

    @property
    def _bridge(self) -> Bridge:
        raise NotImplementedError

    async def bridge_submit(
        self, name: bridge_api.Format, ask: bridge_api.BridgeSubmitRequest
    ) -> bridge_api.BridgeSubmitResponse:
        """Submit a message of our agent."""
        return await self._bridge.submitter.submit(name, ask)

    def bridge_stream(
        self, name: bridge_api.Format, since: int | None
    ) -> AsyncIterator[Sequence[bridge_api.BridgeMessage | Event]]:
        """Stream messages to our agent."""
        return self._bridge.delivery.stream(name, since)

    async def bridge_message(self, name: bridge_api.Format, seq: int) -> bridge_api.BridgeMessage:
        """The message for one envelope."""
        return await self._bridge.delivery.get(name, seq)

    async def bridge_ack(
        self, name: bridge_api.Format, ask: bridge_api.BridgeAckRequest
    ) -> bridge_api.BridgeAckResponse:
        """Acknowledge messages."""
        return await self._bridge.delivery.ack(name, ask.seq)

    async def bridge_log(self, name: bridge_api.Format, *, limit: int) -> bridge_api.BridgeLogResponse:
        """The newest rows of the format's own log, oldest first."""
        self._bridge.formats.get(name)
        rows = await bridge_log.page(self._core.store.reader, name, limit)
        return bridge_api.BridgeLogResponse(format=name, rows=[public_row(name, row) for row in rows])
