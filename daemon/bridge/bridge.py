"""Assembles the bridge."""

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.adapters import AgentDirectory, FormatAdapters
from aghbus.daemon.bridge.deliver import MessageDelivery
from aghbus.daemon.bridge.follow_up_ends import FollowUpEnds
from aghbus.daemon.bridge.follow_up_steps import FollowUpSteps
from aghbus.daemon.bridge.follower import Follower
from aghbus.daemon.bridge.forwarder import Forwarder
from aghbus.daemon.bridge.inbound import InboundTranslator
from aghbus.daemon.bridge.log_files import LogFiles
from aghbus.daemon.bridge.submit import MessageSubmitter
from aghbus.daemon.bridge.unanswered import UnansweredMessages
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.api.bridge import BridgeLogResponse
from aghbus.protocol.api.queries import LimitQuery
from aghbus.protocol.base.formats import Format
from aghbus.store.engine.database import Store
from aghbus.store.tables.bridge import log as bridge_log


class Bridge:
    """The bridge of one daemon. The daemon runs `follower` and `log` as tasks."""

    def __init__(
        self,
        context: DaemonContext,
        store: Store,
        link: Link,
        presence: PresenceTable,
        clock_changes: ClockChanges,
        denied: DeniedSubjects,
        closer: WorkCloser,
        sender: Sender,
        notifier: Notifier,
        artifacts: Artifacts | None = None,
    ) -> None:
        """`artifacts` is the artifact store (None: that of the link). Raises FormatFileError for an unusable file."""
        settings, identity, clock, counters = context.settings, context.identity, context.clock, context.counters
        self._store = store
        self.formats = FormatAdapters(settings.current)
        self.agents = AgentDirectory(settings, identity, presence, clock)
        artifacts = artifacts or Artifacts(link, identity.self_id, lambda: settings.current.artifacts)
        formats, agents, self.artifacts = self.formats, self.agents, artifacts
        translator = InboundTranslator(settings, identity, clock, denied, counters, agents, formats, artifacts)
        self.log = LogFiles(settings, context.log_limiter, clock, store, counters)
        unanswered = UnansweredMessages(closer, counters)
        forwarder = Forwarder(counters)
        steps = FollowUpSteps(settings, identity, agents, forwarder)
        ends = FollowUpEnds(settings, identity, clock, counters, agents, self.log, forwarder)
        self.follower = Follower(
            notifier, clock, store, clock_changes, agents, sender, translator, unanswered, steps, ends
        )
        self.submitter = MessageSubmitter(
            settings, identity, clock, link, counters, agents, sender, formats, artifacts, self.log
        )
        self.delivery = MessageDelivery(notifier, clock, store, closer, agents, sender, formats, translator)

    async def list_log(self, name: Format, query: LimitQuery) -> BridgeLogResponse:
        """The newest rows of the format's own log, oldest first."""
        self.formats.get(name)
        rows = await bridge_log.page(self._store.reader, name, query.limit)
        return BridgeLogResponse(format=name, rows=rows)
