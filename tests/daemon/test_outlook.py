"""What wakes the task that tries again: only what is due before it looks by itself."""

import asyncio

from aghbus.daemon.outlook import Outlook


def rung(outlook: Outlook) -> bool:
    waiting = outlook.rung()
    try:
        waiting.send(None)
    except StopIteration:
        return True
    waiting.close()
    return False


async def test_what_is_due_later_than_the_next_look_wakes_nobody() -> None:
    outlook = Outlook()
    outlook.looks_at(1_000)
    outlook.due_at(1_000)
    outlook.due_at(5_000)
    assert not rung(outlook)
    outlook.due_at(999)
    assert rung(outlook)


async def test_before_the_first_look_and_when_nothing_waits_everything_wakes() -> None:
    outlook = Outlook()
    outlook.due_at(10**15)
    assert rung(outlook)
    outlook.clear()
    outlook.due_at(10**15)  # the same look will find it
    assert not rung(outlook)
    outlook.looks_at(None)
    outlook.due_at(10**15)
    assert rung(outlook)


async def test_a_ring_is_kept_until_a_look_begins() -> None:
    outlook = Outlook()
    outlook.ring()
    async with asyncio.timeout(5):
        await outlook.rung()
    outlook.clear()
    assert not rung(outlook)


def test_something_may_be_stale_from_the_first_end_of_a_life_on() -> None:
    outlook = Outlook()
    assert outlook.some_stale(0)  # nobody has looked yet
    outlook.stale_from(None)
    assert not outlook.some_stale(10**12)
    outlook.waits(200)
    outlook.waits(300)
    assert not outlook.some_stale(199)
    assert outlook.some_stale(200)
    outlook.stale_from(300)
    assert not outlook.some_stale(299)
