"""The parts of a daemon, built and wired: each gets what it uses in its constructor."""

import logging
from typing import TYPE_CHECKING, Final

from aghbus.daemon.api.route import bind
from aghbus.daemon.api.routes import ROUTES
from aghbus.daemon.api.server import MAX_BODY_BYTES
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
from aghbus.daemon.chains.runner import ChainRunner
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.chains.steps import RunTransitions
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.discovery.restored_peers import RestoredPeers
from aghbus.daemon.mcp import mount
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
from aghbus.daemon.send.drafts import DraftBuilder
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.send.recipients import Recipients
from aghbus.daemon.send.secret_guard import SecretGuard
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.inbox_purge import InboxPurge
from aghbus.daemon.services.mcp_sessions import McpSessions
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.status import StatusService
from aghbus.daemon.services.trust_explain import TrustExplainer
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.services.works import WorkService
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.signature_pool import SignaturePool
from aghbus.daemon.state.spans import EnvelopeSpans
from aghbus.daemon.state.standing import Standings
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.daemon.tasks.store_probe import StoreProbe
from aghbus.host.tracing import Tracing
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.nats.names import inbox as inbox_subject
from aghbus.protocol.agh.trust.proof import verify_envelope
from aghbus.store.engine.database import Store

if TYPE_CHECKING:
    from aghbus.daemon.jetstream.profile import JetStreamProfile

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
        embedded: bool,
        last_seq: int,
        instance: str,
        delivery_token: str,
        restored: Restored | None,
        tracing: Tracing | None,
    ) -> None:
        """`embedded`: the broker is the embedded one. `last_seq` is the store's last sequence, `instance` its random id, which
        peers get to know, and `delivery_token` a random value that they do not. `restored` is the epoch of the store.
        """
        spans = None if tracing is None else EnvelopeSpans(tracing)
        self.clock = clock = Clock()
        self.counters = counters = Counters()
        self.log_limiter = limiter = EventLimiter(_log, _LOG_LINES_PER_MINUTE)
        self.background = background = BackgroundTasks()
        self.notifier = notifier = Notifier(last_seq)
        self.waiters = waiters = InboxWaiters()
        self.denied = denied = DeniedSubjects(identity.self_id)
        self.presence = presence = PresenceTable(settings.current.discovery.interval, store.memory.acknowledging)
        self.own_card = own_card = OwnCard(identity, settings)
        self.signatures = signatures = SignaturePool(verify_envelope)
        self.steps = steps = ClockSteps(clock, store, presence, counters)
        self.trust = trust = LivePolicy(settings, store, clock, presence, identity.signer, counters, limiter)
        self.standings = standings = Standings(identity, presence, trust, clock)
        limits, limited = RateLimits(settings, clock.monotonic, signatures.verify, standings), LimitedPeers()
        write_behind = PresenceWriteBehind(store, presence)
        closer = WorkCloser(identity, settings, clock, counters)
        guard = SecretGuard(settings, presence, counters, limiter)
        recipients = Recipients(identity, presence, clock)
        drafts = DraftBuilder(identity, settings, clock, own_card, recipients)

        # outbound
        self.ack_inboxes = AckInboxes(link, inbox_subject(identity.self_id, "ack"), self._acks_flooded)
        self.jetstream = jetstream = self._jetstream(settings.current, identity, link, delivery_token)
        carrier: Carrier = jetstream.carrier if jetstream else CoreCarrier(link, self.ack_inboxes)
        self.publisher = publisher = Publisher(
            carrier,
            link,
            store,
            identity,
            settings,
            clock,
            steps,
            presence,
            closer,
            notifier,
            waiters,
            counters,
            limiter,
        )
        self.ack_receiver = AckReceiver(store, publisher, publisher.unresponsive, publisher.delivery_times, counters)
        self.deadlines = deadlines = Deadlines(
            store, settings, identity, steps, closer, publisher, notifier, waiters, counters
        )
        self.sender = sender = Sender(
            store, identity, clock, link, guard, deadlines, publisher, notifier, counters, standings, spans
        )

        # inbound
        self.discovery = discovery = Discovery(
            link,
            identity,
            own_card,
            settings,
            clock,
            presence,
            write_behind,
            limits,
            limited,
            counters,
            limiter,
            background,
            ttl_headers=jetstream.ttl_headers if jetstream else None,
            instance=instance,
            on_joined=publisher.peer_joined,
            restored=restored,
            restored_peers=RestoredPeers(store, clock, background, counters, limiter),
        )
        queue = ReceiveQueue(settings, limits.processing)
        receivers = Receivers(identity, settings, clock, trust, restored)
        receipts = Receipts(limits, standings, limited, trust, clock, counters)
        refused = RefusedMessages(identity, settings, clock, counters)
        rejections = Rejections(standings, limited, clock, counters, limiter)
        admission = InboxAdmission(settings, standings, counters)
        decider = Decider(
            settings, standings, receivers, receipts, refused, trust, closer, deadlines, waiters, admission
        )
        acknowledger = Acknowledger(link, identity, background, counters)
        handler = OutcomeHandler(publisher, acknowledger, discovery, rejections, notifier, counters, spans)
        proofs = ProofVerifier(limits, signatures)
        self.committer = Committer(
            queue, store, proofs, decider, refused, rejections, handler, clock, counters, limiter
        )
        discovery_messages = DiscoveryMessages(
            store, limits, receivers, decider, refused, rejections, discovery, write_behind, trust, counters
        )
        self.intake = Intake(
            identity, clock, limits, receipts, refused, rejections, queue, discovery_messages, counters
        )
        self.store_probe = StoreProbe(store, publisher.link_up)

        # agents of foreign formats, and chains
        self.bridge = bridge = Bridge(
            settings, identity, clock, store, link, presence, steps, denied, closer, sender, notifier, counters, limiter
        )
        messages = ChainMessages(
            identity, link, bridge.agents, bridge.formats.get, bridge.submitter.remember, bridge.artifacts
        )
        opener = WorkOpener(settings, identity, clock, presence, closer, messages)
        transitions = RunTransitions(settings, identity, steps, opener, WorkResults(messages), Questions(waiters))
        self.chains = chains = ChainRunner(
            identity.workspace, store, steps, presence, notifier, counters, sender, messages, transitions
        )

        # the API
        self.status = status = StatusService(
            settings,
            identity,
            presence,
            clock,
            store,
            link,
            steps,
            denied,
            counters,
            limited,
            sender,
            queue,
            jetstream,
            embedded,
            restored,
        )
        peers = PeerService(settings, identity, presence, clock, own_card)
        stored = MessageService(
            store, notifier, sender, drafts, recipients, settings, identity.self_id, self._waiting_for
        )
        works = WorkService(store, sender, drafts, recipients, settings)
        inbox = InboxService(waiters, clock, store, steps, counters)
        services = (
            status,
            peers,
            stored,
            works,
            inbox,
            InboxPurge(clock, store, closer, publisher, notifier),
            TrustRuleService(settings, identity, clock, store, trust),
            TrustExplainer(identity, store, trust),
            ChainService(settings, identity, clock, store, chains),
            McpSessions(clock),
        )
        self.operations = bind(
            ROUTES, (*services, discovery, bridge, bridge.artifacts, bridge.submitter, bridge.delivery)
        )

        mcp = mount.endpoint(MAX_BODY_BYTES, identity.self_id, discovery, peers, stored, works, inbox, notifier)
        self.mounted = {mount.PATH: mcp}

    def _acks_flooded(self) -> None:
        """Too much came where a peer acknowledges: that inbox was replaced."""
        self.counters.add("acks.flooded")
        sentence = "a peer sends more acknowledgements than it got messages: an inbox was replaced"
        self.counters.problem("acks.flooded", sentence, self.clock.monotonic())
        self.log_limiter.event(logging.WARNING, "acks.flooded", sentence)

    def _waiting_for(self) -> str | None:
        return self.jetstream.waiting_for() if self.jetstream else None

    def _jetstream(
        self, settings: Settings, identity: Identity, link: Link, delivery_token: str
    ) -> "JetStreamProfile | None":
        counters, clock = self.counters, self.clock
        if settings.durability != "jetstream":
            return None
        from aghbus.daemon.jetstream.profile import JetStreamProfile  # 0.25 MB

        return JetStreamProfile(
            link,
            self_id=identity.self_id,
            former=identity.former_on_other_subjects,
            delivery_token=delivery_token,
            ack_inboxes=self.ack_inboxes,
            channels=identity.channels,
            observe=settings.observe,
            settings=settings.jetstream,
            on_problem=lambda key, sentence: counters.problem(key, sentence, clock.monotonic()),
            on_solved=counters.solved,
        )
