"""What the services, the bridge and the chains share of a running daemon, until they take their parts one by one."""

import logging
from typing import Any

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.store.engine.database import Store


class Core:
    """One daemon's shared state."""

    def __init__(
        self,
        *,
        live: LiveSettings,
        clock: Clock,
        store: Store,
        link: Link,
        presence: PresenceTable,
        identity: Identity,
        own_card: OwnCard,
        steps: ClockSteps,
        trust: LivePolicy,
        denied: DeniedSubjects,
        closer: Any,
        notifier: Notifier,
        waiters: InboxWaiters,
        counters: Counters,
        noise: EventLimiter,
    ) -> None:
        self.live = live
        self.clock = clock
        self.store = store
        self.link = link
        self.roster = presence
        self.identities = identity
        self.own_card = own_card
        self.steps = steps
        self.trust = trust
        self.denied = denied
        self.announcer = notifier
        self.consumers = waiters
        self.counters = counters
        self.noise = noise
        self.closer = closer
        self.draining = False
        self.log = logging.getLogger("aghbus.node")
        self.us = identity.self_id
        self.signer = identity.signer
        self.workspace = identity.workspace
        self.channels = identity.channels
        self.joined = identity.joined

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self.live.current
