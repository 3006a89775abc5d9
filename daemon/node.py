"""One running daemon: its parts, in the order in which they start, and the reverse in which they stop.

lock and open the store → local API → join or start the broker → link up → subscribe → greet
SIGTERM: no new work → unsubscribe → last commits → outbox out → API down → store closed → leave the broker
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Final

import msgspec

from aghbus.daemon.api.http.token_file import read_token
from aghbus.daemon.api.route import Operation, Route, bind
from aghbus.daemon.api.routes import ROUTES
from aghbus.daemon.api.server import ApiServer
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import set_level
from aghbus.daemon.bridge.adapters import FormatFileError
from aghbus.daemon.bridge.bridge import Bridge
from aghbus.daemon.broker.embedded import BrokerError, EmbeddedBroker
from aghbus.daemon.chains.messages import ChainMessages
from aghbus.daemon.chains.runner import ChainRunner
from aghbus.daemon.chains.service import ChainService
from aghbus.daemon.config.settings import Settings, reloadable_changes
from aghbus.daemon.config.value_types import split_address
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.jetstream.profile import JetStreamProfile
from aghbus.daemon.nats.carrier import CoreCarrier
from aghbus.daemon.nats.events import InboundMessage, LinkEvent, PermissionDenied
from aghbus.daemon.nats.link import Link, LinkError, Subscription
from aghbus.daemon.nats.options import NatsOptions, resolve_nats_options
from aghbus.daemon.receive.intake import Intake
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.drafts import Drafts
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.send.sender import Sender
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.status import StatusService
from aghbus.daemon.services.trust_explain import TrustExplainer
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.services.works import WorkService
from aghbus.daemon.state.catalog import Catalog, CatalogError, CatalogSource
from aghbus.daemon.state.context import Core
from aghbus.daemon.state.keys import FormerKey
from aghbus.daemon.state.presence import Roster
from aghbus.daemon.tasks.catalog_watcher import CatalogWatcher
from aghbus.daemon.tasks.retirement import Retirement
from aghbus.daemon.tasks.store_probe import StoreWatch
from aghbus.protocol.nats.names import inbox, own_subjects
from aghbus.protocol.trust.proof import EnvelopeSigner
from aghbus.store.audit import events as audit
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.host.locations import Locations
from aghbus.store.retention import Policy, sweep
from aghbus.store.tables import peers

_log = logging.getLogger("aghbus.node")

_RETENTION_INTERVAL: Final = 30.0  # seconds between two looks at age and size
_ATTACH_WAIT: Final = 10.0  # seconds for stream and consumers after the link is up, before we greet all the same
_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

Reload = Callable[[], Settings]


class Node:
    """A daemon that has opened its store. `start`, then wait for `stopped`, then `stop`."""

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
        """`last_seq` is the store's, `instance` tells this store's daemon from another one under the same peer id.

        `signer` is that of our key, None for a plain peer; `former` are our earlier ids that have not retired.
        """
        self.settings = settings
        self.locations = locations
        self.broker = broker
        self._store = store
        self._tasks: list[asyncio.Task[None]] = []
        self.stopped = asyncio.Event()
        self.failed = False  # a part ended that never should
        self.link = Link(
            self._resolve,
            name=f"aghd {settings.name}",
            on_up=self._link_up,
            on_down=self._link_down,
            on_error=self._link_event,
            inbox_prefix=inbox(settings.peer_id if signer is None else signer.handle, "api"),
        )
        clock = Clock()
        roster = Roster(settings.discovery.interval)
        self.core = Core(settings, clock, store, self.link, roster, last_seq, signer, former)
        self._ack_root = f"{inbox(self.core.us, 'ack')}.{secrets.token_hex(12)}"
        self.jetstream = self._profile(instance) if settings.durability == "jetstream" else None
        carrier = self.jetstream.carrier if self.jetstream else CoreCarrier(self.link, self._ack_root)
        self.publisher = Publisher(self.core, carrier)
        self.deadlines = Deadlines(self.core, self.publisher)
        self.discovery = Discovery(self.core, instance, self.publisher.peer_is_back)
        self.intake = Intake(self.core, self.discovery, self.publisher, self.deadlines)
        self.sender = Sender(self.core, self.publisher, self.deadlines)
        self.bridge = Bridge(self.core, self.sender)
        chain_messages = ChainMessages(
            self.core, self.bridge.formats.get, self.bridge.submitter.remember, self.bridge.artifacts
        )
        self.chains = ChainRunner(self.core, self.sender, chain_messages)
        self.retirement = Retirement(self.core, self._retired)
        self._former: dict[str, list[Subscription]] = {}
        self.catalog = CatalogWatcher(self._catalog_source(settings), self._new_catalog, self._bad_catalog)
        if self.jetstream is not None:
            self.core.ttl_headers = self.jetstream.ttl_headers
        self._api: ApiServer | None = None
        self._joined = False

    def _profile(self, instance: str) -> JetStreamProfile:
        counters, clock = self.core.counters, self.core.clock
        return JetStreamProfile(
            self.link,
            us=self.core.us,
            former=self.core.identities.elsewhere,
            instance=instance,
            ack_root=self._ack_root,
            channels=self.core.channels,
            observe=self.settings.observe,
            settings=self.settings.jetstream,
            offer=self._offer,
            on_problem=lambda key, sentence: counters.problem(key, sentence, clock.monotonic()),
            on_solved=counters.solved,
        )

    def _offer(self, message: InboundMessage) -> None:
        self.intake.offer(message)  # made after the profile

    # start

    async def start(self) -> None:
        """Bring everything up; the broker may come later. Raises CatalogError, ListenError."""
        self.core.catalog = self.catalog.load()
        await self._begin_audit()
        await self.retirement.look()
        self.core.roster.load(await peers.load(self._store.reader))
        self._api = ApiServer(
            self._operations(),
            socket_path=Path(self.locations.socket_path),
            private_folder=self.locations.socket_dir_private,
            tcp=split_address(self.settings.api.tcp) if self.settings.api.tcp else None,
            token=_api_token(self.settings, self.locations),
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
        self._run("deadlines", self.deadlines.run)
        self._run("bridge", self.bridge.follower.run)
        self._run("bridge log", self.bridge.log.run)
        self._run("chains", self.chains.run)
        self._run("greeting", self.discovery.keep_greeting)
        self._run("catalog", self.catalog.run)
        self._run("retention", self._retain)
        self._run("retirement", self.retirement.run)
        self._run("clock steps", self.core.steps.run)
        self._run("store watch", StoreWatch(self.core, self.publisher.link_up).run)
        self.link.start()
        self._run("link", self.link.ended)

    def _operations(self) -> dict[Route, Operation]:
        """What the API offers, as methods of this daemon's parts."""
        core, store = self.core, self._store
        drafts = Drafts(core)
        status = StatusService(core, self.intake, self.jetstream, embedded=self.broker is not None)
        parts = (
            status,
            PeerService(core),
            MessageService(store, core.announcer, self.sender, drafts, own_id=core.us),
            WorkService(store, self.sender, drafts),
            InboxService(core),
            TrustRuleService(core),
            TrustExplainer(core),
            ChainService(core, self.chains),
            self.discovery,
            self.bridge,
            self.bridge.artifacts,
            self.bridge.submitter,
            self.bridge.delivery,
        )
        return bind(ROUTES, parts)

    async def _begin_audit(self) -> None:
        core = self.core
        self._store.memory.audit.enabled = self.settings.audit.enabled
        how = f"trust.mode={self.settings.trust.mode}, {'no key' if core.signer is None else 'a key'}"
        await self._store.write(lambda tx: audit.note_start(tx, core.clock.millis(), how))

    def _subscribe(self) -> None:
        """Core NATS: both of our subjects on every channel."""
        for workspace_id, channel in self.core.channels:
            for subject in own_subjects(self.core.us, workspace_id, channel, observe=self.settings.observe):
                self.link.subscribe(subject, self.intake.offer)
        for us in self.core.identities.elsewhere if not self.settings.observe else ():
            subjects = [own_subjects(us, *place)[1] for place in self.core.channels]
            self._former[us] = [self.link.subscribe(subject, self.intake.offer) for subject in subjects]

    def _retired(self, peer_id: str) -> None:
        """A former identity leaves the bus."""
        if self.core.identities.shares_subject(peer_id):
            return
        if self.jetstream is not None:
            self.jetstream.retire(peer_id)
        for subscription in self._former.pop(peer_id, []):
            self.discovery.spawn(self._unsubscribe(subscription))

    async def _unsubscribe(self, subscription: Subscription) -> None:
        with contextlib.suppress(LinkError):  # a link that is down has no subscriptions
            await subscription.drain()

    def _run(self, name: str, main: Callable[[], Awaitable[None]]) -> None:
        async def guarded() -> None:
            try:
                await main()
            except asyncio.CancelledError:
                raise
            except BaseException:
                _log.exception("a part of the daemon failed part=%s", name)
                self.failed = True
                self.stopped.set()  # a daemon with a dead part must not look alive
                raise

        self._tasks.append(asyncio.create_task(guarded(), name=name))

    # stop

    async def stop(self) -> bool:
        """Drain within the configured deadline; True when everything that was accepted is committed and published."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.shutdown.deadline

        def left(share: float = 1.0) -> float:
            return max(0.05, (deadline - loop.time()) * share)

        self.core.draining = True
        await (self.jetstream or self.link).drain(left(0.3))
        clean = await self.intake.drained(left(0.5))
        if self.link.state == "up":
            clean = await self.publisher.drained(left(0.5)) and clean
        self.core.announcer.close()
        self.core.consumers.ring()
        if self._api is not None:
            await self._api.stop(left(0.5))
        await self.discovery.close(left(0.3))
        if self.jetstream is not None:
            await self.jetstream.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.core.verification.close()
        await self.link.close(left(0.3))
        await self._store.close()
        if self.broker is not None:
            await self.broker.leave()
        return clean

    # the link

    async def _resolve(self) -> NatsOptions:
        if self.broker is not None:
            return await self.broker.join()
        options = resolve_nats_options(self.settings.nats, os.environ)
        if options is None:
            raise BrokerError(
                "resolve", "no NATS server is named", "name one with --nats, or allow the embedded broker"
            )
        return options

    def _link_up(self, link: Link) -> None:
        self.core.counters.solved("link")
        _log.info("link up server=%s", link.server.url if link.server else "")
        self.publisher.link_up()
        self.chains.link_up()
        self.discovery.spawn(self._announce())

    async def _announce(self) -> None:
        """Greet once we can hear the answers; the first time, ask who is there too."""
        if self.jetstream is not None:
            await self.jetstream.wait_attached(_ATTACH_WAIT)
        first, self._joined = not self._joined, True
        await (self.discovery.join() if first else self.discovery.greet(joined=True))

    def _link_down(self, _link: Link, reason: str) -> None:
        self.core.denied.link_down()
        if self.jetstream is not None:
            self.jetstream.link_down()
        if not self.core.draining:
            self.core.counters.add("link.lost")
            _log.warning("link down reason=%s", reason)

    def _link_event(self, event: LinkEvent) -> None:
        self.core.counters.add(f"link.{type(event).__name__}")
        if isinstance(event, PermissionDenied):
            self.core.denied.note(event.detail, self.core.clock.monotonic())
        self.core.noise.event(logging.WARNING, f"link.{type(event).__name__}", "link event", detail=str(event))

    # catalog, retention, reload

    def _catalog_source(self, settings: Settings) -> CatalogSource:
        return CatalogSource(settings.catalog, self.locations.catalog_candidates, settings.capabilities)

    def _new_catalog(self, catalog: Catalog) -> None:
        self.core.catalog = catalog
        self.core.catalog_problems = ()
        self.core.counters.add("catalog.reloaded")
        self.core.counters.solved("catalog")
        _log.info("catalog reloaded records=%d", len(catalog.records))
        if self.link.state == "up":
            self.discovery.spawn(self.discovery.greet())

    def _bad_catalog(self, error: CatalogError) -> None:
        self.core.catalog_problems = tuple(map(str, error.problems))
        sentence = f"the changed capability catalog is not used: {self.core.catalog_problems[0]}"
        self.core.counters.problem("catalog", sentence, self.core.clock.monotonic())
        _log.error("the changed catalog is not used problems=%d first=%s", len(error.problems), error.problems[0])

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(_RETENTION_INTERVAL)
            bounds, log = self.core.settings.store, self.core.settings.audit
            now_ms = self.core.steps.prudent_millis()
            policy = Policy(max_age=bounds.retention_age, max_bytes=bounds.retention_size)
            try:
                swept = await sweep(self._store, policy, now_ms)
                await audit.sweep(self._store, log.max_rows, log.max_age, now_ms)
                self.core.counters.add("retention.sweeps")
                self.core.counters.add("retention.envelopes", swept.envelopes)
            except StoreUnavailable:
                self.core.counters.add("retention.interrupted")  # the next sweep goes on
            self.core.noise.flush()

    def reload(self, read: Reload) -> None:
        """Take over what may change at once (SIGHUP); a bad configuration leaves everything as it is."""
        try:
            new = read()
        except Exception as error:
            _log.error("the configuration is not reloaded cause=%s", error)
            return
        changes = reloadable_changes(self.core.settings, new)
        if changes.restart:
            _log.warning("keys that need a restart were not changed keys=%s", ",".join(changes.restart))
        self.core.take_over(only_reloadable(self.core.settings, new, changes.now))
        if changes.now:
            now_ms, names = self.core.clock.millis(), ",".join(changes.now)
            self.core.behind(lambda tx: audit.note_policy(tx, now_ms, "settings_changed", names))
        set_level(self.core.settings.log.level)
        try:
            self.bridge.formats.reload(self.core.settings)
        except FormatFileError as error:
            _log.error("the bridge's files are not reloaded cause=%s", error)
        self.catalog.follow(self._catalog_source(self.core.settings))
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
    """The bearer token of the TCP listener: the named file's, or one of our own made at the first start (0600)."""
    if settings.api.tcp is None:
        return None
    return read_token(Path(locations.api_token_file), make=settings.api.token_file is None)
