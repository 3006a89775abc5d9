"""One `aghd` process: opening the store, signals, the banner for the terminal, and the exit code."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from aghbus.daemon.base import clock
from aghbus.daemon.base.failpoints import arm
from aghbus.daemon.base.logs import event
from aghbus.daemon.broker.directory import BrokerError
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.nats.options import resolve_nats_options
from aghbus.daemon.node import Node, Reload
from aghbus.daemon.state.keys import load_former, load_signer
from aghbus.host.locations import Locations
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from aghbus.store.audit import events as audit
from aghbus.store.engine import meta
from aghbus.store.engine.backup import epoch
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import envelopes, identities

if TYPE_CHECKING:
    from aghbus.daemon.broker.embedded import EmbeddedBroker

_log = logging.getLogger("aghbus.node")

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


async def run_daemon(
    settings: Settings, locations: Locations, *, banner: TextIO | None, reload: Reload | None = None
) -> int:
    """Run until SIGTERM or SIGINT, and drain; the exit code of the process: 1 when a part of it failed.

    Raises KeyFileError, NatsOptionsError, BrokerError, StoreError, CatalogError or ListenError when it cannot start; each
    has a hint.
    """
    arm(os.environ)
    clock.arm(os.environ)
    signer = load_signer(settings, locations, os.environ)
    broker = _embedded(settings, locations)
    store = await Store.open(Path(locations.store_path), synchronous=settings.store.synchronous, name=settings.name)
    try:
        node = await _node(settings, locations, store, broker, signer)
        try:
            await node.start()
            await _serve(node, banner, reload)
        finally:
            clean = await node.stop()
    finally:
        await store.close()  # if the node has not: the store's threads would keep the process alive
    if not clean:
        _log.warning("some messages were not published before the deadline; they are published after the next start")
    return 1 if node.failed else 0


async def _node(
    settings: Settings,
    locations: Locations,
    store: Store,
    broker: "EmbeddedBroker | None",
    signer: EnvelopeSigner | None,
) -> Node:
    """The node with its state of earlier runs from the store."""
    last_seq = await envelopes.last_seq(store.reader)
    secret = await store.write(_secret)
    self_id = settings.peer_id if signer is None else signer.handle
    earlier = await store.write(lambda tx: _begin_identity(tx, self_id))
    former = [load_former(peer_id, settings, locations, os.environ) for peer_id in earlier]
    return Node(
        settings,
        locations,
        store,
        broker,
        last_seq=last_seq,
        secret=secret,
        signer=signer,
        former=former,
        restored=await _restored(store),
    )


async def _restored(store: Store) -> Restored | None:
    """The epoch of the store; logged while it matters, if the store was restored."""
    found = await store.write(lambda tx: epoch.read(tx.db))
    if found is not None and not found.is_new and found.matters(clock.Clock().millis()):
        fields = {"epoch": found.epoch, "backup": epoch.spell(found.backup_ms), "at": epoch.spell(found.restored_ms)}
        event(_log, logging.WARNING, "the store was restored", **fields)
    return found


def _embedded(settings: Settings, locations: Locations) -> "EmbeddedBroker | None":
    """The shared broker, unless a server is named; names and credentials of named servers are checked here."""
    if settings.nats.servers or settings.nats.context is not None:
        resolve_nats_options(settings.nats, os.environ)
        return None
    if settings.broker.embedded == "never":
        raise BrokerError("start", "no NATS server is named and broker.embedded is never", "name a server with --nats")
    from aghbus.daemon.broker.embedded import EmbeddedBroker  # 0.2 MB

    binary = Path(settings.broker.binary) if settings.broker.binary else None
    return EmbeddedBroker(Path(locations.broker_dir), binary=binary)


async def _serve(node: Node, banner: TextIO | None, reload: Reload | None) -> None:
    """Wait for a signal, or until a task has failed."""
    loop = asyncio.get_running_loop()
    for number in _STOP_SIGNALS:
        loop.add_signal_handler(number, node.stopped.set)
    loop.add_signal_handler(signal.SIGUSR1, node.log_stacks)
    if reload is not None:
        loop.add_signal_handler(signal.SIGHUP, node.reload, reload)
    showing = asyncio.create_task(_show_banner(node, banner)) if banner is not None else None
    try:
        await node.stopped.wait()
    finally:
        if showing is not None:
            showing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await showing
        for number in _STOP_SIGNALS:
            loop.remove_signal_handler(number)  # a second signal ends the process immediately


async def _show_banner(node: Node, banner: TextIO) -> None:
    """Tell the person at the terminal that the daemon runs, and which commands to try next."""
    up = await node.link.wait_up(10.0)
    try:
        banner.write(_banner(node, up=up))
        banner.flush()
    except (OSError, ValueError):  # the pipe is closed, or the disk is full
        with contextlib.suppress(OSError, ValueError):
            banner.close()  # the interpreter would flush it again at exit, and fail


def _banner(node: Node, *, up: bool) -> str:
    name, self_id = node.settings.current.name, node.identity.self_id
    embedded, admit = bool(node.broker), node.settings.current.trust.admit
    server = node.link.server
    where = f"{'embedded broker' if embedded else 'NATS'} at {server.url}" if up and server else "no broker yet"
    ctl = _command("aghctl")
    waits = f"  {ctl} --name {name} requests        list the peers that wait until you admit them\n"
    other = ("ops", "") if self_id == "patch-worker" else ("patch-worker", " --capability test.run")
    return (
        f"aghd {name}: peer {self_id} in {node.identity.workspace}, channels {', '.join(node.settings.current.channels)}; {where}\n"
        f"  {ctl} --name {name} status          show the daemon's status\n"
        f"  {ctl} --name {name} whois           list the peers\n"
        f"  {ctl} --name {name} inbox follow    follow incoming messages\n"
        f"{'' if embedded or admit == 'all' else waits}"
        f"another peer, in another terminal{'' if embedded else ', with the same NATS options'}:\n"
        f"  {_command('aghd')} run --name {other[0]}{other[1]}\n"
        f"Ctrl-C stops this one.\n"
    )


def _secret(tx: Transaction) -> bytes:
    """What the store and its copies share: a random number from the first start on, when the first epoch begins."""
    value = meta.get(tx.db, "secret")
    if value is None:
        value = secrets.randbits(62)
        meta.put(tx.db, "secret", value)
        now_ms = clock.Clock().millis()
        epoch.begin_empty(tx.db, now_ms)
        audit.note_policy(tx, now_ms, "created")  # the first entries of the ledger have a time
    return value.to_bytes(8)


def _begin_identity(tx: Transaction, self_id: str) -> list[str]:
    """Record `self_id` as our present peer id; returns the earlier ids that have not retired."""
    identities.begin(tx, self_id, clock.Clock().millis())
    tx.flush()
    return [one.peer_id for one in identities.former(tx.db, self_id)]


def _command(name: str) -> str:
    """One of our commands as a person types it: with its path, if it is not on the search path."""
    if any(os.access(Path(folder, name), os.X_OK) for folder in os.get_exec_path()):
        return name
    beside = Path(sys.executable).with_name(name)
    here = Path.cwd()
    return str(beside.relative_to(here)) if beside.is_relative_to(here) else str(beside)
