"""The parts of a daemon, built and wired: each gets what it uses in its constructor."""

import logging
from typing import Final

from aghbus.daemon.api.route import Operation, Route, bind
from aghbus.daemon.api.routes import ROUTES
from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.bridge import Bridge
from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.chains.opening import WorkOpener
from aghbus.daemon.chains.runner import ChainRunner
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.chains.steps import RunTransitions
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.jetstream.profile import JetStreamProfile
from aghbus.daemon.nats.carrier import Carrier, CoreCarrier
from aghbus.daemon.nats.events import InboundMessage
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.receive.acknowledger import Acknowledger
from aghbus.daemon.receive.decider import Decider
from aghbus.daemon.receive.intake import Intake
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.drafts import DraftBuilder
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.send.secret_guard import SecretGuard
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.status import StatusService
from aghbus.daemon.services.trust_explain import TrustExplainer
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.services.works import WorkService
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.signature_pool import SignaturePool
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.daemon.tasks.store_probe import StoreProbe
from aghbus.protocol.trust.proof import verify_envelope
from aghbus.store.engine.database import Store

_log = logging.getLogger("aghbus.node")

_LOG_LINES_PER_MINUTE: Final = 6  # of one kind, of those that other peers can provoke


class DaemonParts:
    """Every part of one daemon by its name. Only the node knows this class."""

    def __init__(
        self,
        settings: LiveSettings,
        identity: Identity,
        store: Store,
        link: Link,
        *,
        last_seq: int,
        instance: str,
        ack_root: str,
    ) -> None:
        """`last_seq` is the store's last sequence, `instance` its random id, `ack_root` the subject of acknowledgements."""
        self.settings = settings
        self.identity = identity
        self.store = store
        self.link = link
        self.ack_root = ack_root
        self._make_state(last_seq)
        self._make_transport(instance)
        self._make_outbound()
        self._make_inbound(instance)
        self._make_bridge_and_chains()

    def _make_state(self, last_seq: int) -> None:
        settings, identity = self.settings, self.identity
        self.clock = Clock()
        self.counters = Counters()
        self.log_limiter = EventLimiter(_log, _LOG_LINES_PER_MINUTE)
        self.background = BackgroundTasks()
        self.notifier = Notifier(last_seq)
        self.waiters = InboxWaiters()
        self.denied = DeniedSubjects(identity.self_id)
        self.presence = PresenceTable(settings.current.discovery.interval)
        self.own_card = OwnCard(identity, settings)
        self.signatures = SignaturePool(verify_envelope)
        self.limits = RateLimits(settings, self.clock.monotonic, self.signatures.verify)
        self.steps = ClockSteps(self.clock, self.store, self.presence, self.counters)
        self.trust = LivePolicy(settings, self.store, self.clock, identity.signer, self.counters, self.log_limiter)

    def _make_transport(self, instance: str) -> None:
        settings, counters, clock = self.settings.current, self.counters, self.clock
        self.jetstream: JetStreamProfile | None = None
        self.carrier: Carrier = CoreCarrier(self.link, self.ack_root)
        if settings.durability == "jetstream":
            self.jetstream = JetStreamProfile(
                self.link,
                self_id=self.identity.self_id,
                former=self.identity.former_on_other_subjects,
                instance=instance,
                ack_root=self.ack_root,
                channels=self.identity.channels,
                observe=settings.observe,
                settings=settings.jetstream,
                offer=self._offer,
                on_problem=lambda key, sentence: counters.problem(key, sentence, clock.monotonic()),
                on_solved=counters.solved,
            )
            self.carrier = self.jetstream.carrier

    def _offer(self, message: InboundMessage) -> None:
        self.intake.offer(message)  # made after the profile

    def _make_outbound(self) -> None:
        self.closer = WorkCloser(self.identity, self.settings, self.clock)
        self.publisher = Publisher(
            carrier=self.carrier,
            link=self.link,
            store=self.store,
            settings=self.settings,
            clock=self.clock,
            steps=self.steps,
            presence=self.presence,
            closer=self.closer,
            notifier=self.notifier,
            waiters=self.waiters,
            counters=self.counters,
            log_limiter=self.log_limiter,
        )
        self.deadlines = Deadlines(
            store=self.store,
            settings=self.settings,
            identity=self.identity,
            steps=self.steps,
            closer=self.closer,
            publisher=self.publisher,
            notifier=self.notifier,
            counters=self.counters,
        )
        self.sender = Sender(
            store=self.store,
            identity=self.identity,
            clock=self.clock,
            link=self.link,
            guard=SecretGuard(self.settings, self.counters, self.log_limiter),
            deadlines=self.deadlines,
            publisher=self.publisher,
            notifier=self.notifier,
            counters=self.counters,
        )

    def _make_inbound(self, instance: str) -> None:
        write_behind = PresenceWriteBehind(self.store, self.presence)
        self.discovery = Discovery(
            link=self.link,
            identity=self.identity,
            own_card=self.own_card,
            settings=self.settings,
            clock=self.clock,
            presence=self.presence,
            write_behind=write_behind,
            limits=self.limits,
            counters=self.counters,
            log_limiter=self.log_limiter,
            background=self.background,
            ttl_headers=self.jetstream.ttl_headers if self.jetstream else None,
            instance=instance,
            on_joined=self.publisher.peer_joined,
        )
        decider = Decider(
            identity=self.identity,
            settings=self.settings,
            clock=self.clock,
            limits=self.limits,
            trust=self.trust,
            deadlines=self.deadlines,
            waiters=self.waiters,
            counters=self.counters,
        )
        self.intake = Intake(
            identity=self.identity,
            settings=self.settings,
            clock=self.clock,
            store=self.store,
            limits=self.limits,
            signatures=self.signatures,
            trust=self.trust,
            decider=decider,
            discovery=self.discovery,
            write_behind=write_behind,
            publisher=self.publisher,
            acknowledger=Acknowledger(self.link, self.identity, self.background, self.counters),
            notifier=self.notifier,
            counters=self.counters,
            log_limiter=self.log_limiter,
        )

    def _make_bridge_and_chains(self) -> None:
        self.bridge = Bridge(
            settings=self.settings,
            identity=self.identity,
            clock=self.clock,
            store=self.store,
            link=self.link,
            presence=self.presence,
            steps=self.steps,
            denied=self.denied,
            closer=self.closer,
            sender=self.sender,
            notifier=self.notifier,
            counters=self.counters,
            log_limiter=self.log_limiter,
        )
        self.chains = self._make_chains()
        self.store_probe = StoreProbe(self.store, self.publisher.link_up)

    def _make_chains(self) -> ChainRunner:
        messages = ChainMessages(
            settings=self.settings,
            identity=self.identity,
            clock=self.clock,
            link=self.link,
            agents=self.bridge.agents,
            adapter_of=self.bridge.formats.get,
            remember=self.bridge.submitter.remember,
            artifacts=self.bridge.artifacts,
        )
        transitions = RunTransitions(
            settings=self.settings,
            identity=self.identity,
            clock=self.clock,
            steps=self.steps,
            closer=self.closer,
            opener=WorkOpener(
                settings=self.settings,
                identity=self.identity,
                clock=self.clock,
                presence=self.presence,
                messages=messages,
            ),
            messages=messages,
        )
        return ChainRunner(
            workspace=self.identity.workspace,
            store=self.store,
            steps=self.steps,
            presence=self.presence,
            notifier=self.notifier,
            counters=self.counters,
            sender=self.sender,
            messages=messages,
            transitions=transitions,
        )

    def operations(self, *, embedded: bool) -> dict[Route, Operation]:
        """The operations of the API, as methods of the parts; `embedded`: the broker is the embedded one."""
        settings, identity, store, clock = self.settings, self.identity, self.store, self.clock
        drafts = DraftBuilder(identity, settings, clock, self.own_card)
        status = StatusService(
            settings=settings,
            identity=identity,
            presence=self.presence,
            clock=clock,
            store=store,
            link=self.link,
            steps=self.steps,
            denied=self.denied,
            counters=self.counters,
            sender=self.sender,
            intake=self.intake,
            jetstream=self.jetstream,
            embedded=embedded,
        )
        parts = (
            status,
            PeerService(
                settings=settings, identity=identity, presence=self.presence, clock=clock, own_card=self.own_card
            ),
            MessageService(store, self.notifier, self.sender, drafts, own_id=identity.self_id),
            WorkService(store, self.sender, drafts),
            InboxService(waiters=self.waiters, clock=clock, store=store, steps=self.steps, counters=self.counters),
            TrustRuleService(settings=settings, identity=identity, clock=clock, store=store, trust=self.trust),
            TrustExplainer(identity=identity, store=store, trust=self.trust),
            ChainService(settings=settings, identity=identity, clock=clock, store=store, runner=self.chains),
            self.discovery,
            self.bridge,
            self.bridge.artifacts,
            self.bridge.submitter,
            self.bridge.delivery,
        )
        return bind(ROUTES, parts)
