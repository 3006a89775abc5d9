"""The parts of a daemon over a real store, without a broker and without running tasks, wired as daemon/node.py does."""

from collections.abc import Callable, Iterable
from logging import getLogger

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.bridge import Bridge
from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.chains.opening import WorkOpener
from aghbus.daemon.chains.questions import Questions
from aghbus.daemon.chains.results import WorkResults
from aghbus.daemon.chains.runner import ChainRunner, RunnerLimits
from aghbus.daemon.chains.steps import RunTransitions
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.discovery.restored_peers import RestoredPeers
from aghbus.daemon.nats.ack_inboxes import AckInboxes
from aghbus.daemon.nats.carrier import Carrier, CoreCarrier
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.receive.acknowledger import Acknowledger
from aghbus.daemon.receive.committer import Committer
from aghbus.daemon.receive.decider import Decider, Receivers
from aghbus.daemon.receive.discovery_messages import DiscoveryMessages
from aghbus.daemon.receive.inbox_admission import InboxAdmission
from aghbus.daemon.receive.intake import Intake, ReceiveQueue
from aghbus.daemon.receive.outcomes import OutcomeHandler
from aghbus.daemon.receive.proofs import ProofVerifier
from aghbus.daemon.receive.receipts import Receipts
from aghbus.daemon.receive.refused import RefusedMessages
from aghbus.daemon.receive.rejections import Rejections
from aghbus.daemon.send.ack_receiver import AckReceiver
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.send.secret_guard import SecretGuard
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.keys import FormerKey
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.signature_pool import SignaturePool
from aghbus.daemon.state.standing import Standings
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.trust.proof import EnvelopeSigner, verify_envelope
from aghbus.protocol.agh.trust.trust import Verifier
from aghbus.protocol.base.rate_limit import VerificationBudget
from aghbus.store.engine.database import Store
from tests.support.links import no_broker


class Parts:
    """Every part by its name. What a test replaces it hands in; all else is real."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        *,
        clock: Clock | None = None,
        link: Link | None = None,
        carrier: Carrier | None = None,
        sender_type: type[Sender] = Sender,
        signer: EnvelopeSigner | None = None,
        former: Iterable[FormerKey] = (),
        verifier: Verifier = verify_envelope,
        failed_signatures: VerificationBudget | None = None,
        max_background: int | None = None,
        write_behind: Callable[[Store, PresenceTable], PresenceWriteBehind] = PresenceWriteBehind,
    ) -> None:
        self.store = store
        self.settings = LiveSettings(settings)
        self.clock = clock or Clock()
        self.link = link or Link(no_broker, name="test")
        self.identity = Identity(settings, signer, former)
        self.counters = Counters()
        self.notifier = Notifier()
        self.waiters = InboxWaiters()
        self.background = BackgroundTasks() if max_background is None else BackgroundTasks(max_background)
        self.denied = DeniedSubjects(self.identity.self_id)
        self.presence = PresenceTable(settings.discovery.interval, store.memory.acknowledging)
        self.own_card = OwnCard(self.identity, self.settings)
        self.log_limiter = EventLimiter(getLogger("aghbus.node"), 6)
        self.signatures = SignaturePool(verifier)
        self.steps = ClockSteps(self.clock, store, self.presence, self.counters)
        self.trust = LivePolicy(
            self.settings, store, self.clock, self.presence, signer, self.counters, self.log_limiter
        )
        self.standings = Standings(self.identity, self.presence, self.trust, self.clock)
        self.limits = RateLimits(
            self.settings, self.clock.monotonic, self.signatures.verify, self.standings, failed_signatures
        )
        self.limited = LimitedPeers()
        self.closer = WorkCloser(self.identity, self.settings, self.clock, self.counters)
        self.publisher = Publisher(
            carrier=carrier or CoreCarrier(self.link, AckInboxes(self.link, "_INBOX.test")),
            link=self.link,
            store=store,
            identity=self.identity,
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
        self.ack_receiver = AckReceiver(
            store=store,
            publisher=self.publisher,
            unresponsive=self.publisher.unresponsive,
            delivery_times=self.publisher.delivery_times,
            counters=self.counters,
        )
        self.deadlines = Deadlines(
            store=store,
            settings=self.settings,
            identity=self.identity,
            steps=self.steps,
            closer=self.closer,
            publisher=self.publisher,
            notifier=self.notifier,
            waiters=self.waiters,
            counters=self.counters,
        )
        self.sender = sender_type(
            store=store,
            identity=self.identity,
            clock=self.clock,
            link=self.link,
            guard=SecretGuard(self.settings, self.presence, self.counters, self.log_limiter),
            deadlines=self.deadlines,
            publisher=self.publisher,
            notifier=self.notifier,
            counters=self.counters,
            standings=self.standings,
        )
        self.write_behind = write_behind(store, self.presence)
        self.discovery = Discovery(
            link=self.link,
            identity=self.identity,
            own_card=self.own_card,
            settings=self.settings,
            clock=self.clock,
            presence=self.presence,
            write_behind=self.write_behind,
            limits=self.limits,
            limited=self.limited,
            counters=self.counters,
            log_limiter=self.log_limiter,
            background=self.background,
            ttl_headers=None,
            instance="0",
            on_joined=self.publisher.peer_joined,
            restored=None,
            restored_peers=RestoredPeers(self.store, self.clock, self.background, self.counters, self.log_limiter),
        )
        self.queue = ReceiveQueue(self.settings, self.limits.processing)
        receivers = Receivers(self.identity, self.settings, self.clock, self.trust, restored=None)
        receipts = Receipts(self.limits, self.standings, self.limited, self.trust, self.clock, self.counters)
        refused = RefusedMessages(self.identity, self.settings, self.clock, self.counters)
        rejections = Rejections(self.standings, self.limited, self.clock, self.counters, self.log_limiter)
        decider = Decider(
            settings=self.settings,
            standings=self.standings,
            receivers=receivers,
            receipts=receipts,
            refused=refused,
            trust=self.trust,
            closer=self.closer,
            deadlines=self.deadlines,
            waiters=self.waiters,
            admission=InboxAdmission(self.settings, self.standings, self.counters),
        )
        self.committer = Committer(
            queue=self.queue,
            store=store,
            proofs=ProofVerifier(self.limits, self.signatures),
            decider=decider,
            refused=refused,
            rejections=rejections,
            handler=OutcomeHandler(
                publisher=self.publisher,
                acknowledger=Acknowledger(self.link, self.identity, self.background, self.counters),
                discovery=self.discovery,
                rejections=rejections,
                notifier=self.notifier,
                counters=self.counters,
            ),
            clock=self.clock,
            counters=self.counters,
            log_limiter=self.log_limiter,
        )
        self.intake = Intake(
            identity=self.identity,
            clock=self.clock,
            limits=self.limits,
            receipts=receipts,
            refused=refused,
            rejections=rejections,
            queue=self.queue,
            discovery=DiscoveryMessages(
                store=store,
                limits=self.limits,
                receivers=receivers,
                decider=decider,
                refused=refused,
                rejections=rejections,
                discovery=self.discovery,
                write_behind=self.write_behind,
                trust=self.trust,
                counters=self.counters,
            ),
            counters=self.counters,
        )

    def inbox_service(self) -> InboxService:
        return InboxService(
            waiters=self.waiters, clock=self.clock, store=self.store, steps=self.steps, counters=self.counters
        )

    def trust_rules(self) -> TrustRuleService:
        return TrustRuleService(
            settings=self.settings, identity=self.identity, clock=self.clock, store=self.store, trust=self.trust
        )

    def bridge(self, artifacts: Artifacts | None = None) -> Bridge:
        return Bridge(
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
            artifacts=artifacts,
        )

    def chain_runner(self, artifacts: Artifacts, limits: RunnerLimits) -> ChainRunner:
        bridge = self.bridge(artifacts)
        messages = ChainMessages(
            identity=self.identity,
            link=self.link,
            agents=bridge.agents,
            adapter_of=bridge.formats.get,
            record=bridge.submitter.remember,
            artifacts=artifacts,
        )
        opener = WorkOpener(
            settings=self.settings,
            identity=self.identity,
            clock=self.clock,
            presence=self.presence,
            closer=self.closer,
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
            transitions=RunTransitions(
                settings=self.settings,
                identity=self.identity,
                steps=self.steps,
                opener=opener,
                results=WorkResults(messages),
                questions=Questions(self.waiters),
            ),
            limits=limits,
        )
