"""The parts of a daemon over a real store, without running tasks."""

from collections.abc import Iterable
from typing import Any

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.config.trust_settings import TrustSettings
from aghbus.daemon.nats.link import Link
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.keys import FormerKey
from aghbus.daemon.wiring import DaemonParts, Replacements
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from aghbus.store.engine.database import Store
from tests.support.links import no_broker


def daemon_context(
    settings: Settings,
    clock: Clock | None = None,
    signer: EnvelopeSigner | None = None,
    former: Iterable[FormerKey] = (),
) -> DaemonContext:
    return DaemonContext(LiveSettings(settings), Identity(settings, signer, former), clock or Clock())


def daemon_parts(
    context: DaemonContext, store: Store, link: Link | None = None, replaced: Replacements | None = None
) -> DaemonParts:
    """Without a `link` there is no broker."""
    link = link or Link(no_broker, name="test")
    return DaemonParts(context, store, link, replaced=replaced or Replacements())


def parts_of(store: Store, clock: Clock | None = None, **trust: Any) -> DaemonParts:
    """Those of the peer `ops` with these settings of [trust]."""
    settings = Settings(
        name="ops", peer_id="ops", workspace="local", channels=("default",), trust=TrustSettings(**trust)
    )
    return daemon_parts(daemon_context(settings, clock), store)
