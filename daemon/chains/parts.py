"""The parts of the chains that need a run."""

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.bridge.bridge import Bridge
from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.chains.opening import WorkOpener
from aghbus.daemon.chains.questions import Questions
from aghbus.daemon.chains.results import WorkResults
from aghbus.daemon.chains.steps import RunTransitions
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.nats.link import Link
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.presence import PresenceTable


class RunParts:
    """What changes runs, and the foreign messages in them."""

    def __init__(
        self,
        settings: LiveSettings,
        identity: Identity,
        clock: Clock,
        link: Link,
        presence: PresenceTable,
        steps: ClockSteps,
        closer: WorkCloser,
        waiters: InboxWaiters,
        bridge: Bridge,
    ) -> None:
        remember = bridge.parts.submitter.remember
        self.messages = messages = ChainMessages(
            identity, link, bridge.agents, bridge.formats.get, remember, bridge.artifacts
        )
        opener = WorkOpener(settings, identity, clock, presence, closer, messages)
        self.transitions = RunTransitions(settings, identity, steps, opener, WorkResults(messages), Questions(waiters))
