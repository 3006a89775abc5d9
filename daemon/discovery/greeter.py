"""Announcing this daemon: regularly, after joining, and to peers that do not know it yet (specification, section 7)."""

import asyncio
import contextlib
from typing import Any, Final

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.discovery.publisher import DiscoveryPublisher
from aghbus.daemon.nats.link import Link
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.own_card import OwnCard
from aghbus.daemon.state.own_load import OwnLoad
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.handover import LEAVING_KEY
from aghbus.protocol.agh.limits import GREET_INTERVAL
from aghbus.store.errors import StoreUnavailable

JOINED_KEY: Final = (
    "aghbus.joined"  # in the ext of a greet after joining or returning: pending messages may be sent now
)
_JITTER: Final = 0.2  # of the greeting interval, downwards only (spec section 7)
_REGREET: Final = 5.0  # seconds between two greets that answer a conflict
_REGREET_DELAY: Final = (
    1.0  # seconds before it: the other daemon ignores what is as old as itself (state/own_instance.py)
)

GREET_BACK_EVERY: Final = 5.0
"""Seconds between two greets for peers that appear on one channel. Each is for all of them, so their number costs nothing."""
_GREET_BACK_JITTER: Final = 1.0  # seconds, so that the daemons of a channel do not greet together

EARLY: Final = 0.75
"""Of the interval of a peer's greets: one that comes before that is the first after a restart."""
MAX_GREETING: Final = 1_000  # peers of other implementations whose greets are timed

Place = tuple[str, str]  # workspace, channel


class Greeter:
    """Greets on all channels of one daemon."""

    def __init__(
        self,
        context: DaemonContext,
        link: Link,
        background: BackgroundTasks,
        own_card: OwnCard,
        publisher: DiscoveryPublisher,
        load: OwnLoad,
        restored: Restored | None,
    ) -> None:
        """`restored` is the epoch of the store."""
        self._settings = context.settings
        self._identity = context.identity
        self._clock = context.clock
        self._link = link
        self._background = background
        self._own_card = own_card
        self._publisher = publisher
        self._load = load
        self._restored = restored
        self._closed = False
        self._regreeted = float("-inf")
        self._waiting: dict[Place, asyncio.TimerHandle] = {}  # greets for peers that appeared
        self._last: dict[Place, float] = {}  # of these, the monotonic second
        # By workspace, channel and peer: the monotonic second of its last greet, and the seconds before that and before the last.
        self._heard: dict[tuple[str, str, str], tuple[float, float, float]] = {}

    async def greet(self, *, joined: bool = False) -> None:
        """Announce ourselves on every channel; nothing when the link is down (the next link-up greets)."""
        with contextlib.suppress(StoreUnavailable):
            await self._load.refresh()
        if self._closed:  # it has said that it leaves
            return
        for workspace_id, channel in self._identity.channels:
            self._greet_on(workspace_id, channel, joined=joined)

    def announce(self) -> None:
        """Greet now, without waiting for it: our catalog has changed."""
        if self._link.state == "up":
            self._background.spawn(self.greet())

    def leave(self) -> None:
        """Say on every channel that this daemon stops."""
        if self._link.state == "up":
            for workspace_id, channel in self._identity.channels:
                self._greet_on(workspace_id, channel, leaving=True)

    def greet_soon(self) -> None:
        """Greet on every channel soon: what the greets say has changed."""
        for workspace_id, channel in self._identity.channels:
            self.peer_appeared(workspace_id, channel)

    def _greet_on(self, workspace_id: str, channel: str, *, joined: bool = False, leaving: bool = False) -> None:
        body: dict[str, Any] = {"peer_card": self._own_card.card().to_wire()}
        if (summary := self._settings.current.summary) is not None:
            body["summary"] = summary
        ext: dict[str, Any] = {JOINED_KEY: True} if joined else {LEAVING_KEY: True} if leaving else {}
        ext |= self._load.extension
        if self._restored is not None and self._restored.matters(self._clock.millis()):
            ext |= self._restored.extension()
        self._publisher.send(self._publisher.draft("greet", workspace_id, channel, body, ext=ext))

    async def keep_greeting(self) -> None:
        """Greet at the configured interval, with jitter downwards, until cancelled."""
        while True:
            interval = self._settings.current.discovery.interval
            await asyncio.sleep(interval * (1 - _JITTER * self._clock.fraction()))
            if self._link.state == "up":
                await self.greet()

    async def join(self) -> None:
        """Greet, and ask all peers, so that presence is complete without waiting for their next greets."""
        await self.greet(joined=True)
        for workspace_id, channel in self._identity.channels:
            self._publisher.send(
                self._publisher.draft("whois", workspace_id, channel, {"type": "request", "query": ""})
            )

    def answer_conflict(self) -> None:
        """Greet the other daemon with our peer id, so that it reports the conflict too."""
        if self._clock.monotonic() - self._regreeted > _REGREET:
            self._regreeted = self._clock.monotonic()
            self._background.spawn(self._answer_conflict())

    async def _answer_conflict(self) -> None:
        await asyncio.sleep(_REGREET_DELAY)
        await self.greet()

    def is_restart(self, greet: Envelope) -> bool:
        """Note a greet. Whether it comes well before the interval of its peer, the longer one of its last two."""
        key, now = (greet.workspace_id, greet.channel, greet.sender), self._clock.monotonic()
        if len(self._heard) >= MAX_GREETING and key not in self._heard:
            del self._heard[next(iter(self._heard))]
        at, last, before = self._heard.pop(key, (float("-inf"), GREET_INTERVAL, GREET_INTERVAL))
        passed = min(now - at, GREET_INTERVAL)  # a longer time says nothing: it may have been away
        self._heard[key] = now, passed, last
        return passed < EARLY * max(last, before)

    def peer_appeared(self, workspace_id: str, channel: str) -> None:
        """A peer that does not ask for us has started to greet on this channel: greet soon, rather than at the next interval."""
        place = workspace_id, channel
        if place in self._waiting or self._closed:
            return
        wait = self._last.get(place, float("-inf")) + GREET_BACK_EVERY - self._clock.monotonic()
        delay = max(wait, 0.0) + _GREET_BACK_JITTER * self._clock.fraction()
        self._waiting[place] = asyncio.get_running_loop().call_later(delay, self._greet_back, place)

    def _greet_back(self, place: Place) -> None:
        del self._waiting[place]
        self._last[place] = self._clock.monotonic()
        self._greet_on(*place)

    def close(self) -> None:
        """Greet no more peers that appeared."""
        self._closed = True
        for timer in self._waiting.values():
            timer.cancel()
