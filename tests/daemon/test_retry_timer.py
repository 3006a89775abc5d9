"""The retry timer wakes its task only for retries that are due before its next check."""

import asyncio

from aghbus.daemon.send.retry_timer import RetryTimer


def wait(timer: RetryTimer) -> bool | None:
    """The result of a wait; None when it does not end."""
    waiting = timer.wait()
    try:
        waiting.send(None)
    except StopIteration as end:
        return bool(end.value)
    waiting.close()
    return None


async def test_a_retry_due_after_the_next_check_does_not_wake_the_task() -> None:
    timer = RetryTimer()
    timer.check_at(1_000)
    timer.due_at(1_000)
    timer.due_at(5_000)
    assert wait(timer) is None
    timer.due_at(999)
    assert wait(timer) is False  # to check then, not now
    assert timer.next_check == 999
    assert wait(timer) is None


async def test_without_a_next_check_any_due_time_becomes_it() -> None:
    timer = RetryTimer()
    timer.due_at(10**15)
    assert wait(timer) is False
    timer.clear()
    timer.due_at(10**15)  # the same check will find it
    assert wait(timer) is None
    timer.check_at(None)
    timer.due_at(10**15)
    assert wait(timer) is False
    assert timer.next_check == 10**15


async def test_a_trigger_is_kept_until_a_check_begins() -> None:
    timer = RetryTimer()
    timer.trigger()
    async with asyncio.timeout(5):
        assert await timer.wait()
    timer.clear()
    assert wait(timer) is None


async def test_a_trigger_is_not_lost_to_a_later_due_time() -> None:
    timer = RetryTimer()
    timer.due_at(5)
    timer.trigger()
    timer.due_at(4)
    assert wait(timer) is True


def test_a_message_may_have_expired_from_the_earliest_expiry_on() -> None:
    timer = RetryTimer()
    assert timer.may_have_expired(0)  # the store was not asked yet
    timer.expired_from(None)
    assert not timer.may_have_expired(10**12)
    timer.track(200)
    timer.track(300)
    assert not timer.may_have_expired(199)
    assert timer.may_have_expired(200)
    timer.expired_from(300)
    assert not timer.may_have_expired(299)
