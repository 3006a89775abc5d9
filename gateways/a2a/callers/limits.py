"""How much of a gateway one caller may take, so that the others have theirs."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aghbus.protocol.formats.a2a.ids import Principal

MINUTE: Final = 60.0
REMEMBERED: Final = 10_000
"""Callers whose rate is known before those are looked for that have been quiet."""


class TooMany(Exception):
    """A caller has all that it may have at a time; `again` is when to try again, in whole seconds."""

    def __init__(self, rule: str, again: float) -> None:
        super().__init__(rule)
        self.again = max(1, math.ceil(again))


class Limits:
    """Counts requests and new tasks of each caller. Two ways of authentication that give the same caller share."""

    def __init__(self, requests: int, tasks: int, refused: Callable[[Principal, str], None]) -> None:
        """At most `requests` at a time, streams included, and `tasks` a minute. `refused` gets the caller, and which of both."""
        self._requests = requests
        self._tasks = tasks
        self._refused = refused
        self._running = Counter[Principal]()
        self._free_at = dict[Principal, float]()  # when all tasks of a minute can be opened again

    @contextmanager
    def request(self, caller: Principal) -> Iterator[None]:
        """Count a request as long as the context lasts. Raises TooMany."""
        if self._running[caller] >= self._requests:
            self._refused(caller, "requests")
            raise TooMany(f"more than {self._requests} requests and streams at a time", 1)
        self._running[caller] += 1
        try:
            yield
        finally:
            self._running[caller] -= 1
            if not self._running[caller]:
                del self._running[caller]

    def open_task(self, caller: Principal) -> None:
        """Count a message that opens a task, or repeats one that did. Raises TooMany."""
        now = time.monotonic()
        if len(self._free_at) >= REMEMBERED:
            self._free_at = {each: until for each, until in self._free_at.items() if until > now}
        free_at = max(self._free_at.get(caller, now), now) + MINUTE / self._tasks
        if free_at > now + MINUTE:
            self._refused(caller, "tasks")
            raise TooMany(f"more than {self._tasks} new tasks a minute", free_at - now - MINUTE)
        self._free_at[caller] = free_at
