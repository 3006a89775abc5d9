"""The daemon's clock and its source of ids: the only place where time and randomness come from."""

import os
import random
import time

from aghbus.protocol.identifiers import uuid7_hex


class Clock:
    """Wall time for the protocol, monotonic time for waiting."""

    def seconds(self) -> int:
        """Unix seconds: `ts` and freshness."""
        return int(time.time())

    def millis(self) -> int:
        """Unix milliseconds: what the store and the API show."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds that never step back: deadlines, budgets, round trips."""
        return time.monotonic()

    def fraction(self) -> float:
        """A random number from 0 up to 1: jitter."""
        return random.random()  # noqa: S311 - spreads load, protects nothing

    def mint(self, prefix: str = "msg_") -> str:
        """A new sortable id: prefix and UUIDv7 hex (spec section 1)."""
        return prefix + uuid7_hex(self.millis(), os.urandom(10))
