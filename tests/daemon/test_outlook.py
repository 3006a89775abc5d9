"""What wakes the task that tries again: only what is due before it looks by itself."""

import asyncio

from aghbus.daemon.send.retry_timer import Outlook


def rung(outlook: Outlook) -> bool | None:
    """What its waiter is told; None when it goes on waiting."""
    waiting = outlook.rung()
    try:
        waiting.send(None)
    except StopIteration as end:
        return bool(end.value)
    waiting.close()
    return None


async def test_what_is_due_later_than_the_next_look_wakes_nobody() -> None:
    outlook = Outlook()
    outlook.looks_at(1_000)
    outlook.due_at(1_000)
    outlook.due_at(5_000)
    assert rung(outlook) is None
    outlook.due_at(999)
    assert rung(outlook) is False  # to look then, not now
    assert outlook.next_look == 999
    assert rung(outlook) is None


async def test_when_nothing_waits_whatever_is_due_is_the_next_look() -> None:
    outlook = Outlook()
    outlook.due_at(10**15)
    assert rung(outlook) is False
    outlook.clear()
    outlook.due_at(10**15)  # the same look will find it
    assert rung(outlook) is None
    outlook.looks_at(None)
    outlook.due_at(10**15)
    assert rung(outlook) is False
    assert outlook.next_look == 10**15


async def test_a_ring_is_kept_until_a_look_begins() -> None:
    outlook = Outlook()
    outlook.ring()
    async with asyncio.timeout(5):
        assert await outlook.rung()
    outlook.clear()
    assert rung(outlook) is None


async def test_a_ring_is_not_lost_to_something_that_is_due_later() -> None:
    outlook = Outlook()
    outlook.due_at(5)
    outlook.ring()
    outlook.due_at(4)
    assert rung(outlook) is True


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
