"""Assembles the bridge."""

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
from aghbus.protocol.api.bridge import BridgeLogResponse, Format
from aghbus.protocol.api.queries import LimitQuery
from aghbus.store.tables import bridge_log


class Bridge:
    """The bridge of one daemon. The daemon runs `follower` and `log` as tasks."""

    def __init__(self, core: Core, sender: Sender) -> None:
        """Raises FormatFileError for an unusable file that the settings name."""
        self._store = core.store
        self.formats = FormatAdapters(core.settings)
        self.artifacts = Artifacts(core.link, core.us, lambda: core.settings.artifacts)
        translator = InboundTranslator(core, self.formats, self.artifacts)
        self.log = SentientLog(core)
        self.follower = Follower(core, sender, translator)
        self.submitter = MessageSubmitter(core, sender, self.formats, self.artifacts, self.log)
        self.delivery = MessageDelivery(core, sender, self.formats, translator)

    async def list_log(self, name: Format, query: LimitQuery) -> BridgeLogResponse:
        """The newest rows of the format's own log, oldest first."""
        self.formats.get(name)
        rows = await bridge_log.page(self._store.reader, name, query.limit)
        return BridgeLogResponse(format=name, rows=[public_row(name, row) for row in rows])
