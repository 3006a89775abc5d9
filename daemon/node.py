"""One running daemon: builds and wires its parts, starts them in order, and stops them in reverse.

lock and open the store → local API → join or start the broker → link up → subscribe → greet
SIGTERM: no new work → unsubscribe → last commits → outbox out → API down → store closed → leave the broker
"""

import asyncio
import contextlib
import logging
import os
import secrets
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from aghbus.daemon.api.http.token_file import read_token
from aghbus.daemon.api.route import Operation, Route, bind
from aghbus.daemon.api.routes import ROUTES
from aghbus.daemon.api.server import ApiServer
from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter, set_level
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.adapters import FormatFileError
from aghbus.daemon.bridge.bridge import Bridge
from aghbus.daemon.broker.embedded import BrokerError, EmbeddedBroker
from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.chains.opening import WorkOpener
from aghbus.daemon.chains.runner import ChainRunner
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.chains.steps import RunTransitions
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings, reloadable_changes
from aghbus.daemon.config.value_types import split_address
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.jetstream.profile import JetStreamProfile
from aghbus.daemon.nats.carrier import Carrier, CoreCarrier
from aghbus.daemon.nats.events import InboundMessage, LinkEvent, PermissionDenied
from aghbus.daemon.nats.link import Link, LinkError, Subscription
from aghbus.daemon.nats.options import NatsOptions, resolve_nats_options
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
from aghbus.daemon.state.catalog import Catalog, CatalogError, CatalogSource, catalog_source
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.keys import FormerKey
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.presence import PresenceTable
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.signature_pool import SignaturePool
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.daemon.tasks.catalog_watcher import CatalogWatcher
from aghbus.daemon.tasks.retirement import Retirement
from aghbus.daemon.tasks.store_probe import StoreProbe
from aghbus.protocol.nats.names import inbox, own_subjects
from aghbus.protocol.trust.proof import EnvelopeSigner, verify_envelope
from aghbus.store.audit import events as audit
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.host.locations import Locations
from aghbus.store.retention import RetentionPolicy, sweep, sweep_audit
from aghbus.store.tables import peers

_log = logging.getLogger("aghbus.node")

_RETENTION_INTERVAL: Final = 30.0  # seconds between two sweeps by age and size
_ATTACH_WAIT: Final = 10.0  # seconds to wait for stream and consumers after link-up, before the greet goes out anyway
_LOG_LINES_PER_MINUTE: Final = 6  # of one kind, of those that other peers can provoke

Reload = Callable[[], Settings]


class Node:
    """A daemon with an open store. `start`, then wait for `stopped`, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        locations: Locations,
        store: Store,
        broker: EmbeddedBroker | None,
        *,
        last_seq: int,
        instance: str,
        signer: EnvelopeSigner | None = None,
        former: Iterable[FormerKey] = (),
    ) -> None:
        """`last_seq` is the store's last sequence; `instance` tells this daemon from another one with the same peer id.

        `signer` is that of our key, None without a key; `former` are our earlier ids that have not retired.
        """
        self.stopped = asyncio.Event()
        self.failed = False  # a task ended that never should
        self.locations = locations
        self.broker = broker
        self.settings = LiveSettings(settings)
        self.identity = Identity(settings, signer, former)
        self.link = Link(
            self._resolve,
            name=f"aghd {settings.name}",
            on_up=self._link_up,
            on_down=self._link_down,
            on_error=self._link_event,
            inbox_prefix=inbox(self.identity.self_id, "api"),
        )
        self._store = store
        self._tasks: list[asyncio.Task[None]] = []
        self._api: ApiServer | None = None
        self._joined = False
        self._former: dict[str, list[Subscription]] = {}
        self._ack_root = f"{inbox(self.identity.self_id, 'ack')}.{secrets.token_hex(12)}"
        self._make_state(last_seq)
        self._make_transport(instance)
        self._make_outbound()
        self._make_inbound(instance)
        self._make_services()

    def _make_state(self, last_seq: int) -> None:
        settings, identity = self.settings, self.identity
        self._clock = Clock()
        self._counters = Counters()
        self._log_limiter = EventLimiter(_log, _LOG_LINES_PER_MINUTE)
        self._background = BackgroundTasks()
        self._notifier = Notifier(last_seq)
        self._waiters = InboxWaiters()
        self._denied = DeniedSubjects(identity.self_id)
        self._presence = PresenceTable(settings.current.discovery.interval)
        self._own_card = OwnCard(identity, settings)
        self._signatures = SignaturePool(verify_envelope)
        self._limits = RateLimits(settings, self._clock.monotonic, self._signatures.verify)
        self._steps = ClockSteps(self._clock, self._store, self._presence, self._counters)
        self._trust = LivePolicy(settings, self._store, self._clock, identity.signer, self._counters, self._log_limiter)

    def _make_transport(self, instance: str) -> None:
        settings, counters, clock = self.settings.current, self._counters, self._clock
        self.jetstream: JetStreamProfile | None = None
        self._carrier: Carrier = CoreCarrier(self.link, self._ack_root)
        if settings.durability == "jetstream":
            self.jetstream = JetStreamProfile(
                self.link,
                self_id=self.identity.self_id,
                former=self.identity.former_on_other_subjects,
                instance=instance,
                ack_root=self._ack_root,
                channels=self.identity.channels,
                observe=settings.observe,
                settings=settings.jetstream,
                offer=self._offer,
                on_problem=lambda key, sentence: counters.problem(key, sentence, clock.monotonic()),
                on_solved=counters.solved,
            )
            self._carrier = self.jetstream.carrier

    def _offer(self, message: InboundMessage) -> None:
        self.intake.offer(message)  # made after the profile

    def _make_outbound(self) -> None:
        self._closer = WorkCloser(self.identity, self.settings, self._clock)
        self.publisher = Publisher(
            carrier=self._carrier,
            link=self.link,
            store=self._store,
            settings=self.settings,
            clock=self._clock,
            steps=self._steps,
            presence=self._presence,
            closer=self._closer,
            notifier=self._notifier,
            waiters=self._waiters,
            counters=self._counters,
            log_limiter=self._log_limiter,
        )
        self._deadlines = Deadlines(
            store=self._store,
            settings=self.settings,
            identity=self.identity,
            steps=self._steps,
            closer=self._closer,
            publisher=self.publisher,
            notifier=self._notifier,
            counters=self._counters,
        )
        self.sender = Sender(
            store=self._store,
            identity=self.identity,
            clock=self._clock,
            link=self.link,
            guard=SecretGuard(self.settings, self._counters, self._log_limiter),
            deadlines=self._deadlines,
            publisher=self.publisher,
            notifier=self._notifier,
            counters=self._counters,
        )

    def _make_inbound(self, instance: str) -> None:
        write_behind = PresenceWriteBehind(self._store, self._presence)
        self.discovery = Discovery(
            link=self.link,
            identity=self.identity,
            own_card=self._own_card,
            settings=self.settings,
            clock=self._clock,
            presence=self._presence,
            write_behind=write_behind,
            limits=self._limits,
            counters=self._counters,
            log_limiter=self._log_limiter,
            background=self._background,
            ttl_headers=self.jetstream.ttl_headers if self.jetstream else None,
            instance=instance,
            on_joined=self.publisher.peer_joined,
        )
        decider = Decider(
            identity=self.identity,
            settings=self.settings,
            clock=self._clock,
            limits=self._limits,
            trust=self._trust,
            deadlines=self._deadlines,
            waiters=self._waiters,
            counters=self._counters,
        )
        self.intake = Intake(
            identity=self.identity,
            settings=self.settings,
            clock=self._clock,
            store=self._store,
            limits=self._limits,
            signatures=self._signatures,
            trust=self._trust,
            decider=decider,
            discovery=self.discovery,
            write_behind=write_behind,
            publisher=self.publisher,
            acknowledger=Acknowledger(self.link, self.identity, self._background, self._counters),
            notifier=self._notifier,
            counters=self._counters,
            log_limiter=self._log_limiter,
        )

    def _make_services(self) -> None:
        self.bridge = Bridge(
            settings=self.settings,
            identity=self.identity,
            clock=self._clock,
            store=self._store,
            link=self.link,
            presence=self._presence,
            steps=self._steps,
            denied=self._denied,
            closer=self._closer,
            sender=self.sender,
            notifier=self._notifier,
            counters=self._counters,
            log_limiter=self._log_limiter,
        )
        self.chains = self._make_chains()
        self._retirement = Retirement(self._store, self.identity, self._clock, self._counters, self._retired)
        self._catalog = CatalogWatcher(self._catalog_source(), self._new_catalog, self._bad_catalog)
        self._store_probe = StoreProbe(self._store, self.publisher.link_up)

    def _make_chains(self) -> ChainRunner:
        messages = ChainMessages(
            settings=self.settings,
            identity=self.identity,
            clock=self._clock,
            link=self.link,
            agents=self.bridge.agents,
            adapter_of=self.bridge.formats.get,
            remember=self.bridge.submitter.remember,
            artifacts=self.bridge.artifacts,
        )
        transitions = RunTransitions(
            settings=self.settings,
            identity=self.identity,
            clock=self._clock,
            steps=self._steps,
            closer=self._closer,
            opener=WorkOpener(
                settings=self.settings,
                identity=self.identity,
                clock=self._clock,
                presence=self._presence,
                messages=messages,
            ),
            messages=messages,
        )
        return ChainRunner(
            workspace=self.identity.workspace,
            store=self._store,
            steps=self._steps,
            presence=self._presence,
            notifier=self._notifier,
            counters=self._counters,
            sender=self.sender,
            messages=messages,
            transitions=transitions,
        )

    def _operations(self) -> dict[Route, Operation]:
        """The operations of the API, as methods of this daemon's parts."""
        settings, identity, store, clock = self.settings, self.identity, self._store, self._clock
        drafts = DraftBuilder(identity, settings, clock, self._own_card)
        status = StatusService(
            settings=settings,
            identity=identity,
            presence=self._presence,
            clock=clock,
            store=store,
            link=self.link,
            steps=self._steps,
            denied=self._denied,
            counters=self._counters,
            sender=self.sender,
            intake=self.intake,
            jetstream=self.jetstream,
            embedded=self.broker is not None,
        )
        parts = (
            status,
            PeerService(
                settings=settings, identity=identity, presence=self._presence, clock=clock, own_card=self._own_card
            ),
            MessageService(store, self._notifier, self.sender, drafts, own_id=identity.self_id),
            WorkService(store, self.sender, drafts),
            InboxService(waiters=self._waiters, clock=clock, store=store, steps=self._steps, counters=self._counters),
            TrustRuleService(settings=settings, identity=identity, clock=clock, store=store, trust=self._trust),
            TrustExplainer(identity=identity, store=store, trust=self._trust),
            ChainService(settings=settings, identity=identity, clock=clock, store=store, runner=self.chains),
            self.discovery,
            self.bridge,
            self.bridge.artifacts,
            self.bridge.submitter,
            self.bridge.delivery,
        )
        return bind(ROUTES, parts)

    # start

    async def start(self) -> None:
        """Bring everything up; the broker may come later. Raises CatalogError, ListenError."""
        self._own_card.catalog = self._catalog.load()
        await self._begin_audit()
        await self._retirement.check()
        self._presence.load(await peers.load(self._store.reader))
        settings = self.settings.current
        self._api = ApiServer(
            self._operations(),
            socket_path=Path(self.locations.socket_path),
            private_folder=self.locations.socket_dir_private,
            tcp=split_address(settings.api.tcp) if settings.api.tcp else None,
            token=_api_token(settings, self.locations),
        )
        await self._api.start()
        self.link.subscribe(f"{self._ack_root}.*", self.publisher.acknowledged)
        if self.jetstream is not None:
            self._run("jetstream", self.jetstream.run)
        else:
            self._subscribe()
        self._run("store", self._store.ended)
        self._run("intake", self.intake.run)
        self._run("publisher", self.publisher.run)
        self._run("retry", self.publisher.retry)
        self._run("deadlines", self._deadlines.run)
        self._run("bridge", self.bridge.follower.run)
        self._run("bridge log", self.bridge.log.run)
        self._run("chains", self.chains.run)
        self._run("greeting", self.discovery.keep_greeting)
        self._run("catalog", self._catalog.run)
        self._run("retention", self._retain)
        self._run("retirement", self._retirement.run)
        self._run("clock steps", self._steps.run)
        self._run("store probe", self._store_probe.run)
        self.link.start()
        self._run("link", self.link.ended)

    async def _begin_audit(self) -> None:
        settings = self.settings.current
        self._store.memory.audit.enabled = settings.audit.enabled
        how = f"trust.mode={settings.trust.mode}, {'no key' if self.identity.signer is None else 'a key'}"
        await self._store.write(lambda tx: audit.note_start(tx, self._clock.millis(), how))

    def _subscribe(self) -> None:
        """Core NATS: both subjects of each id of ours on every channel."""
        identity, observe = self.identity, self.settings.current.observe
        for workspace_id, channel in identity.channels:
            for subject in own_subjects(identity.self_id, workspace_id, channel, observe=observe):
                self.link.subscribe(subject, self.intake.offer)
        for own_id in identity.former_on_other_subjects if not observe else ():
            subjects = [own_subjects(own_id, *channel)[1] for channel in identity.channels]
            self._former[own_id] = [self.link.subscribe(subject, self.intake.offer) for subject in subjects]

    def _retired(self, peer_id: str) -> None:
        """Unsubscribe a former identity."""
        if self.identity.shares_subject(peer_id):
            return
        if self.jetstream is not None:
            self.jetstream.retire(peer_id)
        for subscription in self._former.pop(peer_id, []):
            self._background.spawn(self._unsubscribe(subscription))

    async def _unsubscribe(self, subscription: Subscription) -> None:
        with contextlib.suppress(LinkError):  # a link that is down has no subscriptions
            await subscription.drain()

    def _run(self, name: str, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        task = asyncio.create_task(main(), name=name)
        task.add_done_callback(self._task_ended)
        self._tasks.append(task)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """A daemon with a failed task must not look alive: stop it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the daemon failed task=%s", task.get_name(), exc_info=error)
            self.failed = True
            self.stopped.set()

    # stop

    async def stop(self) -> bool:
        """Drain within the configured deadline; True when every accepted message is committed and published."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.current.shutdown.deadline

        def left(share: float = 1.0) -> float:
            return max(0.05, (deadline - loop.time()) * share)

        self._waiters.closed = True
        self.sender.close()
        await (self.jetstream or self.link).drain(left(0.3))
        clean = await self.intake.drained(left(0.5))
        if self.link.state == "up":
            clean = await self.publisher.drained(left(0.5)) and clean
        self._notifier.close()
        self._waiters.wake_all()
        if self._api is not None:
            await self._api.stop(left(0.5))
        self.discovery.close()
        await self._background.close(left(0.3))
        if self.jetstream is not None:
            await self.jetstream.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._signatures.close()
        await self.link.close(left(0.3))
        await self._store.close()
        if self.broker is not None:
            await self.broker.leave()
        return clean

    # the link

    async def _resolve(self) -> NatsOptions:
        if self.broker is not None:
            return await self.broker.join()
        options = resolve_nats_options(self.settings.current.nats, os.environ)
        if options is None:
            raise BrokerError(
                "resolve", "no NATS server is named", "name one with --nats, or allow the embedded broker"
            )
        return options

    def _link_up(self, link: Link) -> None:
        self._counters.solved("link")
        _log.info("link up server=%s", link.server.url if link.server else "")
        self.publisher.link_up()
        self.chains.link_up()
        self._background.spawn(self._announce())

    async def _announce(self) -> None:
        """Greet as soon as answers can be received; the first time, query all peers too."""
        if self.jetstream is not None:
            await self.jetstream.wait_attached(_ATTACH_WAIT)
        first, self._joined = not self._joined, True
        await (self.discovery.join() if first else self.discovery.greet(joined=True))

    def _link_down(self, _link: Link, reason: str) -> None:
        self._denied.link_down()
        if self.jetstream is not None:
            self.jetstream.link_down()
        if not self.sender.closed:
            self._counters.add("link.lost")
            _log.warning("link down reason=%s", reason)

    def _link_event(self, event: LinkEvent) -> None:
        self._counters.add(f"link.{type(event).__name__}")
        if isinstance(event, PermissionDenied):
            self._denied.note(event.detail, self._clock.monotonic())
        self._log_limiter.event(logging.WARNING, f"link.{type(event).__name__}", "link event", detail=str(event))

    # catalog, retention, reload

    def _catalog_source(self) -> CatalogSource:
        return catalog_source(self.settings.current, self.locations)

    def _new_catalog(self, catalog: Catalog) -> None:
        self._own_card.catalog = catalog
        self._own_card.problems = ()
        self._counters.add("catalog.reloaded")
        self._counters.solved("catalog")
        _log.info("catalog reloaded records=%d", len(catalog.records))
        if self.link.state == "up":
            self._background.spawn(self.discovery.greet())

    def _bad_catalog(self, error: CatalogError) -> None:
        self._own_card.problems = tuple(map(str, error.problems))
        sentence = f"the changed capability catalog is not used: {self._own_card.problems[0]}"
        self._counters.problem("catalog", sentence, self._clock.monotonic())
        _log.error("the changed catalog is not used problems=%d first=%s", len(error.problems), error.problems[0])

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(_RETENTION_INTERVAL)
            bounds, log = self.settings.current.store, self.settings.current.audit
            now_ms = self._steps.prudent_millis()
            policy = RetentionPolicy(max_age=bounds.retention_age, max_bytes=bounds.retention_size)
            try:
                swept = await sweep(self._store, policy, now_ms)
                await sweep_audit(self._store, log.max_rows, log.max_age, now_ms)
                self._counters.add("retention.sweeps")
                self._counters.add("retention.envelopes", swept.envelopes)
            except StoreUnavailable:
                self._counters.add("retention.interrupted")  # the next sweep continues
            self._log_limiter.flush()

    def reload(self, read: Reload) -> None:
        """Put the reloadable keys of a new configuration in force (SIGHUP); a bad configuration changes nothing."""
        try:
            new = read()
        except Exception as error:
            _log.error("the configuration is not reloaded cause=%s", error)
            return
        changes = reloadable_changes(self.settings.current, new)
        if changes.restart:
            _log.warning("keys that need a restart were not changed keys=%s", ",".join(changes.restart))
        self.settings.replace(only_reloadable(self.settings.current, new, changes.now))
        if changes.now:
            now_ms, names = self._clock.millis(), ",".join(changes.now)
            self._store.write_deferred(lambda tx: audit.note_policy(tx, now_ms, "settings_changed", names))
        set_level(self.settings.current.log.level)
        try:
            self.bridge.formats.reload(self.settings.current)
        except FormatFileError as error:
            _log.error("the bridge's files are not reloaded cause=%s", error)
        self._catalog.follow(self._catalog_source())
        _log.info("configuration reloaded changed=%s", ",".join(changes.now))


def only_reloadable(old: Settings, new: Settings, names: tuple[str, ...]) -> Settings:
    """`old` with the keys in `names` (dotted) as in `new`."""
    values = msgspec.to_builtins(old)
    fresh = msgspec.to_builtins(new)
    for name in names:
        *tables, key = name.split(".")
        into, out_of = values, fresh
        for table in tables:
            into, out_of = into[table], out_of[table]
        into[key] = out_of[key]
    return msgspec.convert(values, Settings)


def _api_token(settings: Settings, locations: Locations) -> str | None:
    """The bearer token of the TCP listener: from the configured file, or from our own, made at the first start (0600)."""
    if settings.api.tcp is None:
        return None
    return read_token(Path(locations.api_token_file), make=settings.api.token_file is None)
