"""The daemon's clock and its source of ids: the only place where time and randomness come from.

For tests, `AGHD_CLOCK_OFFSET_FILE` names a file with the seconds by which this daemon's wall clock is wrong; it is read each
time. Unset, it costs one comparison.
"""

import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aghbus.host.boot import boot_id
from aghbus.protocol.agh.identifiers import uuid7_hex

VARIABLE: Final = "AGHD_CLOCK_OFFSET_FILE"
# Runs while the machine sleeps, and is never set. Without it, a sleep looks like a step of the wall clock.
_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

_offset_file: Path | None = None


def arm(environment: Mapping[str, str]) -> None:
    """Read the variable, for all clocks of this process."""
    global _offset_file
    _offset_file = Path(environment[VARIABLE]) if environment.get(VARIABLE) else None


def expiry(now_ms: int, life: float) -> int:
    """`expires_at` for a lifetime of `life` seconds from `now_ms`, rounded up to a whole Unix second."""
    return -((-now_ms - int(1000 * life)) // 1000)


class Clock:
    """Wall time for the protocol, monotonic time for waiting."""

    def seconds(self) -> int:
        """Unix seconds: `ts` and freshness."""
        return self.millis() // 1000

    def millis(self) -> int:
        """Unix milliseconds: times in the store and the API."""
        now = time.time_ns() // 1_000_000
        return now if _offset_file is None else now + _wrong_by(_offset_file)

    def steady_millis(self) -> int:
        """Milliseconds of a clock that is never set, and that runs while the machine sleeps where the system has one."""
        return time.clock_gettime_ns(_STEADY) // 1_000_000

    def boot(self) -> str:
        """Identifies the boot since which `steady_millis` counts; "" where the system does not tell."""
        return boot_id()

    def offset_millis(self) -> int:
        """Wall time minus `steady_millis`: changes when the wall clock is set, by the same amount."""
        return self.millis() - self.steady_millis()

    monotonic = staticmethod(time.monotonic)
    """Seconds that never step back: deadlines, budgets, round trips."""

    def fraction(self) -> float:
        """A random number from 0 up to 1: jitter."""
        return random.random()  # noqa: S311 - spreads load, protects nothing

    def mint(self, prefix: str = "msg_", now_ms: int | None = None) -> str:
        """A new sortable id of the time `now_ms` (None: now): prefix and UUIDv7 hex (specification, section 1)."""
        return prefix + uuid7_hex(self.millis() if now_ms is None else now_ms, os.urandom(10))


def _wrong_by(path: Path) -> int:
    try:
        return int(1000 * float(path.read_text()))
    except (OSError, ValueError):  # not there, or being written
        return 0
