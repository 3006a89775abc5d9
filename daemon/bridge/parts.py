"""The parts of the bridge that need a foreign message, or a request for one."""

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.adapters import AgentDirectory, FormatAdapters
from aghbus.daemon.bridge.chain_ends import ChainEnds
from aghbus.daemon.bridge.deliver import MessageDelivery
from aghbus.daemon.bridge.inbound import InboundTranslator
from aghbus.daemon.bridge.sentient_log import SentientLog
from aghbus.daemon.bridge.submit import MessageSubmitter
from aghbus.daemon.bridge.unanswered import UnansweredMessages
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.state.identity import Identity
from aghbus.store.engine.database import Store


class BridgeParts:
    """The translator, what submits and delivers messages, and what the follower does with works and log rows."""

    def __init__(
        self,
        settings: LiveSettings,
        identity: Identity,
        clock: Clock,
        store: Store,
        link: Link,
        denied: DeniedSubjects,
        closer: WorkCloser,
        sender: Sender,
        notifier: Notifier,
        counters: Counters,
        agents: AgentDirectory,
        formats: FormatAdapters,
        artifacts: Artifacts,
        log: SentientLog,
    ) -> None:
        self.translator = InboundTranslator(settings, identity, clock, denied, counters, agents, formats, artifacts)
        self.unanswered = UnansweredMessages(closer, counters)
        self.ends = ChainEnds(settings, identity, clock, counters, agents, log)
        self.submitter = MessageSubmitter(
            settings, identity, clock, link, counters, agents, sender, formats, artifacts, log
        )
        self.delivery = MessageDelivery(notifier, clock, store, closer, agents, sender, formats, self.translator)
