"""Greeting peers of other implementations when they first greet, so that they know us before our next periodic greet."""

import asyncio
from collections.abc import Callable
from typing import Final

from aghbus.daemon.base.clock import Clock

GREET_BACK_EVERY: Final = 5.0
"""Seconds between two of these greets on one channel. Each is for all peers that appeared, so their number costs nothing."""

_JITTER: Final = 1.0  # seconds, so that the daemons of a channel do not greet together

Place = tuple[str, str]  # workspace, channel


class GreetBack:
    """At most one greet waits on each channel."""

    def __init__(self, greet: Callable[[str, str], None], clock: Clock) -> None:
        """`greet` announces us on a workspace's channel."""
        self._greet = greet
        self._clock = clock
        self._waiting: dict[Place, asyncio.TimerHandle] = {}
        self._last: dict[Place, float] = {}

    def peer_appeared(self, workspace_id: str, channel: str) -> None:
        """A peer that does not ask for us appeared on this channel: greet soon."""
        place = workspace_id, channel
        if place in self._waiting:
            return
        wait = self._last.get(place, float("-inf")) + GREET_BACK_EVERY - self._clock.monotonic()
        delay = max(wait, 0.0) + _JITTER * self._clock.fraction()
        self._waiting[place] = asyncio.get_running_loop().call_later(delay, self._due, place)

    def close(self) -> None:
        """Send no more greets."""
        for timer in self._waiting.values():
            timer.cancel()

    def _due(self, place: Place) -> None:
        del self._waiting[place]
        self._last[place] = self._clock.monotonic()
        self._greet(*place)
