"""One running daemon: starts its parts (daemon/wiring.py) in order, and stops them in reverse.

lock and open the store → local API → join or start the broker → link up → subscribe → greet
SIGTERM: refuse requests → unsubscribe → last commits → publish outbox → stop API → close store → leave the broker
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from aghbus.daemon.api.http.listeners import ListenError, group_id
from aghbus.daemon.api.http.token_file import read_token
from aghbus.daemon.api.server import ApiServer
from aghbus.daemon.base.logs import event, exception, set_level
from aghbus.daemon.base.service_manager import ServiceManager
from aghbus.daemon.bridge.adapters import FormatFileError
from aghbus.daemon.broker.directory import BrokerError
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.config.value_types import split_address
from aghbus.daemon.console.console import Console
from aghbus.daemon.nats.events import LinkEvent, PermissionDenied
from aghbus.daemon.nats.link import Link, LinkError, Subscription
from aghbus.daemon.nats.options import NatsOptions, resolve_nats_options
from aghbus.daemon.state.catalog import Catalog, CatalogError, CatalogSource, catalog_source
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.keys import FormerKey
from aghbus.daemon.tasks.catalog_watcher import CatalogWatcher
from aghbus.daemon.tasks.retention import Retention
from aghbus.daemon.tasks.retirement import Retirement
from aghbus.daemon.wiring import DaemonParts
from aghbus.host.locations import Locations
from aghbus.host.tracing import Tracing, TracingUnavailable, tracing_of
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.nats.names import inbox, own_subjects
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from aghbus.store.audit import events as audit
from aghbus.store.engine.database import Store
from aghbus.store.tables import peers

if TYPE_CHECKING:
    from aghbus.daemon.broker.embedded import EmbeddedBroker
    from aghbus.daemon.health.server import HealthServer

_log = logging.getLogger("aghbus.node")

_ATTACH_WAIT: Final = 10.0  # seconds to wait for stream and consumers after link-up, before the greet goes out anyway

Reload = Callable[[], Settings]


class Node:
    """A daemon with an open store. `start`, then wait for `stopped`, then `stop`."""

    def __init__(
        self,
        settings: Settings,
        locations: Locations,
        store: Store,
        broker: "EmbeddedBroker | None",
        *,
        last_seq: int,
        secret: bytes,
        signer: EnvelopeSigner | None = None,
        former: Iterable[FormerKey] = (),
        restored: Restored | None = None,
    ) -> None:
        """`last_seq` is the store's last sequence; `secret` is what copies of the store share.

        `signer` is that of our key, None without a key; `former` are our earlier ids that have not retired. `restored` is the
        epoch of the store, if it was restored.
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
        self._service = ServiceManager(os.environ)
        self._tasks: list[asyncio.Task[None]] = []
        self._api: ApiServer | None = None
        self._console: Console | None = None
        self._health: HealthServer | None = None
        self._joined = False
        self._former: dict[str, list[Subscription]] = {}
        self._tracing = self._open_tracing()
        context = DaemonContext(self.settings, self.identity)
        self._parts = parts = DaemonParts(
            context,
            store,
            self.link,
            embedded=broker is not None,
            last_seq=last_seq,
            secret=secret,
            restored=restored,
            tracing=self._tracing,
        )
        self._retirement = Retirement(context, store, self._retired)
        self._retention = Retention(context, store, parts.clock_changes, parts.trust, parts.lanes)
        self._catalog = CatalogWatcher(self._catalog_source(), self._new_catalog, self._bad_catalog)

    # start

    async def start(self) -> None:
        """Bring everything up; the broker may come later. Raises CatalogError, ListenError."""
        self._parts.own_card.catalog = self._catalog.load()
        await self._begin_audit()
        await self._retirement.check()
        self._parts.presence.load(await peers.load(self._store.reader))
        await self._parts.clock_changes.resume()
        await self._parts.deadlines.resume()
        settings = self.settings.current
        if settings.health.listen is not None:
            self._health = _health_server(settings.health.listen, self._parts)
            await self._health.start()
        self._api = ApiServer(
            self._parts.operations,
            socket_path=Path(self.locations.socket_path),
            private_folder=self.locations.socket_dir_private,
            socket_group=None if settings.api.socket_group is None else group_id(settings.api.socket_group),
            tcp=split_address(settings.api.tcp) if settings.api.tcp else None,
            token=_api_token(settings, self.locations),
            mounted=self._parts.mounted,
        )
        await self._api.start()
        self._console = Console(self._api, self.locations)
        await self._console.restore()
        self._parts.console.opener = self._console.open
        self._parts.ack_inboxes.open(self._parts.ack_receiver.receive)
        self._parts.service_api.listen()
        if self._parts.jetstream is not None:
            self._run("jetstream", partial(self._parts.jetstream.run, self._parts.intake.offer))
        else:
            self._subscribe()
        self._run("store", self._store.ended)
        self._run("intake", self._parts.committer.run)
        self._run("publisher", self._parts.publisher.run)
        self._run("retry", self._parts.publisher.retry)
        self._run("deadlines", self._parts.deadlines.run)
        self._run("presence of handovers", self._parts.deadlines.follow_presence)
        self._run("bridge", self._parts.bridge.follower.run)
        self._run("bridge log", self._parts.bridge.log.run)
        self._run("chains", self._parts.chains.run)
        self._run("greeting", self._parts.greeter.keep_greeting)
        self._run("catalog", self._catalog.run)
        self._run("retention", self._retention.run)
        self._run("retirement", self._retirement.run)
        self._run("clock changes", self._parts.clock_changes.run)
        self._store.refuse_on_full_disk()  # the start itself has written what it needs
        self._run("store probe", self._parts.store_probe.run)
        self.link.start()
        self._run("link", self.link.ended)
        self._run("service manager", lambda: self._service.report(self._parts.status.summary))
        if self._health is not None:
            self._run("event loop lag", self._health.measure)
            self._health.started()

    async def _begin_audit(self) -> None:
        settings = self.settings.current
        how = f"trust.mode={settings.trust.mode}, {'no key' if self.identity.signer is None else 'a key'}"
        await self._store.write(lambda tx: audit.note_start(tx, self._parts.clock.millis(), how))

    def _subscribe(self) -> None:
        """Core NATS: both subjects of each of our peer ids on every channel."""
        identity, observe = self.identity, self.settings.current.observe
        for workspace_id, channel in identity.channels:
            for subject in own_subjects(identity.self_id, workspace_id, channel, observe=observe):
                self.link.subscribe(subject, self._parts.intake.offer)
        for own_id in identity.former_on_other_subjects if not observe else ():
            subjects = [own_subjects(own_id, *channel)[1] for channel in identity.channels]
            self._former[own_id] = [self.link.subscribe(subject, self._parts.intake.offer) for subject in subjects]

    def _retired(self, peer_id: str) -> None:
        """Unsubscribe a former identity."""
        if self.identity.shares_subject(peer_id):
            return
        if self._parts.jetstream is not None:
            self._parts.jetstream.retire(peer_id)
        for subscription in self._former.pop(peer_id, []):
            self._parts.background.spawn(self._unsubscribe(subscription))

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
            exception(_log, "a task of the daemon failed", error, task=task.get_name())
            self.failed = True
            self.stopped.set()

    # stop

    async def stop(self) -> bool:
        """Drain within the configured deadline. False when that was too short to commit or publish all accepted messages.

        Without a link, committed messages stay in the outbox until the next start; the result is then True.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.settings.current.shutdown.deadline

        def left(share: float = 1.0) -> float:
            return max(0.05, (deadline - loop.time()) * share)

        self._service.stopping()
        self._parts.waiters.closed = True
        await self._parts.deadlines.decline()
        self._parts.sender.close()
        await (self._parts.jetstream or self.link).drain(left(0.3))
        clean = await self._parts.committer.drained(left(0.5))
        if self.link.state == "up":
            clean = await self._parts.publisher.drained(left(0.5)) and clean
        self._parts.notifier.close()
        self._parts.waiters.wake_all()
        if self._console is not None:
            self._console.stop()
        if self._api is not None:
            await self._api.stop(left(0.5))
        if self._health is not None:
            await self._health.stop()
        self._parts.greeter.close()
        self._parts.greeter.leave()
        self._parts.write_behind.close()
        await self._parts.background.close(left(0.3))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._parts.signatures.close()
        await self.link.close(left(0.3))
        await self._store.close()
        if self._tracing is not None:
            await asyncio.to_thread(self._tracing.close)
        if self.broker is not None:
            await self.broker.leave()
        return clean

    def _open_tracing(self) -> Tracing | None:
        try:
            return tracing_of(os.environ, "aghd", self.identity.self_id)
        except TracingUnavailable as error:
            event(_log, logging.WARNING, "no traces are exported", cause=str(error))
            return None

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

    def _link_up(self, _link: Link) -> None:
        self._parts.presence.hears_since(self._parts.clock.monotonic())
        self._parts.publisher.link_up()
        self._parts.chains.link_up()
        self._parts.background.spawn(self._announce())

    async def _announce(self) -> None:
        """Greet as soon as answers can be received; the first time, query all peers too."""
        if self._parts.jetstream is not None:
            await self._parts.jetstream.wait_attached(_ATTACH_WAIT)
        first, self._joined = not self._joined, True
        await (self._parts.greeter.join() if first else self._parts.greeter.greet(joined=True))

    def _link_down(self, _link: Link, _reason: str) -> None:
        self._parts.presence.hears_since(float("inf"))
        self._parts.denied.link_down()
        if self._parts.jetstream is not None:
            self._parts.jetstream.link_down()
        if not self._parts.sender.closed:
            self._parts.counters.add("link.lost")

    def _link_event(self, event: LinkEvent) -> None:
        self._parts.counters.add(f"link.{type(event).__name__}")
        if isinstance(event, PermissionDenied):
            self._parts.denied.note(event.detail, self._parts.clock.monotonic())
        fields = {name: getattr(event, name) for name in event.__struct_fields__}
        self._parts.log_limiter.event(logging.WARNING, f"link.{type(event).__name__}", event.sentence, **fields)

    # catalog, reload

    def _catalog_source(self) -> CatalogSource:
        return catalog_source(self.settings.current, self.locations)

    def _new_catalog(self, catalog: Catalog) -> None:
        self._parts.own_card.catalog = catalog
        self._parts.own_card.problems = ()
        self._parts.counters.add("catalog.reloaded")
        self._parts.counters.solved("catalog")
        event(_log, logging.INFO, "catalog reloaded", records=len(catalog.records))
        self._parts.greeter.announce()

    def _bad_catalog(self, error: CatalogError) -> None:
        self._parts.own_card.problems = tuple(map(str, error.problems))
        sentence = f"the changed capability catalog is not used: {self._parts.own_card.problems[0]}"
        self._parts.counters.problem("catalog", sentence, self._parts.clock.monotonic())
        problems = error.problems
        event(_log, logging.ERROR, "the changed catalog is not used", problems=len(problems), first=problems[0])

    def log_stacks(self) -> None:
        """Write where each task and thread is, and the sizes of the queues, to the log (SIGUSR1)."""
        found = self._parts.diagnostics.stacks_now()
        for what, stacks in (("task", found.tasks), ("thread", found.threads)):
            for stack in stacks:
                event(
                    _log,
                    logging.WARNING,
                    f"stack of a {what}",
                    name=stack.name,
                    frames=" < ".join(reversed(stack.frames)),
                )
        event(_log, logging.WARNING, "queues", **found.queues)

    def reload(self, read: Reload) -> None:
        """Activate the reloadable keys of a new configuration (SIGHUP); a bad configuration changes nothing."""
        try:
            new = read()
        except Exception as error:
            event(_log, logging.ERROR, "the configuration is not reloaded", cause=error)
            return
        changes = self.settings.reload(new)
        if changes.restart:
            event(_log, logging.WARNING, "keys that need a restart were not changed", keys=",".join(changes.restart))
        if changes.now:
            now_ms, names = self._parts.clock.millis(), ",".join(changes.now)
            self._store.write_deferred(lambda tx: audit.note_policy(tx, now_ms, "settings_changed", names))
        set_level(self.settings.current.log.level)
        try:
            self._parts.bridge.formats.reload(self.settings.current)
        except FormatFileError as error:
            event(_log, logging.ERROR, "the bridge's files are not reloaded", cause=error)
        self._reload_token()
        self._catalog.follow(self._catalog_source())
        event(_log, logging.INFO, "configuration reloaded", changed=",".join(changes.now))

    def _reload_token(self) -> None:
        try:
            if self._api is not None:
                self._api.change_token(_api_token(self.settings.current, self.locations))
        except ListenError as error:
            event(_log, logging.ERROR, "the token of the API is not reloaded", cause=error)


def _health_server(address: str, parts: DaemonParts) -> "HealthServer":
    """The listener of probes and metrics. Its library takes 85 ms to load: only when it is configured."""
    from aghbus.daemon.health.server import HealthServer

    return HealthServer(parts.status, parts.publisher.delivery_times.seconds, split_address(address), parts.log_limiter)


def _api_token(settings: Settings, locations: Locations) -> str | None:
    """The bearer token of the TCP listener: from the configured file, or from our own, made at the first start (0600)."""
    if settings.api.tcp is None:
        return None
    return read_token(Path(locations.api_token_file), os.environ, make=settings.api.token_file is None)
