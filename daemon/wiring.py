"""The parts of a daemon, built and wired: each gets what it uses in its constructor."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aghbus.daemon.api.handlers import bind
from aghbus.daemon.api.server import MAX_BODY_BYTES
from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.bridge import Bridge
from aghbus.daemon.chains.artifact_files import ArtifactFiles
from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.chains.opening import WorkOpener
from aghbus.daemon.chains.questions import Questions
from aghbus.daemon.chains.results import WorkResults
from aghbus.daemon.chains.runner import ChainRunner, RunnerLimits
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.chains.steps import RunTransitions
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.discovery.greeter import Greeter
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.discovery.publisher import DiscoveryPublisher
from aghbus.daemon.discovery.restored_peers import RestoredPeers
from aghbus.daemon.discovery.service_api import ServiceApi
from aghbus.daemon.discovery.whois import WhoisQuestions
from aghbus.daemon.mcp import mount
from aghbus.daemon.nats.ack_inboxes import AckInboxes
from aghbus.daemon.nats.carrier import Carrier, CoreCarrier
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import DeniedSubjects
from aghbus.daemon.receive.committer import Acknowledger, Committer, OutcomeHandler
from aghbus.daemon.receive.decider import Decider, Receivers
from aghbus.daemon.receive.discovery_messages import DiscoveryMessages
from aghbus.daemon.receive.held_back import HeldBack
from aghbus.daemon.receive.inbox_admission import InboxAdmission
from aghbus.daemon.receive.intake import Intake, ReceiveQueue
from aghbus.daemon.receive.proofs import ProofVerifier
from aghbus.daemon.receive.receipt_policy import ReceiptPolicy
from aghbus.daemon.receive.refused import RefusedMessages
from aghbus.daemon.receive.rejections import Rejections
from aghbus.daemon.send.ack_receiver import AckReceiver
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.drafts import DraftBuilder
from aghbus.daemon.send.handovers import Handovers
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.send.recipients import Recipients
from aghbus.daemon.send.secret_guard import SecretGuard
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.services.admission import Admission
from aghbus.daemon.services.console import ConsoleService
from aghbus.daemon.services.diagnostics import Diagnostics
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.inbox_purge import InboxPurge
from aghbus.daemon.services.mcp_sessions import McpSessions
from aghbus.daemon.services.message_purge import MessagePurge
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.session_leases import SessionLeases
from aghbus.daemon.services.status import BrokerView, StatusService
from aghbus.daemon.services.trust_explain import TrustExplainer
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.services.wait_reasons import WaitReasons
from aghbus.daemon.services.works import WorkService
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.lanes import Lanes
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.own_instance import OwnInstance
from aghbus.daemon.state.own_load import OwnLoad
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.signature_pool import SignaturePool
from aghbus.daemon.state.spans import EnvelopeSpans
from aghbus.daemon.state.tags import Tags
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.daemon.tasks.store_probe import StoreProbe
from aghbus.host.tracing import Tracing
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.nats.names import inbox as inbox_subject
from aghbus.protocol.agh.trust.proof import verify_envelope
from aghbus.protocol.agh.trust.trust import Verifier
from aghbus.protocol.base.rate_limit import VerificationBudget
from aghbus.store.engine.database import Store

if TYPE_CHECKING:
    from aghbus.daemon.jetstream.profile import JetStreamProfile


@dataclass(frozen=True, slots=True)
class Replacements:
    """What a test puts in the place of parts. The carrier and the artifact store are those of the link by default."""

    carrier: Carrier | None = None
    sender_type: type[Sender] = Sender
    verifier: Verifier = verify_envelope
    failed_signatures: VerificationBudget | None = None
    write_behind: Callable[[Store, PresenceTable], PresenceWriteBehind] = PresenceWriteBehind
    artifacts: Artifacts | None = None
    runner_limits: RunnerLimits = RunnerLimits()  # noqa: RUF009 - immutable


class DaemonParts:
    """Every part of one daemon by its name. Only the node and tests know this class."""

    def __init__(
        self,
        context: DaemonContext,
        store: Store,
        link: Link,
        *,
        embedded: bool = False,
        last_seq: int = 0,
        secret: bytes = b"",
        restored: Restored | None = None,
        tracing: Tracing | None = None,
        replaced: Replacements = Replacements(),
    ) -> None:
        """`embedded`: the broker is the embedded one. `last_seq` is the store's last sequence, `secret` what its copies share.
        `restored` is the epoch of the store.
        """
        self.context, self.store, self.link = context, store, link
        self.settings, self.identity, self.clock = context.settings, context.identity, context.clock
        self.counters, self.log_limiter = context.counters, context.log_limiter
        self._epoch, self._restored = restored, None if restored is None or restored.is_new else restored
        self._spans = None if tracing is None else EnvelopeSpans(tracing)
        self.background = BackgroundTasks()
        self.notifier = Notifier(last_seq)
        self.waiters = InboxWaiters()
        store.memory.inbox.on_release = self.waiters.wake_all
        self.denied = DeniedSubjects(self.identity.self_id)
        interval, acknowledging = self.settings.current.discovery.interval, store.memory.acknowledging
        self.presence = PresenceTable(interval, acknowledging, lambda peer: self.lanes.is_contact(peer))  # noqa: PLW0108 - made below
        self.own_card = OwnCard(self.identity, self.settings, self.clock)
        self.own_load = OwnLoad(store)
        self.instance = OwnInstance(self.clock, self.settings, secret)
        self.signatures = SignaturePool(replaced.verifier)
        self.clock_changes = ClockChanges(self.clock, store, self.presence, self.counters)
        self.trust = LivePolicy(context, store, self.presence)
        self.lanes = Lanes(self.settings, self.trust, embedded=embedded)
        self.tags = Tags(self.identity, self.trust, self.presence)
        restored_ms = 0 if self._restored is None else self._restored.restored_ms
        self.handovers = Handovers(context, self.presence, self.lanes, link, restored_ms)
        self.guard = SecretGuard(context, self.presence)
        self.closer = WorkCloser(context, self.guard, self.handovers)
        self._build_outbound(replaced)
        self._build_inbound(replaced)
        self._build_agents(replaced)
        self._build_api(embedded)

    def _build_outbound(self, replaced: Replacements) -> None:
        context, store, link, clock_changes = self.context, self.store, self.link, self.clock_changes
        presence, closer, notifier, waiters = self.presence, self.closer, self.notifier, self.waiters
        self.ack_inboxes = AckInboxes(link, inbox_subject(self.identity.self_id, "ack"), self._acks_flooded)
        self.jetstream = self._jetstream()
        of_link: Carrier = self.jetstream.carrier if self.jetstream else CoreCarrier(link, self.ack_inboxes)
        carrier = replaced.carrier or of_link
        self.publisher = publisher = Publisher(
            context, carrier, link, store, clock_changes, presence, self.tags, closer, notifier, waiters
        )
        self.ack_receiver = AckReceiver(
            store,
            publisher,
            publisher.unconfirmed,
            publisher.unresponsive,
            publisher.delivery_times,
            presence,
            self.counters,
        )
        self.deadlines = deadlines = Deadlines(
            context, store, clock_changes, closer, publisher, notifier, waiters, presence
        )
        self.sender = replaced.sender_type(
            context, store, link, self.guard, deadlines, publisher, notifier, self.lanes, self._spans
        )
        self.store_probe = StoreProbe(store, publisher.link_up)

    def _build_inbound(self, replaced: Replacements) -> None:
        context, store, link, background = self.context, self.store, self.link, self.background
        settings, identity, clock, counters = self.settings, self.identity, self.clock, self.counters
        presence, own_card, lanes, trust = self.presence, self.own_card, self.lanes, self.trust
        self.limits = limits = RateLimits(
            settings, clock.monotonic, self.signatures.verify, lanes, self.tags, replaced.failed_signatures
        )
        self.limited = limited = LimitedPeers()
        self.write_behind = replaced.write_behind(store, presence)
        ttl_headers = self.jetstream.ttl_headers if self.jetstream else None
        outgoing = DiscoveryPublisher(context, link, background, self.tags, self.instance, ttl_headers)
        self.greeter = greeter = Greeter(context, link, background, own_card, outgoing, self.own_load, self._epoch)
        self.own_load.on_change = greeter.greet_soon
        self.questions = questions = WhoisQuestions(context, link, background, presence, outgoing)
        restored_peers = RestoredPeers(
            context, store, background, self.closer.ask_whether_known, self.publisher.enqueue
        )
        self.discovery = Discovery(
            context,
            own_card,
            presence,
            limits,
            limited,
            greeter,
            questions,
            outgoing,
            restored_peers,
            self.publisher.peer_seen,
        )
        receivers = Receivers(context, lanes, trust, self._restored)
        receipts = ReceiptPolicy(context, limits, lanes, limited, trust)
        self.refused = refused = RefusedMessages(context)
        self.service_api = ServiceApi(context, link, own_card, limits)
        self.held_back = held_back = HeldBack(clock, store.memory.dedup.keys)
        rejections = Rejections(context, lanes, limited, held_back)
        admission = InboxAdmission(context, lanes, limited)
        decider = Decider(
            settings,
            lanes,
            receivers,
            receipts,
            refused,
            trust,
            self.publisher,
            self.deadlines,
            self.waiters,
            admission,
        )
        acknowledger = Acknowledger(link, identity, background, counters)
        handler = OutcomeHandler(acknowledger, self.discovery, rejections, self.notifier, counters, self._spans)
        self.queue = queue = ReceiveQueue(settings, limits)
        proofs = ProofVerifier(limits, self.signatures)
        self.committer = Committer(
            context, store, queue, proofs, decider, refused, rejections, handler, self.publisher, limits.processing
        )
        discovery_messages = DiscoveryMessages(
            context, store, limits, receivers, decider, refused, rejections, self.discovery, self.write_behind, trust
        )
        self.intake = Intake(
            context, store.memory, limits, receipts, refused, rejections, queue, discovery_messages, self.instance
        )

    def _build_agents(self, replaced: Replacements) -> None:
        """The bridge to agents of foreign formats, and chains."""
        context, store, link, sender = self.context, self.store, self.link, self.sender
        settings, identity, presence = self.settings, self.identity, self.presence
        clock_changes, closer, notifier = self.clock_changes, self.closer, self.notifier
        self.bridge = bridge = Bridge(
            context, store, link, presence, clock_changes, self.denied, closer, sender, notifier, replaced.artifacts
        )
        messages = ChainMessages(
            identity, link, bridge.agents, bridge.formats.get, bridge.submitter.remember, bridge.artifacts
        )
        opener = WorkOpener(settings, identity, self.clock, self.handovers, closer, messages)
        transitions = RunTransitions(
            settings,
            identity,
            clock_changes,
            opener,
            WorkResults(messages),
            Questions(self.waiters),
            ArtifactFiles(settings),
        )
        workspace, counters, limits = identity.workspace, self.counters, replaced.runner_limits
        self.chains = ChainRunner(
            workspace, store, clock_changes, presence, notifier, counters, sender, messages, transitions, limits
        )

    def _build_api(self, embedded: bool) -> None:
        context, store, sender, bridge, trust = self.context, self.store, self.sender, self.bridge, self.trust
        settings, identity, clock, notifier = self.settings, self.identity, self.clock, self.notifier
        broker = BrokerView(self.link, self.denied, self.jetstream, embedded)
        held_back, restored, clock_changes = self.held_back, self._restored, self.clock_changes
        self.status = StatusService(
            context, self.presence, store, broker, clock_changes, self.limited, held_back, sender, self.queue, restored
        )
        recipients = Recipients(identity, self.presence, clock)
        drafts = DraftBuilder(context, self.own_card, recipients)
        peers = PeerService(
            settings, identity, self.presence, clock, self.own_card, self.own_load, self.greeter, clock.millis()
        )
        stored = MessageService(
            store,
            notifier,
            sender,
            drafts,
            recipients,
            settings,
            identity.self_id,
            held_back,
            self._waiting_for,
            self.own_load,
            mount.shown,
        )
        unresponsive = self.publisher.unresponsive
        reasons = WaitReasons(
            store, self.presence, self.lanes, self.link, clock, held_back, unresponsive, self._waiting_for
        )
        works = WorkService(store, sender, drafts, recipients, settings, notifier, self.handovers, reasons)
        admission = Admission(store, self.lanes, self.limits, self.closer, self.publisher, notifier)
        self.inbox = inbox = InboxService(
            self.waiters,
            clock,
            store,
            self.clock_changes,
            self.counters,
            self.lanes,
            identity,
            admission,
            self.instance,
            works,
        )
        purge = InboxPurge(clock, store, self.lanes, self.closer, self.publisher, notifier)
        erasure = MessagePurge(clock, store, identity, bridge.artifacts, bridge.log)
        self.trust_rules = TrustRuleService(settings, identity, clock, store, trust, purge, self.waiters)
        explainer = TrustExplainer(identity, store, trust)
        chains = ChainService(settings, identity, clock, store, self.chains)
        services = (
            *(self.status, peers, stored, erasure, works, inbox, purge, admission),
            *(self.trust_rules, explainer, chains),
        )
        agents = (bridge, bridge.artifacts, bridge.submitter, bridge.delivery)
        self.diagnostics = Diagnostics(self.queue)
        leases = SessionLeases(clock, inbox)
        self.console = ConsoleService()
        sessions = McpSessions(clock, leases)
        self.operations = bind((*services, *agents, self.questions, sessions, self.diagnostics, self.console))
        mcp = mount.endpoint(
            MAX_BODY_BYTES, identity.self_id, self.questions, peers, stored, works, inbox, leases, notifier
        )
        self.mounted = {mount.PATH: mcp}

    def _acks_flooded(self) -> None:
        """Too much came where a peer acknowledges: that inbox was replaced."""
        self.counters.add("acks.flooded")
        sentence = "a peer sends more acknowledgements than it got messages: an inbox was replaced"
        self.counters.problem("acks.flooded", sentence, self.clock.monotonic())
        self.log_limiter.event(logging.WARNING, "acks.flooded", sentence)

    def _waiting_for(self) -> str | None:
        return self.jetstream.waiting_for() if self.jetstream else None

    def _jetstream(self) -> "JetStreamProfile | None":
        settings, identity, counters, clock = self.settings.current, self.identity, self.counters, self.clock
        if settings.durability != "jetstream":
            return None
        from aghbus.daemon.jetstream.profile import JetStreamProfile  # 0.25 MB

        return JetStreamProfile(
            self.link,
            self_id=identity.self_id,
            former=identity.former_on_other_subjects,
            ack_inboxes=self.ack_inboxes,
            channels=identity.channels,
            settings=settings,
            on_problem=lambda key, sentence: counters.problem(key, sentence, clock.monotonic()),
            on_solved=counters.solved,
        )
