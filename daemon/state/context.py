"""What the parts of a running daemon share: who it is, its settings, its clock, and the rooms it works in."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Announcer
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.permission_errors import Denied
from aghbus.daemon.state.catalog import Catalog
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identities import Identities
from aghbus.daemon.state.inbox_waiters import Consumers
from aghbus.daemon.state.keys import FormerKey
from aghbus.daemon.state.presence import Roster
from aghbus.daemon.state.rate_limits import Flood
from aghbus.daemon.state.signature_pool import Verification
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.bodies import PeerCard
from aghbus.protocol.discovery import build_card
from aghbus.protocol.receive import Receiver
from aghbus.protocol.trust.proof import EnvelopeSigner, verify_envelope
from aghbus.protocol.trust.trust import PROFILE
from aghbus.store.engine.database import Store
from aghbus.store.engine.writer import Job
from aghbus.store.errors import StoreUnavailable

_BEHIND: Final = 20_000  # jobs that wait for the store, beyond which nothing is committed behind
_NOISE_PER_MINUTE: Final = 6  # log lines a minute of one kind that a stranger can provoke


class Core:
    """One daemon's shared state. `us` is our peer id; `channels` are the `(workspace_id, channel)` joined, in order."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        link: Link,
        roster: Roster,
        seq: int,
        signer: EnvelopeSigner | None = None,
        former: Iterable[FormerKey] = (),
    ) -> None:
        """`signer` is that of a daemon with a key, which is its handle on the bus and signs all that it sends; `former` are
        the ids that it had before and that have not retired."""
        self.settings = settings
        self.clock = clock
        self.store = store
        self.link = link
        self.roster = roster
        self.counters = Counters()
        self.announcer = Announcer(seq)
        self.consumers = Consumers()
        self.catalog = Catalog()
        self.catalog_problems: tuple[str, ...] = ()
        self._card: tuple[Settings, Catalog, PeerCard] | None = None
        self.signer = signer
        self.us = settings.peer_id if signer is None else signer.handle
        self.identities = Identities(self.us, signer, former)
        self.denied = Denied(self.us)
        self.workspace = settings.workspace
        self.channels = tuple((settings.workspace, channel) for channel in settings.channels)
        self.joined = frozenset(self.channels)
        self.draining = False
        self.ttl_headers: Callable[[int], Mapping[str, str] | None] = lambda _seconds: None
        """Headers by which a stream, where there is one, drops a message after so many seconds."""
        self.log = logging.getLogger("aghbus.node")
        self.noise = EventLimiter(self.log, _NOISE_PER_MINUTE)
        self.steps = ClockSteps(self)
        self.verification = Verification(verify_envelope)
        self.flood = Flood(settings.limits, clock.monotonic, self.verification.verify)
        self.trust = LivePolicy(self)

    def card(self) -> PeerCard:
        """Our Peer Card as of now; the same object as long as nothing in it changes."""
        settings, catalog = self.settings, self.catalog
        if self._card is None or self._card[0] is not settings or self._card[1] is not catalog:
            self._card = settings, catalog, self._make_card(settings, catalog)
        return self._card[2]

    def _make_card(self, settings: Settings, catalog: Catalog) -> PeerCard:
        return build_card(
            self.us,
            display_name=settings.display_name,
            capabilities=catalog.claims,
            catalog=catalog.records,
            profiles=settings.profiles if self.signer is None else tuple(dict.fromkeys((*settings.profiles, PROFILE))),
            artifacts=settings.artifacts_supported,
            trust_modes=self._trust_modes(),
        )

    def _trust_modes(self) -> tuple[str, ...]:
        """What we send and take: spec section 8, the last rule."""
        if self.signer is None:
            return ("unverified",)
        return ("verified",) if self.settings.trust.mode == "require" else ("unverified", "verified")

    def receiver(self, us: str | None = None) -> Receiver:
        """Who decides about an envelope now: under the id `us` of ours, or the present one."""
        us = self.us if us is None else us
        return Receiver(
            us=us,
            now=self.clock.seconds(),
            mint=self.clock.mint,
            channels=self.joined,
            observe=self.settings.observe,
            receipt_ttl=self.settings.defaults.directed_ttl,
            verifier=self.flood.verify,
            policy=self.trust.now,
            signer=self.identities.signer_of(us),
            successor=None if us == self.us else self.us,
        )

    def behind(self, job: Job[Any], *, at_once: bool = False) -> asyncio.Future[Any] | None:
        """Commit `job` and do not wait: for what a crash may lose, because it can be had again.

        It goes with the next group that somebody waits for; with `at_once` it begins one, since something waits for what follows.
        Its end, for who has to know of it; None when it will not run.
        """
        if self.store.backlog >= _BEHIND:
            self.counters.add("store.behind_lost")  # a disk that does not keep up must not cost us the memory
            return None
        submit = self.store.submit if at_once else self.store.submit_behind
        future = submit(job)
        future.add_done_callback(self._behind_done)
        return future

    def _behind_done(self, future: asyncio.Future[Any]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, StoreUnavailable):
            self.counters.add("store.behind_lost")  # the store's own state says why
        elif error is not None:
            self.log.error("a write behind failed", exc_info=error)

    def take_over(self, settings: Settings) -> None:
        """New settings of a running daemon; only reloadable keys may differ."""
        if settings.limits != self.settings.limits:
            self.flood.limit(settings.limits)
        self.settings = settings
        self.trust.configure()
