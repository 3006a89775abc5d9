"""Waiting with a bound."""

import asyncio


async def wait_set(event: asyncio.Event, timeout: float) -> bool:
    """Wait until `event` is set; False when `timeout` seconds have passed before."""
    try:
        async with asyncio.timeout(timeout):
            return await event.wait()
    except TimeoutError:
        return False
