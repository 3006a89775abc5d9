"""The lag of the event loop."""

import asyncio
from typing import Final

from aghbus.protocol.base.histogram import Histogram

EVERY: Final = 0.25
"""Seconds between two measurements."""


async def measure(lag: Histogram) -> None:
    """Observe how late timers run, until cancelled. Everything that the daemon does waits as long."""
    clock = asyncio.get_running_loop().time
    while True:
        due = clock() + EVERY
        await asyncio.sleep(EVERY)
        lag.observe(max(0.0, clock() - due))
